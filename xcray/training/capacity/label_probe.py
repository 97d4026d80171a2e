"""Probe of a training by labels: a few labels are solved to measure seconds and weights."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.solvers.contract import IndependentSolver

MAX_PROBE_LABELS: Final = 48  # labels solved by a probe
BATCH_LABELS: Final = 12  # per call, as in a training: a call has a cost of its own
MIN_LABEL_SECONDS: Final = 1.0  # after which a label of a probe is not solved to its end, or
MAX_LABEL_SHARE: Final = 2.0  # after this share of the probe's time, whichever is later


class LabelWork(NamedTuple):
    """Labels to solve, (n,) int32, with their expected seconds (n,) and weights (n,)."""

    labels: Int32
    seconds: Float64
    weights: Float64


class MeasuredRates(NamedTuple):
    """Result of a probe, relative to the first guess.

    time_ratio: time over expected time. weight_ratio: weights over expected weights. probed:
    labels.
    """

    time_ratio: float = 1.0
    weight_ratio: float = 1.0
    probed: int = 0


def run_probe(
    solver: IndependentSolver, dataset: Dataset, work: LabelWork, seconds: float
) -> MeasuredRates:
    """Solve a few labels, spread over all cost levels, and return the measured rates.

    Labels slower than expected end the probe, also before they are solved: their time so far then
    counts as their time. The solved blocks are discarded.
    """
    picked = _probe_labels(work, seconds)
    if not len(picked):
        return MeasuredRates()
    state = solver.load_dataset(dataset)
    solver.warm_up(state)
    longest = max(MIN_LABEL_SECONDS, MAX_LABEL_SHARE * seconds)

    def solve(start: int, stop: int) -> int | None:
        """Solve a range of labels; return their number of weights, None if they take too long."""
        end = time.thread_time() + longest
        labels = frozen(work.labels[picked[start:stop]], np.int32)
        try:
            return solver.solve(state, labels, lambda: time.thread_time() > end).W.nnz
        except Stopped:
            return None

    if len(picked) > 1:
        solve(0, 1)  # The first call touches the mapped files, which takes extra time once.
    # Thread time, because other processes can be busy.
    began, n, solved, nnz, took = time.thread_time(), 0, 0, 0, 0.0
    while n < len(picked) and took <= seconds and n == solved:
        batch = min(n + BATCH_LABELS, len(picked))
        count = solve(n, batch)
        n, took = batch, time.thread_time() - began
        if count is not None:
            solved, nnz = n, nnz + count
    expected = float(work.weights[picked[:solved]].sum())
    return MeasuredRates(
        took / max(float(work.seconds[picked[:n]].sum()), 1e-9),
        nnz / expected if solved else 1.0,
        n,
    )


def _probe_labels(work: LabelWork, seconds: float) -> Int64:
    """Return positions in `work` of labels to solve: as many cost levels as fit in `seconds`.

    The middle label is always one of them, unless it is more than a tenth of the whole work.
    """
    order = np.argsort(work.seconds, kind="stable")
    order = order[work.weights[order] > 0]
    for n in range(min(MAX_PROBE_LABELS, len(order)), 0, -1):
        # The middles of n equally large groups.
        picked = order[((np.arange(n) + 0.5) / n * len(order)).astype(np.int64)]
        cost = float(work.seconds[picked].sum())
        if cost <= seconds or (n == 1 and 10 * cost <= work.seconds.sum()):
            # Shuffled, so that the labels solved before the time limit are a representative mix.
            return np.random.default_rng(0).permutation(picked)
    return order[:0]
