"""Models in object storage: remote registry, pulling and synchronisation."""
