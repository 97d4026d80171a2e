"""Whether shards are better off with other workers: by what each was measured to do, with some distrust of single figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from xcray.arrays import Float64
from xcray.schedule.shard_assignment import homes_by_speed

WORTH_MOVING: Final = (
    0.85  # the slowest worker must then take at most so much of the time it takes now
)
LEAST_SAVED: Final = 0.2  # seconds that a stretch must be shorter by: less is noise


class Speeds:
    """How fast workers are, in units of cost a second.

    A figure counts half, as a logarithm, beside what was known; a worker that nothing is known of is thought to be as fast as
    the fastest, and one that had no shards comes nearer to it with each stretch: so it gets some again, to show what it can do.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def learn(self, measured: Mapping[str, float], crew: Sequence[str]) -> None:
        """What the workers of a crew did in a stretch, as far as they did anything."""
        best = max([*self._known.values()] or [*measured.values()] or [1.0])
        self._known = {
            worker: math.sqrt(self._known.get(worker, best) * measured.get(worker, best))
            for worker in crew
        }

    def forget(self, worker: str) -> None:
        """Another worker has this name now, perhaps on another machine."""
        self._known.pop(worker, None)

    def of(self, crew: Sequence[str]) -> dict[str, float]:
        """The speed of each worker, in the order of a crew; of those that nothing is known of, the fastest."""
        best = max(self._known.values(), default=1.0)
        return {worker: self._known.get(worker, best) for worker in crew}

    def better(self, homes: Sequence[str], costs: Float64, passes: int) -> tuple[str, ...] | None:
        """Homes with which the next stretch is clearly shorter; None when these are good enough.

        homes, costs: (S,) of each shard; passes: blocks that come to each shard in a stretch, each lap counted.
        """
        found = homes_by_speed(costs, self._known)
        now, then = (passes * self._slowest(each, costs) for each in (homes, found))
        return found if then <= WORTH_MOVING * now and now - then >= LEAST_SAVED else None

    def _slowest(self, homes: Sequence[str], costs: Float64) -> float:
        """Seconds that the slowest worker takes for one block past its shards."""
        work = dict.fromkeys(homes, 0.0)
        for home, cost in zip(homes, costs, strict=True):
            work[home] += float(cost)
        return max(total / self._known[worker] for worker, total in work.items())
