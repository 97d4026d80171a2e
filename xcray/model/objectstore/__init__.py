"""Models in object storage: client, remote registry, transfer and synchronisation."""
