"""Benchmark of what text options gain."""
