"""Placement of workers on nodes: a node is filled before another one is used.

The data exists once per node for any number of workers: mapped files are in the page cache, and
arrays from the object store are one copy per node. So each additional node costs a copy, and
blocks that move within a node cost nothing. Workers are placed on nodes that run workers of the
job, then on the driver's node, which has the data already, then on as few other nodes as possible.

Ray's own policy spreads workers once a node is half full. So the driver decides, and Ray chooses
if a node has no room any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple


class Node(NamedTuple):
    """Free resources of a node: CPUs, and bytes of memory and of the object store.

    excluded: the node is draining or lost a worker a moment ago, so it gets no new workers.
    """

    id: str
    cpus: float
    memory: float = float("inf")
    store: float = float("inf")
    excluded: bool = False


class ResourceRequest(NamedTuple):
    """Resources of one worker: CPUs, bytes of its own memory, bytes of its node's object store."""

    cpus: float = 1.0
    memory: float = 0.0
    store: float = 0.0


ONE_CPU: Final = ResourceRequest()


def free_slots(node: Node, request: ResourceRequest) -> int:
    """Return how many more workers fit on a node.

    Example:
        >>> free_slots(Node("a", cpus=8.0, memory=10e9), ResourceRequest(memory=3e9))
        3
    """
    if node.excluded:
        return 0
    counts = [(node.cpus, request.cpus), (node.memory, request.memory), (node.store, request.store)]
    return max(
        0,
        min(int(free / each + 1e-9) for free, each in counts if each > 0.0 and free < float("inf")),
    )


def place_workers(
    nodes: Iterable[Node],
    request: ResourceRequest,
    count: int,
    *,
    placed: Mapping[str, int],
    driver_node: str = "",
) -> list[str]:
    """Return the node ids of up to `count` new workers, in order; fewer if there is no room.

    placed: workers of the job on each node. Of the other nodes the smallest that takes all
    remaining workers is used, else the largest. If the object stores are too small for all
    workers, Ray spills the excess to disk; then only CPUs and memory count.

    Example:
        >>> nodes = [Node("a", 2.0), Node("b", 8.0), Node("c", 4.0)]
        >>> place_workers(nodes, ResourceRequest(), 10, placed={})
        ['b', 'b', 'b', 'b', 'b', 'b', 'b', 'b', 'a', 'a']
    """
    available = list(nodes)
    out = _fill_nodes(available, request, count, placed, driver_node)
    if request.store and len(out) < count:
        used = {node.id: out.count(node.id) for node in available}
        left_over = [
            node._replace(cpus=node.cpus - used[node.id] * request.cpus) for node in available
        ]
        left_over = [
            node._replace(memory=node.memory - used[node.id] * request.memory) for node in left_over
        ]
        out += _fill_nodes(
            left_over,
            request._replace(store=0.0),
            count - len(out),
            {**placed, **used},
            driver_node,
        )
    return out


def _fill_nodes(
    nodes: Sequence[Node],
    request: ResourceRequest,
    count: int,
    placed: Mapping[str, int],
    driver_node: str,
) -> list[str]:
    """Fill nodes one after the other, see `place_workers`; nodes without room get nothing."""
    slots = {node.id: free_slots(node, request) for node in nodes}
    out: list[str] = []
    known = sorted(
        (id for id in slots if placed.get(id) or id == driver_node),
        key=lambda id: (-placed.get(id, 0), id != driver_node, id),
    )
    for id in known:
        out += [id] * min(slots.pop(id), count - len(out))
    while len(out) < count and any(slots.values()):
        left = count - len(out)
        enough = [id for id in slots if slots[id] >= left]
        best = (
            min(enough, key=lambda id: (slots[id], id))
            if enough
            else max(sorted(slots), key=slots.__getitem__)
        )
        out += [best] * min(slots.pop(best), left)
    return out


def group_by_node(workers: Sequence[str], nodes: Mapping[str, str]) -> list[str]:
    """Sort workers so that those of a node are neighbours.

    Nodes are in the order of their first worker, workers of a node in the given order. Blocks that
    rotate over the workers then cross between nodes only once per node.

    Example:
        >>> group_by_node(["a", "b", "c", "d"], {"a": "1", "b": "2", "c": "1", "d": "2"})
        ['a', 'c', 'b', 'd']
    """
    first: dict[str, int] = {}
    for place, worker in enumerate(workers):
        first.setdefault(nodes.get(worker, ""), place)
    return sorted(workers, key=lambda worker: first[nodes.get(worker, "")])
