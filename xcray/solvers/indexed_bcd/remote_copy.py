"""Copies of data sets in object storage on this machine: whole, or without the training rows.

A copy without rows has the manifest, labels, test part and the nodes of the metric forest. Solvers
read the training rows from the pages in the storage. Copies in the cache are named by their seal,
so that they are made once, and never changed.
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
    seal_directory,
)
from xcray.data.remote_rows import ROW_FILES, read_remote_uri, write_remote_rows
from xcray.errors import Corrupt, ParameterError, XcrayError
from xcray.solvers.indexed_bcd.forest_directory import DIRECTORY, NODES, PAGES
from xcray.storage.array_files import read_arrays
from xcray.storage.atomic import read_json
from xcray.storage.objectstore.transfer import ReportBytes, TransferStats
from xcray.storage.objectstore.versions import SealedDirectory, install_directory
from xcray.system.user_directories import cache_directory


class CopyPlan(NamedTuple):
    """A copy to make. uri: of exactly this version; files: to transfer, with_rows: all of them."""

    remote: RemoteDataset
    uri: str
    files: SealedDirectory
    with_rows: bool

    @property
    def cached(self) -> Path:
        """Its directory in the cache."""
        kind = "" if self.with_rows else "-without-rows"
        return cache_directory() / "datasets" / f"{self.remote.sealed.seal}{kind}"

    def fetch(
        self,
        target: Path,
        stop: threading.Event | None = None,
        report: ReportBytes = lambda done, total: None,
    ) -> TransferStats | None:
        """Make the copy, unless it is there already, see `install_directory`."""
        is_copy = has_seal if self.with_rows else _is_without_rows
        return install_directory(
            self.remote.version, self.files, target, is_copy, stop, self._finish, report
        )

    def _finish(self, staged: Path) -> None:
        """Add what stands for the training rows, if the copy has none."""
        if self.with_rows:
            return
        folder = staged / DIRECTORY
        if "first_byte" not in read_json(folder / "manifest.json"):
            raise Corrupt(
                f"the metric forest of {self.uri} was built by an earlier xcray: run "
                "`xcray data index` where the rows are, and push the data set again",
                file=DIRECTORY,
            )
        arrays = read_arrays(folder / NODES)
        write_remote_rows(staged, self.uri, arrays["lengths"][arrays["positions"]])


def plan_copy(uri: str, with_rows: bool) -> CopyPlan:
    """Return how to copy the data set of a URI.

    Raises as `resolve_dataset` and `read_remote_dataset`, and ParameterError if a copy without
    rows has no metric forest.
    """
    remote = read_remote_dataset(resolve_dataset(uri))
    files, query = remote.sealed, urlsplit(uri).query
    exact = remote.version.path.uri + (f"?{query}" if query else "")
    if not with_rows:
        if not remote.has_forest:
            raise ParameterError(
                f"{exact} has no metric forest, from which its rows could be read: run "
                "`xcray data index` where the rows are and push the data set again, or train "
                "without --memory-limit, which copies the rows"
            )
        absent = {*ROW_FILES, f"{DIRECTORY}/{PAGES}"}
        kept = {name: entry for name, entry in files.files.items() if name not in absent}
        files = files._replace(files=kept)
    return CopyPlan(remote, exact, files, with_rows)


def cached_copy_without_rows(uri: str) -> Path:
    """Return the directory of the copy in the cache, which is made if it is missing."""
    plan = plan_copy(uri, with_rows=False)
    plan.fetch(plan.cached)
    return plan.cached


def _is_without_rows(path: Path, seal: str) -> bool:
    """Whether a directory is the copy without rows of the data set with a seal."""
    try:
        return seal_directory(path).seal == seal and read_remote_uri(path) is not None
    except (XcrayError, OSError):
        return False
