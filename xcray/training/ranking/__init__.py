"""Rankers: fitted on training rows that their scores have not seen."""
