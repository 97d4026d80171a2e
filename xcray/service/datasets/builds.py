"""Data sets are built in child processes: hostile files can exhaust a child's memory and time, never the service's.

What is to be built is on disk (HOME/builds/ds_.../request.json) before it is acknowledged, and stays until it is built or refused;
so after a crash or a restart it is taken up again. A child is told its limits, has a clean environment, and dies with its parent.
One process of all builds, the one that holds the post; what another, who has lost it, still finds out is not recorded.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xcray.errors import NotFound, Refused, XcrayError
from xcray.jobs.home import Home
from xcray.jobs.job import DatasetRecord, new_id
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.election import OnlyOne, Post
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings
from xcray.storage.atomic import discard_directory, read_json, sync_path, write_json

INGEST = (sys.executable, "-m", "xcray.service.datasets.ingest")
PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "VIRTUAL_ENV",
)  # no tokens, no addresses
DEATHS = {
    -signal.SIGXCPU: {
        "code": "TIME_LIMIT",
        "message": "the build took longer than this server allows; send less data",
    },
    None: {
        "code": "BUILD_DIED",
        "message": "the build ended without a word, most likely for want of memory; send less data",
    },
}
BUILDING, READY, FAILED = "BUILDING", "READY", "FAILED"
STALE_SECONDS = 600.0  # after which a request that is not whole is one that a crash left


class Builder:
    """Takes build requests, runs a few at a time, records how they end."""

    def __init__(
        self,
        home: Home,
        store: JobStore,
        settings: Settings,
        gauges: Gauges,
        command: Sequence[str] = INGEST,
        *,
        post: Post | None = None,
    ) -> None:
        """post: held while this process may record what it builds. `lead` begins the work; a process that does not lead only
        accepts and removes requests, which the leader sees on disk."""
        self._home = home
        self._store = store
        self._settings = settings
        self._gauges = gauges
        self._command = tuple(command)
        self._post = post or OnlyOne()
        self._leads = False
        self._root = home.path / "builds"
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._places = asyncio.Semaphore(settings.builds_at_once)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: set[str] = set()  # those of `_tasks` whose outcome is recorded

    def accept(
        self,
        tenant: str,
        name: str,
        format: str,
        options: Mapping[str, Any],
        sources: Mapping[str, Path],
        *,
        take: bool,
        key: str | None = None,
        digest: str | None = None,
    ) -> tuple[DatasetRecord, bool]:
        """Record a data set as BUILDING, durably; `begin` starts the work. The record, and whether it is new.

        sources: files by part; `take` moves them in, else they are read where they lie. key, digest: of the request; when another
        with the same key came first, the record that it made.
        """
        dataset_id = new_id("ds")
        staged, folder = self._root / f".{dataset_id}.part", self._root / dataset_id
        staged.mkdir(mode=0o700)
        moved = {
            part: folder / f"{part}.{format}" if take else path for part, path in sources.items()
        }
        if take:
            for part, path in sources.items():
                os.rename(path, staged / moved[part].name)
        request = {
            "tenant": tenant,
            "name": name,
            "format": format,
            "options": dict(options),
            "sources": {part: str(path) for part, path in moved.items()},
            "target": str(self._home.dataset(dataset_id)),
            "limits": {
                "memory_bytes": self._settings.build_memory_bytes,
                "seconds": self._settings.build_seconds,
            },
        }
        write_json(staged / "request.json", request)
        os.rename(staged, folder)
        sync_path(self._root)
        stats, target = {"format": format}, str(self._home.dataset(dataset_id))
        record = self._store.add_dataset(
            name,
            target,
            tenant=tenant,
            status=BUILDING,
            stats=stats,
            dataset_id=dataset_id,
            idempotency_key=key,
            digest=digest,
        )
        created = record.id == dataset_id
        if not created:  # the same key came through another door
            self._remove(dataset_id)
        return record, created

    def begin(self, dataset_id: str) -> None:
        """Start the work on an accepted data set, or leave it to the leader. Called on the event loop."""
        if not self._leads or dataset_id in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(
            self._run(dataset_id), name=f"build {dataset_id}"
        )
        self._tasks[dataset_id] = task
        task.add_done_callback(lambda _: self._forget(dataset_id))

    async def lead(self, alone: bool) -> int:
        """Do the work from now on, first what an earlier process left; how many that is. alone: nobody else accepts requests."""
        self._leads = True
        for path in self._root.glob(".*.part"):
            if alone or time.time() - path.stat().st_mtime > STALE_SECONDS:
                discard_directory(path)
        left = self._there()
        for dataset_id in left:
            self.begin(dataset_id)
        return len(left)

    async def look(self) -> None:
        """Begin what other processes have accepted, and end the work on what they have removed."""
        for dataset_id in await asyncio.to_thread(self._there):
            if self._wanted(dataset_id):  # asked again: it may have ended meanwhile
                self.begin(dataset_id)
        for dataset_id in [
            each for each in self._tasks if each not in self._told and not self._wanted(each)
        ]:
            await self.cancel(dataset_id)
            await asyncio.to_thread(shutil.rmtree, self._home.dataset(dataset_id), True)

    async def cancel(self, dataset_id: str) -> None:
        """End the work on a data set, if there is any, and remove what it has."""
        task = self._tasks.get(dataset_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self._remove, dataset_id)

    async def close(self) -> None:
        """Lead no more, and end all children; what they were at stays on disk for the next start, or the next leader."""
        self._leads = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _there(self) -> list[str]:
        """Data sets that are accepted and not recorded yet."""
        return sorted(path.name for path in self._root.iterdir() if self._wanted(path.name))

    def _wanted(self, dataset_id: str) -> bool:
        """Whether a data set is accepted and not recorded yet."""
        return (self._root / dataset_id / "request.json").is_file()

    def _forget(self, dataset_id: str) -> None:
        """Work has ended, however it did."""
        self._tasks.pop(dataset_id, None)
        self._told.discard(dataset_id)

    async def _run(self, dataset_id: str) -> None:
        """Build one data set and record how it ended."""
        folder = self._root / dataset_id
        async with self._places:
            try:
                request = await asyncio.to_thread(read_json, folder / "request.json")
                asked = await asyncio.to_thread(self._asked, folder, request)
                await asyncio.to_thread(_sweep_target, Path(request["target"]))
                begun = time.monotonic()
                code = await self._child(asked)
                self._gauges.build_seconds.observe(time.monotonic() - begun)
                outcome = await asyncio.to_thread(_outcome, asked, code)
                await asyncio.to_thread(self._record, dataset_id, request["tenant"], outcome)
            except (
                XcrayError
            ) as error:  # the store is away, or the request was removed: the next start takes it up
                LOGGER.error(
                    "a build could not be recorded",
                    extra={"dataset": dataset_id, "detail": error.message},
                )

    def _asked(self, folder: Path, request: dict[str, Any]) -> Path:
        """The request as the child reads it; its outcome gets the same ending, so that it is never taken for another leader's."""
        if self._post.term is None:
            return folder / "request.json"
        write_json(asked := folder / f"request-{self._post.term}.json", request)
        return asked

    async def _child(self, asked: Path) -> int:
        """Run the child to its end; its exit code, negative for a signal."""
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        command = (*self._command, str(asked), str(os.getpid()))
        child = await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True, stdin=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(2 * self._settings.build_seconds):
                return await child.wait()
        except TimeoutError:
            return -signal.SIGXCPU
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    def _record(self, dataset_id: str, tenant: str, outcome: dict[str, Any]) -> None:
        """Write the outcome to the store, then forget the request. A leader of yesterday writes nothing."""
        if not self._post.hold():
            LOGGER.warning("a build is left to the new leader", extra={"dataset": dataset_id})
            return
        status = READY if "stats" in outcome else FAILED
        self._gauges.builds.labels(status.lower()).inc()
        try:
            known = self._store.get_dataset(dataset_id, tenant)
            if (
                known.status == BUILDING
            ):  # else it was recorded by one who died before the request was removed
                stats = {**known.stats, **outcome.get("stats", outcome)}
                self._store.update_dataset(dataset_id, tenant, status=status, stats=stats)
        except NotFound:  # deleted meanwhile, or the crash came between the request and its record: nobody was told of it
            shutil.rmtree(self._home.dataset(dataset_id), ignore_errors=True)
        self._told.add(dataset_id)
        self._remove(dataset_id)
        LOGGER.info("data set built", extra={"dataset": dataset_id, "status": status})

    def _remove(self, dataset_id: str) -> None:
        """Forget a request and its sources."""
        shutil.rmtree(self._root / dataset_id, ignore_errors=True)


def allowed_path(path: str, roots: Sequence[Path]) -> Path:
    """A path of the server below a root that the operator allowed, links resolved. Raises Refused, the same for all others."""
    hint = "the operator can open a folder: XCRAY_DATASET_ROOTS='[\"/data\"]'"
    refusal = Refused("this path is not open to data sets", code="FORBIDDEN", hint=hint)
    if "\x00" in path:
        raise refusal
    found = Path(path).resolve()
    if not any(found.is_relative_to(root.resolve()) for root in roots) or not found.exists():
        raise refusal
    return found


def _sweep_target(target: Path) -> None:
    """Remove what a killed child left half written."""
    for path in target.parent.glob(f".{target.name}.*"):
        discard_directory(path)


def _outcome(asked: Path, code: int) -> dict[str, Any]:
    """What a child left beside its request, or what its end means when it could not write any more."""
    try:
        outcome: dict[str, Any] = read_json(
            asked.with_name(asked.name.replace("request", "outcome", 1))
        )
    except NotFound:
        LOGGER.error(
            "a build ended without an outcome", extra={"dataset": asked.parent.name, "exit": code}
        )
        return {"problem": DEATHS.get(code, DEATHS[None])}
    return outcome
