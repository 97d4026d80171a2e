"""Simulation of block rotation: nodes with workers of any speed, and a network between them.

It drives the real scheduler, `RotationSchedule`, with the time of a visit and the size of a block.
The driver takes a fixed time for each visit that it issues, one at a time. A block on another node
is sent when its visit is issued, so visits issued ahead overlap the transfer with work. A node
sends one block at a time and receives one at a time, in the order of the requests. The network
between the nodes is never the bottleneck. Within a node a block is in shared memory and does not
move. There are no threads and no wall clock: the same arguments give the same run.
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
    """A simulated cluster.

    nodes: worker -> node. block: bytes of one block as it is sent. bandwidth: bytes per second of
    each node, in each direction. latency: seconds from a command of the driver to its arrival at a
    worker. driver: seconds of the driver per visit.
    """

    nodes: Mapping[str, str]
    block: float
    bandwidth: float
    latency: float = 0.0
    driver: float = 0.0


class Outcome(NamedTuple):
    """Result of a stretch.

    makespan: seconds. busy: worker-seconds of work. driver: seconds in which the driver was busy.
    bytes_sent, most_sent: bytes sent by all nodes, and by the node that sent most. most_blocks:
    largest number of blocks on one node, including copies whose visit is not reported yet. visits:
    number of visits.
    """

    makespan: float
    busy: float
    driver: float
    bytes_sent: float
    most_sent: float
    most_blocks: int
    visits: int


class _Node:
    """State of a node: when it can send and receive next, bytes sent, and blocks in its memory."""

    def __init__(self) -> None:
        self.sends = 0.0
        self.receives = 0.0
        self.bytes_sent = 0.0
        self.blocks = 0
        self.most = 0

    def keep(self, change: int) -> None:
        """Change the number of blocks in memory."""
        self.blocks += change
        self.most = max(self.most, self.blocks)


class Circulation:
    """One stretch. seconds: duration of a visit at its worker, once its block is there."""

    def __init__(
        self, schedule: RotationSchedule, cluster: Cluster, seconds: Callable[[BlockPass], float]
    ) -> None:
        self._schedule = schedule
        self._cluster = cluster
        self._seconds = seconds
        self._nodes = {name: _Node() for name in cluster.nodes.values()}
        self._where: dict[
            int, str
        ] = {}  # the node of each block; a block has none before its first visit
        self._free = dict.fromkeys(cluster.nodes, 0.0)  # when each worker has finished its visits
        self._events: list[tuple[float, int, bool, BlockPass]] = []
        self._busy = 0.0
        self._driver = 0.0
        self._driver_free = 0.0
        self._count = 0
        self._visits = 0

    def run(self) -> Outcome:
        """Run to the end. Raises RuntimeError if no event is left before the end."""
        now, finished = 0.0, self._obey(0.0, self._schedule.start())
        while not finished:
            if not self._events:
                raise RuntimeError("no event is left before the end of the stretch")
            now, _, done, visit = heapq.heappop(self._events)
            if done:
                finished = self._end(now, visit)
            else:
                self._fetch(now, visit)
        nodes = self._nodes.values()
        messages = [node.bytes_sent for node in nodes]
        state = max(node.most for node in nodes)
        return Outcome(
            max(now, self._driver_free),
            self._busy,
            self._driver,
            sum(messages),
            max(messages),
            state,
            self._visits,
        )

    def _at(self, when: float, done: bool, visit: BlockPass) -> None:
        """Add an event."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, done, visit))

    def _obey(self, now: float, commands: list[BlockPass | Finish]) -> bool:
        """Execute the scheduler's commands, and return whether one of them is the end."""
        for command in commands:
            if isinstance(command, Finish):
                return True
            self._driver_free = max(self._driver_free, now) + self._cluster.driver
            self._driver += self._cluster.driver
            self._at(self._driver_free + self._cluster.latency, False, command)
        return False

    def _fetch(self, now: float, visit: BlockPass) -> None:
        """Send a visit to a worker, transfer its block, and run it when both are available."""
        cluster, goal = self._cluster, self._cluster.nodes[visit.worker]
        origin = self._where.get(visit.block)
        if origin is not None and origin != goal:
            source, target, travel = (
                self._nodes[origin],
                self._nodes[goal],
                cluster.block / cluster.bandwidth,
            )
            source.sends = max(source.sends, now) + travel
            source.bytes_sent += cluster.block
            target.receives = (
                max(source.sends - travel, target.receives) + travel
            )  # a node can send and receive at the same time
            target.keep(1)
            now = target.receives
        seconds = self._seconds(visit)
        self._busy += seconds
        self._free[visit.worker] = max(self._free[visit.worker], now) + seconds
        self._at(self._free[visit.worker], True, visit)

    def _end(self, now: float, visit: BlockPass) -> bool:
        """End a visit: its result is a new block, and the copies of the old one are freed."""
        goal, origin = self._cluster.nodes[visit.worker], self._where.get(visit.block)
        self._nodes[goal].keep(1)
        if origin is not None:
            self._nodes[origin].keep(-1)
        if origin not in (None, goal):
            self._nodes[goal].keep(-1)  # the copy that was sent
        self._where[visit.block] = goal
        self._visits += 1
        return self._obey(now, self._schedule.on(Done(visit.worker, visit.id, 0.0), now))
