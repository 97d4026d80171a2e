"""Rows about attempts: their processes are killed, suspended, terminated, or crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.robustness.faults import invariants
from tests.robustness.faults.catalogue import row
from tests.robustness.faults.service import Service, attempts, store_of
from tests.robustness.faults.stage import Stage, kill, until
from tests.robustness.faults.work import MIDDLE, SLOW, at_share, ok, settled
from xcray.errors import XcrayError
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

SHARES = (0.1, 0.5, 0.9)


def working(stage: Stage, **settings: Any) -> tuple[Service, str, str]:
    """Start a service and train an undisturbed model.

    Returns the service, the id of a data set whose training takes several seconds, and the SHA-256
    of the model.
    """
    service = Service(stage, **settings)
    service.up()
    data = service.dataset(**MIDDLE)
    job = service.ended(service.submit(data, "plain", "plain", **SLOW))
    assert job["status"] == SUCCEEDED, job
    return service, data, job["result"]["sha256"]


def drained(stage: Stage, service: Service, **how: Any) -> None:
    """Check the invariants, then end the service."""
    store = store_of(service.home, service.settings.get("store"))
    try:
        invariants.check(
            stage.measurements, stage.ledger, store, service.home, logs=[service.log], **how
        )
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


def hit(stage: Stage, service: Service, data: str, name: str, share: float) -> tuple[str, int, int]:
    """Submit a job and return its id, attempt and process id at a share of its training."""
    job = service.submit(data, "m", name, **SLOW)
    state = at_share(service.http, job, share)
    pid = attempts(service.home.path, job).get(f"{job} a{state['attempt']}")
    assert pid is not None, (
        f"job {job} has no process at {share:.0%}: {state['status']} {state['phase']}"
    )
    return job, state["attempt"], pid


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
        job, attempt, pid = hit(stage, service, data, f"k{turn}", SHARES[turn % 3])
        lost = max(0.0, time.time() - newest_part(service, job))
        kill(pid)
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


@row(
    "F7",
    "a stopped process wakes again",
    "SIGSTOP of a runner until another attempt runs, then SIGCONT; SIGSTOP of a process that holds SQLite's write lock",
    "tests/workers/ray/test_worker_group.py",
)
def stopped(stage: Stage) -> None:
    # Busy machines miss heartbeats, too: allow many attempts.
    service, data, sha = working(stage, lease_seconds=8.0, max_attempts=10)
    for turn in range(min(stage.runs, 2)):
        job, attempt, pid = hit(stage, service, data, f"s{turn}", SHARES[turn % 2])
        kill(pid, signal.SIGSTOP)
        with stage.measurements.recovering():
            on_again(service, job, attempt)
        outcome = service.ended(job)
        kill(pid, signal.SIGCONT)
        until(
            lambda pid=pid: pid not in attempts(service.home.path).values(),
            "the end of the one that woke",
            60,
        )
        same_model(stage, outcome, sha)
        same_model(stage, service.job(job), sha)
        stage.measurements.runs += 1
    # It takes one busy timeout; tests/jobs/store/test_store.py has a test with a shorter timeout.
    if not stage.small:
        _stopped_writer(stage, service)
    drained(stage, service, most_attempts=10)


HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print(1, flush=True)
time.sleep(600)
"""


def _stopped_writer(stage: Stage, service: Service) -> None:
    """Hold the store's write lock in a suspended process.

    Writes are answered 503 with Retry-After, reads continue, and afterwards writes work again.
    """
    job = ok(service.http.get("/v1/jobs"))["jobs"][0]["id"]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(service.home.path / "xcray.db")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        answers: list[httpx.Response] = []
        body = {"dataset": "small", "model": "late", "pool": "serial"}
        began = time.monotonic()
        asker = threading.Thread(
            target=lambda: answers.append(service.http.post("/v1/jobs", json=body))
        )
        asker.start()
        while asker.is_alive():
            response = service.http.get(f"/v1/jobs/{job}", timeout=30)
            stage.expect(
                response.status_code == 200,
                f"a read was answered {response.status_code} while a writer was stopped",
            )
            time.sleep(0.2)
        asker.join()
        waited, answer = time.monotonic() - began, answers[0]
        stage.expect(
            answer.status_code == 503,
            f"a write was answered {answer.status_code} while a writer was stopped",
        )
        stage.expect("retry-after" in answer.headers, "503 without Retry-After")
        stage.measurements.details["seconds_to_503"] = round(waited, 1)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
    with stage.measurements.recovering():
        late = service.submit("small", "late", "late")
    stage.measurements.runs += 1
    ok(service.http.post(f"/v1/jobs/{late}/stop"))
    service.ended(late)


