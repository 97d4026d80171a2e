"""Blocks go where there is room: the routing of NOMAD (Yun et al. 2013; DS-MLR, Algorithm 2), with a strict count of laps.

A block that has passed a worker goes to one that it has still to pass in this lap and that is in the same lap: drawn at random,
and drawn again while the queue drawn is full ("uniform"), or one of those with the shortest queue ("shortest"). Where all
queues are full it waits, and a worker that gets room draws one of those that wait for it. So no worker idles while a block
that it could take waits. With nodes, a block passes all workers of a node, in random order, before it goes to another node (the
hybrid of section 5.2).

A worker's shards are passed together. It begins its next lap when it has taken all blocks in this one. It cannot lock: of the
workers in the lowest lap one still lacks a block; that block is in the same lap, and so is every worker that it has still to
pass, on its node or elsewhere.

Nothing bounds how many blocks gather where a worker is much slower than the others: they all end their last lap there. `ring.py`
has such a bound.

Sets of blocks and of workers are whole numbers, a bit each: an event takes a few operations on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from xcray.errors import ParameterError
from xcray.schedule.routes import Visit, require, stations

FEW, DRAWS = 8, 16  # members that are counted; places that are drawn in vain at most


class Nomad:
    """The way of `blocks` blocks past the shards of `homes`, `laps` times; `ahead`: stops taken and not passed, at most, per
    worker."""

    def __init__(
        self,
        homes: Sequence[str],
        blocks: int,
        laps: int,
        *,
        ahead: int,
        shortest: bool,
        seed: int,
        nodes: Mapping[str, str] | None,
    ) -> None:
        shards = stations(homes)
        self._names = list(shards)
        self._shards = [tuple(each) for each in shards.values()]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._blocks = blocks
        self._laps = laps
        self._shortest = shortest
        self._random = Random(seed)
        workers = len(self._names)
        self._all_workers = (1 << workers) - 1
        self._all_blocks = (1 << blocks) - 1
        self._node = self._nodes_of(nodes)
        self._neighbours = [
            sum(1 << w for w in range(workers) if self._node[w] == node) for node in range(workers)
        ]
        self._to_pass = [
            self._all_workers
        ] * blocks  # workers that a block has still to pass in its lap
        self._to_take = [
            self._all_blocks
        ] * workers  # blocks that a worker has still to take in its lap
        self._block_lap = [0] * blocks
        self._worker_lap = [0] * workers
        self._blocks_in = [self._all_blocks] + [0] * laps  # by lap
        self._workers_in = [self._all_workers] + [0] * laps
        self._with_load = [self._all_workers] + [
            0
        ] * ahead  # workers, by stops taken and not passed
        self._load = [0] * workers
        self._loose = self._all_blocks  # blocks that wait, and may go to any node
        self._bound = [0] * workers  # and those that may not leave their node, by node

    def take(self, worker: str, number: int) -> Visit | None:
        """One of the blocks that wait for the worker, at random."""
        w = self._number[worker]
        lap = self._worker_lap[w]
        if lap == self._laps:
            return None
        waiting = (
            self._to_take[w] & self._blocks_in[lap] & (self._loose | self._bound[self._node[w]])
        )
        if not waiting:
            return None
        block = self._draw(waiting, self._blocks)
        bit = 1 << block
        self._loose &= ~bit
        self._bound[self._node[w]] &= ~bit
        self._to_pass[block] ^= 1 << w
        self._to_take[w] ^= bit
        self._put(w, 1)
        if not self._to_take[w]:
            self._workers_in[lap] ^= 1 << w
            self._workers_in[lap + 1] ^= 1 << w
            self._worker_lap[w], self._to_take[w] = lap + 1, self._all_blocks
        return Visit(number, worker, block, self._shards[w], lap)

    def passed(self, visit: Visit) -> Sequence[str]:
        """The block goes to another worker, if one has room; the worker that it passed has room."""
        w, block = self._number[visit.worker], visit.block
        self._put(w, -1)
        goal = self._goal(block, w)
        return (visit.worker,) if goal is None else (self._names[goal], visit.worker)

    def state(self) -> dict[str, Any]:
        """Laps done by each block and taken to the end by each shard."""
        return {
            "block_laps": list(self._block_lap),
            "shard_laps": [
                lap
                for lap, shards in zip(self._worker_lap, self._shards, strict=True)
                for _ in shards
            ],
        }

    def check(self, under_way: Sequence[Visit]) -> None:
        """The books of blocks and those of workers speak of the same cells, and nobody waits in vain; raises AssertionError if
        not."""
        loads = [sum(visit.worker == name for visit in under_way) for name in self._names]
        require(self._load == loads, "the queues are not as long as they are held to be")
        waiting = self._loose | sum(self._bound)
        require(
            sum(loads) + waiting.bit_count() + self._block_lap.count(self._laps) == self._blocks,
            "a block is lost",
        )
        for w, lap in enumerate(self._worker_lap):
            may_come = self._loose | self._bound[self._node[w]]
            for block in range(self._blocks):
                gap, taken = lap - self._block_lap[block], not self._to_take[w] >> block & 1
                passed = not self._to_pass[block] >> w & 1
                require(
                    gap + taken == passed,
                    f"block {block} and {self._names[w]} do not agree on what they have done",
                )
                waits = may_come >> block & 1 and gap == 0 and not passed and lap < self._laps
                require(
                    not waits or self._load[w] == len(self._with_load) - 1,
                    f"block {block} waits for a worker that has room",
                )

    def _nodes_of(self, nodes: Mapping[str, str] | None) -> list[int]:
        """The node of each worker, by number; without nodes there is one, and nothing to be bound to."""
        if nodes is None:
            return [0] * len(self._names)
        if homeless := [name for name in self._names if name not in nodes]:
            raise ParameterError(
                f"{homeless[0]} is on no node; name the node of every worker, or of none"
            )
        number: dict[str, int] = {}
        return [number.setdefault(nodes[name], len(number)) for name in self._names]

    def _goal(self, block: int, w: int) -> int | None:
        """The worker, not `w`, that a block goes to, having passed `w`; None when it waits, or is at the end."""
        left, neighbours = self._to_pass[block], self._neighbours[self._node[w]]
        if not left:
            lap = self._block_lap[block] = self._block_lap[block] + 1
            self._blocks_in[lap - 1] ^= 1 << block
            self._blocks_in[lap] ^= 1 << block
            left = self._to_pass[block] = self._all_workers
            if lap == self._laps:
                return None
            left ^= 1 << w  # which draws from all that wait for it, with this one among them
            self._loose |= 1 << block
        elif left & neighbours:
            left &= neighbours
            self._bound[self._node[w]] |= 1 << block
        else:
            self._loose |= 1 << block
        return self._choose(left & self._workers_in[self._block_lap[block]])

    def _choose(self, workers: int) -> int | None:
        """One of the workers that has room."""
        if not self._shortest:
            roomy = workers & ~self._with_load[-1]
            return self._draw(roomy, len(self._names)) if roomy else None
        for equals in self._with_load[:-1]:
            if workers & equals:
                return self._draw(workers & equals, len(self._names))
        return None

    def _draw(self, members: int, n: int) -> int:
        """A random member of a set of numbers below n, which is not empty: one of a few is counted out, one of many is drawn
        until it is a member, and at last the first after a random place."""
        count = members.bit_count()
        if count <= FEW:
            for _ in range(int(self._random.random() * count) if count > 1 else 0):
                members &= members - 1
            return (members & -members).bit_length() - 1
        for _ in range(DRAWS):
            place = int(self._random.random() * n)
            if members >> place & 1:
                return place
        found = members >> place << place or members
        return (found & -found).bit_length() - 1

    def _put(self, w: int, change: int) -> None:
        """A worker has one stop more, or one less."""
        load = self._load[w]
        self._with_load[load] ^= 1 << w
        self._with_load[load + change] ^= 1 << w
        self._load[w] = load + change
