"""Which worker is the home of which shards: consecutive ones, so that the slowest is done as early as can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from xcray.arrays import Float64
from xcray.errors import ParameterError

HALVINGS = 100  # of the interval that holds the least time; each also steps down to a time that some division takes
SLACK = 1e-12  # relative: sums of costs are floats


def homes_by_speed(
    costs: Sequence[float] | Float64, speeds: Mapping[str, float]
) -> tuple[str, ...]:
    """The worker of each shard (S,): consecutive shards for each worker, in the order of `speeds`, least time of the slowest.

    costs: (S,) what a block costs to pass each shard, in any unit; speeds: worker -> units a second. A worker that would hold up
    the others by its first shard gets none. Of the divisions with the least time, one with cuts near to those in proportion to
    speed. Raises ParameterError where there are no shards or no workers, a cost is negative, a speed is not positive, or
    one of them is not finite.

    Example:
        >>> homes_by_speed([1.0] * 5, {"a": 1.0, "b": 0.25})
        ('a', 'a', 'a', 'a', 'b')
    """
    wrong = [cost for cost in costs if not 0.0 <= cost < math.inf] or [
        v for v in speeds.values() if not 0.0 < v < math.inf
    ]
    if wrong or not len(costs) or not speeds:
        raise ParameterError(
            f"{len(costs)} shards, {len(speeds)} workers: give costs >= 0 and speeds > 0 (found {wrong[:3]})"
        )
    weights = np.asarray(costs, np.float64)
    if not weights.any():
        weights = np.ones(len(weights))  # nothing is known of them: count them
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    rates = list(speeds.values())
    cuts = _cuts(sums, rates, _least(sums, rates))
    return tuple(
        name
        for name, first, last in zip(speeds, [0, *cuts], cuts, strict=False)
        for _ in range(first, last)
    )


def _reach(sums: Float64, first: int, budget: float) -> int:
    """How far a worker comes that starts at a shard and has a budget of cost: the shard after its last."""
    return int(np.searchsorted(sums, (sums[first] + budget) * (1.0 + SLACK), side="right")) - 1


def _furthest(sums: Float64, rates: Sequence[float], seconds: float) -> list[int]:
    """For each worker the shard after its last, when each takes all that it can do in this time."""
    out, first = [], 0
    for rate in rates:
        first = _reach(sums, first, rate * seconds)
        out.append(first)
    return out


def _least(sums: Float64, rates: Sequence[float]) -> float:
    """The least time in which all shards can be passed: greedy is right for a given time, halving finds the time."""
    low, high = float(sums[-1]) / sum(rates), float(sums[-1]) / rates[0]
    for _ in range(HALVINGS):
        if low >= high:
            break
        middle = (low + high) / 2
        ends = _furthest(sums, rates, middle)
        if ends[-1] < len(sums) - 1:
            low = middle
        else:
            high = float((np.diff(sums[[0, *ends]]) / rates).max())  # as it is, without the slack
    return high


def _cuts(sums: Float64, rates: Sequence[float], seconds: float) -> list[int]:
    """The shard after the last of each worker: those nearest to cuts in proportion to speed that keep the time."""
    n = len(sums) - 1
    backward = np.concatenate([[0.0], np.cumsum(np.diff(sums)[::-1])])
    earliest = [*(n - end for end in reversed(_furthest(backward, rates[::-1], seconds)[:-1])), n]
    shares = sums[-1] * np.cumsum(rates) / sum(rates)
    out, first = [], 0
    for rate, least, share in zip(rates, earliest, shares, strict=True):
        near = int(np.searchsorted(sums, share))
        if near > 0 and share - sums[near - 1] <= sums[min(near, n)] - share:
            near -= 1
        first = min(max(near, least, first), max(_reach(sums, first, rate * seconds), least))
        out.append(first)
    return out
