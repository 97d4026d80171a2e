"""What solving all labels takes, from a drawn sample that is solved on this machine: a total, and a range it lies in 9 times of 10.

Labels are heavy-tailed: a thousandth of them may take a fifth of the time. So they are drawn by strata of the cost that the
scheduler foresees (`Solver.cost_terms`), cut so that each stratum has an equal share of the sum of square roots: where errors of
a guess are in proportion to it, and drawing costs what the guess says, equally many draws from each are the best there are
(Neyman, "On the two different aspects of the representative method", 1934, with costs). The total is the combined ratio
estimate of stratified samples (Cochran, "Sampling techniques", 1977, section 6.11), its variance that of the residuals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, frozen
from xcray.data.dataset import Split

STRATA: Final = 16
BATCH_SECONDS, BATCH = (
    0.01,
    64,
)  # cheap labels are drawn so many at a time: a call of its own would cost more than the label
NOISE: Final = 0.1  # by what share seconds differ that a machine takes for the same, others being at work or not
SKEWED: Final = 1.5  # the upper bound is so much farther: who draws too few dear labels finds too small a variance too
UNSEEN: Final = 0.4  # standard deviation of the logarithm of a ratio, at least, for strata that nothing was drawn from
T90: Final = (
    6.31,
    2.92,
    2.35,
    2.13,
    2.02,
    1.94,
    1.89,
    1.86,
    1.83,
    1.81,
)  # Student's t for 5 % on each side, 1 to 10 degrees
NORMAL90: Final = 1.645


class Range(NamedTuple):
    """An amount, and the bounds that it lies between nine times of ten."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        """The same of so many."""
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def over(self, amount: float) -> Range:
        """The same as a multiple of an amount."""
        return self.times(1.0 / max(amount, 1e-300))


class Draw(NamedTuple):
    """Some labels of a stratum solved in one call. many: labels; foreseen: their cost as guessed; amounts: what they took, by
    what is measured, in the order of the sampling."""

    stratum: int
    many: int
    foreseen: float
    amounts: tuple[float, ...]


class Sample(NamedTuple):
    """What was drawn. sizes, foreseen: (H,) labels and cost foreseen of each stratum; draws: in the order in which they came."""

    sizes: tuple[int, ...]
    foreseen: tuple[float, ...]
    draws: list[Draw]

    @property
    def labels(self) -> int:
        """Labels that were solved."""
        return sum(draw.many for draw in self.draws)


def strata(costs: Float64, n: int = STRATA) -> list[Int32]:
    """Labels in at most `n` groups of rising cost, each with an equal share of the sum of the costs' square roots, none empty.

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


