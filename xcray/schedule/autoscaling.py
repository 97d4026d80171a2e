"""How many workers what is left can use, and who is to go when it uses fewer: a cluster is asked for no more than pays.

A worker is worth its start when what is left gives it work for longer than the start takes. Where a node has room for it that is
a second or two; where a node must come first, a minute or more, in which the others go on. So the number wanted falls as work
goes: what was asked for and has not come is called off, and near the end, when nothing is left to give out, those that idle go,
but for some that could run a copy of a late batch. They go by node, so that whole nodes become empty.

Nothing here reads a clock, or knows Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

SPARES: Final = 8  # one idle worker is kept for as many batches under way, and one more
GIVE_UP: Final = 10.0  # times as long as a node takes; then whoever asked for nodes has been heard and not answered
IDLE_SECONDS: Final = 1.0  # of having nothing to do, before a worker is held to be spare


class Forecast(NamedTuple):
    """What a schedule foresees of the rest of its work.

    seconds: of work for a worker of average speed, that under way included as a whole; labels: not given out, 1 when they are one
    task; batches: under way; idle: workers that have nothing to do; measured: whether so
    much is done that costs are known, not guessed.
    """

    seconds: float
    labels: int
    batches: int
    idle: tuple[str, ...]
    measured: bool = True


class Thrift(NamedTuple):
    """What makes a worker worth having, in seconds of work for it.

    worker: where a node has room for it, about what its start costs; node: where a node must come first, about as long as
    that takes: a node that works no longer than it started costs twice what it does.
    """

    worker: float = 1.0
    node: float = 60.0


class Staff(NamedTuple):
    """Who is there. ready: workers on nodes, those that get ready included; asked: those that have no node yet; room: for how
    many there is room on the nodes there are, those asked included; waited: seconds since the oldest of `asked` was asked for."""

    ready: int
    asked: int
    room: int
    waited: float = 0.0


def workers_wanted(outlook: Forecast, staff: Staff, most: int, thrift: Thrift) -> int:
    """How many workers to have or to ask for, from 1 to `most`; never less than are ready: see `given_back`.

    Example:
        >>> workers_wanted(Outlook(1200.0, 5000, 4, ()), Staff(4, 0, 0), 100, Thrift(node=60.0))
        16
        >>> workers_wanted(Outlook(200.0, 900, 4, ()), Staff(4, 0, 0), 100, Thrift(node=60.0))
        4
    """
    new = max(
        outlook.labels, 0 if staff.ready else 1
    )  # nobody new has anything to do but what is not given out
    near = min(staff.ready + staff.room, max(staff.ready, int(outlook.seconds / thrift.worker), 1))
    wanted = max(near, 1)
    if near == staff.ready + staff.room and (
        outlook.measured or not near
    ):  # no node has room for more; and it is no mere guess
        lead = max(
            thrift.node - staff.waited, thrift.worker
        )  # until one comes that is asked for, or was
        wanted = max(wanted, int((outlook.seconds - near * lead) / thrift.node))
        if staff.asked and staff.waited > GIVE_UP * thrift.node:
            wanted = max(
                near, min(wanted, near + 1)
            )  # this cluster does not grow; should it, the rest are asked for again
    return max(staff.ready, min(wanted, staff.ready + new, most))


def given_back(
    outlook: Forecast, since: Mapping[str, float], nodes: Mapping[str, str], now: float
) -> list[str]:
    """Workers to let go now: none while anything is left to give out; else those that idle but for some spares.

    since: when each idle worker became so, by the clock of `now`; nodes: the node of every worker there is. Whole nodes first,
    then from those where the fewest are busy; the youngest names last, so that the same is answered to the same.

    Example:
        >>> nodes = {"a": "here", "b": "here", "c": "there", "d": "there"}
        >>> given_back(Outlook(5.0, 0, 1, ("b", "c", "d")), {"b": 0.0, "c": 0.0, "d": 0.0}, nodes, 9.0)
        ['c', 'd']
    """
    spare = [
        worker
        for worker in outlook.idle
        if worker in nodes and now - since.get(worker, now) >= IDLE_SECONDS
    ]
    if outlook.labels or not spare:
        return []
    kept = min(outlook.batches, 1 + outlook.batches // SPARES) - (len(outlook.idle) - len(spare))
    idle = Counter(nodes[worker] for worker in spare)
    busy = {node: count - idle[node] for node, count in Counter(nodes.values()).items()}
    order = sorted(spare, key=lambda worker: (busy[nodes[worker]], nodes[worker], worker))
    return order[: len(order) - max(0, kept)]
