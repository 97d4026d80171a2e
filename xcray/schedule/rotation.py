"""Blocks of weights that pass every shard of the data, lap after lap: what block-separable solvers run on.

A *visit* is one block passing one or more consecutive shards at their worker; a *lap* is every block past every shard, once; a
*stretch* is some laps, after which everything is at rest. The schedule says which visit is next. It promises: a block is in
one place at a time; each cell (shard, block) comes once a lap; a shard begins a lap when all blocks have passed it in the lap
before.

Orders, by name: "sync" and "ring" (`ring.py`) give each shard and each block the same partners in the same order, on any
workers, at any speed: what is computed is the same to the bit. "uniform" and "shortest" (`nomad.py`) send a block where there is
room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xcray.errors import ParameterError
from xcray.schedule.events import Done, Finish, Lost
from xcray.schedule.nomad import Nomad
from xcray.schedule.ring import Ring
from xcray.schedule.routes import Route, Visit, require, stations

__all__ = ["ORDERS", "Circulate", "Visit"]

ORDERS = ("sync", "ring", "uniform", "shortest")


class Circulate:
    """The schedule of one stretch.

    homes: homes[s] is the worker of shard s; a worker's shards are consecutive. blocks: how many there are. laps: of the stretch.
    order: one of ORDERS. ahead: visits issued and not done, at most, per worker; with 2 the next block can travel while the
    worker is at the one before. seed: of "uniform" and "shortest". nodes: worker -> node; with it a block of these two passes all
    workers of a node before it goes to another. Raises ParameterError for values out of their range.

    Workers run their visits in the order in which they are issued.
    """

    def __init__(
        self,
        homes: Sequence[str],
        blocks: int,
        laps: int,
        *,
        order: str = "ring",
        ahead: int = 2,
        seed: int = 0,
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        if order not in ORDERS:
            raise ParameterError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
        if not homes or blocks < 1 or laps < 0 or ahead < 1:
            raise ParameterError(
                f"{len(homes)} shards, {blocks} blocks, {laps} laps, {ahead} visits ahead: "
                "give at least one shard, one block and one visit ahead, and no negative number of laps"
            )
        self._workers = stations(homes)
        self._ahead = ahead
        self._shape = {"order": order, "shards": len(homes), "blocks": blocks, "laps": laps}
        self._route: Route
        if order in ("sync", "ring"):
            self._route = Ring(homes, blocks, laps, ahead=ahead, barrier=order == "sync")
        else:
            self._route = Nomad(
                homes,
                blocks,
                laps,
                ahead=ahead,
                shortest=order == "shortest",
                seed=seed,
                nodes=nodes,
            )
        self._held: dict[str, dict[int, Visit]] = {worker: {} for worker in self._workers}
        self._reason: str | None = None
        self._visits = 0
        self.done_cells = 0
        self.total_cells = len(homes) * blocks * laps
        self._hear = {Done: self._complete, Lost: self._lose}

    def begin(self) -> list[Visit | Finish]:
        """The first visits, dealt one a worker at a time; a finish, when there are no laps."""
        if not self.total_cells:
            return [Finish()]
        return [visit for _ in range(self._ahead) for visit in self._issue(self._workers, 1)]

    def on(self, event: Done | Lost, now: float = 0.0) -> list[Visit | Finish]:
        """What to do now that `event` has happened. `now` is of no interest: nothing here is judged by time.

        Events of unknown workers, visits that are not under way, and whatever comes after the end change nothing.
        """
        if self._reason is not None or self.done_cells == self.total_cells:
            return []
        hear: Any = self._hear[type(event)]
        out: list[Visit | Finish] = hear(event)
        return out

    def under_way(self) -> list[Visit]:
        """Visits issued and not done, by worker, in the order in which each runs them."""
        return [visit for held in self._held.values() for visit in held.values()]

    def state(self) -> dict[str, Any]:
        """Where everything is, JSON-ready; for people, not to go on from: a stretch that broke off is begun again."""
        visits = [{**visit._asdict(), "shards": list(visit.shards)} for visit in self.under_way()]
        cells = {"done_cells": self.done_cells, "total_cells": self.total_cells}
        return {
            **self._shape,
            **cells,
            "under_way": visits,
            "reason": self._reason,
            **self._route.state(),
        }

    def check(self) -> None:
        """Raises AssertionError when a promise is broken, as far as the books can tell."""
        visits = self.under_way()
        blocks = [visit.block for visit in visits]
        require(len(blocks) == len(set(blocks)), "a block is in two places")
        require(
            all(len(held) <= self._ahead for held in self._held.values()),
            "a worker has more visits than may be ahead",
        )
        for visit in visits:
            shards = self._workers[visit.worker]
            require(
                all(shard in shards for shard in visit.shards),
                f"{visit} is at shards of another worker",
            )
        require(bool(visits) or self._at_rest(), "nothing is under way, and not all is done")
        self._route.check(visits)

    def _at_rest(self) -> bool:
        """Whether all is done, broken off, or not begun."""
        return self._reason is not None or self.done_cells == self.total_cells or self._visits == 0

    def _complete(self, event: Done) -> list[Visit | Finish]:
        """A visit is done: its block goes on, and its worker has room."""
        held = self._held.get(event.worker)
        visit = None if held is None else held.pop(event.task_id, None)
        if visit is None:
            return []
        self.done_cells += len(visit.shards)
        workers = self._route.passed(visit)
        if self.done_cells == self.total_cells:
            return [Finish()]
        return self._issue(workers, self._ahead)

    def _lose(self, event: Lost) -> list[Visit | Finish]:
        """What a worker had is gone, and with it the stretch."""
        if event.worker not in self._workers:
            return []
        self._reason = f"{event.worker} was lost"
        return [Finish(self._reason)]

    def _issue(self, workers: Iterable[str], most: int) -> list[Visit | Finish]:
        """Visits for workers that have room, at most so many each."""
        out: list[Visit | Finish] = []
        for worker in workers:
            held = self._held[worker]
            for _ in range(min(most, self._ahead - len(held))):
                visit = self._route.take(worker, self._visits)
                if visit is None:
                    break
                self._visits += 1
                held[visit.id] = visit
                out.append(visit)
        return out
