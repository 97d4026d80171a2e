"""Stops, time limits and fencing in every state of an attempt, and bounded logs.

Each attempt ends once, also if its training ignores the stop flag.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numba.core import event

from tests.support.waiting import until
from xcray.errors import Stopped, Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.runner.log_truncation import truncate_log
from xcray.jobs.runner.main import FENCED, run_attempt
from xcray.jobs.runner.monitor import AttemptMonitor, LogLimit, MonitorOptions
from xcray.jobs.runner.publish import Publisher
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.registry import Registry
from xcray.system.processes import descendants
from xcray.training import Progress, TrainResult
from xcray.workers.pool import StopFlag

SPEC = {"dataset": "/nowhere", "name": "pydocs", "pool": "threads"}
SOON = 180.0  # seconds; a limit that no step of these tests reaches
# stop_grace_seconds: with a short grace period a slow machine would end the test process.
QUICK = MonitorOptions(
    lease_seconds=600.0,
    heartbeat_seconds=0.05,
    report_seconds=0.02,
    stop_poll_seconds=0.02,
    stop_grace_seconds=SOON,
)


@pytest.fixture
def store(home: Home) -> Iterator[JobStore]:
    store = JobStore(home.store_url, busy_seconds=300.0)
    yield store
    store.close()


def claimed(store: JobStore, **limits: Any) -> Job:
    """Submit a job, claim it and return it."""
    store.jobs.submit(JobSubmission(SPEC, name="pydocs", **limits))
    job = store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    return job


def run_job(
    store: JobStore,
    home: Home,
    job: Job,
    training: Any,
    number: int = 1,
    *,
    options: MonitorOptions = QUICK,
    **more: Any,
) -> str:
    """Run an attempt of a job with a training and return its outcome."""
    return run_attempt(
        store, home, job.id, number, train_function=training, options=options, **more
    )


class ExitRecorder:
    """Replaces the exit of the process: records the exit codes and lets the training give up."""

    def __init__(self, begun: Callable[[], object] = lambda: None) -> None:
        """Store `begun`, a function that is called when the training has begun."""
        self.codes: list[int] = []
        self.came = threading.Event()
        self.begun = begun

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.came.set()

    def train_ignoring_stop(self, *_: Any, **__: Any) -> TrainResult:
        """Run a training that ignores the stop flag, as a compiled kernel does."""
        self.begun()
        assert self.came.wait(SOON), "the process was not ended"
        raise Stopped("with its process")


def attentive(*_: Any, stop: StopFlag, **__: Any) -> TrainResult:
    """Run a training that polls its stop flag."""
    deadline = time.monotonic() + SOON
    while not stop.is_set():
        assert time.monotonic() < deadline, "the flag was not set"
        time.sleep(0.005)
    raise Stopped("on request")


def good(spec: Any, *, out: Path, **_: Any) -> TrainResult:
    """Run a training that succeeds."""
    from tests.support.live_service import plain_model

    model = plain_model(out)
    return TrainResult(out, model.sha256, {"P@1": 0.5}, {})


def test_progress_says_while_kernels_are_compiled(store: JobStore, home: Home) -> None:
    job = claimed(store)
    notes: list[str] = []

    def wait_for_note(note: str) -> None:
        deadline = time.monotonic() + SOON
        while store.jobs.get(job.id).progress.get("note") != note:
            assert time.monotonic() < deadline, store.jobs.get(job.id).progress
            time.sleep(0.005)
        notes.append(note)

    def compile_and_stop(spec: Any, *, progress: Any, **_: Any) -> TrainResult:
        progress(Progress("LOADING", 0, 0, 0.0, 0.0, None, "rows"))
        wait_for_note("rows")
        for so_far in ("", ", once: 1 so far"):
            event.start_event("numba:compile", data={})
            wait_for_note(f"compiling kernels{so_far}, rows")
            event.end_event("numba:compile", data={})
            wait_for_note("rows")
        raise Stopped("on request")

    run_job(store, home, job, compile_and_stop, number=job.attempt)
    assert len(notes) == 5
    assert store.jobs.get(job.id).progress["phase"] == "LOADING"


def test_a_training_that_ignores_the_stop_is_ended_with_its_process(
    store: JobStore, home: Home
) -> None:
    job = claimed(store)
    ends = ExitRecorder(begun=lambda: store.jobs.request_stop(job.id))
    run_job(
        store,
        home,
        job,
        ends.train_ignoring_stop,
        options=replace(QUICK, exit_process=ends, stop_grace_seconds=0.1),
    )
    assert store.jobs.get(job.id).status == STOPPED
    assert set(ends.codes) == {70}
    moves = [e.data["status"] for e in store.jobs.list_events(job.id) if e.kind == "status"]
    assert moves == [PENDING, RUNNING, STOPPED]  # one end
    assert store.jobs.request_stop(job.id) == store.jobs.get(job.id)  # the call is idempotent


def test_a_training_that_ignores_the_stop_releases_its_job_at_sigterm(
    store: JobStore, home: Home
) -> None:
    job, ends, flag = claimed(store), ExitRecorder(), StopFlag()
    flag.set()
    run_job(
        store,
        home,
        job,
        ends.train_ignoring_stop,
        stop_flag=flag,
        options=replace(
            QUICK, exit_process=ends, stop_grace_seconds=0.05, release_grace_seconds=0.1
        ),
    )
    assert store.jobs.get(job.id).status == PENDING
    # without a pause: it is not counted as a loss
    assert store.attempts.claim("test", lease_seconds=60).attempt == 2


@pytest.mark.parametrize("deaf", [False, True])
def test_running_time_is_limited_over_all_attempts(store: JobStore, home: Home, deaf: bool) -> None:
    job, ends = claimed(store, timeout_seconds=3000.0), ExitRecorder()
    # An earlier attempt used most of the time.
    store.attempts.heartbeat(job.id, 1, lease_seconds=60, ran_seconds=2999.9)
    store.attempts.release(job.id, 1)
    store.attempts.claim("test", lease_seconds=60)
    ending = {"exit_process": ends, "stop_grace_seconds": 0.1} if deaf else {}
    run_job(
        store,
        home,
        job,
        ends.train_ignoring_stop if deaf else attentive,
        number=2,
        options=replace(QUICK, **ending),
    )
    failed = store.jobs.get(job.id)
    assert (failed.status, failed.reason) == (FAILED, "TIMEOUT")
    assert "resume it" in failed.message
    assert bool(ends.codes) == deaf
    store.jobs.resume(job.id)
    assert store.attempts.claim("test", lease_seconds=60).attempt == 3
    # The resumed job gets the full time again.
    assert run_job(store, home, job, good, number=3) == SUCCEEDED


def test_a_job_past_its_expiry_time_fails(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, now = claimed(store, expires_seconds=3600), time.time

    def training(*_: Any, **more: Any) -> TrainResult:
        monkeypatch.setattr(time, "time", lambda: now() + 3601)
        return attentive(**more)

    run_job(store, home, job, training)
    assert (store.jobs.get(job.id).status, store.jobs.get(job.id).reason) == (FAILED, "EXPIRED")


def test_a_stop_counts_until_publishing_begins(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop counts until publishing begins.

    Before it, the job is STOPPED and publishes nothing. During it, the stop is too late and the job
    is SUCCEEDED, however long the disk takes.
    """
    early = claimed(store)

    def stopped_just_before(spec: Any, **more: Any) -> TrainResult:
        store.jobs.request_stop(early.id)
        return good(spec, **more)

    assert run_job(store, home, early, stopped_just_before) == STOPPED
    assert Registry(home.models).names() == []

    late, ends, real = claimed(store), ExitRecorder(), Registry.publish

    def slowly(self: Registry, name: str, staged: Path) -> int:
        store.jobs.request_stop(late.id)
        assert not ends.came.wait(0.5)  # many times the grace period
        return real(self, name, staged)

    monkeypatch.setattr(Registry, "publish", slowly)
    options = replace(QUICK, exit_process=ends, stop_grace_seconds=0.05)
    assert run_job(store, home, late, good, options=options) == SUCCEEDED
    assert Registry(home.models).versions("pydocs") == [1]
    assert store.jobs.get(late.id).status == SUCCEEDED


