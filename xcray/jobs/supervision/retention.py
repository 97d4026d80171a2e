"""Retention: old jobs are deleted with their files, and orphaned files are swept.

One process at a time does it (see `election`). A second one would do no harm, because each step
checks before it removes, and directories of pending or running jobs are never touched.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from xcray.errors import ParameterError
from xcray.jobs.home import Home, check_id
from xcray.jobs.runner import batch_job
from xcray.jobs.states import SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.storage.run_directory import REBUILT
from xcray.system.processes import host_name

LOG: Final = logging.getLogger(__name__)
# Jobs deleted per transaction, which is also the number held in memory.
BATCH_JOBS: Final = 100
# Age at which files without a record are orphans: a record can follow its files.
ORPHAN_SECONDS: Final = 86_400.0
DAY_SECONDS: Final = 86_400.0
REPLICA_FILE: Final = re.compile(
    r"(serve|runner)-(?P<host>.+)-(?P<pid>\d+)\.json"
)  # see `xcray.service.processes.home_lock`
# Name prefixes in a run directory of what is read after the job has ended; feedback changes the
# data set that was made by the training.
KEPT_PREFIXES: Final = (
    batch_job.OUTPUT_FOLDER,
    "timeline",
    REBUILT,
)


class RetentionLimits(NamedTuple):
    """Limits on ended jobs, by number and age, and on run directories, by age."""

    jobs: int = 100_000
    jobs_days: float = 30.0
    runs_hours: float = 24.0


class RemovedItem(NamedTuple):
    """An item that was or would be removed: the reason, and its path below the home."""

    why: str
    path: str
    n_bytes: int


class Retention:
    """Keeps a home within its limits. `now` gives Unix seconds."""

    def __init__(
        self,
        store: JobStore,
        home: Home,
        limits: RetentionLimits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._home = home
        self._limits = limits
        self._now = now
        # monotonic seconds; rare, because each orphan costs a query
        self._next_orphan_sweep = -float("inf")

    def sweep(self) -> list[RemovedItem]:
        """Delete old jobs, clean published runs, and sweep orphans; return the removed items.

        Orphans are swept four times per day. Raises Unavailable if the store does not answer.
        """
        removed = self._delete_old_jobs() + [
            self._remove(each) for each in self._published_run_files()
        ]
        if time.monotonic() >= self._next_orphan_sweep:
            self._next_orphan_sweep = time.monotonic() + ORPHAN_SECONDS / 4
            removed += [self._remove(each) for each in self._orphans()]
        if removed:
            LOG.info(
                "swept %d items, %d bytes", len(removed), sum(each.n_bytes for each in removed)
            )
        return removed

    def list_removable(self) -> Iterator[RemovedItem]:
        """Yield what a sweep would remove besides old jobs, without changing anything."""
        yield from self._published_run_files()
        yield from self._orphans()

    def _delete_old_jobs(self) -> list[RemovedItem]:
        """Delete jobs that ended long ago or exceed the limit.

        Files are removed after their rows, so that no row points to missing files.
        """
        removed = []
        before = self._now() - self._limits.jobs_days * DAY_SECONDS
        while jobs := self._store.jobs.delete_ended(before, self._limits.jobs, BATCH_JOBS):
            for job in jobs:
                removed += [
                    self._remove(RemovedItem("of a deleted job", path, 0))
                    for path in self._job_files(job.id)
                ]
        return removed

    def _job_files(self, job_id: str) -> list[str]:
        """Return the existing files of a job in the home."""
        run, log = self._home.run(job_id), self._home.log(job_id)
        candidates = (run, run.parent / f"{job_id}.lock", log)
        return [str(path.relative_to(self._home.path)) for path in candidates if path.exists()]

    def _published_run_files(self) -> Iterator[RemovedItem]:
        """Yield working files of published jobs. Batch results, timelines and data sets stay."""
        limit = self._now() - self._limits.runs_hours * 3600.0
        for folder in sorted(self._home.runs.iterdir()):
            files = (
                [path for path in folder.iterdir() if not path.name.startswith(KEPT_PREFIXES)]
                if folder.is_dir()
                else []
            )
            if (
                files
                and _last_changed(folder) < limit
                and (job := self._store.jobs.find(folder.name))
                and job.status == SUCCEEDED
            ):
                yield from (self._make_item("of a published job", path) for path in sorted(files))

    def _orphans(self) -> Iterator[RemovedItem]:
        """Yield old run directories, logs and data sets without a record."""
        limit = self._now() - ORPHAN_SECONDS
        for path in [*sorted(self._home.runs.iterdir()), *sorted(self._home.logs.iterdir())]:
            name = path.name.split(".")[0]
            if (
                _last_changed(path) < limit
                and _is_id(name, "job_")
                and self._store.jobs.find(name) is None
            ):
                yield self._make_item("has no job", path)
        for path in sorted(self._home.datasets.iterdir()):
            name = path.name.lstrip(".").split(".")[0]
            staged = path.name.startswith(".")
            if (
                _last_changed(path) < limit
                and _is_id(name, "ds_")
                and (staged or self._store.datasets.find(name) is None)
            ):
                yield self._make_item(
                    "left by a build" if staged else "has no data set record", path
                )
        for path in self._process_leftovers():
            if _last_changed(path) < limit:
                yield self._make_item("left by a process that died", path)

    def _process_leftovers(self) -> Iterator[Path]:
        """Yield unpublished models, and status files of dead replicas of this host."""
        for tenant in self._home.tenants():
            yield from sorted(self._home.models_of(tenant).glob("*/versions/.*.part"))
        for path in sorted(self._home.path.glob("*-*-*.json")):
            if (
                (match := REPLICA_FILE.fullmatch(path.name))
                and match["host"] == host_name()
                and not _is_alive(int(match["pid"]))
            ):
                yield path

    def _make_item(self, why: str, path: Path) -> RemovedItem:
        """Return the item for a path."""
        return RemovedItem(why, str(path.relative_to(self._home.path)), _size_bytes(path))

    def _remove(self, item: RemovedItem) -> RemovedItem:
        """Remove an item, unless its job is active by now because a user resumed it."""
        path = self._home.path / item.path
        owner = next(
            (part.split(".")[0] for part in path.parts[::-1] if _is_id(part.split(".")[0], "job_")),
            None,
        )
        job = self._store.jobs.find(owner) if owner else None
        if job is not None and job.status not in TERMINAL:
            return item._replace(n_bytes=0)
        size = _size_bytes(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return item._replace(n_bytes=size)


def _is_alive(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_id(name: str, kind: str) -> bool:
    """Return whether a name is an id of a kind, so that foreign files are never touched."""
    with suppress(ParameterError):
        return check_id(name).startswith(kind)
    return False


def _last_changed(path: Path) -> float:
    """Return when a file, or an entry of a directory, last changed; inf if it is missing."""
    newest = -float("inf")
    with suppress(OSError):
        for each in (path, *(path.iterdir() if path.is_dir() else ())):
            newest = max(newest, each.stat().st_mtime)
        return newest
    return float("inf")


def _size_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    total = 0
    for each in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())]:
        with suppress(OSError):
            total += each.stat().st_size if each.is_file() else 0
    return total
