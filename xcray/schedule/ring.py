"""Blocks go round: from their first shard to the one before it, each lap alike.

Block j of B starts a lap at shard j*S//B, of S, and goes on to the next shard after each. Shard s takes the blocks of a lap in the order of
the steps they have made, then of their numbers. So the order of blocks at a shard and of shards for a block is a matter of
the grid alone. It cannot lock: of all cells of a lap that are left, the one with the fewest steps, then the lowest block, is next both for its
block and for its shard.

With a barrier no block makes its next step before all have made this one (DS-MLR, Algorithm 1); the order is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from xcray.schedule.stops import Stop, require


class Ring:
    """The way of `blocks` blocks round the shards of `homes` (homes[s]: the worker of shard s), `laps` times."""

    def __init__(self, homes: Sequence[str], blocks: int, laps: int, *, barrier: bool) -> None:
        n = len(homes)
        self._homes, self._blocks, self._laps, self._barrier = tuple(homes), blocks, laps, barrier
        self._starts = [block * n // blocks for block in range(blocks)]
        # One cycle of blocks serves all shards: those that start at the last shard, at the one before, ..., at the first. A
        # shard enters it at the blocks that start with it, or the next that there are.
        self._cycle = sorted(range(blocks), key=lambda block: (-self._starts[block], block))
        self._entry = [sum(start > shard for start in self._starts) % blocks for shard in range(n)]
        self._steps = [0] * blocks  # shards passed, in all laps
        self._free = [laps > 0] * blocks  # neither under way nor at the end
        self._taken = [0] * n  # blocks taken by a shard, in all laps
        self._ready: dict[str, list[tuple[int, int, int]]] = {worker: [] for worker in homes}
        self._epoch, self._left = 0, blocks  # the step that all are in, and the blocks that have not made it
        for block in range(blocks if laps else 0):
            self._offer(block)

    def take(self, worker: str) -> Stop | None:
        """The block furthest down the worker's shards that may pass: it makes way for those behind it, which then pass more
        shards in one stop."""
        if not self._ready[worker]:
            return None
        lap, shard, block = heappop(self._ready[worker])
        shards = self._run(block, -shard, worker)
        self._free[block] = False
        for passing in shards:
            self._taken[passing] += 1
        for passing in shards:
            if self._shard(after := self._next(passing)) == passing:
                self._offer(after)
        return Stop(worker, block, shards, lap)

    def passed(self, stop: Stop) -> Sequence[str]:
        """The block goes on to the next shard, if its turn has come there; at a barrier all do."""
        block = stop.block
        self._steps[block] += len(stop.shards)
        self._free[block] = self._steps[block] < self._laps * len(self._homes)
        if not self._barrier:
            self._offer(block)
            return self._homes[self._shard(block)], stop.worker
        self._left -= 1
        if self._left:
            return (stop.worker,)
        self._epoch, self._left = self._epoch + 1, self._blocks
        for each in range(self._blocks):
            self._offer(each)
        return tuple(self._ready)

    def state(self) -> dict[str, Any]:
        """Laps done by each block and begun to the end by each shard."""
        n = len(self._homes)
        return {
            "block_laps": [steps // n for steps in self._steps],
            "shard_laps": [taken // self._blocks for taken in self._taken],
        }

    def check(self) -> None:
        """The books of blocks and those of shards speak of the same cells; raises AssertionError if not."""
        n = len(self._homes)
        gaps = sum(self._taken) - sum(self._steps)
        require(0 <= gaps, "a block has passed a shard that did not take it")
        require(gaps == 0 or not all(self._free), "a shard has taken a block that rests")
        for block in (block for block in range(self._blocks) if self._free[block]):
            shard, lap = self._shard(block), self._steps[block] // n
            require(self._taken[shard] // self._blocks <= lap, f"shard {shard} began a lap before block {block} had passed it")
        ready = [(-shard, block) for entries in self._ready.values() for _, shard, block in entries]
        require(len(ready) == len(set(ready)), "a stop is offered twice")
        expected = [(self._shard(block), block) for block in range(self._blocks) if self._may_go(block)]
        require(sorted(ready) == sorted(expected), "a stop is offered that may not be, or one that may be is not")

    def _shard(self, block: int) -> int:
        """The shard that a block passes next."""
        return (self._starts[block] + self._steps[block]) % len(self._homes)

    def _next(self, shard: int) -> int:
        """The block that a shard takes next."""
        return self._cycle[(self._entry[shard] + self._taken[shard]) % self._blocks]

    def _may_go(self, block: int) -> bool:
        """Whether a block may go to its next shard."""
        early = self._barrier and self._steps[block] > self._epoch
        return self._free[block] and not early and self._next(self._shard(block)) == block

    def _offer(self, block: int) -> None:
        """A block may be able to go on: called once it is free, and once its turn has come."""
        if self._may_go(block):
            shard = self._shard(block)
            heappush(self._ready[self._homes[shard]], (self._steps[block] // len(self._homes), -shard, block))

    def _run(self, block: int, shard: int, worker: str) -> tuple[int, ...]:
        """The shards that a block may pass in one stop, within its lap."""
        n = len(self._homes)
        left = 1 if self._barrier else n - self._steps[block] % n
        shards = [shard]
        while len(shards) < left:
            shard = (shard + 1) % n
            if self._homes[shard] != worker or self._next(shard) != block:
                break
            shards.append(shard)
        return tuple(shards)
