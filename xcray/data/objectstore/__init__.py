"""Data sets in object storage: push, pull, and copies in the cache of this machine."""
