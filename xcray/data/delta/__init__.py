"""Data sets that are changes of others: training rows added, removed and relabelled."""
