"""Copies of data sets in object storage on this machine.

Copies in the cache are named by their seal, so that they are made once, and never changed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from xcray.data.objectstore.remote_dataset import (
    RemoteDataset,
    has_seal,
    read_remote_dataset,
    resolve_dataset,
)
from xcray.storage.objectstore.transfer import ReportBytes, TransferStats
from xcray.storage.objectstore.versions import install_directory
from xcray.system.user_directories import cache_directory


class CopyPlan(NamedTuple):
    """A copy to make. uri: of exactly this version."""

    remote: RemoteDataset
    uri: str

    @property
    def cached(self) -> Path:
        """Its directory in the cache."""
        return cache_directory() / "datasets" / self.remote.sealed.seal

    def fetch(
        self,
        target: Path,
        stop: threading.Event | None = None,
        report: ReportBytes = lambda done, total: None,
    ) -> TransferStats | None:
        """Make the copy, unless it is there already, see `install_directory`."""
        remote = self.remote
        return install_directory(remote.version, remote.sealed, target, has_seal, stop, report)


def plan_copy(uri: str) -> CopyPlan:
    """Return how to copy the data set of a URI.

    Raises as `resolve_dataset` and `read_remote_dataset`.
    """
    remote = read_remote_dataset(resolve_dataset(uri))
    query = urlsplit(uri).query
    return CopyPlan(remote, remote.version.path.uri + (f"?{query}" if query else ""))
