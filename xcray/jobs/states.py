"""The states of a job and the moves between them. Ray's five words; a phase says more."""

from __future__ import annotations

from typing import Final

PENDING: Final = "PENDING"
RUNNING: Final = "RUNNING"
STOPPED: Final = "STOPPED"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"

STATUSES: Final = (PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED)
TERMINAL: Final = frozenset(
    {STOPPED, SUCCEEDED, FAILED}
)  # nobody works on these; STOPPED and FAILED may be resumed

TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    PENDING: frozenset(
        {RUNNING, STOPPED, FAILED}
    ),  # claimed; stopped, or its time was up, before it began
    RUNNING: frozenset({PENDING, STOPPED, SUCCEEDED, FAILED}),  # given back or lease lost; ended
    STOPPED: frozenset({PENDING}),  # resumed
    FAILED: frozenset({PENDING}),  # resumed
    SUCCEEDED: frozenset(),  # a result is for ever
}

QUEUED: Final = "QUEUED"  # the phase of a PENDING job
STARTING: Final = "STARTING"  # claimed, nothing reported yet


def allowed(old: str, new: str) -> bool:
    """Whether a job may move from one status to another."""
    return new in TRANSITIONS[old]
