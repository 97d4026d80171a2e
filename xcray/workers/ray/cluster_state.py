"""The nodes of a Ray as its head tells: who is alive, who is about to go, what is free where; and which worker was on which."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from math import inf
from typing import Any, Final, NamedTuple

import ray
from ray._private import state  # see `told_by_head`
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.schedule.placement import Need, Node, places, room
from xcray.workers.ray.session import connect

LOOK_SECONDS: Final = 1.0  # between two looks at the cluster
SUSPECT_SECONDS: Final = (
    15.0  # a node that lost a worker gets no new one so long: it may be dead, and nobody knows yet
)
ANYWHERE: Final = "DEFAULT"  # Ray's own policy
PLANNED_DEATHS: Final = frozenset(
    {1, 4}
)  # of nodes, by Ray's NodeDeathInfo: told to end, or idle for the autoscaler


class Told(NamedTuple):
    """What a head says of its nodes. nodes: as `ray.nodes()` has them; free: node -> resource -> how much of it nobody has taken;
    draining: node -> the wall clock in milliseconds at which it is to be gone, 0 when that is not known."""

    nodes: list[dict[str, Any]]
    free: dict[str, dict[str, float]]
    draining: dict[str, int]


def told_by_head() -> Told:
    """Ask the head. The one place that uses what Ray holds private: what is free on a node, and which nodes drain until when, has
    no public door (`ray.util.state` needs a dashboard and knows neither; the autoscaler's own client knows no deadlines), so Ray's
    other libraries ask the same. A test says at once when a release of Ray takes it away."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    asked: Any = state.state
    return Told(nodes, asked.available_resources_per_node(), dict(asked.get_draining_nodes()))


def cores_there() -> int:
    """Processors of all nodes that are there to stay, whoever uses them."""
    told = told_by_head()
    staying = (each for each in told.nodes if each["Alive"] and each["NodeID"] not in told.draining)
    return int(sum(each["Resources"].get("CPU", 0.0) for each in staying))


def cores_at(address: str) -> int:
    """The same of the cluster at an address, at least 1, which this process joins for that if it is in none. Raises Unavailable."""
    with nullcontext() if ray.is_initialized() else connect(address):
        return max(1, cores_there())


class Surroundings:
    """The cluster that workers are on, as it told at the last `look`.

    stored: bytes in its object stores; nodes_lost: machines that were there at an earlier look and went without being asked to:
    crashed, unreachable, or taken back by whoever lends them; alive, dead, draining: identities of nodes, the latter with the
    wall clock in seconds at which they are to be gone, infinity when that is not known.
    """

    def __init__(self) -> None:
        self.stored = 0
        self.nodes_lost = 0
        self.alive: dict[str, str] = {}  # node -> its address
        self.dead: set[str] = set()
        self.draining: dict[str, float] = {}
        self._stores: dict[str, float] = {}
        self._free: dict[str, dict[str, float]] = {}
        self.looks = 0
        self._looked = -LOOK_SECONDS

    def look(self, seconds: float = 0.0) -> None:
        """Ask the head, unless the last look was less than `seconds` ago."""
        now = time.monotonic()
        if self.looks and now < self._looked + seconds:
            return
        self.looks, self._looked = self.looks + 1, now
        nodes, self._free, draining = told_by_head()
        gone = [each for each in nodes if not each["Alive"] and each["NodeID"] in self.alive]
        self.nodes_lost += sum(each.get("DeathReason", 0) not in PLANNED_DEATHS for each in gone)
        self.alive = {each["NodeID"]: each["NodeManagerAddress"] for each in nodes if each["Alive"]}
        self.dead = {each["NodeID"] for each in nodes if not each["Alive"]}
        self.draining = {
            node: until / 1000.0 or inf for node, until in draining.items() if node in self.alive
        }
        name = "object_store_memory"
        self._stores = {
            each["NodeID"]: each["Resources"].get(name, 0.0) for each in nodes if each["Alive"]
        }
        free = sum(self._free.get(node, {}).get(name, 0.0) for node in self.alive)
        self.stored = max(0, int(sum(self._stores.values()) - free))

    def stores(self, nodes: Collection[str]) -> float:
        """Bytes of the object stores of some nodes, used ones included; of those that live."""
        return sum(self._stores.get(node, 0.0) for node in nodes)

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
        for name, amount in (
            ("CPU", need.cpus),
            ("memory", need.memory),
            ("object_store_memory", need.store),
        ):
            free[name] = free.get(name, 0.0) - amount


class Whereabouts:
    """Which node each worker is on, and who died with a node: that is nobody's fault."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._node: dict[str, str] = {}  # of workers that are there
        self._lost: dict[
            str, str
        ] = {}  # of workers that were lost; "" for those that never had one
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
        out = [
            worker
            for worker, node in self._lost.items()
            if node in self._around.dead and worker not in self._cleared
        ]
        self._cleared.update(out)
        return out

    def on_draining(self) -> dict[str, float]:
        """Workers whose node is about to go, with the seconds until it does: infinity when that is not known."""
        now, draining = time.time(), self._around.draining
        return {
            worker: draining[node] - now for worker, node in self._node.items() if node in draining
        }

    def shun(self, nodes: Collection[str], seconds: float) -> None:
        """Nothing new is to go to some nodes for so long."""
        self._suspects |= dict.fromkeys(nodes, time.monotonic() + seconds)

    def open(self, need: Need) -> list[str]:
        """Nodes that have room for a worker, as of the last look."""
        return [node.id for node in self.rooms() if room(node, need)]

    def stayed(self, lost: Collection[str]) -> bool:
        """Whether one of these lost workers died on a node that lives on: its place there comes free."""
        last = {life.partition(".")[0]: node for life, node in self._lost.items()}
        return any(
            last.get(worker) in self._around.alive.keys() - self._around.draining.keys()
            for worker in lost
        )

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
