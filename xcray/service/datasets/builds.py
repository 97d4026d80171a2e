"""Data set builds in child processes.

Hostile files can exhaust the memory and time of a child process, but never those of the service. A
request is on disk (HOME/builds/ds_.../request.json) before it is acknowledged and stays until the
data set is built or refused, so that it is resumed after a crash or restart. A child receives its
limits, has a clean environment, and is killed when its parent dies. Only the maintenance leader
builds. Results of a process that has lost the leadership are not recorded.
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
from typing import Any, NamedTuple

from xcray.errors import Conflict, NotFound, Refused, XcrayError
from xcray.jobs.home import Home
from xcray.jobs.job import DatasetRecord, new_id
from xcray.jobs.store.datasets import DatasetTable
from xcray.jobs.supervision.election import AlwaysLeader, Leadership
from xcray.service import constants
from xcray.service.datasets.uploads import link_upload
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings
from xcray.storage.atomic import discard_directory, read_json, sync_path, write_json
from xcray.system.child_process import inherited_environment

INGEST_COMMAND = (sys.executable, "-m", "xcray.service.datasets.ingest")
EXIT_PROBLEMS = {
    -signal.SIGXCPU: {
        "code": "TIME_LIMIT",
        "message": "the build took longer than this server allows; send less data",
    },
    None: {
        "code": "BUILD_DIED",
        "message": "the build process died, most likely out of memory; send less data",
    },
}
BUILDING, READY, FAILED = "BUILDING", "READY", "FAILED"
STALE_SECONDS = 600.0  # age after which an incomplete request is considered left by a crash


class NewDataset(NamedTuple):
    """A requested data set.

    key, digest: idempotency key and digest of the request. base: the data set that it changes.
    """

    tenant: str
    name: str
    format: str
    options: Mapping[str, Any]
    key: str | None
    digest: str | None
    base: str | None = None


class Builder:
    """Accepts build requests, runs a few at a time, and records their outcomes."""

    def __init__(
        self,
        home: Home,
        records: DatasetTable,
        settings: Settings,
        metrics: Metrics,
        command: Sequence[str] = INGEST_COMMAND,
        *,
        leadership: Leadership | None = None,
    ) -> None:
        """Create a builder.

        leadership: that this process must hold to record outcomes. `become_leader` starts the
        work; other processes only accept and remove requests, which the leader sees on disk.
        """
        self._home = home
        self._records = records
        self._settings = settings
        self._metrics = metrics
        self._command = tuple(command)
        self._leadership = leadership or AlwaysLeader()
        self._is_leader = False
        self._root = home.path / "builds"
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._slots = asyncio.Semaphore(constants.MAX_CONCURRENT_BUILDS)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._recorded: set[str] = set()  # ids in `_tasks` whose outcome is recorded

    def accept(
        self, new: NewDataset, sources: Mapping[str, Path], *, link: bool = True
    ) -> tuple[DatasetRecord, bool]:
        """Record a data set as BUILDING, durably; return the record and whether it is new.

        `start` starts the work. sources: files by part; with `link` the build keeps links to them,
        else they are read in place. If an earlier request has the same key, its record is
        returned. Raises NotFound if a source is missing, and Refused DATASET_QUOTA.
        """
        dataset_id = new_id("ds")
        staged, folder = self._root / f".{dataset_id}.part", self._root / dataset_id
        staged.mkdir(mode=0o700)
        try:
            paths = dict(sources)
            for part, path in sources.items() if link else ():
                # the content of the other parts decides their format
                format = new.format if part in ("train", "test") else ""
                paths[part] = folder / link_upload(path, staged, part, format)
            write_json(staged / "request.json", self._build_request(dataset_id, new, paths))
            os.rename(staged, folder)
            sync_path(self._root)
            record = self._records.add(
                new.name,
                str(self._home.dataset(dataset_id)),
                tenant=new.tenant,
                status=BUILDING,
                stats={"format": new.format},
                dataset_id=dataset_id,
                idempotency_key=new.key,
                digest=new.digest,
                limit=self._settings.tenant_datasets,
            )
        except (NotFound, Conflict, Refused):
            self._remove(dataset_id)
            raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        created = record.id == dataset_id
        if not created:  # a concurrent request with the same key was first
            self._remove(dataset_id)
        return record, created

    def _build_request(
        self, dataset_id: str, new: NewDataset, paths: Mapping[str, Path]
    ) -> dict[str, Any]:
        """Return the request for the child process."""
        return {
            "tenant": new.tenant,
            "name": new.name,
            "format": new.format,
            "options": dict(new.options),
            "base": new.base,
            "sources": {part: str(path) for part, path in paths.items()},
            "target": str(self._home.dataset(dataset_id)),
            "limits": {
                "memory_bytes": self._settings.build_memory_bytes,
                "seconds": self._settings.build_seconds,
            },
        }

    def start(self, dataset_id: str) -> None:
        """Start the build of an accepted data set, or leave it to the leader.

        Must be called on the event loop.
        """
        if not self._is_leader or dataset_id in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(
            self._run(dataset_id), name=f"build {dataset_id}"
        )
        self._tasks[dataset_id] = task
        task.add_done_callback(lambda _: self._on_task_done(dataset_id))

    async def become_leader(self, exclusive: bool) -> int:
        """Start building, first what an earlier process left; return the number of these builds.

        exclusive: no other process accepts requests.
        """
        self._is_leader = True
        for path in self._root.glob(".*.part"):
            if exclusive or time.time() - path.stat().st_mtime > STALE_SECONDS:
                discard_directory(path)
        pending = self._pending_builds()
        for dataset_id in pending:
            self.start(dataset_id)
        return len(pending)

    async def poll(self) -> None:
        """Start builds that other processes have accepted; cancel those that they have removed."""
        for dataset_id in await asyncio.to_thread(self._pending_builds):
            # checked again, because it can have finished meanwhile
            if self._is_pending(dataset_id):
                self.start(dataset_id)
        for dataset_id in [
            running_id
            for running_id in self._tasks
            if running_id not in self._recorded and not self._is_pending(running_id)
        ]:
            await self.cancel(dataset_id)
            await asyncio.to_thread(shutil.rmtree, self._home.dataset(dataset_id), True)

    async def cancel(self, dataset_id: str) -> None:
        """Cancel the build of a data set, if there is one, and remove its files."""
        task = self._tasks.get(dataset_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self._remove, dataset_id)

    async def close(self) -> None:
        """Stop building and kill all children.

        Requests stay on disk for the next start or the next leader.
        """
        self._is_leader = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _pending_builds(self) -> list[str]:
        """Return the ids of data sets that are accepted and not recorded yet."""
        return sorted(path.name for path in self._root.iterdir() if self._is_pending(path.name))

    def _is_pending(self, dataset_id: str) -> bool:
        """Return whether a data set is accepted and not recorded yet."""
        return (self._root / dataset_id / "request.json").is_file()

    def _on_task_done(self, dataset_id: str) -> None:
        """Remove a finished task, whatever its outcome."""
        self._tasks.pop(dataset_id, None)
        self._recorded.discard(dataset_id)

    async def _run(self, dataset_id: str) -> None:
        """Build one data set and record its outcome, and meanwhile whether it waits for another."""
        folder = self._root / dataset_id
        if self._slots.locked():
            await asyncio.to_thread(self._note, dataset_id, waiting=True)
        async with self._slots:
            await asyncio.to_thread(self._note, dataset_id, waiting=False)
            try:
                request = await asyncio.to_thread(read_json, folder / "request.json")
                request_path = await asyncio.to_thread(self._write_request, folder, request)
                await asyncio.to_thread(_sweep_target, Path(request["target"]))
                code = await self._run_child(request_path)
                outcome = await asyncio.to_thread(_outcome, request_path, code)
                await asyncio.to_thread(self._record, dataset_id, request["tenant"], outcome)
            except XcrayError as error:
                # the store is unavailable or the request was removed: the next start resumes it
                LOGGER.error(
                    "a build could not be recorded",
                    extra={"dataset": dataset_id, "detail": error.message},
                )

    def _note(self, dataset_id: str, *, waiting: bool) -> None:
        """Record whether a build waits for another one; the build does not depend on it."""
        try:
            tenant = read_json(self._root / dataset_id / "request.json")["tenant"]
            record = self._records.get(dataset_id, tenant)
            is_noted = record.status != BUILDING or record.stats.get("waiting", False) == waiting
            if not is_noted and self._leadership.acquire_or_renew():
                stats = {**record.stats, "waiting": waiting}
                self._records.update(dataset_id, tenant, stats=stats)
        except XcrayError as error:
            LOGGER.warning(
                "a waiting build is not noted", extra={"dataset": dataset_id, "detail": str(error)}
            )

    def _write_request(self, folder: Path, request: dict[str, Any]) -> Path:
        """Write the request for the child and return its path.

        Its outcome gets the same suffix, so that it is never mistaken for another leader's.
        """
        if self._leadership.term is None:
            return folder / "request.json"
        write_json(request_path := folder / f"request-{self._leadership.term}.json", request)
        return request_path

    async def _run_child(self, request_path: Path) -> int:
        """Run the child process and return its exit code, negative for a signal."""
        command = (*self._command, str(request_path), str(os.getpid()))
        child = await asyncio.create_subprocess_exec(
            *command,
            env=inherited_environment(),
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
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
        """Write the outcome to the store, then remove the request.

        A process that has lost the leadership writes nothing.
        """
        if not self._leadership.acquire_or_renew():
            LOGGER.warning("a build is left to the new leader", extra={"dataset": dataset_id})
            return
        status = READY if "stats" in outcome else FAILED
        self._metrics.builds.labels(status.lower()).inc()
        try:
            record = self._records.get(dataset_id, tenant)
            # otherwise it was recorded by a process that died before it removed the request
            if record.status == BUILDING:
                stats = {**record.stats, **outcome.get("stats", outcome)}
                stats.pop("waiting", None)
                self._records.update(dataset_id, tenant, status=status, stats=stats)
        except NotFound:
            # deleted meanwhile, or a crash came between the request and its record, which then was
            # never acknowledged
            shutil.rmtree(self._home.dataset(dataset_id), ignore_errors=True)
        self._recorded.add(dataset_id)
        self._remove(dataset_id)
        LOGGER.info("data set built", extra={"dataset": dataset_id, "status": status})

    def _remove(self, dataset_id: str) -> None:
        """Remove a request and its sources."""
        shutil.rmtree(self._root / dataset_id, ignore_errors=True)


def allowed_path(path: str, roots: Sequence[Path]) -> Path:
    """Return a path below a root that the operator allowed, with links resolved.

    Raises Refused with the same message for every other path.
    """
    hint = "the operator can allow a folder: XCRAY_DATASET_ROOTS='[\"/data\"]'"
    refusal = Refused("this path is not allowed for data sets", code="FORBIDDEN", hint=hint)
    if "\x00" in path:
        raise refusal
    resolved = Path(path).resolve()
    if not any(resolved.is_relative_to(root.resolve()) for root in roots) or not resolved.exists():
        raise refusal
    return resolved


def _sweep_target(target: Path) -> None:
    """Remove partial output of a killed child."""
    for path in target.parent.glob(f".{target.name}.*"):
        discard_directory(path)


def _outcome(request_path: Path, code: int) -> dict[str, Any]:
    """Return the outcome that a child wrote, or one derived from its exit code."""
    try:
        outcome: dict[str, Any] = read_json(
            request_path.with_name(request_path.name.replace("request", "outcome", 1))
        )
    except NotFound:
        LOGGER.error(
            "a build ended without an outcome",
            extra={"dataset": request_path.parent.name, "exit": code},
        )
        return {"problem": EXIT_PROBLEMS.get(code, EXIT_PROBLEMS[None])}
    return outcome
