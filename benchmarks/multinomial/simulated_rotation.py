"""Blocks that circulate, on a simulated clock: nodes with workers of any speed, and a network
between them.

It drives the real schedule, `RotationSchedule`, with what a visit takes and what a block weighs.
The driver takes a fixed time for each visit it issues, one at a time. A block that is on another
node travels once its visit is issued, so that with visits issued ahead it travels while the worker
is busy. A node sends one block at a time and receives one at a time, in the order asked for; the
network between them is never the narrow place. Within a node a block is in shared memory: nothing
moves. No thread, no wall
clock: the same arguments give the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from xcray.schedule.events import Done, Finish
from xcray.schedule.rotation import BlockPass, RotationSchedule


@dataclass(frozen=True)
class Cluster:
    """nodes: worker -> node. block: bytes of one block as it travels. bandwidth: bytes a second, of
    each node, each way. latency: seconds between what the driver says and what a worker hears.
    driver: seconds of the driver for each visit.
    """

    nodes: Mapping[str, str]
    block: float
    bandwidth: float
    latency: float = 0.0
    driver: float = 0.0


class Outcome(NamedTuple):
    """What a stretch came to. makespan: seconds. busy: worker-seconds of work. driver: seconds in
    which the driver was. sent,
    most_sent: bytes sent by all nodes, and by the one that sent most. held: most blocks that one
    node held at a time, copies that wait for their visit to be reported included. visits: how many.
    """

    makespan: float
    busy: float
    driver: float
    sent: float
    most_sent: float
    held: int
    visits: int


class _Node:
    """When a node can send and receive next; what it has sent; the blocks in its memory."""

    def __init__(self) -> None:
        self.sends = 0.0
        self.receives = 0.0
        self.sent = 0.0
        self.blocks = 0
        self.most = 0

    def keep(self, change: int) -> None:
        """A block more, or less, in memory."""
        self.blocks += change
        self.most = max(self.most, self.blocks)


class Circulation:
    """One stretch. seconds: what a visit takes at its worker, once its block is there."""

    def __init__(
        self, schedule: RotationSchedule, cluster: Cluster, seconds: Callable[[BlockPass], float]
    ) -> None:
        self._schedule = schedule
        self._cluster = cluster
        self._seconds = seconds
        self._nodes = {name: _Node() for name in cluster.nodes.values()}
        self._where: dict[
            int, str
        ] = {}  # the node of each block; none has it before its first visit
        self._free = dict.fromkeys(cluster.nodes, 0.0)  # when each worker is done with what it has
        self._events: list[tuple[float, int, bool, BlockPass]] = []
        self._busy = 0.0
        self._driver = 0.0
        self._driver_free = 0.0
        self._count = 0
        self._visits = 0

    def run(self) -> Outcome:
        """Run to the end. Raises RuntimeError when nothing happens any more before the end."""
        now, finished = 0.0, self._obey(0.0, self._schedule.start())
        while not finished:
            if not self._events:
                raise RuntimeError("nothing is under way, and the stretch is not at its end")
            now, _, done, visit = heapq.heappop(self._events)
            if done:
                finished = self._end(now, visit)
            else:
                self._fetch(now, visit)
        nodes = self._nodes.values()
        sent = [node.sent for node in nodes]
        held = max(node.most for node in nodes)
        return Outcome(
            max(now, self._driver_free),
            self._busy,
            self._driver,
            sum(sent),
            max(sent),
            held,
            self._visits,
        )

    def _at(self, when: float, done: bool, visit: BlockPass) -> None:
        """Something will happen."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, done, visit))

    def _obey(self, now: float, commands: list[BlockPass | Finish]) -> bool:
        """The driver gives commands out; whether it has said that all is done."""
        for command in commands:
            if isinstance(command, Finish):
                return True
            self._driver_free = max(self._driver_free, now) + self._cluster.driver
            self._driver += self._cluster.driver
            self._at(self._driver_free + self._cluster.latency, False, command)
        return False

    def _fetch(self, now: float, visit: BlockPass) -> None:
        """A worker hears of a visit: its block travels, and when it is there and the worker free,
        it passes.
        """
        cluster, goal = self._cluster, self._cluster.nodes[visit.worker]
        origin = self._where.get(visit.block)
        if origin is not None and origin != goal:
            source, target, travel = (
                self._nodes[origin],
                self._nodes[goal],
                cluster.block / cluster.bandwidth,
            )
            source.sends = max(source.sends, now) + travel
            source.sent += cluster.block
            target.receives = (
                max(source.sends - travel, target.receives) + travel
            )  # bytes come in while others go out
            target.keep(1)
            now = target.receives
        seconds = self._seconds(visit)
        self._busy += seconds
        self._free[visit.worker] = max(self._free[visit.worker], now) + seconds
        self._at(self._free[visit.worker], True, visit)

    def _end(self, now: float, visit: BlockPass) -> bool:
        """A visit is done: what it made is a new block, and the copies of the old one go."""
        goal, origin = self._cluster.nodes[visit.worker], self._where.get(visit.block)
        self._nodes[goal].keep(1)
        if origin is not None:
            self._nodes[origin].keep(-1)
        if origin not in (None, goal):
            self._nodes[goal].keep(-1)  # the copy that travelled
        self._where[visit.block] = goal
        self._visits += 1
        return self._obey(now, self._schedule.on(Done(visit.worker, visit.id, 0.0), now))
