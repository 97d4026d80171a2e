"""Metrics, readiness, request logs and traces of the service."""
