"""Commands that list, copy and query models."""
