"""Processor time and memory of the driver for what follows a finished batch.

`python -m benchmarks.cluster.driver_cost [--labels 10000000]`

Per batch: its span and its place in a part, also if its worker has written the part; per part; per
byte of weights; per message of Ray, by one worker that returns the weights of a batch at once, or
the name of its part; and per wait for 2,000 calls, as of 1,000
workers, of which one has ended. The last two are of the process, with all its threads. Memory: of
the schedule and of the places of finished labels, for --labels labels.
"""

from __future__ import annotations

import resource
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import ray

from benchmarks.harness import run_benchmark
from xcray.arrays import csr, frozen
from xcray.kernels.training.ppdsparse.state import STATE
from xcray.schedule.calls import Call
from xcray.schedule.events import Task
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers.solved_labels import SolvedLabels
from xcray.system.memory import anonymous_bytes
from xcray.training.block_store import PENDING_BYTES, SYNC_SECONDS, BlockStore
from xcray.training.part_writer import without_weights
from xcray.workers.pool import TaskWorker
from xcray.workers.ray.actors import ready_refs
from xcray.workers.ray.pool import RayPool, training_session
from xcray.workers.timeline import DONE, Span, Timeline
from xcray.workers.worker_group import CallResult

FEATURES, WEIGHTS = 135_909, 609  # of the shape of Amazon-670K, per label
BLOCKS, LABELS = 22, 150  # of a part that is measured: batches of 64 workers
BATCH_LABELS: Final = 200  # of a span that is measured
MESSAGES: Final = 200  # calls of a Ray worker
WAITING, WAITS = 2000, 50  # calls in progress, and number of waits


class DriverCost(NamedTuple):
    """Processor seconds per batch (with its span), per part, and per byte of weights.

    written: per batch whose part was written by its worker.
    """

    batch: float
    part: float
    byte: float
    written: float

    def seconds(self, batches: list[int], makespan: float, least: float) -> float:
        """Return the seconds of a job of this length.

        batches: number of labels of each. least: bytes of batches that workers write.
        """
        sizes = 8 * WEIGHTS * np.array(batches)
        own = sizes[sizes < least]
        parts = min(len(own), makespan / SYNC_SECONDS + own.sum() / PENDING_BYTES)
        written = self.written * (len(sizes) - len(own))
        return written + self.batch * len(own) + self.part * parts + self.byte * own.sum()


@cache
def driver_cost() -> DriverCost:
    """Measure with real blocks: the least of five."""
    n_labels = BLOCKS * LABELS
    with tempfile.TemporaryDirectory(prefix="xcray-bench-") as name:
        store = BlockStore(Path(name), {}, n_labels=n_labels, n_features=FEATURES)
        labels = [np.arange(LABELS) + LABELS * i for i in range(BLOCKS)]
        full, small = ([_block(each, n) for each in labels] for n in (WEIGHTS, 1))

        def commit(own: list[SolvedLabels]) -> None:
            for block in own:
                store.add(block._replace(checksum=uuid.uuid4().hex))  # another name for the part
            store.sync()

        part, blocks, whole = (
            _least(lambda own=own: commit(own)) for own in (small[:1], small, full)
        )
        tasks = [Task(i, tuple(range(BATCH_LABELS)), 1.0) for i in range(200)]
        spans = [Span("w", task, 0.0, 1.0, DONE) for task in tasks]
        with Timeline(Path(name)) as timeline:

            def record() -> None:
                for span in spans:
                    timeline.add(span)
                timeline.flush()

            span = _least(record) / len(spans)
        named = [block._replace(part="part-0.arrow") for block in full]
        written = span + _least(lambda: [store.add(block) for block in named]) / BLOCKS
    batch = span + max(blocks - part, 0.0) / (BLOCKS - 1)
    byte = max(whole - blocks, 0.0) / (8 * n_labels * (WEIGHTS - 1))
    return DriverCost(batch, part, byte, written)


