"""Processor time of the driver for what follows a finished batch: its timeline and its part."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import csr, frozen
from xcray.kernels.training.ppdsparse.state import STATE
from xcray.schedule.events import Task
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.block_store import PENDING_BYTES, SYNC_SECONDS, BlockStore
from xcray.workers.timeline import DONE, Span, Timeline

FEATURES, WEIGHTS = 135_909, 609  # of the shape of Amazon-670K, per label
BLOCKS, LABELS = 22, 150  # of a part that is measured: batches of 64 workers
BATCH_LABELS: Final = 200  # of a span that is measured


class DriverCost(NamedTuple):
    """Processor seconds per batch (with its span), per part, and per byte of weights."""

    batch: float
    part: float
    byte: float

    def seconds(self, batches: int, labels: int, makespan: float) -> float:
        """Return the seconds of a job with this number of batches and labels and this length."""
        parts = min(batches, makespan / SYNC_SECONDS + 8 * WEIGHTS * labels / PENDING_BYTES)
        return self.batch * batches + self.part * parts + self.byte * 8 * WEIGHTS * labels


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

            batch = _least(record) / len(spans) + max(blocks - part, 0.0) / (BLOCKS - 1)
    return DriverCost(batch, part, max(whole - blocks, 0.0) / (8 * n_labels * (WEIGHTS - 1)))


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
