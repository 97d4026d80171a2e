"""Estimate of the total cost of all labels from a sample solved here, with a 90 % range.

Costs are heavy-tailed: a thousandth of the labels can take a fifth of the time. Therefore labels
are drawn by strata of the scheduler's expected cost (`Solver.cost_terms`). Each stratum has an
equal share of the sum of square roots: if the errors of a guess are in proportion to it, and
drawing costs what the guess predicts, then equally many draws per stratum are optimal (Neyman,
"On the two different aspects of the representative method", 1934, with costs). The total is the
combined ratio estimate of stratified samples (Cochran, "Sampling techniques", 1977, section 6.11).
Its variance is the variance of the residuals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, frozen
from xcray.data.dataset import Split
from xcray.solvers.contract import IndependentSolver

MAX_STRATA: Final = 16
# Cheap labels are drawn in batches: a call per label would cost more than the label.
BATCH_SECONDS, MAX_BATCH = 0.01, 64
# Relative error of repeated time measurements on a busy machine.
TIMING_NOISE: Final = 0.1
# The upper bound is farther away by this factor: a sample with too few expensive labels also
# underestimates the variance.
UPPER_BOUND_FACTOR: Final = 1.5
# Smallest standard deviation of a ratio's logarithm for strata without draws.
MIN_LOG_DEVIATION: Final = 0.4
# Student's t for 5 % on each side, 1 to 10 degrees of freedom.
T90: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
NORMAL90: Final = 1.645


class Range(NamedTuple):
    """An amount with the bounds of its 90 % interval."""

    value: float
    low: float
    high: float

    def scale(self, factor: float) -> Range:
        """Return the range times a factor."""
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def relative_to(self, amount: float) -> Range:
        """Return the range as a multiple of an amount."""
        return self.scale(1.0 / max(amount, 1e-300))


class Draw(NamedTuple):
    """Some labels of a stratum solved in one call.

    expected: their guessed cost. amounts: the measured amounts, in the order of the sampling.
    """

    stratum: int
    n_labels: int
    expected: float
    amounts: tuple[float, ...]


class Sample(NamedTuple):
    """Result of sampling.

    sizes, expected: (H,) labels and expected cost per stratum. draws: in chronological order.
    """

    sizes: tuple[int, ...]
    expected: tuple[float, ...]
    draws: list[Draw]

    @property
    def n_labels(self) -> int:
        """Return the number of solved labels."""
        return sum(draw.n_labels for draw in self.draws)


def make_strata(costs: Float64, n: int = MAX_STRATA) -> list[Int32]:
    """Group labels into at most `n` nonempty strata of rising cost.

    Each stratum has an equal share of the sum of the costs' square roots.
    costs: (K,) float64, not negative.
    """
    order = np.argsort(costs, kind="stable").astype(np.int32)
    roots = np.cumsum(np.sqrt(np.maximum(costs[order], 1e-12)))
    group = (
        np.minimum((roots / roots[-1] * n - 1e-9).astype(np.int64), n - 1)
        if len(order)
        else np.empty(0, np.int64)
    )
    return [order[group == h] for h in np.unique(group)]


def draw_labels(
    costs: Float64,
    solve: Callable[[Int32], tuple[float, ...]],
    seconds: float,
    seed: int = 0,
    clock: Callable[[], float] | None = None,
) -> Sample:
    """Draw labels in turns, one batch per stratum, for about `seconds` or until none is left.

    costs: (K,) expected seconds. solve: solves labels (n,) int32 and returns the amounts. A batch
    is skipped if it is not expected to fit into the remaining time at the rate so far. Exceptions
    are, in the first turn, the cheaper half of the strata and batches within a fair share of the
    time.
    """
    now = clock or time.thread_time
    rng = np.random.default_rng(seed)
    groups = make_strata(costs)
    left = [rng.permutation(group) for group in groups]
    sums = [float(costs[group].sum()) for group in groups]
    size = [
        int(np.clip(BATCH_SECONDS * len(g) / max(s, 1e-12), 1, MAX_BATCH))
        for g, s in zip(groups, sums, strict=True)
    ]
    sample = Sample(tuple(map(len, groups)), tuple(sums), [])
    began, pace, first = now(), 1.0, True
    while any(len(each) for each in left):
        before = len(sample.draws)
        for h in rng.permutation(len(groups)) if not first else range(len(groups)):
            labels, expected = left[h][: size[h]], float(costs[left[h][: size[h]]].sum())
            spent = now() - began
            always = first and (h < len(groups) // 2 or expected < seconds / len(groups))
            if not len(labels) or (not always and spent + pace * expected > seconds):
                continue
            sample.draws.append(
                Draw(int(h), len(labels), expected, solve(frozen(labels, np.int32)))
            )
            left[h] = left[h][size[h] :]
            done = sum(each.expected for each in sample.draws)
            pace = (now() - began) / max(done, 1e-12)
        first = False
        if len(sample.draws) == before:
            break
    return sample


def estimate_total(sample: Sample, which: int = 0, floor: float = 0.0) -> Range:
    """Estimate the total of amount number `which` over all labels.

    floor: minimum relative error, because repeated measurements differ even if all labels are
    solved.
    Raises ValueError for an empty sample.
    """
    if not sample.draws:
        raise ValueError("nothing was drawn")
    per = [[d for d in sample.draws if d.stratum == h] for h in range(len(sample.sizes))]
    sampled = [h for h, draws in enumerate(per) if draws]
    means = {h: _mean(per[h], which) for h in sampled}
    sampled_total = sum(sample.sizes[h] * means[h][0] for h in sampled)
    ratio = sampled_total / max(sum(sample.sizes[h] * means[h][1] for h in sampled), 1e-300)
    total = ratio * sum(sample.expected)
    variance, degrees = _variance(sample, per, sampled, ratio, which)
    unsampled = sum(sample.expected[h] for h in range(len(per)) if h not in means)
    if unsampled:
        ratios = [math.log(max(means[h][0], 1e-300) / max(means[h][1], 1e-300)) for h in sampled]
        variance += (ratio * unsampled * max(MIN_LOG_DEVIATION, float(np.std(ratios)))) ** 2
    t = T90[degrees - 1] if 0 < degrees <= len(T90) else NORMAL90
    spread = min(math.hypot(t * math.sqrt(variance) / max(total, 1e-300), floor), 3.0)
    return Range(total, total * math.exp(-spread), total * math.exp(UPPER_BOUND_FACTOR * spread))


def _mean(draws: Sequence[Draw], which: int) -> tuple[float, float]:
    """Return the mean amount and the mean expected cost of a label."""
    n_labels = sum(each.n_labels for each in draws)
    return sum(each.amounts[which] for each in draws) / n_labels, sum(
        each.expected for each in draws
    ) / n_labels


def _variance(
    sample: Sample, per: Sequence[Sequence[Draw]], sampled: Sequence[int], ratio: float, which: int
) -> tuple[float, int]:
    """Return the variance of the total from the residuals, and its degrees of freedom.

    The degrees are a quarter of the draws, because the expensive strata count most. A few draws of
    a skewed amount give too small a variance, and a single draw gives none. Therefore a stratum has
    at least the pooled residual variance, in proportion to its costs.
    """
    variance, degrees = 0.0, 0
    all_residuals = [
        (d.amounts[which] - ratio * d.expected) / max(d.expected, 1e-300) for d in sample.draws
    ]
    pooled = float(np.mean(np.square(all_residuals)))  # of a residual, as a share of the cost
    for h in sampled:
        draws, n = per[h], len(per[h])
        drawn = sum(each.n_labels for each in draws)
        rest = 1.0 - drawn / sample.sizes[h]
        if rest <= 0.0:
            continue
        residuals = [
            (each.amounts[which] - ratio * each.expected) / each.n_labels for each in draws
        ]
        own = float(np.var(residuals, ddof=1)) if n > 1 else 0.0
        own = max(own, pooled * _mean(draws, which)[1] ** 2)
        variance += sample.sizes[h] ** 2 * rest * own / n
        degrees += n
    return variance, max(degrees // 4, 1)


def solve_sample(
    solver: IndependentSolver, train: Split, costs: Float64, seconds: float, seed: int = 0
) -> Sample:
    """Draw labels of a data set's part and solve them on one core for about `seconds`.

    The amounts are processor seconds and weights. costs: (K,) expected seconds, see
    `Solver.cost_terms`. Labels without rows are left out, because they cost next to nothing. The
    solved blocks are discarded. Raises the solver's errors.
    """
    state = solver.load(train.X, train.XT, train.YT, train.weights)
    solver.warm_up(state)
    alive = np.flatnonzero(np.diff(train.YT.indptr) > 0).astype(np.int32)
    cheap = alive[np.argsort(costs[alive], kind="stable")[0]]
    # The first call touches the mapped files, which takes extra time once.
    solver.solve(state, frozen([cheap], np.int32))

    def solve(positions: Int32) -> tuple[float, ...]:
        began = time.thread_time()
        block = solver.solve(state, frozen(alive[positions], np.int32))
        return time.thread_time() - began, float(block.W.nnz)

    return draw_labels(costs[alive], solve, seconds, seed)
