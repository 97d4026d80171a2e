"""Metrics that are kept in the store: queue waits, ends of jobs, and what attempts did.

They are increased in the same transaction as the change itself. The names are those of the stored
counters, which `xcray.service.observability.store_metrics` exports. Labels have few values, never a
name that a user chose.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from typing import Any, Final

from xcray.jobs.states import FAILED, PENDING, RUNNING, TERMINAL
from xcray.jobs.store.counters import Counter, Increments, make_counter
from xcray.telemetry.progress import (
    BATCHES_COPIED,
    EPOCHS,
    LABELS_SOLVED,
    NODES_LOST,
    ROWS_ANSWERED,
    ROWS_TRAINED,
    WORKER_SECONDS,
    WORKERS_LOST,
    Progress,
)
from xcray.workers import run_metrics

# number of waits per bucket; their sum is QUEUE_WAIT_SUM
QUEUE_WAIT: Final = "xcray_job_queue_wait_seconds"
QUEUE_WAIT_SUM: Final = "xcray_job_queue_wait_seconds_sum"
QUEUE_WAIT_BUCKETS: Final = (
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    14400.0,
    86400.0,
)
JOBS_COMPLETED: Final = "xcray_jobs_completed_total"
ATTEMPTS_LOST: Final = "xcray_job_attempts_lost_total"
QUEUE_POLLS: Final = "xcray_runner_queue_polls_total"
BATCHES_BY_OUTCOME: Final = "xcray_batches_total"  # by outcome
WASTED_SECONDS: Final = "xcray_worker_seconds_wasted_total"  # by outcome
# metric of an attempt -> counter
ATTEMPT_COUNTERS: Final = {
    LABELS_SOLVED: "xcray_labels_solved_total",
    WORKER_SECONDS: "xcray_worker_seconds_total",  # by kind of job
    EPOCHS: "xcray_training_epochs_total",
    ROWS_TRAINED: "xcray_training_rows_total",
    ROWS_ANSWERED: "xcray_rows_answered_total",
    BATCHES_COPIED: "xcray_batches_speculative_total",
    WORKERS_LOST: "xcray_workers_lost_total",
    NODES_LOST: "xcray_nodes_lost_total",
}
# metric of an attempt -> counter with label
OUTCOME_COUNTERS: Final = {
    **{
        name: make_counter(BATCHES_BY_OUTCOME, outcome=outcome)
        for outcome, name in run_metrics.BATCH_COUNTERS.items()
    },
    **{
        name: make_counter(WASTED_SECONDS, outcome=outcome)
        for outcome, name in run_metrics.WASTED_SECONDS.items()
    },
}
KIND_BY_PHASE: Final = {"TRAINING": "train", "PREDICTING": "predict"}
# Reasons of failures that the input did not cause. All others are INPUT.
SYSTEM_REASONS: Final = frozenset(
    {
        "CRASH_LOOP",
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


def transition_increments(
    row: Mapping[str, Any], status: str, values: Mapping[str, Any], waited: float | None
) -> Increments:
    """Return what a job's transition to `status` adds to the counters.

    row: the job before. values: its changes. waited: seconds in the queue, when it was claimed.
    """
    increments: dict[Counter, float] = {}
    if status == RUNNING and waited is not None:
        seconds = max(0.0, waited)  # clocks of two machines may differ
        increments[make_counter(QUEUE_WAIT, le=bucket_label(seconds))] = 1.0
        increments[make_counter(QUEUE_WAIT_SUM)] = seconds
    if status in TERMINAL:
        reason = classify_reason(values.get("reason")) if status == FAILED else "NONE"
        increments[make_counter(JOBS_COMPLETED, kind=row["kind"], status=status, reason=reason)] = (
            1.0
        )
    if (
        row["status"] == RUNNING
        and status in (PENDING, *TERMINAL)
        and values.get("losses", row["losses"]) > row["losses"]
    ):
        increments[make_counter(ATTEMPTS_LOST)] = 1.0
    return increments


def classify_reason(reason: str | None) -> str:
    """Return the class of a reason: few values, whatever solvers and readers call their errors."""
    return "NONE" if reason is None else reason if reason in SYSTEM_REASONS else "INPUT"


def bucket_label(seconds: float) -> str:
    """Return the upper bound of the bucket of a wait, in Prometheus' notation."""
    at = bisect.bisect_left(QUEUE_WAIT_BUCKETS, seconds)
    return str(QUEUE_WAIT_BUCKETS[at]) if at < len(QUEUE_WAIT_BUCKETS) else "+Inf"


class AttemptMetrics:
    """The metrics of one attempt, and how much of them the store has."""

    def __init__(self) -> None:
        self._totals: dict[Counter, float] = {}
        self._acknowledged: dict[Counter, float] = {}

    def update(self, progress: Progress) -> None:
        """Take the latest values."""
        kind = KIND_BY_PHASE.get(progress.phase)
        if kind is None or not progress.metrics:
            return
        for name, value in progress.metrics["counted"].items():
            self._totals[_counter_of(name, kind)] = float(value)

    def pending(self) -> dict[Counter, float]:
        """Return the increments that the store does not have yet."""
        totals = dict(self._totals)  # a copy, because the training keeps updating
        return {
            name: increment
            for name, value in totals.items()
            if (increment := value - self._acknowledged.get(name, 0.0)) > 0.0
        }

    def acknowledge(self, increments: Increments) -> None:
        """Record that the store has these increments."""
        for name, increment in increments.items():
            self._acknowledged[name] = self._acknowledged.get(name, 0.0) + increment


def _counter_of(name: str, kind: str) -> Counter:
    """Return the counter for a metric of an attempt."""
    if name in OUTCOME_COUNTERS:
        return OUTCOME_COUNTERS[name]
    return (
        make_counter(ATTEMPT_COUNTERS[name], kind=kind)
        if name == WORKER_SECONDS
        else make_counter(ATTEMPT_COUNTERS[name])
    )


def to_event_data(progress: Progress) -> dict[str, Any]:
    """Return progress as JSON-ready event data. Infinity and NaN become null."""
    data = {
        name: _finite_or_none(value)
        for name, value in progress._asdict().items()
        if name not in ("newest", "metrics")
    }
    for name, part in (("newest", progress.newest), ("metrics", progress.metrics)):
        if part:
            data[name] = {key: _finite_or_none(value) for key, value in part.items()}
    return data


def _finite_or_none(value: Any) -> Any:
    """Return the value, or None for a float that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
