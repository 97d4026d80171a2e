"""Rebalancing of shards by measured worker speeds, damped against noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from xcray.arrays import Float64
from xcray.schedule.shard_assignment import assign_by_speed

# maximum ratio of the slowest worker's times, new to old
MAX_TIME_RATIO: Final = 0.85
MIN_SAVED_SECONDS: Final = 0.2  # per interval: less is noise


class WorkerSpeeds:
    """Worker speeds in units of cost per second.

    A measurement is averaged with the previous value, as logarithms. An unknown worker is assumed
    to be as fast as the fastest one. The value of a worker without shards gets closer to that
    with each interval, so that it gets shards again and can be measured.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def update(self, measured: Mapping[str, float], workers: Sequence[str]) -> None:
        """Add the measured speeds of an interval; workers that did nothing may be missing."""
        best = max([*self._known.values()] or [*measured.values()] or [1.0])
        self._known = {
            worker: math.sqrt(self._known.get(worker, best) * measured.get(worker, best))
            for worker in workers
        }

    def forget(self, worker: str) -> None:
        """Forget a name that another worker has now, perhaps on another machine."""
        self._known.pop(worker, None)

    def speeds_of(self, workers: Sequence[str]) -> dict[str, float]:
        """Return the speed of each worker, in order; the fastest one for unknown workers."""
        best = max(self._known.values(), default=1.0)
        return {worker: self._known.get(worker, best) for worker in workers}

    def better_assignment(
        self, owners: Sequence[str], costs: Float64, passes: int
    ) -> tuple[str, ...] | None:
        """Return owners that make the next interval clearly shorter; None if these are good enough.

        owners, costs: (S,) of each shard. passes: number of block passes per shard in an interval.
        """
        better = assign_by_speed(costs, self._known)
        now, then = (passes * self._slowest(each, costs) for each in (owners, better))
        return better if then <= MAX_TIME_RATIO * now and now - then >= MIN_SAVED_SECONDS else None

    def _slowest(self, owners: Sequence[str], costs: Float64) -> float:
        """Return the seconds that the slowest worker takes for one block past its shards."""
        work = dict.fromkeys(owners, 0.0)
        for owner, cost in zip(owners, costs, strict=True):
            work[owner] += float(cost)
        return max(total / self._known[worker] for worker, total in work.items())
