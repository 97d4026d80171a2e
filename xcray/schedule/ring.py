"""Blocks go round: from their first shard to the one before it, each lap alike.

Block j of B starts a lap at shard j*S//B, of S, and goes on to the next shard after each. A shard takes the blocks of a lap in the
order of the steps they have made, then of their numbers. So the order of blocks at a shard, and of shards for a block, is a
matter of the grid alone. It cannot lock: of the cells of a lap that are left, the one with the fewest steps before it, and then the
lowest block, is next both for its block and for its shard.

With a barrier no block makes its next step before all have made this one (DS-MLR, Algorithm 1); the orders are the same.

Without one, blocks would gather before a worker that is slow, nearly all of them in the end, at the one worker before it. So a
worker holds no more than CROWD times its share of the blocks, and those ahead: what it has taken, and what has passed it and is not
yet reported to have passed the next. That cannot lock either: what leaves a shard comes to the next one in the same order; so a
worker that can't go on waits for a full one after it, and they can't all be full.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Any

from xcray.schedule.routes import Visit, require, stations

CROWD = 3.0  # times a worker's share of the blocks that it may hold; more would serve longer delays


class Ring:
    """The way of `blocks` blocks round the shards of `homes` (homes[s]: the worker of shard s), `laps` times; `ahead`: visits
    taken and not passed, at most, per worker."""

    def __init__(
        self, homes: Sequence[str], blocks: int, laps: int, *, ahead: int, barrier: bool
    ) -> None:
        n = len(homes)
        self._homes = tuple(homes)
        self._blocks = blocks
        self._laps = laps
        self._barrier = barrier
        starts = [block * n // blocks for block in range(blocks)]
        # One cycle of blocks serves all shards: those that start at the last shard, at the one before, ..., at the first. A
        # shard enters it at the blocks that start there, or at the next that there are.
        self._cycle = sorted(range(blocks), key=lambda block: (-starts[block], block))
        self._entry = [sum(start > shard for start in starts) % blocks for shard in range(n)]
        self._next = [
            self._cycle[entry] for entry in self._entry
        ]  # the block that each shard takes next
        self._taken = [0] * n  # blocks taken by a shard, in all laps
        self._at = starts  # the shard that each block passes next
        self._steps = [0] * blocks  # shards passed by a block, in all laps
        self._free = [laps > 0] * blocks  # neither under way nor at the end
        self._ready: dict[str, list[tuple[int, int]]] = {worker: [] for worker in homes}
        self._place: list[str | None] = [
            None
        ] * blocks  # the worker that holds each block; while it is under way, the one before
        self._holds = dict.fromkeys(
            homes, 0
        )  # blocks held by each worker, those under way to it included
        shares = {worker: blocks * len(shards) / n for worker, shards in stations(homes).items()}
        self._most = {
            worker: blocks if barrier else ceil(CROWD * share) + ahead
            for worker, share in shares.items()
        }
        self._epoch = 0
        self._left = blocks  # the step that all are in, and how many blocks have not made it
        for block in range(blocks):
            self._offer(block)

    def take(self, worker: str, number: int) -> Visit | None:
        """The block furthest down the worker's shards: it makes way for those behind it, which then pass more at once. A worker
        that is full takes only what it holds already."""
        ready = self._ready[worker]
        if self._holds[worker] >= self._most[worker]:
            here = [offer for offer in ready if self._place[offer[1]] == worker]
            if not here:
                return None
            block = min(here)[1]
            ready.remove(min(here))
            heapify(ready)
        elif ready:
            block = heappop(ready)[1]
        else:
            return None
        if self._place[block] != worker:
            self._holds[worker] += 1
        n, shard, lap = len(self._homes), self._at[block], self._steps[block] // len(self._homes)
        shards = (
            (shard,)
            if self._barrier
            else self._run(block, shard, (lap + 1) * n - self._steps[block])
        )
        self._free[block] = False
        for shard in shards:
            taken = self._taken[shard] = self._taken[shard] + 1
            self._next[shard] = self._cycle[(self._entry[shard] + taken) % self._blocks]
        for shard in shards:
            if self._at[after := self._next[shard]] == shard:
                self._offer(after)
        return Visit(number, worker, block, shards, lap)

    def passed(self, visit: Visit) -> Sequence[str]:
        """The block goes on to the next shard, if its turn has come there, and leaves room where it was; at a barrier all go
        on."""
        n, block = len(self._homes), visit.block
        steps = self._steps[block] = self._steps[block] + len(visit.shards)
        at = self._at[block] = (visit.shards[-1] + 1) % n
        self._free[block] = steps < self._laps * n
        origin, self._place[block] = self._place[block], visit.worker
        if origin is None or origin == visit.worker:
            origin = visit.worker
        else:
            self._holds[origin] -= 1
        if not self._barrier:
            self._offer(block)
            return self._homes[at], visit.worker, origin
        self._left -= 1
        if self._left:
            return (visit.worker,)
        self._epoch, self._left = self._epoch + 1, self._blocks
        for each in range(self._blocks):
            self._offer(each)
        return tuple(self._ready)

    def state(self) -> dict[str, Any]:
        """Laps done by each block and taken to the end by each shard."""
        n = len(self._homes)
        return {
            "block_laps": [steps // n for steps in self._steps],
            "shard_laps": [taken // self._blocks for taken in self._taken],
        }

    def check(self, under_way: Sequence[Visit]) -> None:
        """The books of blocks and those of shards speak of the same cells; raises AssertionError if not."""
        n, ready = (
            len(self._homes),
            [block for entries in self._ready.values() for _, block in entries],
        )
        cells = sum(len(visit.shards) for visit in under_way)
        require(
            sum(self._taken) == sum(self._steps) + cells,
            "blocks and shards do not agree on what they have done",
        )
        require(
            not any(self._free[visit.block] for visit in under_way),
            "a block under way is held to be free",
        )
        for block in (block for block in range(self._blocks) if self._free[block]):
            shard, lap = self._at[block], self._steps[block] // n
            require(
                self._taken[shard] // self._blocks <= lap,
                f"shard {shard} is a lap before block {block}, which has to pass it",
            )
        places = [
            *self._place,
            *(visit.worker for visit in under_way if self._place[visit.block] != visit.worker),
        ]
        held = {worker: places.count(worker) for worker in self._homes}
        require(held == self._holds, "workers do not hold what they are held to")
        require(
            all(held[worker] <= self._most[worker] for worker in held),
            "a worker holds more blocks than it may",
        )
        require(
            sorted(ready) == [b for b in range(self._blocks) if self._may_go(b)],
            "what is offered is not what may go",
        )

    def _may_go(self, block: int) -> bool:
        """Whether a block may go to its next shard."""
        early = self._barrier and self._steps[block] > self._epoch
        return self._free[block] and self._next[self._at[block]] == block and not early

    def _offer(self, block: int) -> None:
        """A block may be able to go on: called once it is free, and once its turn has come."""
        if self._may_go(block):
            shard = self._at[block]
            heappush(self._ready[self._homes[shard]], (-shard, block))

    def _run(self, block: int, shard: int, most: int) -> tuple[int, ...]:
        """The shards from `shard` up that a block may pass at one worker, at most so many."""
        end, last, worker = shard + 1, min(shard + most, len(self._homes)), self._homes[shard]
        while end < last and self._homes[end] == worker and self._next[end] == block:
            end += 1
        return tuple(range(shard, end))
