"""Probe of a training by labels: a few labels are solved to measure seconds and weights."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.solvers.contract import IndependentSolver
from xcray.workers.pool import TaskRunner

MAX_PROBE_LABELS: Final = 48  # labels solved by a probe
BATCH_LABELS: Final = 12  # per call, as in a training: a call has a cost of its own
MIN_CALLS: Final = 2  # of different costs, unless there are fewer labels; solved in any case
MIN_SPREAD: Final = 0.05  # of the expected seconds per label, for a fit with two terms
MIN_LABEL_SECONDS: Final = 1.0  # after which a label of a probe is not solved to its end, or
MAX_LABEL_SHARE: Final = 2.0  # after this share of the probe's time, whichever is later


class LabelWork(NamedTuple):
    """Labels to solve, (n,) int32, with their expected seconds (n,) and weights (n,)."""

    labels: Int32
    seconds: Float64
    weights: Float64


class MeasuredRates(NamedTuple):
    """Result of a probe, relative to the first guess.

    time_ratio: time over expected time, in addition to label_seconds, which each label takes.
    weight_ratio: weights over expected weights. probed: labels.
    """

    time_ratio: float = 1.0
    label_seconds: float = 0.0
    weight_ratio: float = 1.0
    probed: int = 0


def run_probe(
    solver: IndependentSolver,
    dataset: Dataset,
    work: LabelWork,
    seconds: float,
    runner: TaskRunner | None = None,
) -> MeasuredRates:
    """Solve a few labels, spread over all cost levels, and return the measured rates.

    runner: what solves the labels, if not the solver. Labels slower than expected end the probe,
    also before they are solved: their time so far then counts as their time. The solved blocks are
    discarded. seconds: approximate time limit, 0 to solve none.
    """
    picked = _probe_labels(work, seconds)
    if seconds <= 0.0 or not len(picked):
        return MeasuredRates()
    state = solver.load_dataset(dataset)
    solver.warm_up(state)
    longest = max(MIN_LABEL_SECONDS, MAX_LABEL_SHARE * seconds)

    def solve(chosen: Int64) -> int | None:
        """Solve labels; return their number of weights, None if they take too long."""
        end = time.thread_time() + longest
        labels = frozen(work.labels[chosen], np.int32)
        try:
            return (runner or solver).solve(state, labels, lambda: time.thread_time() > end).W.nnz
        except Stopped:
            return None

    if len(picked) > 1:
        solve(picked[:1])  # The first call touches the mapped files, which takes extra time once.
    calls = np.array_split(
        picked, max(-(-len(picked) // BATCH_LABELS), min(MIN_CALLS, len(picked)))
    )
    took, expected_weights, nnz = list[tuple[int, float, float]](), 0.0, 0
    # Shuffled, so that the labels solved before the time limit are a representative mix.
    for call in np.random.default_rng(0).permutation(len(calls)):
        chosen = calls[call]
        # Thread time, because other processes can be busy.
        began = time.thread_time()
        count = solve(chosen)
        cost = float(work.seconds[chosen].sum())
        took.append((len(chosen), cost, time.thread_time() - began))
        if count is not None:
            nnz += count
            expected_weights += float(work.weights[chosen].sum())
        used = sum(each for *_, each in took)
        if count is None or (used > seconds and len(took) >= MIN_CALLS):
            break
    time_ratio, label_seconds = fit_costs(np.array(took))
    weight_ratio = nnz / expected_weights if expected_weights else 1.0
    return MeasuredRates(time_ratio, label_seconds, weight_ratio, sum(n for n, *_ in took))


def fit_costs(took: Float64) -> tuple[float, float]:
    """Fit seconds = time_ratio * expected seconds + label_seconds * labels, neither negative.

    took: (n, 3), labels, expected seconds and seconds of each call. The variance of a call is
    assumed to be proportional to its expected seconds, so that the fitted seconds have the sum of
    the measured ones. Returns (time_ratio, label_seconds).
    """
    n, expected, seconds = np.maximum(took, 1e-12).T
    mean = expected.sum() / n.sum()
    sizes = expected / mean
    # normal equations, each divided by the number of labels
    spread = (n * n / sizes).sum() / n.sum() - 1.0
    ratio, each = seconds.sum() / expected.sum(), 0.0
    if spread > MIN_SPREAD:
        each = ((n * seconds / sizes).sum() - seconds.sum()) / (n.sum() * spread)
        each = min(max(each, 0.0), seconds.sum() / n.sum())
        ratio -= each / mean
    return float(ratio), float(each)


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
            return picked
    return order[:0]
