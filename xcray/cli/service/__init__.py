"""Commands that run the service and manage its store, keys and jobs."""
