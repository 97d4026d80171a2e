"""Exact sparse search: the best labels of a query, the same as the full product would give."""
