"""What is counted for good: how jobs waited and ended, and what their attempts did. Added up in the store with the change itself.

Names here are those of the figures that `xcray.service.observability.store_metrics` shows; labels take few values, never a name somebody chose.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from typing import Any, Final

from xcray.jobs.states import FAILED, PENDING, RUNNING, TERMINAL
from xcray.jobs.store.counters import Counted, Counter, counter
from xcray.telemetry.progress import (
    ANSWERED,
    CLASSES,
    COPIED,
    EPOCHS,
    NODES_LOST,
    ROWS,
    SECONDS,
    WORKERS_LOST,
    Progress,
)
from xcray.workers import run_metrics as vitals

WAIT: Final = (
    "xcray_job_queue_wait_seconds"  # how many waits ended in which bucket; their sum: WAIT_SUM
)
WAIT_SUM: Final = "xcray_job_queue_wait_seconds_sum"
WAIT_SECONDS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
ENDED: Final = "xcray_jobs_ended_total"
LOST: Final = "xcray_job_attempts_lost_total"
LOOKS: Final = "xcray_runner_looks_total"
BATCHES: Final = "xcray_batches_total"  # by outcome
WASTED: Final = "xcray_worker_seconds_wasted_total"  # by outcome
DONE: Final = {  # what attempts tell -> the counter
    CLASSES: "xcray_classes_solved_total",
    SECONDS: "xcray_worker_seconds_total",  # by kind of job
    EPOCHS: "xcray_training_epochs_total",
    ROWS: "xcray_training_rows_total",
    ANSWERED: "xcray_rows_answered_total",
    COPIED: "xcray_batches_copied_total",
    WORKERS_LOST: "xcray_workers_lost_total",
    NODES_LOST: "xcray_nodes_lost_total",
}
BY_OUTCOME: Final = {  # what attempts tell -> the counter and its label
    **{name: counter(BATCHES, outcome=outcome) for outcome, name in vitals.BATCHES.items()},
    **{name: counter(WASTED, outcome=outcome) for outcome, name in vitals.WASTED.items()},
}
KINDS_OF_PHASE: Final = {"TRAINING": "train", "PREDICTING": "predict"}
REASONS: Final = (
    frozenset(  # why jobs fail through no fault of what was submitted; all others are INPUT
        {
            "POISON",
            "LOST",
            "TIMEOUT",
            "EXPIRED",
            "OUT_OF_MEMORY",
            "DISK_FULL",
            "INTERNAL",
            "LAUNCH",
            "KIND",
            "CORRUPT",
        }
        | {"UNAVAILABLE", "WORKERS_LOST", "STORE", "REFUSED"}
    )
)


def of_move(
    row: Mapping[str, Any], status: str, values: Mapping[str, Any], waited: float | None
) -> Counted:
    """What a job's move to `status` adds. row: as it was; values: what changes; waited: seconds in the queue, when claimed."""
    out: dict[Counter, float] = {}
    if status == RUNNING and waited is not None:
        seconds = max(0.0, waited)  # clocks of two machines may differ
        out[counter(WAIT, le=bucket_of(seconds))] = 1.0
        out[counter(WAIT_SUM)] = seconds
    if status in TERMINAL:
        reason = reason_class(values.get("reason")) if status == FAILED else "NONE"
        out[counter(ENDED, kind=row["kind"], status=status, reason=reason)] = 1.0
    if (
        row["status"] == RUNNING
        and status in (PENDING, *TERMINAL)
        and values.get("losses", row["losses"]) > row["losses"]
    ):
        out[counter(LOST)] = 1.0
    return out


def reason_class(reason: str | None) -> str:
    """The class of a reason: few, whatever solvers and readers call their errors."""
    return "NONE" if reason is None else reason if reason in REASONS else "INPUT"


def bucket_of(seconds: float) -> str:
    """The upper bound of the bucket that a wait falls into, as Prometheus writes it."""
    at = bisect.bisect_left(WAIT_SECONDS, seconds)
    return str(WAIT_SECONDS[at]) if at < len(WAIT_SECONDS) else "+Inf"


class Tally:
    """What one attempt has done, as it tells, and how much of that the store knows."""

    def __init__(self) -> None:
        self._newest: dict[Counter, float] = {}
        self._known: dict[Counter, float] = {}

    def hear(self, progress: Progress) -> None:
        """Take the newest figures."""
        kind = KINDS_OF_PHASE.get(progress.phase)
        if kind is None or not progress.vitals:
            return
        for name, value in progress.vitals["counted"].items():
            self._newest[_counter_of(name, kind)] = float(value)

    def news(self) -> dict[Counter, float]:
        """What the store does not know yet."""
        newest = dict(self._newest)  # a copy: the training goes on telling
        return {
            name: more
            for name, value in newest.items()
            if (more := value - self._known.get(name, 0.0)) > 0.0
        }

    def know(self, news: Counted) -> None:
        """The store knows this now."""
        for name, more in news.items():
            self._known[name] = self._known.get(name, 0.0) + more


def _counter_of(name: str, kind: str) -> Counter:
    """The counter of what an attempt tells."""
    if name in BY_OUTCOME:
        return BY_OUTCOME[name]
    return counter(DONE[name], kind=kind) if name == SECONDS else counter(DONE[name])


def event_of(progress: Progress) -> dict[str, Any]:
    """Progress as the data of an event: JSON knows no infinity and no NaN."""
    data = {
        name: _finite(value)
        for name, value in progress._asdict().items()
        if name not in ("figures", "vitals")
    }
    for name, part in (("figures", progress.figures), ("vitals", progress.vitals)):
        if part:
            data[name] = {key: _finite(value) for key, value in part.items()}
    return data


def _finite(value: Any) -> Any:
    """A number, or None for one that is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