@dataclass(frozen=True)
class ReadyBatch:
    """Task of a worker that returns the same batch at once."""

    counter: ClassVar[tuple[str, str]] = ("xcray_labels_returned", "Labels of batches")
    written: bool = False

    def warm_up(self, local: Any = None) -> None:
        """Do nothing: there are no kernels."""

    def open(self) -> SolvedLabels:
        """Make the batch."""
        block = _block(np.arange(LABELS), WEIGHTS)
        return without_weights(block, "part-0.arrow") if self.written else block

    def load(self, *shared: Any) -> SolvedLabels:
        """Make the batch."""
        return self.open()

    def decode_result(self, result: SolvedLabels) -> SolvedLabels:
        """Return the batch as it arrived."""
        return result

    def solve(self, local: SolvedLabels, labels: Any, stopped: Any = None) -> SolvedLabels:
        """Return the batch."""
        return local


def message_seconds(written: bool) -> float:
    """Return the processor seconds of the driver per call of a Ray worker that returns a batch.

    written: the worker returns the name of a part.
    """
    pool = RayPool(ReadyBatch(written), 1, training_session(None, 1), "messages", tuple)
    pool.open()
    try:
        worker = wait_for_worker(pool)
        for measured in (False, True):
            began = time.process_time()
            for _ in range(MESSAGES):
                pool.submit(Call(worker, TaskWorker.solve, np.arange(LABELS, dtype=np.int32)))
            left = MESSAGES
            while left:
                left -= sum(isinstance(each, CallResult) for each in pool.wait(1.0))
            if measured:
                return (time.process_time() - began) / MESSAGES
    finally:
        pool.close()
    raise AssertionError("both turns were run")


def wait_seconds() -> float:
    """Return the processor seconds of one wait for WAITING calls, of which one has ended."""
    with training_session(None, 1):
        blocked = ray.remote(num_cpus=9)(lambda: None)  # it gets no place
        calls = [ray.put(0), *(blocked.remote() for _ in range(WAITING))]
        began = time.process_time()
        for _ in range(WAITS):
            assert len(ready_refs(calls, 1.0)) == 1
        return (time.process_time() - began) / WAITS


def wait_for_worker(pool: RayPool) -> str:
    """Return the only worker, once it is ready."""
    while not pool.available:
        pool.wait(1.0)
    return pool.available[0]


def memory_per_label(labels: int) -> dict[str, float]:
    """Return the bytes per label of the schedule and of a block store."""
    with tempfile.TemporaryDirectory(prefix="xcray-bench-") as name:
        before = anonymous_bytes() or 0
        schedule = LabelScheduler(np.arange(labels), np.ones((labels, 3)), (1.0, 1.0, 1.0))
        between = anonymous_bytes() or 0
        store = BlockStore(Path(name), {}, n_labels=labels, n_features=FEATURES)
        store.lengths.fill(1)
        after = anonymous_bytes() or 0
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del schedule, store
    return {
        "schedule": (between - before) / labels,
        "places": (after - between) / labels,
        "peak_bytes": peak,
    }


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Return all figures."""
    return {
        "benchmark": "driver_cost",
        "memory": memory_per_label(options.labels),
        **driver_cost()._asdict(),
        "message": message_seconds(written=False),
        "message_written": message_seconds(written=True),
        "wait": wait_seconds(),
    }


def _block(labels: list[int] | np.ndarray, weights: int) -> SolvedLabels:
    """Return random weights of some labels."""
    rng, n = np.random.default_rng(0), len(labels)
    indices = np.sort(rng.integers(0, FEATURES, (n, weights)), axis=1).ravel()
    W = csr(np.arange(n + 1) * weights, indices, rng.random(n * weights), FEATURES)
    bias, records = frozen(np.zeros(n), np.float64), np.zeros(n, STATE)
    return SolvedLabels(frozen(labels, np.int32), W, bias, records)


def _least(run: Callable[[], None]) -> float:
    """Return the least processor seconds of five runs."""
    times = []
    for _ in range(5):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return min(times)


def main() -> None:
    """Measure and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"labels": 100_000},
        labels={"type": int, "default": 10_000_000},
    )


if __name__ == "__main__":
    main()
