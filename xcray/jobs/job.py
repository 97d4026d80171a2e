"""Job, event and data set records: plain frozen data, JSON-ready, without storage or clock."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

TRAIN: Final = "train"
PREDICT: Final = "predict"
KINDS: Final = (TRAIN, PREDICT)
TIMEOUT: Final = "TIMEOUT"  # Reasons of jobs that ran out of time.
EXPIRED: Final = "EXPIRED"


@dataclass(frozen=True)
class Job:
    """One submitted piece of work: a training or a batch prediction (`kind`).

    Times are UTC in ISO 8601 and end in Z. `attempt` counts the claims and acts as a fencing token:
    only the newest attempt can write. `progress` is the last report (phase, done, total, seconds,
    rate, eta, note). `result` is set once the job SUCCEEDED. A training has model, version, sha256,
    measures, ...; a batch prediction has output, rows, answered, skipped, parts, ...

    Limits, each of which can be null: `timeout_seconds` of running time over all attempts since
    submit or resume, of which `ran_seconds` are used; `expires`, the Unix second by which the job
    must have ended; `max_attempts`, the number of losses after which it fails.

    `events` counts the job's events. It changes with every visible change except heartbeats.
    `model` and `dataset_id` are there for filters.
    """

    id: str
    tenant: str
    name: str
    spec: dict[str, Any]
    status: str
    phase: str
    reason: str | None
    message: str | None
    attempt: int
    priority: int
    progress: dict[str, Any]
    result: dict[str, Any] | None
    stop_requested: bool
    created: str
    started: str | None
    finished: str | None
    idempotency_key: str | None
    kind: str = TRAIN
    key_id: str | None = None
    timeout_seconds: float | None = None
    ran_seconds: float = 0.0
    expires: float | None = None
    max_attempts: int | None = None
    model: str | None = None
    dataset_id: str | None = None
    events: int = 0

    def overtime_reason(self, now: float) -> str | None:
        """Return why the job must end at Unix second `now`, or None.

        TIMEOUT: it used up its running time. EXPIRED: the time by which it must have ended has
        passed.
        """
        if self.timeout_seconds is not None and self.ran_seconds >= self.timeout_seconds:
            return TIMEOUT
        return EXPIRED if self.expires is not None and now >= self.expires else None


@dataclass(frozen=True)
class Event:
    """One event of a job. `seq` increases within the job, with gaps.

    Kinds: status, phase, progress, epoch, stop.
    """

    seq: int
    time: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class DatasetRecord:
    """A data set of the service: its path, status, statistics and number of changes.

    Its files can be used when `status` is READY. `version` counts the changes of the record.
    """

    id: str
    tenant: str
    name: str
    path: str
    status: str
    stats: dict[str, Any]
    created: str
    version: int = 1


def new_id(kind: str) -> str:
    """Return a new id of 100 random bits, such as `job_` and 20 base-32 characters."""
    return f"{kind}_{base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]}"


def format_utc(seconds: float) -> str:
    """Return Unix seconds as UTC in ISO 8601 with milliseconds, ending in Z."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def body_digest(body: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
