"""Autoscaling policy: how many workers the remaining work can use, and which workers to release.

A new worker pays off if the remaining work keeps it busy for longer than its start takes. The
start takes a second or two if a node has room, and a minute or more if a node has to be started
first, while the other workers go on. So the desired number falls as work is done: requests that
were not fulfilled yet are cancelled, and near the end, when no work is left to assign, idle
workers are released except for a few that could run a copy of a late batch. Workers are released
node by node, so that whole nodes become empty.

The module reads no clock and does not depend on Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

BATCHES_PER_SPARE: Final = 8  # one idle worker is kept, plus one per 8 running batches
# Times the start of a node. After that, requested nodes are assumed not to come.
GIVE_UP_FACTOR: Final = 10.0
IDLE_SECONDS: Final = 1.0  # a worker idle for longer is a spare


class Forecast(NamedTuple):
    """The remaining work as a schedule predicts it.

    seconds: of work for a worker of average speed, including all of the running batches.
    labels: labels that are not assigned yet, 1 if they form a single task.
    batches: running batches. idle: names of idle workers.
    measured: whether enough is done for costs to be measured instead of guessed.
    """

    seconds: float
    labels: int
    batches: int
    idle: tuple[str, ...]
    measured: bool = True


class ScalingPolicy(NamedTuple):
    """When a new worker pays off, in seconds of work for it.

    worker_seconds: if a node has room, about the time that a worker takes to start.
    node_seconds: if a node has to be started first, about the time that this takes. A node that
    works no longer than it took to start costs twice what it should.
    """

    worker_seconds: float = 1.0
    node_seconds: float = 60.0


class WorkerCounts(NamedTuple):
    """The current workers of a job.

    ready: workers on nodes, including those that are starting. requested: workers without a node.
    free_slots: workers that fit on the current nodes, including the requested ones.
    waited_seconds: since the oldest request in `requested`.
    """

    ready: int
    requested: int
    free_slots: int
    waited_seconds: float = 0.0


def desired_workers(
    forecast: Forecast, counts: WorkerCounts, max_workers: int, policy: ScalingPolicy
) -> int:
    """Return the number of workers to have or to request, from 1 to `max_workers`.

    It is never less than `counts.ready`; `workers_to_release` reduces that number.

    Example:
        >>> policy = ScalingPolicy(node_seconds=60.0)
        >>> desired_workers(Forecast(1200.0, 5000, 4, ()), WorkerCounts(4, 0, 0), 100, policy)
        16
        >>> desired_workers(Forecast(200.0, 900, 4, ()), WorkerCounts(4, 0, 0), 100, policy)
        4
    """
    # A new worker can only run labels that are not assigned yet.
    useful = max(forecast.labels, 0 if counts.ready else 1)
    placeable = min(
        counts.ready + counts.free_slots,
        max(counts.ready, int(forecast.seconds / policy.worker_seconds), 1),
    )
    desired = max(placeable, 1)
    # No node has room for more, and the forecast is not a guess.
    if placeable == counts.ready + counts.free_slots and (forecast.measured or not placeable):
        # until the node that was, or will be, requested has started
        lead = max(policy.node_seconds - counts.waited_seconds, policy.worker_seconds)
        desired = max(desired, int((forecast.seconds - placeable * lead) / policy.node_seconds))
        if counts.requested and counts.waited_seconds > GIVE_UP_FACTOR * policy.node_seconds:
            # The cluster does not grow. If it does later, the rest is requested again.
            desired = max(placeable, min(desired, placeable + 1))
    return max(counts.ready, min(desired, counts.ready + useful, max_workers))


def workers_to_release(
    forecast: Forecast, idle_since: Mapping[str, float], nodes: Mapping[str, str], now: float
) -> list[str]:
    """Return the workers to release now, none while work is left to assign.

    A few idle workers stay as spares for copies of late batches. idle_since: when each idle worker
    became idle, on the clock of `now`. nodes: the node of every current worker. Whole nodes are
    emptied first, then those with the fewest busy workers. Ties are broken by name, so the result
    is deterministic.

    Example:
        >>> nodes = {"a": "n1", "b": "n1", "c": "n2", "d": "n2"}
        >>> forecast = Forecast(5.0, 0, 1, ("b", "c", "d"))
        >>> workers_to_release(forecast, {"b": 0.0, "c": 0.0, "d": 0.0}, nodes, 9.0)
        ['c', 'd']
    """
    spare = [
        worker
        for worker in forecast.idle
        if worker in nodes and now - idle_since.get(worker, now) >= IDLE_SECONDS
    ]
    if forecast.labels or not spare:
        return []
    n_spares = min(forecast.batches, 1 + forecast.batches // BATCHES_PER_SPARE) - (
        len(forecast.idle) - len(spare)
    )
    idle = Counter(nodes[worker] for worker in spare)
    busy = {node: count - idle[node] for node, count in Counter(nodes.values()).items()}
    order = sorted(spare, key=lambda worker: (busy[nodes[worker]], nodes[worker], worker))
    return order[: len(order) - max(0, n_spares)]
