"""Job states and the allowed transitions. The five words are Ray's; the phase adds detail."""

from __future__ import annotations

from typing import Final

PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
STOPPED: Final = "STOPPED"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"

STATUSES: Final = (PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED)
# Terminal: no runner works on these. STOPPED and FAILED jobs can be resumed.
TERMINAL: Final = frozenset({STOPPED, SUCCEEDED, FAILED})

TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    # claimed; stopped or expired before it started
    PENDING: frozenset({RUNNING, STOPPED, FAILED}),
    RUNNING: frozenset({PENDING, STOPPED, SUCCEEDED, FAILED}),  # released or lease lost; ended
    STOPPED: frozenset({PENDING}),  # resumed
    FAILED: frozenset({PENDING}),  # resumed
    SUCCEEDED: frozenset(),  # a result is final
}

QUEUED: Final = "QUEUED"  # the phase of a PENDING job
STARTING: Final = "STARTING"  # claimed, nothing reported yet


def is_allowed(old: str, new: str) -> bool:
    """Return whether a job can move from one status to another."""
    return new in TRANSITIONS[old]
