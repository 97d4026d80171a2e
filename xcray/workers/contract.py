"""What pools and worker groups have in common: their life, their nodes, and what they report."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from xcray.schedule.calls import Call
from xcray.telemetry.progress import Progress


class WorkerStatus(NamedTuple):
    """Workers of a pool or a group.

    desired, present: numbers of workers. lost, nodes_lost: unplanned losses of workers and nodes.
    stored_bytes: in the object stores of the workers' cluster, None without one.
    lost_with_nodes: lost workers that went down with their whole node, so they are not the cause.
    peak: largest number of ready workers, where workers come and go.
    waiting_for: description of what is waited for; empty if nothing is. calls_waiting: calls
    beyond one per worker; oldest_call_seconds: age of the oldest call in progress. Both are None
    for workers in this process.
    """

    desired: int
    present: int
    lost: int = 0
    nodes_lost: int = 0
    stored_bytes: int | None = None
    lost_with_nodes: int = 0
    peak: int = 0
    waiting_for: str = ""
    calls_waiting: int | None = None
    oldest_call_seconds: float | None = None


class Workers(Protocol):
    """Workers in threads or processes, used by one thread; others may only call `stop`."""

    @property
    def available(self) -> tuple[str, ...]:
        """Workers that can be called, in order where they have one."""

    @property
    def nodes(self) -> dict[str, str]:
        """Name of each worker's node, past workers included; empty for workers in this process."""

    def open(self) -> None:
        """Start the workers. Raises Unavailable if they cannot be started."""

    def now(self) -> float:
        """Return the seconds since they were opened: the clock of `started` of their replies."""

    def submit(self, call: Call[Any, Any]) -> int:
        """Run a call; return the ticket that one reply of `wait` will carry."""

    def memory_usage(self) -> dict[str, int]:
        """Return the latest anonymous bytes of workers in other processes, and request new ones.

        The call does not wait for replies.
        """

    def status(self) -> WorkerStatus:
        """Return the current workers. Slow sources are polled every few seconds at most."""

    def export(self, step: Progress) -> None:
        """Export the progress of their run to the metrics of their cluster, if they have one."""
        return

    def stop(self) -> None:
        """Stop all work within a kernel slice, later submissions too."""

    def close(self) -> None:
        """End what `open` started; idempotent."""
