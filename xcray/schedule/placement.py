"""On which node a worker goes: a node is filled before another is opened.

The data is there once a node, however many workers it has: mapped files are the page cache, and what comes through an object store
is one copy a node. So each node opened costs a copy, and blocks that travel within a node cost nothing. Workers go first where
others of the job are, then to the driver's node, where the data is already, then to as few other nodes as can be.

Ray's own policy spreads once a node is half full; so the driver decides, and Ray has the last word when a node has no room any
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple


class Node(NamedTuple):
    """A node as it is now. cpus, memory, store: what is free of it, memory and store in bytes; leaving: it is about to go, or
    lost a worker a moment ago: nothing new goes there."""

    id: str
    cpus: float
    memory: float = float("inf")
    store: float = float("inf")
    leaving: bool = False


class Need(NamedTuple):
    """What one worker takes: processors, bytes of memory for itself, bytes of its node's object store."""

    cpus: float = 1.0
    memory: float = 0.0
    store: float = 0.0


A_CPU: Final = Need()


def room(node: Node, need: Need) -> int:
    """How many workers more a node takes.

    Example:
        >>> room(Node("a", cpus=8.0, memory=10e9), Need(memory=3e9))
        3
    """
    if node.leaving:
        return 0
    counts = [(node.cpus, need.cpus), (node.memory, need.memory), (node.store, need.store)]
    return max(
        0,
        min(int(free / each + 1e-9) for free, each in counts if each > 0.0 and free < float("inf")),
    )


def places(
    nodes: Iterable[Node], need: Need, count: int, *, ours: Mapping[str, int], home: str = ""
) -> list[str]:
    """Node ids of up to `count` new workers, in order; fewer where there is no room.

    ours: workers of the job on each node; home: the driver's node. Of nodes that have none, the smallest that takes all that are
    left is taken, else the largest. Where object stores are too small for all, what does not fit is written to disk: then
    processors and memory decide.

    Example:
        >>> places([Node("a", 2.0), Node("b", 8.0), Node("c", 4.0)], Need(), 10, ours={})
        ['b', 'b', 'b', 'b', 'b', 'b', 'b', 'b', 'a', 'a']
    """
    there = list(nodes)
    out = _filled(there, need, count, ours, home)
    if need.store and len(out) < count:
        taken = {node.id: out.count(node.id) for node in there}
        rest = [node._replace(cpus=node.cpus - taken[node.id] * need.cpus) for node in there]
        rest = [node._replace(memory=node.memory - taken[node.id] * need.memory) for node in rest]
        out += _filled(rest, need._replace(store=0.0), count - len(out), {**ours, **taken}, home)
    return out


def _filled(
    nodes: Sequence[Node], need: Need, count: int, ours: Mapping[str, int], home: str
) -> list[str]:
    """See `places`; nothing goes where there is no room."""
    rooms = {node.id: room(node, need) for node in nodes}
    out: list[str] = []
    known = sorted(
        (id for id in rooms if ours.get(id) or id == home),
        key=lambda id: (-ours.get(id, 0), id != home, id),
    )
    for id in known:
        out += [id] * min(rooms.pop(id), count - len(out))
    while len(out) < count and any(rooms.values()):
        left = count - len(out)
        enough = [id for id in rooms if rooms[id] >= left]
        best = (
            min(enough, key=lambda id: (rooms[id], id))
            if enough
            else max(sorted(rooms), key=rooms.__getitem__)
        )
        out += [best] * min(rooms.pop(best), left)
    return out


def side_by_side(workers: Sequence[str], nodes: Mapping[str, str]) -> list[str]:
    """Workers so that those of a node are neighbours: nodes in the order of their first worker, its workers in theirs. What goes
    round them then crosses from node to node as often as there are nodes, and no more.

    Example:
        >>> side_by_side(["a", "b", "c", "d"], {"a": "1", "b": "2", "c": "1", "d": "2"})
        ['a', 'c', 'b', 'd']
    """
    first: dict[str, int] = {}
    for place, worker in enumerate(workers):
        first.setdefault(nodes.get(worker, ""), place)
    return sorted(workers, key=lambda worker: first[nodes.get(worker, "")])
