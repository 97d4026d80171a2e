"""Exact sparse search: the same best labels as the full product."""
