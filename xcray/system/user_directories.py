"""Directories of the user: the home of models and data sets, and the cache of copies."""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """Return the home where none is given: `XCRAY_HOME`, else `.xcray` of the user."""
    return Path(os.environ.get("XCRAY_HOME") or Path.home() / ".xcray")


def cache_directory() -> Path:
    """Return the directory of copies that can be made again: `XCRAY_CACHE`, else in the home."""
    return Path(os.environ.get("XCRAY_CACHE") or default_home() / "cache")
