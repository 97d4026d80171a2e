"""From a finished training to one published version, whatever dies in between.

What the training gave is first written to outcome.json; the model then carries the job's id into the registry with its rename;
last the job is finished. A later attempt that finds outcome.json and a version with the job's id has only to say so. Attempts of
one job publish one at a time (a lock file, which the kernel drops when its holder dies) and only while they are the running one.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, NotFound, Unavailable
from xcray.model.registry import Registry
from xcray.storage.atomic import read_json, write_json

MARKER: Final = "job.json"  # lies in the model's directory; no part of the model
LOCK_SECONDS: Final = 300.0


class Outcome(NamedTuple):
    """What a training gave. measures: fractions; report: the figures that a job's record keeps."""

    sha256: str
    measures: dict[str, float]
    report: dict[str, Any]


class PublishDesk:
    """Publishing for one job. `folder` belongs to the job and keeps outcome.json and staged models."""

    def __init__(self, folder: Path, registry: Registry, job_id: str, name: str) -> None:
        self._folder = folder
        self._registry = registry
        self._job_id = job_id
        self._name = name
        folder.mkdir(parents=True, exist_ok=True)

    def staged(self, attempt: int) -> Path:
        """Where an attempt writes its model; what was there is gone."""
        path = self._folder / f"model-a{attempt}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def found(self) -> dict[str, Any] | None:
        """The job's result when an earlier attempt published and died before it could say so."""
        outcome = self._outcome()
        if outcome is None:
            return None
        version = self._version()
        return None if version is None else self._result(outcome, version)

    def publish(
        self, staged: Path, outcome: Outcome, attempt: int, check: Callable[[], None]
    ) -> dict[str, Any]:
        """Publish once and give the job's result. `check` raises Fenced when this attempt is no longer the running one.

        Raises also Unavailable when another attempt holds the lock for too long, and what the registry raises.
        """
        with self._locked():
            check()
            version = self._version() if self._outcome() is not None else None
            if version is None:
                write_json(staged / MARKER, {"job": self._job_id, "attempt": attempt})
                write_json(self._folder / "outcome.json", outcome._asdict())
                check()
                version = self._registry.publish(self._name, staged)
            return self._result(self._outcome() or outcome, version)

    def clear(self) -> None:
        """Remove what only publishing needed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _outcome(self) -> Outcome | None:
        """What an attempt was about to publish, if one came so far."""
        try:
            return Outcome(**read_json(self._folder / "outcome.json"))
        except (NotFound, Corrupt, TypeError):
            return None

    def _version(self) -> int | None:
        """The version that carries the job's id; there is at most one."""
        for version in reversed(self._registry.versions(self._name)):
            with contextlib.suppress(NotFound, Corrupt):
                if (
                    read_json(self._registry.resolve(f"{self._name}:{version}") / MARKER).get("job")
                    == self._job_id
                ):
                    return version
        return None

    def _result(self, outcome: Outcome, version: int) -> dict[str, Any]:
        """What the job's record says; of a model whose training ran out of time, what is missing."""
        partial = {name: outcome.report[name] for name in ("partial",) if name in outcome.report}
        return {"model": self._name, "version": version, **partial, **outcome._asdict()}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the job's lock; it lies beside the folder, which may go."""
        deadline = time.monotonic() + LOCK_SECONDS
        with open(self._folder.with_suffix(".lock"), "a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Unavailable(
                            "an earlier attempt of the job holds its publishing: end that process",
                            code="PUBLISHING",
                        ) from None
                    time.sleep(0.1)
            yield
