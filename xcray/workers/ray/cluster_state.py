"""Cluster state from Ray's GCS: live and draining nodes, free resources, and worker locations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from math import inf
from typing import Any, Final, NamedTuple

import ray
from ray._private import state  # see `read_gcs`
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from xcray.errors import Unavailable
from xcray.schedule.placement import Node, ResourceRequest, free_slots, place_workers
from xcray.workers.ray.session import connect, is_reachable

REFRESH_SECONDS: Final = 1.0  # between two refreshes
HEAD_SECONDS: Final = 20.0  # that a head can be away, as for a restart
# A node that lost a worker gets no new one for a while: it can be dead already.
SUSPECT_SECONDS: Final = 15.0
ANYWHERE: Final = "DEFAULT"  # Ray's own policy
# In Ray's NodeDeathInfo: expected termination, and idle termination by the autoscaler.
PLANNED_DEATHS: Final = frozenset({1, 4})


class GcsSnapshot(NamedTuple):
    """Nodes as the GCS reports them.

    nodes: as in `ray.nodes()`. free: node -> resource -> free amount. draining: node -> wall
    clock in milliseconds of its end, 0 if unknown.
    """

    nodes: list[dict[str, Any]]
    free: dict[str, dict[str, float]]
    draining: dict[str, int]


def read_gcs() -> GcsSnapshot:
    """Query the GCS. Raises Unavailable RAY_ENDED if it is gone.

    This is the only place that uses private parts of Ray. Free resources per node and draining
    nodes with their deadlines have no public API (`ray.util.state` needs a dashboard and has
    neither, the autoscaler's client has no deadlines), so Ray's own libraries use the same calls.
    A test fails if a release of Ray removes them.
    """
    _wait_for_head()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    gcs: Any = state.state
    return GcsSnapshot(nodes, gcs.available_resources_per_node(), dict(gcs.get_draining_nodes()))


def _wait_for_head() -> None:
    """Wait until the head is reachable, which can be restarting; raise Unavailable if it is gone.

    A query of a head that is gone blocks, and after a minute Ray ends this process.
    """
    address = ray.get_runtime_context().gcs_address
    deadline = time.monotonic() + HEAD_SECONDS
    while not is_reachable(address):
        if time.monotonic() > deadline:
            raise _ended(f"Ray's head at {address} has ended or cannot be reached")
        time.sleep(0.1)


def _ended(subject: str) -> Unavailable:
    """Return the error for a Ray that is gone."""
    return Unavailable(
        f"{subject}; finished work is kept: "
        "check Ray's logs and the memory, then run the same command again",
        code="RAY_ENDED",
    )


def cluster_cores() -> int:
    """Return the CPUs of all live nodes that are not draining, used ones included."""
    snapshot = read_gcs()
    staying = (
        node for node in snapshot.nodes if node["Alive"] and node["NodeID"] not in snapshot.draining
    )
    return int(sum(node["Resources"].get("CPU", 0.0) for node in staying))


def cluster_cores_at(address: str) -> int:
    """Return the CPUs of the cluster at an address, at least 1.

    The process joins the cluster for that if it is in none. Raises Unavailable.
    """
    with nullcontext() if ray.is_initialized() else connect(address):
        return max(1, cluster_cores())


class ClusterView:
    """The cluster of the workers, as of the last `refresh`.

    stored_bytes: in its object stores. nodes_lost: machines that were seen earlier and went away
    without a drain (crashed, unreachable, or reclaimed by their provider). alive, dead, draining:
    ids of nodes, the last with the wall clock in seconds of their end, infinity if unknown.
    """

    def __init__(self) -> None:
        self.stored_bytes = 0
        self.nodes_lost = 0
        self.alive: dict[str, str] = {}  # node -> its address
        self.dead: set[str] = set()
        self.draining: dict[str, float] = {}
        self._stores: dict[str, float] = {}
        self._free: dict[str, dict[str, float]] = {}
        self._raylet = ""  # "host:port" of the driver's node
        self.n_refreshes = 0
        self._refreshed_at = -REFRESH_SECONDS

    def refresh(self, seconds: float = 0.0) -> None:
        """Query the GCS, unless the last query was less than `seconds` ago.

        Raises Unavailable RAY_ENDED if the head or the driver's node is gone.
        """
        now = time.monotonic()
        if self.n_refreshes and now < self._refreshed_at + seconds:
            return
        self.n_refreshes, self._refreshed_at = self.n_refreshes + 1, now
        # Ray ends this process some seconds after its node.
        if self._raylet and not is_reachable(self._raylet):
            raise _ended("Ray has ended on this machine")
        nodes, self._free, draining = read_gcs()
        own = next((each for each in nodes if each["NodeID"] == driver_node()), {})
        if port := own.get("NodeManagerPort"):
            self._raylet = f"{own['NodeManagerAddress']}:{port}"
        vanished = [each for each in nodes if not each["Alive"] and each["NodeID"] in self.alive]
        self.nodes_lost += sum(
            each.get("DeathReason", 0) not in PLANNED_DEATHS for each in vanished
        )
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
        self.stored_bytes = max(0, int(sum(self._stores.values()) - free))

    def store_capacity(self, nodes: Collection[str]) -> float:
        """Return the bytes of the object stores of some live nodes, used ones included."""
        return sum(self._stores.get(node, 0.0) for node in nodes)

    def free_resources(self, suspects: Collection[str] = ()) -> list[Node]:
        """Return the free resources of live nodes; suspects and draining nodes are excluded."""
        none: dict[str, float] = {}
        out = []
        for node in self.alive:
            free = self._free.get(node, none)
            leaving = node in self.draining or node in suspects
            memory, store = free.get("memory", 0.0), free.get("object_store_memory", 0.0)
            out.append(Node(node, free.get("CPU", 0.0), memory, store, leaving))
        return out

    def reserve(self, node: str, request: ResourceRequest) -> None:
        """Count resources of a node as used until the next refresh."""
        free = self._free.setdefault(node, {})
        for name, amount in (
            ("CPU", request.cpus),
            ("memory", request.memory),
            ("object_store_memory", request.store),
        ):
            free[name] = free.get(name, 0.0) - amount


class WorkerLocations:
    """The node of each worker, and the workers that died with their node."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._node: dict[str, str] = {}  # of current workers
        self._lost: list[tuple[str, str]] = []  # worker and its node, "" if it had none
        self._names: dict[str, str] = {}
        self._avoided_until: dict[str, float] = {}  # node -> end of the time that it is avoided
        self._reported: set[int] = set()  # numbers of losses
        self.peak = 0  # most workers that had a node at the same time

    @property
    def names(self) -> dict[str, str]:
        """Address and id of each worker's node; for a lost worker its last one."""
        return dict(self._names)

    @property
    def placed(self) -> dict[str, str]:
        """The node of each worker that has one."""
        return dict(self._node)

    @property
    def crashes(self) -> int:
        """Number of workers lost on live nodes, or without a node."""
        return sum(node not in self._cluster.dead for _, node in self._lost)

    @property
    def lost(self) -> int:
        """Number of workers lost, with their nodes or alone."""
        return len(self._lost)

    def set_node(self, worker: str, address: str, node: str) -> None:
        """Record the node of a worker."""
        self._node[worker] = node
        self.peak = max(self.peak, len(self._node))
        self._names[worker] = f"{address}/{node[:12]}"

    def remove(self, worker: str) -> None:
        """Forget a worker that left as planned."""
        self._node.pop(worker, None)

    def mark_lost(self, worker: str) -> None:
        """Record the death of a worker."""
        node = self._node.pop(worker, "")
        self._lost.append((worker, node))
        if node:
            self._avoided_until[node] = time.monotonic() + SUSPECT_SECONDS

    def on_dead_nodes(self) -> list[str]:
        """Return workers whose node is dead and whose own loss was not reported yet."""
        return [worker for worker, node in self._node.items() if node in self._cluster.dead]

    def poll_node_losses(self) -> list[str]:
        """Return lost workers whose node was found dead since the last call."""
        found = {
            number for number, (_, node) in enumerate(self._lost) if node in self._cluster.dead
        }
        new, self._reported = sorted(found - self._reported), self._reported | found
        return [self._lost[number][0] for number in new]

    def on_draining(self) -> dict[str, float]:
        """Return workers on draining nodes with the seconds left, infinity if unknown."""
        now, draining = time.time(), self._cluster.draining
        return {
            worker: draining[node] - now for worker, node in self._node.items() if node in draining
        }

    def avoid_nodes(self, nodes: Collection[str], seconds: float) -> None:
        """Place no new workers on some nodes for `seconds`."""
        self._avoided_until |= dict.fromkeys(nodes, time.monotonic() + seconds)

    def nodes_with_room(self, request: ResourceRequest) -> list[str]:
        """Return nodes that have room for a worker, as of the last refresh."""
        return [node.id for node in self.free_nodes() if free_slots(node, request)]

    def died_on_live_node(self, lost: Collection[str]) -> bool:
        """Return whether a lost worker died on a live node, where its place is free now."""
        last = dict(self._lost)
        return any(
            last.get(worker) in self._cluster.alive.keys() - self._cluster.draining.keys()
            for worker in lost
        )

    def placement_strategies(self, request: ResourceRequest, count: int) -> list[Any]:
        """Return Ray scheduling strategies of `count` new workers: free nodes, then Ray's own."""
        nodes = place_workers(
            self.free_nodes(),
            request,
            count,
            placed=Counter(self._node.values()),
            driver_node=driver_node(),
        )
        for node in nodes:
            self._cluster.reserve(node, request)
        return [soft_affinity(node) for node in nodes] + [ANYWHERE] * (count - len(nodes))

    def free_nodes(self) -> list[Node]:
        """Return the free resources per node, as of the last refresh."""
        now = time.monotonic()
        self._avoided_until = {
            node: until for node, until in self._avoided_until.items() if until > now
        }
        return self._cluster.free_resources(set(self._avoided_until))


def driver_node() -> str:
    """Return the driver's node."""
    return str(ray.get_runtime_context().get_node_id())


def soft_affinity(node: str) -> NodeAffinitySchedulingStrategy:
    """Return a strategy for this node, or any other one if it is gone or full."""
    return NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
