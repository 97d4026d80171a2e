"""Rows about attempts: their processes are killed."""

from __future__ import annotations

import time
from typing import Any

from tests.robustness.faults import invariants
from tests.robustness.faults.catalogue import row
from tests.robustness.faults.service import Service, attempts, store_of
from tests.robustness.faults.stage import Stage, kill, until
from tests.robustness.faults.work import MIDDLE, SLOW, at_share, ok
from xcray.jobs.states import PENDING, RUNNING, SUCCEEDED, TERMINAL

SHARES = (0.1, 0.5, 0.9)


def working(stage: Stage) -> tuple[Service, str, str]:
    """Start a service and train an undisturbed model.

    Returns the service, the id of a data set whose training takes several seconds, and the SHA-256
    of the model.
    """
    # Each fault is one lost attempt: without processor time for a while, a runner keeps its lease.
    service = Service(stage, lease_seconds=600 if stage.small else 20)
    service.up()
    data = service.dataset(**MIDDLE)
    job = service.ended(service.submit(data, "plain", "plain", **SLOW))
    assert job["status"] == SUCCEEDED, job
    return service, data, job["result"]["sha256"]


def drained(stage: Stage, service: Service) -> None:
    """Wait until all jobs have ended, check the invariants, then end the service."""
    store = store_of(service.home)
    try:
        until(
            lambda: not any(store.statistics.read().jobs[each] for each in (PENDING, RUNNING)),
            "all jobs have ended",
        )
        invariants.check(stage.measurements, stage.ledger, store, service.home, logs=[service.log])
    finally:
        store.close()
    service.end()


def same_model(stage: Stage, job: dict[str, Any], sha: str) -> None:
    """Check that the job SUCCEEDED with a model of this SHA-256."""
    if stage.expect(
        job["status"] == SUCCEEDED, f"job {job['id']} is {job['status']}: {job['message']}"
    ):
        stage.expect(job["result"]["sha256"] == sha, f"job {job['id']} has other bits")


def newest_part(service: Service, job: str) -> float:
    """Return the modification time of the newest finished part of a job, in Unix seconds."""
    return max((path.stat().st_mtime for path in service.home.run(job).glob("part-*")), default=0.0)


def on_again(service: Service, job: str, attempt: int) -> dict[str, Any]:
    """Wait until a later attempt of a job trains or the job has ended; return the job."""

    def look() -> Any:
        response = service.job(job)
        later = response["attempt"] > attempt and response["phase"] not in ("QUEUED", "STARTING")
        return (later or response["status"] in TERMINAL) and response

    return until(look, f"the attempt after {attempt} of {job}")


def hit(stage: Stage, service: Service, data: str, name: str, share: float) -> tuple[str, int]:
    """Kill the process of a new job at a share of its training; return the job's id and attempt.

    A job that was faster than this process is left to itself, and another one takes its place.
    """
    while True:
        job = service.submit(data, "m", f"{name}-{len(stage.ledger.ids('job'))}", **SLOW)
        attempt = at_share(service.http, job, share)["attempt"]
        pid = attempts(service.home.path, job).get(f"{job} a{attempt}")
        if pid is not None and kill(pid) and service.job(job)["status"] not in TERMINAL:
            return job, attempt


@row(
    "F3",
    "kill -9 of the process that runs a job",
    "SIGKILL to the runner at 10, 50, 90 %; the last one together with the service",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/jobs/runner/test_batch_jobs.py",
)
def runner_killed(stage: Stage) -> None:
    service, data, sha = working(stage)
    for turn in range(stage.runs):
        job, attempt = hit(stage, service, data, f"k{turn}", SHARES[turn % 3])
        lost = max(0.0, time.time() - newest_part(service, job))
        both = turn == stage.runs - 1 and not stage.small
        with stage.measurements.recovering():
            if both:
                service.kill()
                service.up()
            on_again(service, job, attempt)
        outcome = service.ended(job)
        same_model(stage, outcome, sha)
        stage.expect(
            outcome["attempt"] == attempt + 1, f"{outcome['attempt']} attempts for one kill"
        )
        spent = ok(service.http.get(f"/v1/jobs/{job}/timeline"))["core_seconds"]
        stage.measurements.redone.append(min(1.0, lost / spent))
        stage.measurements.runs += 1
    drained(stage, service)
