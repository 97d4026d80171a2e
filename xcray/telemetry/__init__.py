"""Logging, tracing and progress of long-running work."""
