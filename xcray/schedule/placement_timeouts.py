"""Placement timeout policy: report, retry and finally give up workers that get no place.

Ray does not report why an actor has no place yet. A request can be lost, a node may not have
received the job, or the view of free resources can be outdated or count a dead node. None of this
is visible to the driver, but it can see that there was room for a while and no worker was placed.
Then the waiting requests are cancelled and made again. If that fails too, the nodes that took no
worker are avoided for some minutes, so that other nodes are filled or requested. If no worker is
ready within the start timeout, the pool gives up and reports what it waited for.

The module reads no clock and does not depend on Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

# Room on a node that no worker takes for this long leads to a retry; longer than a slow start.
STUCK_SECONDS: Final = 20.0
AVOID_SECONDS: Final = 300.0  # that a node is avoided which took no worker twice
# Delay before surplus requests are cancelled, because the view of free resources lags behind.
SURPLUS_SECONDS: Final = 5.0
REPORT_AFTER_SECONDS: Final = 10.0  # of waiting, before it is reported


class PlacementAction(NamedTuple):
    """What to do now.

    retry: workers to cancel and to request again. avoid: nodes that get no workers for
    AVOID_SECONDS.
    give_up: whether to give up. reason: what is waited for; empty if nothing is.
    """

    retry: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    give_up: bool = False
    reason: str = ""


class PlacementWatchdog:
    """Watches the waiting workers of one pool; all times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._none_ready_since: float | None = None  # since when no worker is ready
        # node -> since when it has had room that no waiting worker took
        self._free_since: dict[str, float] = {}
        # nodes for which waiting workers were requested again
        self._retried: set[str] = set()
        self._waiting: set[str] = set()
        self._surplus_since: float | None = None

    def check(
        self,
        now: float,
        requested: Mapping[str, float],
        ready: int,
        free_nodes: Collection[str],
        start_seconds: float,
    ) -> PlacementAction:
        """Return what to do at `now`.

        requested: workers that have no place, with the time of their request. ready: number of
        workers that can work. free_nodes: nodes that have room for a worker. start_seconds: how
        long a start may take while no worker is ready.
        """
        self._none_ready_since = (
            None if ready else now if self._none_ready_since is None else self._none_ready_since
        )
        resolved = self._waiting - requested.keys()  # placed or cancelled
        self._waiting = set(requested)
        if resolved or not requested:
            self._free_since = {}
        self._retried &= set(free_nodes)
        self._free_since = {
            node: self._free_since.get(node, now) for node in free_nodes if requested
        }
        reason = self._describe_wait(now, requested, free_nodes)
        if self._none_ready_since is not None and now - self._none_ready_since > start_seconds:
            return PlacementAction(give_up=True, reason=reason)
        stuck = [node for node, since in self._free_since.items() if now - since >= STUCK_SECONDS]
        retry = tuple(worker for worker, since in requested.items() if now - since >= STUCK_SECONDS)
        if not stuck or not retry:
            return PlacementAction(reason=reason)
        avoid = tuple(node for node in stuck if node in self._retried)
        self._retried = (self._retried | set(stuck)) - set(avoid)
        self._free_since, self._waiting = {}, set()
        return PlacementAction(retry, avoid, reason=reason)

    def surplus_to_cancel(self, now: float, too_many: int) -> int:
        """Return how many of `too_many` waiting workers to cancel, 0 before SURPLUS_SECONDS."""
        self._surplus_since = (
            None if too_many <= 0 else now if self._surplus_since is None else self._surplus_since
        )
        return (
            too_many
            if self._surplus_since is not None and now - self._surplus_since >= SURPLUS_SECONDS
            else 0
        )

    def _describe_wait(
        self, now: float, requested: Mapping[str, float], free_nodes: Collection[str]
    ) -> str:
        """Return what is waited for."""
        longest = now - min(requested.values(), default=now)
        if longest < REPORT_AFTER_SECONDS:
            return ""
        n = len(requested)
        subject = f"{n} worker{'s' * (n > 1)} wait{'s' * (n == 1)} for a place"
        since = min((self._free_since.get(node, now) for node in free_nodes), default=now)
        if not free_nodes:
            return f"{subject}: no node has room"
        nodes = f"{len(free_nodes)} node{'s' * (len(free_nodes) > 1)}"
        waited = f"{now - since:.0f} s"
        return f"{subject}: {nodes} had room for {waited}, and Ray has placed no worker there"