def draw(
    costs: Float64,
    take: Callable[[Int32], tuple[float, ...]],
    seconds: float,
    seed: int = 0,
    clock: Callable[[], float] | None = None,
) -> Sample:
    """Draw labels in turns, one batch of each stratum a turn, for about `seconds` of the clock, or until none is left.

    costs: (K,) seconds foreseen. take: solves labels (n,) int32, tells the amounts. A batch that should not fit into what is left,
    by the pace so far, is not begun, but for the first turn's cheaper half, and what should take a fair share of the time.
    """
    now = clock or time.thread_time
    rng = np.random.default_rng(seed)
    groups = strata(costs)
    left = [rng.permutation(group) for group in groups]
    sums = [float(costs[group].sum()) for group in groups]
    size = [
        int(np.clip(BATCH_SECONDS * len(g) / max(s, 1e-12), 1, BATCH))
        for g, s in zip(groups, sums, strict=True)
    ]
    found = Sample(tuple(map(len, groups)), tuple(sums), [])
    began, pace, first = now(), 1.0, True
    while any(len(each) for each in left):
        before = len(found.draws)
        for h in rng.permutation(len(groups)) if not first else range(len(groups)):
            labels, foreseen = left[h][: size[h]], float(costs[left[h][: size[h]]].sum())
            spent = now() - began
            certain = first and (h < len(groups) // 2 or foreseen < seconds / len(groups))
            if not len(labels) or (not certain and spent + pace * foreseen > seconds):
                continue
            found.draws.append(Draw(int(h), len(labels), foreseen, take(frozen(labels, np.int32))))
            left[h] = left[h][size[h] :]
            done = sum(each.foreseen for each in found.draws)
            pace = (now() - began) / max(done, 1e-12)
        first = False
        if len(found.draws) == before:
            break
    return found


def total(sample: Sample, which: int = 0, floor: float = 0.0) -> Range:
    """Amount number `which` of all labels, from a sample. floor: by what share it differs each time it is measured, at least, even
    of all labels. Raises ValueError for a sample in which nothing was drawn."""
    if not sample.draws:
        raise ValueError("nothing was drawn")
    per = [[d for d in sample.draws if d.stratum == h] for h in range(len(sample.sizes))]
    seen = [h for h, draws in enumerate(per) if draws]
    means = {h: _mean(per[h], which) for h in seen}
    of_seen = sum(sample.sizes[h] * means[h][0] for h in seen)
    ratio = of_seen / max(sum(sample.sizes[h] * means[h][1] for h in seen), 1e-300)
    whole = ratio * sum(sample.foreseen)
    variance, degrees = _variance(sample, per, seen, ratio, which)
    unseen = sum(sample.foreseen[h] for h in range(len(per)) if h not in means)
    if unseen:
        ratios = [math.log(max(means[h][0], 1e-300) / max(means[h][1], 1e-300)) for h in seen]
        variance += (ratio * unseen * max(UNSEEN, float(np.std(ratios)))) ** 2
    t = T90[degrees - 1] if 0 < degrees <= len(T90) else NORMAL90
    spread = min(math.hypot(t * math.sqrt(variance) / max(whole, 1e-300), floor), 3.0)
    return Range(whole, whole * math.exp(-spread), whole * math.exp(SKEWED * spread))


def _mean(draws: Sequence[Draw], which: int) -> tuple[float, float]:
    """Amount and cost foreseen of a label, in the mean."""
    many = sum(each.many for each in draws)
    return sum(each.amounts[which] for each in draws) / many, sum(
        each.foreseen for each in draws
    ) / many


def _variance(
    sample: Sample, per: Sequence[Sequence[Draw]], seen: Sequence[int], ratio: float, which: int
) -> tuple[float, int]:
    """Variance of the total by the residuals, and the degrees of freedom it is known with: a quarter of the draws, for the dear
    strata count most. A few draws of a skewed amount tell too small a variance, and one tells none: a stratum has at least that
    of all residuals, in proportion to its costs."""
    variance, degrees = 0.0, 0
    every = [
        (d.amounts[which] - ratio * d.foreseen) / max(d.foreseen, 1e-300) for d in sample.draws
    ]
    pooled = float(np.mean(np.square(every)))  # of a residual, as a share of the cost
    for h in seen:
        draws, n = per[h], len(per[h])
        drawn = sum(each.many for each in draws)
        rest = 1.0 - drawn / sample.sizes[h]
        if rest <= 0.0:
            continue
        residuals = [(each.amounts[which] - ratio * each.foreseen) / each.many for each in draws]
        own = float(np.var(residuals, ddof=1)) if n > 1 else 0.0
        own = max(own, pooled * _mean(draws, which)[1] ** 2)
        variance += sample.sizes[h] ** 2 * rest * own / n
        degrees += n
    return variance, max(degrees // 4, 1)


def stretched(weights: Float64, total: float, most: float) -> Float64:
    """Weights of labels (K,) times one factor, none above `most`, so that they sum to `total`, or as near as that allows."""
    low, high = 0.0, 1e9
    for _ in range(100):
        factor = math.sqrt(max(low, 1e-9) * high)
        low, high = (
            (low, factor) if np.minimum(factor * weights, most).sum() > total else (factor, high)
        )
    out: Float64 = np.minimum(factor * weights, most)
    return out


def solve_some(solver: Any, train: Split, costs: Float64, seconds: float, seed: int = 0) -> Sample:
    """Draw labels of a data set's part and solve them on one core for about `seconds`; amounts: processor seconds, weights.

    costs: (K,) seconds foreseen, see `Solver.cost_terms`. Labels without rows are left out: they cost next to nothing. The blocks
    are dropped. Raises what the solver raises.
    """
    local = solver.load(train.X, train.XT, train.YT, train.weights)
    solver.warm_up()
    alive = np.flatnonzero(np.diff(train.YT.indptr) > 0).astype(np.int32)
    cheap = alive[np.argsort(costs[alive], kind="stable")[0]]
    solver.solve(
        local, frozen([cheap], np.int32)
    )  # touches the mapped files, which takes its time once

    def take(places: Int32) -> tuple[float, ...]:
        began = time.thread_time()
        block = solver.solve(local, frozen(alive[places], np.int32))
        return time.thread_time() - began, float(block.W.nnz)

    return draw(costs[alive], take, seconds, seed)
