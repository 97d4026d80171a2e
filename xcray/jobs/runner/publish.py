"""Publishing of a finished training as exactly one version, whatever process dies in between.

The outcome of the training is first written to outcome.json. The model then carries the job's id
into the registry with its rename. Last, the job is finished. A later attempt that finds
outcome.json and a version with the job's id only has to finish the job. Attempts of one job publish
one at a time (a lock file, which the kernel releases when its holder dies), and only while they are
the running attempt.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Corrupt, NotFound, Unavailable
from xcray.model.registry import Registry
from xcray.storage.atomic import read_json, write_json
from xcray.system.file_lock import wait_for_lock

MARKER: Final = "job.json"  # a file in the model's directory that is not part of the model
LOCK_SECONDS: Final = 300.0


class Outcome(NamedTuple):
    """The outcome of a training.

    measures: fractions. report: the entries that a job's record keeps.
    """

    sha256: str
    measures: dict[str, float]
    report: dict[str, Any]


class Publisher:
    """Publishes the model of one job. `folder` holds outcome.json and staged models."""

    def __init__(self, folder: Path, registry: Registry, job_id: str, name: str) -> None:
        self._folder = folder
        self._registry = registry
        self._job_id = job_id
        self._name = name
        folder.mkdir(parents=True, exist_ok=True)

    def staging_path(self, attempt: int) -> Path:
        """Return the empty path to which an attempt writes its model."""
        path = self._folder / f"model-a{attempt}"
        shutil.rmtree(path, ignore_errors=True)
        return path

    def find_published(self) -> dict[str, Any] | None:
        """Return the result that an earlier attempt published before it died, or None."""
        outcome = self._read_outcome()
        if outcome is None:
            return None
        version = self._find_version()
        return None if version is None else self._job_result(outcome, version)

    def publish(
        self, staged: Path, outcome: Outcome, attempt: int, check: Callable[[], None]
    ) -> dict[str, Any]:
        """Publish once and return the job's result.

        `check` raises Fenced if this attempt is no longer the running one. Raises Unavailable if
        another attempt holds the lock for too long, and the errors of the registry.
        """
        with self._publish_lock():
            check()
            version = self._find_version() if self._read_outcome() is not None else None
            if version is None:
                write_json(staged / MARKER, {"job": self._job_id, "attempt": attempt})
                write_json(self._folder / "outcome.json", outcome._asdict())
                check()
                version = self._registry.publish(self._name, staged)
            return self._job_result(self._read_outcome() or outcome, version)

    def _read_outcome(self) -> Outcome | None:
        """Return the outcome that an attempt was about to publish, or None."""
        try:
            return Outcome(**read_json(self._folder / "outcome.json"))
        except (NotFound, Corrupt, TypeError):
            return None

    def _find_version(self) -> int | None:
        """Return the version that carries the job's id, or None. There is at most one."""
        for version in reversed(self._registry.versions(self._name)):
            with contextlib.suppress(NotFound, Corrupt):
                if (
                    read_json(self._registry.resolve(f"{self._name}:{version}") / MARKER).get("job")
                    == self._job_id
                ):
                    return version
        return None

    def _job_result(self, outcome: Outcome, version: int) -> dict[str, Any]:
        """Return the result for the job's record.

        It has `partial` if the training ran out of time, and `data_warnings` if the data look
        wrong.
        """
        partial = {name: outcome.report[name] for name in ("partial",) if name in outcome.report}
        data_warnings = outcome.report.get("data", {}).get("warnings")
        warnings = {"data_warnings": data_warnings} if data_warnings else {}
        result = {"model": self._name, "version": version, **partial, **warnings}
        return {**result, **outcome._asdict()}

    @contextlib.contextmanager
    def _publish_lock(self) -> Iterator[None]:
        """Hold the job's lock. The file lies next to the folder, which can be removed."""
        with open(self._folder.with_suffix(".lock"), "a") as lock:
            if not wait_for_lock(lock, LOCK_SECONDS):
                raise Unavailable(
                    "an earlier attempt is still publishing this job's model:"
                    " terminate that process first",
                    code="PUBLISHING",
                )
            yield
