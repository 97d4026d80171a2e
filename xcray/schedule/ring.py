"""Ring routing: in each sweep a block passes all shards in order, from its own first shard on.

Block j of B starts a sweep at shard j*S//B of S, counted from a first one, and goes on to the next
shard after each pass. A shard takes the blocks of a sweep in the order of the steps they have made,
then of their numbers. So the order of blocks at a shard, and of shards for a block, depends on the
grid and the first shard alone. Deadlock is impossible: of the remaining cells of a sweep, the one
with the fewest steps before it, and then the lowest block, is next both for its block and for its
shard.

With a barrier no block makes its next step before all have made this one (DS-MLR, Algorithm 1). The
orders are the same.

Without a barrier, blocks would gather at the worker before a slow one, in the end nearly all of
them. So a worker holds at most MAX_CROWD_FACTOR times its share of the blocks plus those in flight:
the blocks that it has taken, and those that have passed it and are not yet reported to have passed
the next worker. That cannot deadlock either: blocks leave a shard and arrive at the next one in the
same order, so a blocked worker waits for a full one after it, and not all of them can be full.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil

from xcray.schedule.routes import BlockPass, shards_by_worker

# Limit relative to a worker's share of the blocks; more would cover longer delays.
MAX_CROWD_FACTOR = 3.0


class Ring:
    """Route `blocks` blocks round the shards of `owners`, `sweeps` times.

    owners: owners[s] is the worker of shard s. max_in_flight: passes that are taken and not
    completed per worker, at most. first: the shard at which block 0 starts, modulo their number.
    """

    def __init__(
        self,
        owners: Sequence[str],
        blocks: int,
        sweeps: int,
        *,
        max_in_flight: int,
        barrier: bool,
        first: int = 0,
    ) -> None:
        n = len(owners)
        self._owners = tuple(owners)
        self._blocks = blocks
        self._sweeps = sweeps
        self._barrier = barrier
        starts = [(block * n // blocks + first) % n for block in range(blocks)]
        # One cycle of blocks serves all shards: those that start at the last shard, at the one
        # before, ..., at the first. A shard enters it at the blocks that start there, or at the
        # next existing ones.
        self._cycle = sorted(range(blocks), key=lambda block: (-starts[block], block))
        self._entry = [sum(start > shard for start in starts) % blocks for shard in range(n)]
        # the block that each shard takes next
        self._next_block = [self._cycle[entry] for entry in self._entry]
        self._taken = [0] * n  # blocks taken by each shard, in all sweeps
        self._next_shard = starts  # the shard that each block passes next
        self._steps = [0] * blocks  # shards passed by each block, in all sweeps
        self._free = [sweeps > 0] * blocks  # neither in flight nor done
        self._ready: dict[str, list[tuple[int, int]]] = {worker: [] for worker in owners}
        # The worker that holds each block; while it is in flight, the one before.
        self._holder: list[str | None] = [None] * blocks
        # blocks held by each worker, those in flight to it included
        self._held_blocks = dict.fromkeys(owners, 0)
        shares = {
            worker: blocks * len(shards) / n for worker, shards in shards_by_worker(owners).items()
        }
        self._max_held = {
            worker: blocks if barrier else ceil(MAX_CROWD_FACTOR * share) + max_in_flight
            for worker, share in shares.items()
        }
        self._epoch = 0
        self._left = blocks  # blocks that have not made the current step
        for block in range(blocks):
            self._offer(block)

    def next_pass(self, worker: str, number: int) -> BlockPass | None:
        """Return a pass of the block that is furthest along the worker's shards.

        That block makes way for those behind it, which then pass more shards at once. A full worker
        takes only blocks that it holds already.
        """
        ready = self._ready[worker]
        if self._held_blocks[worker] >= self._max_held[worker]:
            here = [offer for offer in ready if self._holder[offer[1]] == worker]
            if not here:
                return None
            block = min(here)[1]
            ready.remove(min(here))
            heapify(ready)
        elif ready:
            block = heappop(ready)[1]
        else:
            return None
        if self._holder[block] != worker:
            self._held_blocks[worker] += 1
        n, shard, sweep = (
            len(self._owners),
            self._next_shard[block],
            self._steps[block] // len(self._owners),
        )
        shards = (
            (shard,)
            if self._barrier
            else self._shard_run(block, shard, (sweep + 1) * n - self._steps[block])
        )
        self._free[block] = False
        for shard in shards:
            n_taken = self._taken[shard] = self._taken[shard] + 1
            self._next_block[shard] = self._cycle[(self._entry[shard] + n_taken) % self._blocks]
        for shard in shards:
            if self._next_shard[after := self._next_block[shard]] == shard:
                self._offer(after)
        return BlockPass(number, worker, block, shards, sweep)

    def complete_pass(self, block_pass: BlockPass) -> Sequence[str]:
        """Move the block on to the next shard, if it is its turn; at a barrier all blocks move."""
        n, block = len(self._owners), block_pass.block
        steps = self._steps[block] = self._steps[block] + len(block_pass.shards)
        at = self._next_shard[block] = (block_pass.shards[-1] + 1) % n
        self._free[block] = steps < self._sweeps * n
        origin, self._holder[block] = self._holder[block], block_pass.worker
        if origin is None or origin == block_pass.worker:
            origin = block_pass.worker
        else:
            self._held_blocks[origin] -= 1
        if not self._barrier:
            self._offer(block)
            return self._owners[at], block_pass.worker, origin
        self._left -= 1
        if self._left:
            return (block_pass.worker,)
        self._epoch, self._left = self._epoch + 1, self._blocks
        for each in range(self._blocks):
            self._offer(each)
        return tuple(self._ready)

    def _can_move(self, block: int) -> bool:
        """Return whether a block can go to its next shard."""
        early = self._barrier and self._steps[block] > self._epoch
        return (
            self._free[block] and self._next_block[self._next_shard[block]] == block and not early
        )

    def _offer(self, block: int) -> None:
        """Offer a block that can move on; called when it becomes free and when its turn comes."""
        if self._can_move(block):
            shard = self._next_shard[block]
            heappush(self._ready[self._owners[shard]], (-shard, block))

    def _shard_run(self, block: int, shard: int, limit: int) -> tuple[int, ...]:
        """Return at most `limit` shards from `shard` up that a block can pass at one worker."""
        end, last, worker = shard + 1, min(shard + limit, len(self._owners)), self._owners[shard]
        while end < last and self._owners[end] == worker and self._next_block[end] == block:
            end += 1
        return tuple(range(shard, end))