@row(
    "F15",
    "SIGTERM in the middle",
    "SIGTERM to the runner at 50 %; to the service during an upload; a second SIGTERM; SIGKILL after it",
    "tests/service/processes/test_drain.py",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/service/processes/test_manager.py",
)
def asked_to_end(stage: Stage) -> None:
    service, data, sha = working(stage, drain_seconds=1.0)
    for turn in range(min(stage.runs, 3)):
        job, attempt, pid = hit(stage, service, data, f"t{turn}", 0.5)
        lost = max(0.0, time.time() - newest_part(service, job))
        kill(pid, signal.SIGTERM)
        if turn % 2:
            kill(pid, signal.SIGTERM)
        with stage.measurements.recovering():
            on_again(service, job, attempt)
        same_model(stage, service.ended(job), sha)
        stage.measurements.redone.append(
            min(1.0, lost / ok(service.http.get(f"/v1/jobs/{job}/timeline"))["core_seconds"])
        )
        stage.measurements.runs += 1
    upload = _in_flight(stage, service)
    service.up()
    response = ok(
        service.http.post(
            "/v1/datasets", json={"name": "sent", "format": "jsonl", "uploads": {"train": upload}}
        )
    )
    stage.ledger.acknowledged("dataset", settled(service.http, response["id"]))
    job, attempt, pid = hit(stage, service, data, "both", 0.5)
    service.signal(signal.SIGTERM)
    service.kill()
    service.up()
    same_model(stage, service.ended(job), sha)
    stage.measurements.runs += 1
    drained(stage, service)


def _in_flight(stage: Stage, service: Service) -> str:
    """Send SIGTERM during an upload and return the upload's id.

    The upload is completed, and /readyz reports not ready at once.
    """
    report, messages = threading.Event(), threading.Event()
    half = b"".join(
        b'{"text": "row %d of a file", "labels": ["a", "b%d"]}\n' % (i, i % 7) for i in range(2000)
    )

    def blocks() -> Any:
        yield half
        messages.set()
        assert report.wait(30)
        yield half

    answers: list[httpx.Response] = []
    how = {"content": blocks(), "headers": {"Content-Type": "application/octet-stream"}}
    asker = threading.Thread(target=lambda: answers.append(service.http.post("/v1/uploads", **how)))
    asker.start()
    assert messages.wait(30)
    time.sleep(0.2)
    service.signal(signal.SIGTERM)
    time.sleep(0.3)
    ready = httpx.get(f"{service.url}/readyz", trust_env=False, timeout=10)
    stage.expect(ready.status_code == 503, f"readiness said {ready.status_code} after SIGTERM")
    report.set()
    asker.join(60)
    stage.expect(
        bool(answers) and answers[0].status_code == 201, f"an upload in flight got {answers}"
    )
    assert service.popen is not None
    stage.expect(service.popen.wait(60) == 0, f"the service ended with {service.popen.returncode}")
    stage.measurements.runs += 1
    return str(ok(answers[0])["id"])


@row(
    "F17",
    "a job is stopped at every moment",
    "stop while queued, starting, in a kernel, merging, ended, twice; store-level races of stop with finish",
    "tests/jobs/store/test_store.py",
    "tests/jobs/runner/test_runner.py",
)
def cancelled(stage: Stage) -> None:
    service, data, _ = working(stage)
    for turn in range(min(stage.runs, 2)):
        for moment in (
            ("queued", "kernel")
            if stage.small
            else ("queued", "starting", "kernel", "merging", "ended")
        ):
            _stop_at(stage, service, data, moment, f"{moment}{turn}")
            stage.measurements.runs += 1
    store = JobStore(f"sqlite:///{stage.folder / 'races.db'}")
    races = 40 if stage.small else 1000
    for turn in range(races):
        _race(stage, store, turn)
    store.close()
    stage.measurements.runs += races
    stage.measurements.details["races"] = races
    drained(stage, service, most_attempts=3)


