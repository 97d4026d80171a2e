"""What a home keeps of jobs, and for how long: old ones are forgotten with their files, what nobody knows of is swept.

One process of all does it (see `leading`); a second one at the same time would do no harm, for each step looks before it removes,
and folders of jobs that wait or run are never touched.
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
from xcray.jobs.job import Job
from xcray.jobs.runner import batch_job as answering
from xcray.jobs.states import SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.system.processes import host_name

LOG: Final = logging.getLogger(__name__)
BATCH: Final = (
    100  # jobs that are forgotten in one transaction: as many as are in memory at the same time
)
ORPHAN_SECONDS: Final = 86_400.0  # files that no record names are left alone for so long: their record may be about to come
DAY: Final = 86_400.0
REPLICA: Final = re.compile(
    r"(serve|runner)-(?P<host>.+)-(?P<pid>\d+)\.json"
)  # see `xcray.service.processes.home_lock`
OUTLIVES: Final = (
    answering.OUTPUT,
    "timeline",
)  # of a run folder, by the beginning of the name: what people read after the job has ended


class Kept(NamedTuple):
    """How much is kept: ended jobs by number and age, run folders of published jobs by age."""

    jobs: int = 100_000
    jobs_days: float = 30.0
    runs_hours: float = 24.0


class Removed(NamedTuple):
    """One thing that goes, or would go: why, and where it lies below the home."""

    why: str
    path: str
    n_bytes: int


class Retention:
    """Keeps a home in bounds. `now` gives Unix seconds."""

    def __init__(
        self, store: JobStore, home: Home, kept: Kept, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._home = home
        self._kept = kept
        self._now = now
        self._thorough = -float("inf")  # monotonic seconds: each orphan is a question to the store

    def turn(self) -> list[Removed]:
        """Forget old jobs, empty published runs, and four times a day sweep orphans; what went. Raises Unavailable when the store
        does not answer."""
        gone = self._forget() + [self._remove(each) for each in self._published()]
        if time.monotonic() >= self._thorough:
            self._thorough = time.monotonic() + ORPHAN_SECONDS / 4
            gone += [self._remove(each) for each in self._orphans()]
        if gone:
            LOG.info("swept %d things, %d bytes", len(gone), sum(each.n_bytes for each in gone))
        return gone

    def superfluous(self) -> Iterator[Removed]:
        """What a turn would remove beside old jobs; looks, and changes nothing."""
        yield from self._published()
        yield from self._orphans()

    def _forget(self) -> list[Removed]:
        """Forget jobs that ended long ago, or are too many. Their files go after their rows, so that no row points nowhere."""
        gone = []
        before = self._now() - self._kept.jobs_days * DAY
        while jobs := self._store.retire(before, self._kept.jobs, BATCH):
            for job in jobs:
                gone += [
                    self._remove(Removed("of a forgotten job", path, 0))
                    for path in self._files_of(job.id)
                ]
        return gone

    def _files_of(self, job_id: str) -> list[str]:
        """What lies in the home for a job, as far as it is there."""
        run, log = self._home.run(job_id), self._home.log(job_id)
        places = (run, run.parent / f"{job_id}.lock", log)
        return [str(path.relative_to(self._home.path)) for path in places if path.exists()]

    def _published(self) -> Iterator[Removed]:
        """Of jobs whose result is published, what only the work needed. Answers of a batch, and timelines, stay with the job."""
        limit = self._now() - self._kept.runs_hours * 3600.0
        for folder in sorted(self._home.runs.iterdir()):
            worked = (
                [path for path in folder.iterdir() if not path.name.startswith(OUTLIVES)]
                if folder.is_dir()
                else []
            )
            if (
                worked
                and _touched(folder) < limit
                and (job := self._job(folder.name))
                and job.status == SUCCEEDED
            ):
                yield from (self._told("of a published job", path) for path in sorted(worked))

    def _orphans(self) -> Iterator[Removed]:
        """Run folders, logs and data sets that no record names, when nobody has touched them for long."""
        limit = self._now() - ORPHAN_SECONDS
        for path in [*sorted(self._home.runs.iterdir()), *sorted(self._home.logs.iterdir())]:
            name = path.name.split(".")[0]
            if _touched(path) < limit and _is_id(name, "job_") and self._job(name) is None:
                yield self._told("no job names it", path)
        for path in sorted(self._home.datasets.iterdir()):
            name = path.name.lstrip(".").split(".")[0]
            staged = path.name.startswith(".")
            if (
                _touched(path) < limit
                and _is_id(name, "ds_")
                and (staged or self._store.find_dataset(name) is None)
            ):
                yield self._told("left by a build" if staged else "no data set names it", path)
        for path in self._left_over():
            if _touched(path) < limit:
                yield self._told("left by a process that died", path)

    def _left_over(self) -> Iterator[Path]:
        """Models that were never moved in, and what replicas of this host said of themselves, when their process is gone."""
        for models in (self._home.models, *sorted(self._home.path.glob("tenants/*/models"))):
            yield from sorted(models.glob("*/versions/.*.part"))
        for path in sorted(self._home.path.glob("*-*-*.json")):
            if (
                (found := REPLICA.fullmatch(path.name))
                and found["host"] == host_name()
                and not _lives(int(found["pid"]))
            ):
                yield path

    def _job(self, job_id: str) -> Job | None:
        """The job of any tenant, or None."""
        return self._store.find_job(job_id)

    def _told(self, why: str, path: Path) -> Removed:
        """A thing that may go."""
        return Removed(why, str(path.relative_to(self._home.path)), _size(path))

    def _remove(self, thing: Removed) -> Removed:
        """Remove it, unless its job is alive by now: somebody may have resumed it while we looked."""
        path = self._home.path / thing.path
        owner = next(
            (part.split(".")[0] for part in path.parts[::-1] if _is_id(part.split(".")[0], "job_")),
            None,
        )
        job = self._job(owner) if owner else None
        if job is not None and job.status not in TERMINAL:
            return thing._replace(n_bytes=0)
        size = _size(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return thing._replace(n_bytes=size)


def _lives(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_id(name: str, kind: str) -> bool:
    """Whether a name is an id of that kind, so that what somebody else put there is never touched."""
    with suppress(ParameterError):
        return check_id(name).startswith(kind)
    return False


def _touched(path: Path) -> float:
    """When a file, or anything directly in a folder, last changed; Unix seconds, far ahead when it is gone."""
    newest = -float("inf")
    with suppress(OSError):
        for each in (path, *(path.iterdir() if path.is_dir() else ())):
            newest = max(newest, each.stat().st_mtime)
        return newest
    return float("inf")


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    total = 0
    for each in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())]:
        with suppress(OSError):
            total += each.stat().st_size if each.is_file() else 0
    return total
