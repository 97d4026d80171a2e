"""Processes of the service: server, worker processes, job supervision and maintenance."""