def _stop_at(stage: Stage, service: Service, data: str, moment: str, name: str) -> None:
    """Stop a job twice at a given moment; it must end once, and its process must exit."""
    blocker = service.submit(data, "m", f"{name}-before", **SLOW) if moment == "queued" else None
    job = service.submit(data, "m", name, **SLOW)
    reached = {
        "queued": lambda state: True,
        "starting": lambda state: state["status"] == RUNNING,
        "kernel": lambda state: (
            state["phase"] == "TRAINING" and state["progress"].get("done", 0) > 0
        ),
        "merging": lambda state: state["phase"] in ("MERGING", "EVALUATING", "PUBLISHING"),
        "ended": lambda state: False,
    }[moment]
    state = until(
        lambda: (s := service.job(job)) and (reached(s) or s["status"] in TERMINAL) and s,
        moment,
        pause=0.01,
    )
    start = time.monotonic()
    ok(service.http.post(f"/v1/jobs/{job}/stop"))
    stage.measurements.details["ack_ms_max"] = max(
        round(1000 * (time.monotonic() - start)), stage.measurements.details.get("ack_ms_max", 0)
    )
    again = ok(service.http.post(f"/v1/jobs/{job}/stop"))
    stage.ledger.acknowledged("stop", job)
    if state["status"] in TERMINAL:
        stage.expect(
            again["status"] == state["status"], f"stopping an ended job made it {again['status']}"
        )
    outcome = service.ended(job)
    if moment == "queued":
        stage.expect(
            (outcome["status"], outcome["attempt"]) == (STOPPED, 0),
            f"a queued job became {outcome['status']}",
        )
    stage.expect(
        outcome["status"] in (STOPPED, SUCCEEDED),
        f"a stopped job became {outcome['status']}: {outcome['message']}",
    )
    until(lambda: not attempts(service.home.path, job), f"the end of the process of {job}")
    stage.measurements.recovery.append(time.monotonic() - start)
    if blocker is not None:
        ok(service.http.post(f"/v1/jobs/{blocker}/stop"))
        service.ended(blocker)


def _race(stage: Stage, store: JobStore, turn: int) -> None:
    """Race a stop against a finish of a job that no process runs.

    The result must be one of the two orders, not a mixture.
    """
    job, _ = store.jobs.submit(JobSubmission({"kind": "race"}, name="race"))
    claimed = store.attempts.claim("race", lease_seconds=600)
    assert claimed is not None
    assert claimed.id == job.id
    result = {"model": "race", "version": 0, "sha256": ""}
    go = threading.Barrier(2)

    def stop() -> None:
        go.wait()
        store.jobs.request_stop(job.id)

    other = threading.Thread(target=stop)
    other.start()
    go.wait()
    with suppress(XcrayError):
        store.attempts.finish(
            job.id, claimed.attempt, STOPPED if turn % 2 else FAILED, reason="RACE", result=result
        )
    other.join()
    end = store.jobs.get(job.id)
    stage.expect(
        end.status in (STOPPED, FAILED) and not end.stop_requested, f"a race left {end.status}"
    )
    with suppress(XcrayError):
        store.attempts.finish(job.id, claimed.attempt, SUCCEEDED, result=result)
        stage.measurements.fault("a second end of a job was taken")


