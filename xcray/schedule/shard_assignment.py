"""Assignment of shards and shares to workers, so that the slowest worker is done early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xcray.arrays import Float64

MAX_HALVINGS = 100  # Of the interval with the least time; each one also moves to a feasible time.
SLACK = 1e-12  # relative, for rounding errors of cost sums


def assign_by_speed(
    costs: Sequence[float] | Float64, speeds: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the worker of each shard (S,), with the least time of the slowest worker.

    Each worker gets consecutive shards, in the order of `speeds`. costs: (S,) cost of one block
    pass per shard, in any unit. speeds: worker -> units per second. A worker whose first shard
    would delay the others gets none. Of the divisions with the least time, one with cuts close to
    those in proportion to speed is returned.

    Example:
        >>> assign_by_speed([1.0] * 5, {"a": 1.0, "b": 0.25})
        ('a', 'a', 'a', 'a', 'b')
    """
    weights = np.asarray(costs, np.float64)
    if not weights.any():
        weights = np.ones(len(weights))  # without costs, count the shards
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    rates = list(speeds.values())
    cuts = _cuts(sums, rates, _least(sums, rates))
    return tuple(
        name
        for name, first, last in zip(speeds, [0, *cuts], cuts, strict=False)
        for _ in range(first, last)
    )


def assign_evenly(
    owners: Sequence[str], workers: Sequence[str], most: int | None = None
) -> tuple[str, ...]:
    """Return owners (S,) among `workers`, each of at most `most` parts that it has already.

    Parts whose owner is not one of `workers`, or has more, go to those with the fewest. most: by
    default so few that the parts are spread evenly.

    Example:
        >>> assign_evenly(["a", "a", "b", "b", ""], ["a", "c"])
        ('a', 'a', 'c', 'c', 'a')
    """
    most = most or -(-len(owners) // len(workers))
    counts, out = dict.fromkeys(workers, 0), list[str]()
    for owner in owners:
        is_kept = counts.get(owner, most) < most
        out.append(owner if is_kept else "")
        if is_kept:
            counts[owner] += 1
    for part, owner in enumerate(out):
        if not owner:
            out[part] = min(counts, key=lambda worker: counts[worker])
            counts[out[part]] += 1
    return tuple(out)


def _reach(sums: Float64, first: int, budget: float) -> int:
    """Return the shard after the last one that fits into `budget`, starting at shard `first`."""
    return int(np.searchsorted(sums, (sums[first] + budget) * (1.0 + SLACK), side="right")) - 1


def _furthest(sums: Float64, rates: Sequence[float], seconds: float) -> list[int]:
    """Return for each worker the shard after its last, if each takes all it can do in `seconds`."""
    out, first = [], 0
    for rate in rates:
        first = _reach(sums, first, rate * seconds)
        out.append(first)
    return out


def _least(sums: Float64, rates: Sequence[float]) -> float:
    """Return the least time in which all shards can be passed.

    Greedy assignment is optimal for a given time; bisection finds the time.
    """
    low, high = float(sums[-1]) / sum(rates), float(sums[-1]) / rates[0]
    for _ in range(MAX_HALVINGS):
        if low >= high:
            break
        middle = (low + high) / 2
        ends = _furthest(sums, rates, middle)
        if ends[-1] < len(sums) - 1:
            low = middle
        else:
            # the exact time, without the slack
            high = float((np.diff(sums[[0, *ends]]) / rates).max())
    return high


def _cuts(sums: Float64, rates: Sequence[float], seconds: float) -> list[int]:
    """Return the shard after the last of each worker, close to proportional, within `seconds`."""
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
