"""Processes of the service: server, workers, sockets, locks, maintenance."""
