"""Models of a running service: cache, loading, endpoints, synchronisation."""
