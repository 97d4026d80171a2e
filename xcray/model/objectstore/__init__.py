"""Models in object storage: remote registry and pulling."""
