"""Routing of NOMAD (Yun et al. 2013; DS-MLR, Algorithm 2), with a strict count of sweeps.

A block that has passed a worker goes to one that it has not passed in this sweep and that is in the
same sweep. The worker is drawn at random, and drawn again while its queue is full ("uniform"), or
is one of those with the shortest queue ("shortest"). If all queues are full the block waits, and a
worker that gets a free place draws one of the blocks that wait for it. So no worker idles while a
block that it could take waits. With nodes, a block passes all workers of a node, in random order,
before it goes to another node (the hybrid of section 5.2).

The shards of a worker are passed together. A worker starts its next sweep when it has taken all
blocks in this one. Deadlock is impossible: of the workers in the lowest sweep one still lacks a
block. That block is in the same sweep, and so is every worker that it still has to pass, on its
node or elsewhere.

The number of blocks that gather at a worker is not bounded. If it is much slower than the others,
all blocks end their last sweep there. `ring.py` has such a bound.

Sets of blocks and of workers are bit sets in integers. An event takes a few operations on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from xcray.schedule.routes import BlockPass, shards_by_worker

MAX_COUNTED, MAX_DRAWS = 8, 16  # limits of members that are counted, and of failed draws


class Nomad:
    """Route `blocks` blocks past the shards of `owners`, `sweeps` times.

    max_in_flight: passes that are taken and not completed per worker, at most.
    """

    def __init__(
        self,
        owners: Sequence[str],
        blocks: int,
        sweeps: int,
        *,
        max_in_flight: int,
        shortest: bool,
        seed: int,
        nodes: Mapping[str, str] | None,
    ) -> None:
        shards = shards_by_worker(owners)
        self._names = list(shards)
        self._shards = [tuple(each) for each in shards.values()]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._blocks = blocks
        self._sweeps = sweeps
        self._shortest = shortest
        self._random = Random(seed)
        workers = len(self._names)
        self._all_workers = (1 << workers) - 1
        self._all_blocks = (1 << blocks) - 1
        self._node = self._node_numbers(nodes)
        self._neighbours = [
            sum(1 << w for w in range(workers) if self._node[w] == node) for node in range(workers)
        ]
        # bit set of workers that each block has to pass in its sweep
        self._to_pass = [self._all_workers] * blocks
        # bit set of blocks that each worker has to take in its sweep
        self._to_take = [self._all_blocks] * workers
        self._block_sweep = [0] * blocks
        self._worker_sweep = [0] * workers
        self._blocks_in = [self._all_blocks] + [0] * sweeps  # by sweep
        self._workers_in = [self._all_workers] + [0] * sweeps
        # bit set of workers, by passes in flight
        self._with_load = [self._all_workers] + [0] * max_in_flight
        self._load = [0] * workers
        self._unbound = self._all_blocks  # waiting blocks that can go to any node
        self._bound_to_node = [0] * workers  # waiting blocks that must stay on a node, by node

    def next_pass(self, worker: str, number: int) -> BlockPass | None:
        """Return a random one of the blocks that wait for the worker."""
        w = self._number[worker]
        sweep = self._worker_sweep[w]
        if sweep == self._sweeps:
            return None
        waiting = (
            self._to_take[w]
            & self._blocks_in[sweep]
            & (self._unbound | self._bound_to_node[self._node[w]])
        )
        if not waiting:
            return None
        block = self._draw(waiting, self._blocks)
        bit = 1 << block
        self._unbound &= ~bit
        self._bound_to_node[self._node[w]] &= ~bit
        self._to_pass[block] ^= 1 << w
        self._to_take[w] ^= bit
        self._change_load(w, 1)
        if not self._to_take[w]:
            self._workers_in[sweep] ^= 1 << w
            self._workers_in[sweep + 1] ^= 1 << w
            self._worker_sweep[w], self._to_take[w] = sweep + 1, self._all_blocks
        return BlockPass(number, worker, block, self._shards[w], sweep)

    def complete_pass(self, block_pass: BlockPass) -> Sequence[str]:
        """Send the block to another worker that has a free place; its last worker has one now."""
        w, block = self._number[block_pass.worker], block_pass.block
        self._change_load(w, -1)
        target = self._next_worker(block, w)
        return (block_pass.worker,) if target is None else (self._names[target], block_pass.worker)

    def _node_numbers(self, nodes: Mapping[str, str] | None) -> list[int]:
        """Return the node number of each worker; without nodes there is only one."""
        if nodes is None:
            return [0] * len(self._names)
        number: dict[str, int] = {}
        return [number.setdefault(nodes[name], len(number)) for name in self._names]

    def _next_worker(self, block: int, w: int) -> int | None:
        """Return the next worker of a block that has passed `w`; None if it waits or is done."""
        left, neighbours = self._to_pass[block], self._neighbours[self._node[w]]
        if not left:
            sweep = self._block_sweep[block] = self._block_sweep[block] + 1
            self._blocks_in[sweep - 1] ^= 1 << block
            self._blocks_in[sweep] ^= 1 << block
            left = self._to_pass[block] = self._all_workers
            if sweep == self._sweeps:
                return None
            left ^= 1 << w  # `w` draws from all blocks that wait for it, this one included
            self._unbound |= 1 << block
        elif left & neighbours:
            left &= neighbours
            self._bound_to_node[self._node[w]] |= 1 << block
        else:
            self._unbound |= 1 << block
        return self._choose_worker(left & self._workers_in[self._block_sweep[block]])

    def _choose_worker(self, workers: int) -> int | None:
        """Return one of the workers that has a free place."""
        if not self._shortest:
            roomy = workers & ~self._with_load[-1]
            return self._draw(roomy, len(self._names)) if roomy else None
        for equals in self._with_load[:-1]:
            if workers & equals:
                return self._draw(workers & equals, len(self._names))
        return None

    def _draw(self, members: int, n: int) -> int:
        """Return a random member of a non-empty set of numbers below n.

        In a small set the members are counted. In a large one numbers are drawn until one is a
        member, and at last the first member after a random number is taken.
        """
        count = members.bit_count()
        if count <= MAX_COUNTED:
            for _ in range(int(self._random.random() * count) if count > 1 else 0):
                members &= members - 1
            return (members & -members).bit_length() - 1
        for _ in range(MAX_DRAWS):
            place = int(self._random.random() * n)
            if members >> place & 1:
                return place
        later = members >> place << place or members
        return (later & -later).bit_length() - 1

    def _change_load(self, w: int, change: int) -> None:
        """Change the number of passes in flight of a worker."""
        load = self._load[w]
        self._with_load[load] ^= 1 << w
        self._with_load[load + change] ^= 1 << w
        self._load[w] = load + change
