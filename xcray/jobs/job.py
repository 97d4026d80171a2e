"""What a job is: plain frozen records, JSON-ready; no storage, no clock."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

TRAIN: Final = "train"
PREDICT: Final = "predict"
KINDS: Final = (TRAIN, PREDICT)
TIMEOUT: Final = "TIMEOUT"  # reasons of jobs whose time was up
EXPIRED: Final = "EXPIRED"


@dataclass(frozen=True)
class Job:
    """One thing that somebody asked for: a training, or a batch prediction (`kind`). Times are UTC, ISO 8601, ending in Z.

    `attempt` counts the claims and fences: only the newest attempt may write. `progress` is the last one reported
    (phase, done, total, seconds, rate, eta, note); `result` is there when it SUCCEEDED: of a training model, version, sha256,
    measures, ...; of a batch prediction output, rows, answered, skipped, parts, ...

    Limits that may be null: `timeout_seconds` of running time over all attempts since submit or resume, of which `ran_seconds`
    are used; `expires`, Unix seconds by which it must have ended; `max_attempts`, losses that fail it. `events` counts what
    happened to it and changes with everything that can be seen of it but heartbeats. `model` and `dataset_id` are for filters.
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

    def overtime(self, now: float) -> str | None:
        """Why it may not go on at Unix second `now`: TIMEOUT (it ran too long), EXPIRED (its time to end has come), or None."""
        if self.timeout_seconds is not None and self.ran_seconds >= self.timeout_seconds:
            return TIMEOUT
        return EXPIRED if self.expires is not None and now >= self.expires else None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary of all fields."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Event:
    """One thing that happened to a job. `seq` rises within the job, with gaps; kinds: status, phase, progress, stop."""

    seq: int
    time: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class DatasetRecord:
    """A data set that the service holds: where it lies, whether it is READY, its figures, and how often it was changed."""

    id: str
    tenant: str
    name: str
    path: str
    status: str
    stats: dict[str, Any]
    created: str
    version: int = 1


def new_id(kind: str) -> str:
    """A server-made id of 100 random bits: `job_` and 20 lowercase letters and digits (base 32)."""
    return f"{kind}_{base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]}"


def utc(seconds: float) -> str:
    """Unix seconds as UTC ISO 8601 with milliseconds, ending in Z."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def body_digest(body: Any) -> str:
    """SHA-256 of a JSON value, the same for any order of its keys."""
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