LOG_BYTES = 50_000_000
POISON = '''
"""Read by every Python below the test's path: makes chosen attempts die."""
import json, os, sys
words = sys.orig_argv
if "xcray.jobs.runner.main" in words and "--job" in words:
    job = words[words.index("--job") + 1]
    place = os.path.join(os.environ["XCRAY_FAULTS_POISON"], job)
    kind = open(place).read() if os.path.exists(place) else ""
    while os.path.exists(os.path.join(os.environ["XCRAY_FAULTS_POISON"], "hold")):
        import time
        time.sleep(0.02)
    if kind == "segfault":
        import ctypes
        ctypes.string_at(0)
    elif kind == "exit":
        os._exit(1)
    elif kind == "kill":
        os.kill(os.getpid(), 9)
    elif kind == "memory":
        import resource, threading, time
        resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))
        def eat():
            kept = []
            try:
                while True:
                    kept.append(bytearray(4 << 20))
                    time.sleep(0.01)
            except MemoryError:
                time.sleep(3600)
        threading.Thread(target=eat, daemon=True).start()
    elif kind == "log":
        for _ in range(200):
            os.write(2, b"x" * (1 << 20))
        os._exit(1)
    elif kind == "hang":
        import time
        time.sleep(3600)
'''


@row(
    "F21",
    "a job that kills its runner",
    "a sitecustomize.py of the test makes its attempts segfault, exit, be killed, run out of memory, flood the log, hang",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/workers/test_pools.py",
    limit=600,
)
def poison(stage: Stage) -> None:
    hooks, marks = stage.place("hooks"), stage.place("marks")
    (hooks / "sitecustomize.py").write_text(POISON)
    more: dict[str, Any] = {
        "max_running_jobs": 2,
        "lease_seconds": 10.0 if not stage.small else 60.0,
        "PYTHONPATH": hooks,
        "faults_poison": marks,
    }
    service = Service(stage, JOB_LOG_BYTES=LOG_BYTES, **more)
    service.up()
    data = service.dataset()
    kinds = ["segfault", "exit"]
    kinds += [] if stage.small else ["kill", "memory", "log", "hang"]
    began = time.monotonic()
    jobs = _poisoned(service, data, kinds, marks)
    for kind in kinds:
        neighbour = service.ended(service.submit(data, "neighbour", f"n-{kind}"))
        stage.expect(
            neighbour["status"] == SUCCEEDED, f"a job next to {kind} is {neighbour['status']}"
        )
    for kind in kinds:
        job = service.ended(jobs[kind])
        if kind == "hang":  # three times the start limit of a runner
            stage.measurements.details["a_hang_given_up_after_s"] = round(time.monotonic() - began)
        else:
            stage.measurements.recovery.append(time.monotonic() - began)
        # An attempt without memory can report the error or die first.
        reasons = ["CRASH_LOOP", *(["OUT_OF_MEMORY", "INTERNAL"] if kind == "memory" else [])]
        stage.expect(
            job["status"] == FAILED and job["reason"] in reasons,
            f"{kind} ended as {job['status']} {job['reason']}",
        )
        stage.expect(
            job["attempt"] == 3 or job["reason"] != "CRASH_LOOP",
            f"{kind} had {job['attempt']} attempts as {job['reason']}",
        )
        if kind == "memory":
            stage.measurements.details["out_of_memory_ended_as"] = job["reason"]
        size = service.home.log(jobs[kind]).stat().st_size
        stage.expect(size <= 1.1 * LOG_BYTES, f"the log of {kind} has {size} bytes")
        health = service.http.get("/healthz").status_code
        stage.expect(health == 200, f"the service is not well after {kind}")
        stage.measurements.runs += 1
    stage.measurements.details["attempts"] = 3
    drained(stage, service)


def _poisoned(service: Service, data: str, kinds: list[str], marks: Path) -> dict[str, str]:
    """Submit a job of each kind, whose attempts die, and return their ids.

    Two earlier jobs occupy the queue until the jobs have been marked as faulty.
    """
    (marks / "hold").touch()
    holds = [service.submit(data, "before", f"before-{i}") for i in range(2)]
    jobs = {kind: service.submit(data, "poison", kind, priority=-1) for kind in kinds}
    for kind, job in jobs.items():
        assert service.job(job)["status"] == PENDING
        (marks / job).write_text(kind)
    (marks / "hold").unlink()
    for each in holds:
        service.ended(each)
    return jobs
