"""Simulation of a job on a cluster that grows and shrinks: its duration and the cost of its nodes.

`python -m benchmarks.cluster.growth [--hours 0.1 1 10] [--guess 1 5] [--longest 0] [--nodes 64]
[--cpus 8] [--start 60] [--idle 60]`

The scheduler, the demand and the placement are those of `RayPool`. The clock and the autoscaler are
simulated: it brings a node for waiting workers after `start` seconds, and removes a node that has
been without workers for `idle` seconds. A node costs from the moment it is requested.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.simulation import TICK, Outcome, Simulation, heavy_tailed
from benchmarks.harness import run_benchmark, table
from xcray.schedule.autoscaling import (
    ScalingPolicy,
    WorkerCounts,
    desired_workers,
    workers_to_release,
)
from xcray.schedule.events import Tick
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.schedule.placement import ONE_CPU, Node, free_slots, place_workers

WORKER_SECONDS = 1.5  # from the placement on a node to the first batch


class Policy(Enum):
    """THRIFT scales as the pool does; ALL requests all nodes at the start and keeps them."""

    THRIFT = "thrift"
    ALL = "all"


@dataclass(frozen=True)
class Cluster:
    """Cluster of at most `nodes` nodes with `cpus` CPUs each.

    there: number of nodes at the start. start: seconds until a requested node is available. idle:
    seconds after which an idle node is removed.
    """

    nodes: int
    cpus: int
    start: float = 60.0
    idle: float = 60.0
    there: int = 1


@dataclass
class Grown(Outcome):
    """Outcome with the cost of the nodes.

    The cost is the seconds from the request of each node to its removal. most: largest number of
    nodes at one time; nodes: number of nodes requested.
    """

    node_seconds: float = 0.0
    most: int = 0
    nodes: int = 0


class _Growing(Simulation):
    """Simulation whose workers follow a policy and the nodes of a cluster."""

    def __init__(
        self, schedule: LabelScheduler, cost: Any, cluster: Cluster, policy: Policy
    ) -> None:
        super().__init__(schedule, cost)
        self._outcome: Grown = Grown()
        self._cluster = cluster
        self._policy = policy
        self._thrift = ScalingPolicy(node_seconds=cluster.start)
        self._nodes: dict[str, list[str]] = {}  # node -> its workers
        self._empty: dict[str, float] = {}  # node -> when its last worker left
        self._booting = 0
        self._count_of_nodes = 0
        self._count_of_workers = 0
        self._pending: list[float] = []
        self._idle: dict[str, float] = {}
        self._where: dict[str, str] = {}

    def grow(self) -> Grown:
        """Run to the end and add the idle time of the remaining nodes to the cost."""
        for _ in range(self._cluster.there):
            self._come(booted=False)
        self.run({})
        self._outcome.node_seconds += (len(self._nodes) + self._booting) * self._cluster.idle
        return self._outcome

    def _come(self, *, booted: bool = True) -> None:
        """Add a node and place waiting workers on it."""
        self._booting -= booted
        name = f"node-{self._count_of_nodes:04d}"
        self._count_of_nodes += 1
        self._nodes[name], self._empty[name] = [], self._clock
        for _ in range(min(self._cluster.cpus, len(self._pending))):
            self._pending.pop(0)
            self._seat(name)

    def _seat(self, node: str) -> None:
        """Start a worker on a node."""
        worker = f"worker-{self._count_of_workers:05d}"
        self._count_of_workers += 1
        self._nodes[node].append(worker)
        self._where[worker] = node
        self._empty.pop(node, None)
        self._at(self._clock + WORKER_SECONDS, partial(self._join, worker, 1.0))

    def _tick(self) -> None:
        """Run the pool and the autoscaler once, and report the time to the scheduler."""
        self._outcome.node_seconds += (len(self._nodes) + self._booting) * TICK
        self._outcome.most = max(self._outcome.most, len(self._nodes))
        if self._policy is Policy.THRIFT:
            self._give_back()
        self._want()
        self._autoscale()
        self._at(self._clock + TICK, self._tick)
        self._handle_event(Tick())

    def _give_back(self) -> None:
        """Release workers that have no work."""
        outlook = self._schedule.forecast()
        self._idle = {worker: self._idle.get(worker, self._clock) for worker in outlook.idle}
        for worker in workers_to_release(outlook, self._idle, self._where, self._clock):
            node = self._where.pop(worker)
            self._nodes[node].remove(worker)
            if not self._nodes[node]:
                self._empty[node] = self._clock
            self._leave(worker)

    def _want(self) -> None:
        """Place missing workers on the nodes and adjust the requests for more nodes."""
        most = self._cluster.nodes * self._cluster.cpus
        free = [
            Node(node, float(self._cluster.cpus - len(workers)))
            for node, workers in self._nodes.items()
        ]
        if self._policy is Policy.THRIFT:
            waited = self._clock - self._pending[0] if self._pending else 0.0
            staff = WorkerCounts(
                len(self._where),
                len(self._pending),
                sum(free_slots(node, ONE_CPU) for node in free),
                waited,
            )
            most = desired_workers(self._schedule.forecast(), staff, most, self._thrift)
            self._schedule.expect_workers(most)
        missing = most - len(self._where) - len(self._pending)
        if missing < 0:
            del self._pending[missing:]
        ours = Counter({node: len(workers) for node, workers in self._nodes.items() if workers})
        seats = place_workers(free, ONE_CPU, max(0, missing), placed=ours)
        for node in seats:
            self._seat(node)
        self._pending += [self._clock] * (missing - len(seats))

    def _autoscale(self) -> None:
        """Start nodes for waiting workers, and remove nodes that have been idle too long."""
        room_left = self._cluster.nodes - len(self._nodes) - self._booting
        for _ in range(
            min(room_left, ceil(len(self._pending) / self._cluster.cpus) - self._booting)
        ):
            self._booting += 1
            self._outcome.nodes += 1
            self._at(self._clock + self._cluster.start, self._come)
        for node in [
            node for node, since in self._empty.items() if self._clock - since >= self._cluster.idle
        ]:
            del self._empty[node], self._nodes[node]


def grown(cost: Any, cluster: Cluster, policy: Policy, *, guess: float = 1.0) -> Grown:
    """Simulate one job.

    cost: (n,) seconds of each label; guess: factor by which the scheduler's first estimate is too
    high.
    """
    workers = cluster.nodes * cluster.cpus
    return _Growing(
        LabelScheduler(range(len(cost)), guess * np.asarray(cost), workers=workers),
        cost,
        cluster,
        policy,
    ).grow()


def row(
    hours: float, cluster: Cluster, policy: Policy, guess: float, longest: float
) -> dict[str, Any]:
    """Simulate a job of `hours` processor hours, plus one label of `longest` seconds."""
    cost = heavy_tailed(50_000)
    cost *= 3600.0 * hours / cost.sum()
    cost = np.append(cost, [longest] * (longest > 0.0))
    result = grown(cost, cluster, policy, guess=guess)
    return {
        "cpu_hours": hours,
        "guess": guess,
        "longest": longest,
        "policy": policy.value,
        "seconds": round(result.makespan, 1),
        "nodes_asked": result.nodes,
        "nodes_most": result.most,
        "node_seconds": round(result.node_seconds),
        "over_ideal": round(result.node_seconds * cluster.cpus / float(cost.sum()), 3),
    }


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Simulate every job with both policies."""
    cluster = Cluster(options.nodes, options.cpus, options.start, options.idle)
    rows = [
        row(hours, cluster, policy, guess, options.longest)
        for hours in options.hours
        for guess in options.guess
        for policy in Policy
    ]
    print(table(rows, list(rows[0])))
    return {"benchmark": "growth", "cluster": cluster.__dict__, "rows": rows}


def main() -> None:
    """Simulate and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"hours": [0.1], "guess": [1.0]},
        hours={"nargs": "+", "type": float, "default": [0.1, 1.0, 10.0]},
        guess={"nargs": "+", "type": float, "default": [1.0, 5.0]},
        longest={"type": float, "default": 0.0},
        nodes={"type": int, "default": 64},
        cpus={"type": int, "default": 8},
        start={"type": float, "default": 60.0},
        idle={"type": float, "default": 60.0},
    )


if __name__ == "__main__":
    main()