def test_a_fenced_attempt_that_publishes_reports_nothing_and_is_ended(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ends = claimed(store), ExitRecorder()

    def stuck(self: Publisher, *_: Any) -> None:
        store.attempts.mark_lost(job.id, 1, max_attempts=9)
        store.attempts.claim("test", lease_seconds=60)
        ends.train_ignoring_stop()

    monkeypatch.setattr(Publisher, "publish", stuck)
    assert (
        run_job(
            store,
            home,
            job,
            good,
            options=replace(QUICK, exit_process=ends, stop_grace_seconds=0.05),
        )
        == FENCED
    )
    assert (store.jobs.get(job.id).status, store.jobs.get(job.id).attempt) == (RUNNING, 2)


def test_a_suspended_training_checks_its_lease_before_it_continues(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that resumes after a suspension checks its lease before it continues.

    All threads of a suspended process stop. The training thread can be the first one to resume,
    when the job already belongs to another attempt.
    """
    job, after = claimed(store), []

    def training(spec: Any, *, progress: Callable[[Progress], None], **more: Any) -> TrainResult:
        report = Progress("TRAINING", 1, 2, 0.1, 1.0, 1.0, "")
        progress(report)
        store.attempts.mark_lost(job.id, 1, max_attempts=9)
        store.attempts.claim("test", lease_seconds=60)
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 601.0)
        progress(report)
        after.append("went on")
        return good(spec, **more)

    options = replace(QUICK, stop_poll_seconds=600.0, heartbeat_seconds=600.0)
    assert run_job(store, home, job, training, options=options) == FENCED
    assert not after


def test_a_store_that_blocks_writes_does_not_delay_a_stop(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, free, caught = claimed(store), threading.Event(), threading.Event()
    real = store.attempts.heartbeat

    def stuck(*args: Any, **more: Any) -> bool:
        if threading.current_thread().name == "xcray-heartbeat":
            caught.set()
            assert free.wait(SOON)
        return real(*args, **more)

    def training(*_: Any, **more: Any) -> TrainResult:
        assert caught.wait(SOON)
        store.jobs.request_stop(job.id)
        try:
            return attentive(**more)
        finally:
            free.set()

    monkeypatch.setattr(store.attempts, "heartbeat", stuck)
    assert run_job(store, home, job, training) == STOPPED


def test_an_unavailable_store_does_not_stop_the_training(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, looks, beats = claimed(store), list[int](), list[int]()

    def flaky(real: Any, calls: list[int]) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            calls.append(1)
            if len(calls) in (2, 3):
                raise Unavailable("locked")
            return real(*args, **how)

        return call

    def training(spec: Any, **more: Any) -> TrainResult:
        until(lambda: len(looks) >= 6 and len(beats) >= 6, SOON)
        return good(spec, **more)

    monkeypatch.setattr(store.jobs, "find", flaky(store.jobs.find, looks))
    monkeypatch.setattr(store.attempts, "heartbeat", flaky(store.attempts.heartbeat, beats))
    assert run_job(store, home, job, training) == SUCCEEDED


CHILDREN = """
import subprocess, sys, time
from xcray.jobs.runner.monitor import exit_with_children
inner = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE)
child.stdout.readline()
print(flush=True)
sys.stdin.readline()
exit_with_children(70)
"""


def test_a_process_exits_with_all_its_descendants(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        below = descendants(process.pid)
        assert len(below) == 2
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(SOON) == 70
    until(lambda: not any(alive(pid) for pid in below))


def alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- logs


def test_a_truncated_log_keeps_head_and_tail_and_reports_the_removed_bytes(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = [f"line {i:05d}\n" for i in range(10_000)]  # 11 bytes each
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with os.fdopen(handle, "w") as log:
        left_out = 0
        for line in lines:
            log.write(line)
            log.flush()
            left_out += truncate_log(path, 10_000)
    text = path.read_text()
    assert len(text) <= 10_000
    selection = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(selection) if line.startswith("---"))
    assert selection[:at] == lines[:at]
    assert selection[at + 1 :] == lines[-(len(selection) - at - 1) :]
    assert selection[at] == f"--- {left_out} bytes of this log were left out here ---\n"
    assert left_out == len("".join(lines)) - len(text) + len(selection[at])


def test_small_and_missing_logs_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x\n")
    assert (truncate_log(tmp_path / "log", 2), truncate_log(tmp_path / "none", 2)) == (0, 0)
    assert (tmp_path / "log").read_text() == "x\n"


def test_a_log_of_one_endless_line_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    assert truncate_log(path, 1000) > 99_000
    assert path.stat().st_size < 1000


def test_the_monitor_bounds_the_log_of_its_job(store: JobStore, home: Home) -> None:
    job = claimed(store)
    path = home.log(job.id)

    def training(spec: Any, **more: Any) -> TrainResult:
        with open(path, "ab") as log:
            log.write(b"much ado\n" * 10_000)
        until(lambda: path.stat().st_size < 20_000)
        return good(spec, **more)

    assert (
        run_job(
            store, home, job, training, options=replace(QUICK, log_limit=LogLimit(path, 20_000))
        )
        == SUCCEEDED
    )


def test_heartbeats_count_running_time_once(store: JobStore) -> None:
    job = claimed(store, timeout_seconds=1000.0)
    began = time.monotonic()
    heart = AttemptMonitor(store, job.id, 1, StopFlag(), QUICK)
    for _ in range(5):
        time.sleep(0.02)
        heart.send_heartbeat()
    assert 0.1 <= store.jobs.get(job.id).ran_seconds <= time.monotonic() - began
