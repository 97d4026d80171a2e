"""Workers for tests of pools and groups, importable by other processes, and reply helpers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xcray.errors import DataError, Stopped
from xcray.schedule.calls import Call
from xcray.schedule.events import Joined, Lost

PATIENCE = 300.0  # seconds until a wait fails, even on a slow machine
LARGE = 200_000  # float32 values: more than Ray sends inside a message


class RecordingWorker:
    """A worker that records its calls, creates arrays and adds to them."""

    def __init__(self, worker: str, stopped: Callable[[], bool]) -> None:
        self.worker = worker
        self.stopped = stopped
        self.calls = []

    def make(self, value: float) -> tuple[np.ndarray, str]:
        """Return an array full of `value`."""
        self.calls.append("make")
        return np.full(LARGE, value, np.float32), self.worker

    def add(self, block: np.ndarray, value: float) -> tuple[np.ndarray, float]:
        """Return a new array, and the sum of the first and last element of the received one."""
        self.calls.append("add")
        return block + np.float32(value), float(block[0] + block[-1])

    def total(self, blocks: Any, scale: float = 1.0) -> tuple[None, float]:
        """Return the sum of the first elements of some arrays."""
        return None, scale * float(sum(block[0] for block in blocks))

    def kind(self, *args: Any) -> tuple[None, list[str]]:
        """Return the types of the arguments."""
        return None, [type(each).__name__ for each in args]

    def history(self) -> tuple[None, list[str]]:
        """Return the calls so far."""
        return None, list(self.calls)

    def long(self) -> tuple[None, None]:
        """Work in slices until a stop is requested."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            if self.stopped():
                raise Stopped("as asked")
            time.sleep(0.005)
        raise AssertionError("no stop was requested")

    def pass_gate(self, gate: str) -> tuple[None, str]:
        """Wait until the file `gate` exists."""
        ends = time.monotonic() + PATIENCE
        while not Path(gate).exists():
            assert time.monotonic() < ends, "the gate was not opened"
            time.sleep(0.005)
        return None, self.worker

    def fail(self) -> tuple[None, None]:
        """Raise an error of xcray with all fields."""
        raise DataError("BAD_ROW", "what a row", file="rows.txt", line=7, hint="mend it")

    def slip(self) -> tuple[None, None]:
        """Raise an unexpected error."""
        return None, {}["nothing"]

    def _private(self) -> tuple[None, None]:
        """Do nothing; a private method must not be callable."""
        return None, None


@dataclass(frozen=True)
class Work:
    """Creates workers; `broken` is the name of the worker whose creation fails."""

    broken: str | None = None

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> RecordingWorker:
        """Return the worker."""
        if worker == self.broken:
            raise DataError("NO_SHARD", "there is no such shard")
        return RecordingWorker(worker, stopped)

    def warm_up(self) -> None:
        """Do nothing: there are no kernels to compile."""


@dataclass(frozen=True)
class Tasks:
    """Tasks of a pool: label 0 fails, label 1 works until it is stopped, others are summed."""

    counter: ClassVar[tuple[str, str]] = ("xcray_toy_labels", "Labels summed by this worker")

    def warm_up(self, local: Any = None) -> None:
        """Do nothing: there are no kernels to compile."""

    def open(self) -> Tasks:
        """Return the state of a worker, which is not used."""
        return self

    def clone_for_thread(self) -> Tasks:
        """Return the same state."""
        return self

    def decode_result(self, result: Any) -> Any:
        """Return the result unchanged."""
        return result

    def solve(self, local: Any, labels: Any, stopped: Callable[[], bool] = bool) -> int:
        """Return the sum of the labels."""
        worker = RecordingWorker("", stopped)
        if 0 in labels:
            worker.fail()
        if 1 in labels:
            worker.long()
        return int(labels.sum())


def to(worker: str, verb: str, *args: Any) -> Call[Any, Any]:
    """Return a call of any method by its name, of methods that no class has, too."""

    def method(self: Any, *args: Any) -> tuple[Any, Any]:
        raise AssertionError("only its name is sent")

    method.__name__ = verb
    return Call(worker, method, *args)


def replies(group: Any, count: int, seconds: float = PATIENCE) -> list[Any]:
    """Return the next `count` replies; workers that join meanwhile are none."""
    results: list[Any] = []
    ends = time.monotonic() + seconds
    while len(results) < count:
        assert time.monotonic() < ends, f"only {results} arrived"
        results += [each for each in group.wait(0.2) if not isinstance(each, Joined)]
    assert len(results) == count
    return results


def ask(group: Any, worker: str, verb: str, *args: Any) -> Any:
    """Submit a call and wait for its reply."""
    ticket = group.submit(to(worker, verb, *args))
    (reply,) = replies(group, 1)
    assert isinstance(reply, Lost) or reply.ticket == ticket
    return reply
