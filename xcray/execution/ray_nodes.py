"""The nodes of a Ray as its head tells: who is alive, who is about to go, what is free where; and which worker was on which."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import ray
from ray._private import state  # what is free on each node, and which are draining, has no public door
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.schedule.placement import Need, Node, places

LOOK_SECONDS: Final = 1.0  # between two looks at the cluster
SUSPECT_SECONDS: Final = 15.0  # a node that lost a worker gets no new one so long: it may be dead, and nobody knows yet
ANYWHERE: Final = "DEFAULT"  # Ray's own policy
PLANNED_DEATHS: Final = frozenset({1, 4})  # of nodes, by Ray's NodeDeathInfo: told to end, or idle for the autoscaler


class Surroundings:
    """The cluster that workers are on, as it told at the last `look`.

    stored: bytes in its object stores; nodes_lost: machines that were there at an earlier look and went without being asked to:
    crashed, unreachable, or taken back by whoever lends them; alive, dead, draining: identities of nodes.
    """

    def __init__(self) -> None:
        self.stored, self.nodes_lost = 0, 0
        self.alive: dict[str, str] = {}  # node -> its address
        self.dead: set[str] = set()
        self.draining: set[str] = set()
        self._free: dict[str, dict[str, float]] = {}
        self.looks, self._looked = 0, -LOOK_SECONDS

    def look(self, seconds: float = 0.0) -> None:
        """Ask the head, unless the last look was less than `seconds` ago."""
        now = time.monotonic()
        if self.looks and now < self._looked + seconds:
            return
        self.looks, self._looked = self.looks + 1, now
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        gone = [each for each in nodes if not each["Alive"] and each["NodeID"] in self.alive]
        self.nodes_lost += sum(each.get("DeathReason", 0) not in PLANNED_DEATHS for each in gone)
        self.alive = {each["NodeID"]: each["NodeManagerAddress"] for each in nodes if each["Alive"]}
        self.dead = {each["NodeID"] for each in nodes if not each["Alive"]}
        asked: Any = state
        self.draining = set(asked.state.get_draining_nodes())
        self._free = asked.available_resources_per_node()
        name = "object_store_memory"
        there = sum(each["Resources"].get(name, 0.0) for each in nodes if each["Alive"])
        self.stored = max(0, int(there - sum(free.get(name, 0.0) for free in self._free.values())))

    def free(self, suspects: Collection[str] = ()) -> list[Node]:
        """What is free on each living node; nothing new is to go to suspects, nor to nodes that drain."""
        none: dict[str, float] = {}
        out = []
        for node in self.alive:
            free = self._free.get(node, none)
            leaving = node in self.draining or node in suspects
            memory, store = free.get("memory", 0.0), free.get("object_store_memory", 0.0)
            out.append(Node(node, free.get("CPU", 0.0), memory, store, leaving))
        return out

    def take(self, node: str, need: Need) -> None:
        """Count a seat on a node as taken, until the next look says so."""
        free = self._free.setdefault(node, {})
        for name, amount in (("CPU", need.cpus), ("memory", need.memory), ("object_store_memory", need.store)):
            free[name] = free.get(name, 0.0) - amount


class Whereabouts:
    """Which node each worker is on, and who died with a node: that is nobody's fault."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._node: dict[str, str] = {}  # of workers that are there
        self._lost: dict[str, str] = {}  # of workers that were lost; "" for those that never had one
        self._names: dict[str, str] = {}
        self._suspects: dict[str, float] = {}  # node -> until when
        self._cleared: set[str] = set()

    @property
    def names(self) -> dict[str, str]:
        """Address and identity of each worker's node; a lost worker's last."""
        return dict(self._names)

    @property
    def placed(self) -> dict[str, str]:
        """The node of each worker that is on one."""
        return dict(self._node)

    @property
    def crashes(self) -> int:
        """Workers lost on nodes that live, or on none."""
        return sum(node not in self._around.dead for node in self._lost.values())

    @property
    def lost(self) -> int:
        """Workers lost, with their nodes or alone."""
        return len(self._lost)

    def settle(self, worker: str, address: str, node: str) -> None:
        """A worker is on a node."""
        self._node[worker] = node
        self._names[worker] = f"{address}/{node[:12]}"

    def leave(self, worker: str) -> None:
        """A worker went as planned."""
        self._node.pop(worker, None)

    def lose(self, worker: str, life: int = 0) -> None:
        """A worker died; life: tells apart those that had the same name."""
        node = self._node.pop(worker, "")
        self._lost[f"{worker}.{life}" if life else worker] = node
        if node:
            self._suspects[node] = time.monotonic() + SUSPECT_SECONDS

    def fallen(self) -> list[str]:
        """Workers whose node is dead by now, and of whom nobody said so."""
        return [worker for worker, node in self._node.items() if node in self._around.dead]

    def cleared(self) -> list[str]:
        """Lost workers whose node turned out to be dead since the last call."""
        out = [worker for worker, node in self._lost.items() if node in self._around.dead and worker not in self._cleared]
        self._cleared.update(out)
        return out

    def on_draining(self) -> list[str]:
        """Workers whose node is about to go."""
        return [worker for worker, node in self._node.items() if node in self._around.draining]

    def strategies(self, need: Need, count: int) -> list[Any]:
        """Where `count` new workers go: nodes for those that have room, and Ray's own choice, when there is one, for the others."""
        seats = places(self.rooms(), need, count, ours=Counter(self._node.values()), home=home())
        for node in seats:
            self._around.take(node, need)
        return [seat_at(node) for node in seats] + [ANYWHERE] * (count - len(seats))

    def rooms(self) -> list[Node]:
        """What is free where, as of the last look."""
        now = time.monotonic()
        self._suspects = {node: until for node, until in self._suspects.items() if until > now}
        return self._around.free(set(self._suspects))


def home() -> str:
    """The driver's node."""
    return str(ray.get_runtime_context().get_node_id())


def seat_at(node: str) -> NodeAffinitySchedulingStrategy:
    """On this node; elsewhere when it went, or when others have filled it meanwhile."""
    return NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
