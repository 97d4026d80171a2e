r"""Invariants that must hold after any fault, from the ledger, store, files and processes.

I1  every acknowledged job, data set and model exists
I2  every job has ended in one terminal state, by allowed transitions
I3  one result per job, with the SHA-256 of its model
I4  the number of attempts is bounded
I5  no file without a row, no row without its files
I6  no process of a job is left
I7  no secret in logs
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.robustness.faults.ledger import Ledger
from tests.robustness.faults.measurements import Measurements
from tests.robustness.faults.service import attempts
from xcray.errors import XcrayError
from xcray.jobs.home import Home
from xcray.jobs.job import TRAIN, Job
from xcray.jobs.runner.publish import MARKER
from xcray.jobs.states import PENDING, RUNNING, SUCCEEDED, TERMINAL, is_allowed
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter
from xcray.model.registry import Registry
from xcray.storage.atomic import read_json

MOST_ATTEMPTS = 3
SETTLES = 600.0  # seconds in which pending removals must be done


def check(
    measurements: Measurements,
    ledger: Ledger,
    store: JobStore,
    home: Home,
    *,
    most_attempts: int = MOST_ATTEMPTS,
    secrets: Sequence[str] = (),
    logs: Sequence[Path] = (),
    swept: bool = True,
    settles: float = SETTLES,
) -> None:
    """Count every broken promise after all work has ended.

    swept: leftovers of crashes must be gone within `settles` seconds.
    """
    jobs = {job.id: job for job in all_jobs(store)}
    _exists(measurements, ledger, store, home, jobs)
    for job in jobs.values():
        _ended_once(measurements, store, job, most_attempts)
    _one_result(measurements, home, jobs)
    if swept:  # files of a job are removed shortly after its outcome is recorded
        for sentence in _still(lambda: [*orphans(store, home, set(jobs))], settles):
            measurements.fault(f"I5 {sentence}")
    # The process of a job exits shortly after the job has ended.
    left = _still(lambda: [*attempts(home.path)], settles)
    for name in left:
        measurements.fault(f"I6 a process of {name} is left")
    for path in (*logs, *home.logs.glob("*.log")):
        text = path.read_text(errors="replace")
        for number, secret in enumerate(secrets):
            measurements.expect(secret not in text, f"I7 secret {number} is in {path.name}")


def _still(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """Return the items that are still there after `seconds`; return at once if there are none."""
    deadline = time.monotonic() + seconds
    while (result := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return result


def all_jobs(store: JobStore, tenant: str = "default") -> list[Job]:
    """Return every job of a tenant, newest first."""
    out, token = [], None
    while True:
        page, token = store.jobs.list_page(JobFilter(tenant), limit=1000, page_token=token)
        out += page
        if token is None:
            return out


def _exists(
    measurements: Measurements, ledger: Ledger, store: JobStore, home: Home, jobs: dict[str, Job]
) -> None:
    """Check I1, and that each key has one job."""
    forgotten = {entry["id"] for entry in ledger.all("delete")}
    for job_id in ledger.ids("job"):
        if job_id not in jobs and job_id not in forgotten:
            measurements.lose(f"I1 job {job_id} was acknowledged and is gone")
    for dataset_id in ledger.ids("dataset"):
        try:
            store.datasets.get(dataset_id)
        except XcrayError:
            if dataset_id not in forgotten:
                measurements.lose(f"I1 data set {dataset_id} was acknowledged and is gone")
    for reference in ledger.ids("model"):
        try:
            Registry(home.models).resolve(reference)
        except XcrayError:
            measurements.lose(f"I1 model {reference} was acknowledged and is gone")
    keys: dict[str, set[str]] = {}
    for entry in ledger.all("job"):
        keys.setdefault(entry.get("key", entry["id"]), set()).add(entry["id"])
    for key, ids in keys.items():
        if len(ids) > 1:
            measurements.double(f"I1 key {key} has {len(ids)} jobs")
    known = {job.idempotency_key for job in jobs.values()}
    if len(known - {None}) != sum(job.idempotency_key is not None for job in jobs.values()):
        measurements.double("I1 two jobs have one key")


def _ended_once(measurements: Measurements, store: JobStore, job: Job, most_attempts: int) -> None:
    """Check I2 and I4 with the events of the job."""
    if not measurements.expect(
        job.status in TERMINAL, f"I2 job {job.id} is {job.status} after all has drained"
    ):
        return
    moves = [
        event.data
        for event in store.jobs.list_events(job.id, limit=100_000)
        if event.kind == "status"
    ]
    state = PENDING
    for move in moves[1:]:
        measurements.expect(
            is_allowed(state, move["status"]),
            f"I2 job {job.id} went from {state} to {move['status']}",
        )
        state = move["status"]
    measurements.expect(
        state == job.status, f"I2 job {job.id} is {job.status}, its events say {state}"
    )
    claims = [move["attempt"] for move in moves if move["status"] == RUNNING]
    measurements.expect(claims == sorted(set(claims)), f"I4 attempts of {job.id} are {claims}")
    if sum(move["status"] == SUCCEEDED for move in moves) > 1:
        measurements.double(f"I3 job {job.id} succeeded twice")
    losses = sum(after.get("reason") in ("LOST", "CRASH_LOOP") for after in moves)
    measurements.expect(
        losses <= most_attempts + 1,
        f"I4 job {job.id} lost {losses} attempts, {most_attempts} are allowed",
    )


def _one_result(measurements: Measurements, home: Home, jobs: dict[str, Job]) -> None:
    """Check I3: at most one version per successful training, with the SHA-256 of its result."""
    registry, carried = Registry(home.models), Counter[str]()
    for name in registry.names():
        for version in registry.versions(name):
            marker = registry.resolve(f"{name}:{version}") / MARKER
            if marker.is_file():
                carried[read_json(marker)["job"]] += 1
    for job_id, count in carried.items():
        if count > 1:
            measurements.double(f"I3 job {job_id} has {count} versions")
    for job in jobs.values():
        if job.status != SUCCEEDED or job.kind != TRAIN:
            continue
        result: dict[str, Any] = job.result or {}
        try:
            sha = registry.describe(result["model"], result["version"]).sha256
        except (XcrayError, KeyError):
            measurements.lose(f"I3 job {job.id} SUCCEEDED and its version is gone")
            continue
        measurements.expect(
            sha == result["sha256"], f"I3 job {job.id} has another SHA-256 than its model"
        )


def orphans(store: JobStore, home: Home, jobs: set[str]) -> Iterator[str]:
    """Check I5: files without rows, rows without files, and leftovers that no crash may cause."""
    rows, token = {}, None
    while True:
        page, token = store.datasets.list_page(limit=1000, page_token=token)
        rows |= {record.id: record for record in page}
        if token is None:
            break
    for record in rows.values():
        if record.status == "READY" and not Path(record.path).is_dir():
            yield f"data set {record.id} is READY and has no folder"
        if record.status == "BUILDING":
            yield f"data set {record.id} is still BUILDING"
    for path in home.datasets.iterdir():
        if path.name not in rows:
            yield f"datasets/{path.name} belongs to no row"
    for path in home.runs.iterdir():
        if path.name not in jobs:
            yield f"runs/{path.name} belongs to no job"
    for folder in ("uploads", "builds"):
        place = home.path / folder
        for path in place.iterdir() if place.is_dir() else ():
            yield f"{folder}/{path.name} is left"
    for path in home.models.rglob(".*"):
        if path.name != ".lock" and path.name.endswith((".part", ".tmp")):
            yield f"models/{path.relative_to(home.models)} is left"
