"""Hyper-parameter search over a grid with warm starts."""
