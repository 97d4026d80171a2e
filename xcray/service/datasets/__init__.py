"""Data sets over REST: uploads, builds, fetching, statistics."""
