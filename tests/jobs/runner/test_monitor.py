"""Stops, time limits and fencing in every state of an attempt, and logs that stay small.

Each attempt ends once, also if its training ignores the stop flag.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xcray.errors import Stopped, Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.runner.log_truncation import truncate_log
from xcray.jobs.runner.main import FENCED, run_attempt
from xcray.jobs.runner.monitor import AttemptMonitor, LogLimit
from xcray.jobs.runner.publish import Publisher
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.model.registry import Registry
from xcray.system.processes import descendants
from xcray.training import Progress, TrainResult
from xcray.workers.pool import StopFlag

SPEC = {"dataset": "/nowhere", "name": "pydocs", "pool": "threads"}
SOON = 180.0  # seconds that nothing here takes
QUICK: dict[str, Any] = {
    "lease_seconds": 600.0,
    "heartbeat_seconds": 0.05,
    "report_seconds": 0.02,
    "stop_poll_seconds": 0.02,
    "stop_grace_seconds": SOON,  # else a slow machine has the heart end the process of these tests
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def store(home: Home) -> Iterator[JobStore]:
    store = JobStore(home.store_url)
    yield store
    store.close()


def claimed(store: JobStore, **limits: Any) -> Job:
    """A job that runs."""
    store.submit(SPEC, name="pydocs", **limits)
    job = store.claim_job("test", lease_seconds=600)
    assert job is not None
    return job


class Ends:
    """Stands for the end of the process: the deaf training hears of it and gives up, as it would
    with its process.
    """

    def __init__(self, begun: Callable[[], object] = lambda: None) -> None:
        """begun: called when the training has begun."""
        self.codes: list[int] = []
        self.came = threading.Event()
        self.begun = begun

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.came.set()

    def deaf(self, *_: Any, **__: Any) -> TrainResult:
        """A training in a kernel that looks at no flag."""
        self.begun()
        assert self.came.wait(SOON), "nobody ended the process"
        raise Stopped("with its process")


def attentive(*_: Any, stop: StopFlag, **__: Any) -> TrainResult:
    """A training that looks at its flag."""
    deadline = time.monotonic() + SOON
    while not stop.is_set():
        assert time.monotonic() < deadline, "nobody set the flag"
        time.sleep(0.005)
    raise Stopped("on request")


def good(spec: Any, *, out: Path, **_: Any) -> TrainResult:
    """A training that succeeds."""
    from tests.support.live_service import plain_model

    model = plain_model(out)
    return TrainResult(out, model.sha256, {"P@1": 0.5}, {})


def test_a_deaf_training_is_stopped_and_ended_with_its_process(store: JobStore, home: Home) -> None:
    job = claimed(store)
    ends = Ends(begun=lambda: store.request_stop(job.id))
    run_attempt(
        store,
        home,
        job.id,
        1,
        **{**QUICK, "train_function": ends.deaf, "exit_process": ends, "stop_grace_seconds": 0.1},
    )
    assert store.get_job(job.id).status == STOPPED
    assert set(ends.codes) == {70}
    moves = [e.data["status"] for e in store.list_events(job.id) if e.kind == "status"]
    assert moves == [PENDING, RUNNING, STOPPED]  # one end
    assert store.request_stop(job.id) == store.get_job(job.id)  # twice is once


def test_a_deaf_training_gives_its_job_back_at_sigterm(store: JobStore, home: Home) -> None:
    job, ends, flag = claimed(store), Ends(), StopFlag()
    flag.set()
    how = {**QUICK, "stop_grace_seconds": 0.05, "release_grace_seconds": 0.1}
    run_attempt(
        store, home, job.id, 1, train_function=ends.deaf, exit_process=ends, stop_flag=flag, **how
    )
    assert store.get_job(job.id).status == PENDING
    assert store.claim_job("test", lease_seconds=60).attempt == 2  # at once: it is no loss


@pytest.mark.parametrize("deaf", [False, True])
def test_running_time_is_limited_over_all_attempts(store: JobStore, home: Home, deaf: bool) -> None:
    job, ends = claimed(store, timeout_seconds=3000.0), Ends()
    store.heartbeat(
        job.id, 1, lease_seconds=60, ran_seconds=2999.9
    )  # an attempt before used most of it
    store.release_job(job.id, 1)
    store.claim_job("test", lease_seconds=60)
    how: dict[str, Any] = (
        {"train_function": ends.deaf, "exit_process": ends, "stop_grace_seconds": 0.1}
        if deaf
        else {"train_function": attentive}
    )
    run_attempt(store, home, job.id, 2, **{**QUICK, **how})
    failed = store.get_job(job.id)
    assert (failed.status, failed.reason) == (FAILED, "TIMEOUT")
    assert "resume it" in failed.message
    assert bool(ends.codes) == deaf
    store.resume_job(job.id)
    assert store.claim_job("test", lease_seconds=60).attempt == 3
    assert (
        run_attempt(store, home, job.id, 3, train_function=good, **QUICK) == SUCCEEDED
    )  # with as much time again


def test_a_job_that_must_have_ended_by_now_fails(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, now = claimed(store, expires_seconds=3600), time.time

    def training(*_: Any, **more: Any) -> TrainResult:
        monkeypatch.setattr(time, "time", lambda: now() + 3601)
        return attentive(**more)

    run_attempt(store, home, job.id, 1, train_function=training, **QUICK)
    assert (store.get_job(job.id).status, store.get_job(job.id).reason) == (FAILED, "EXPIRED")


def test_a_stop_at_the_finish_line_counts_until_the_result_is_published(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: STOPPED, and nothing is published. In the middle of it: too late, SUCCEEDED, however
    long the disk takes.
    """
    early = claimed(store)

    def stopped_just_before(spec: Any, **more: Any) -> TrainResult:
        store.request_stop(early.id)
        return good(spec, **more)

    assert (
        run_attempt(store, home, early.id, 1, train_function=stopped_just_before, **QUICK)
        == STOPPED
    )
    assert Registry(home.models).names() == []

    late, ends, real = claimed(store), Ends(), Registry.publish

    def slowly(self: Registry, name: str, staged: Path) -> int:
        store.request_stop(late.id)
        assert not ends.came.wait(0.5)  # many times the patience
        return real(self, name, staged)

    monkeypatch.setattr(Registry, "publish", slowly)
    how = {**QUICK, "train_function": good, "exit_process": ends, "stop_grace_seconds": 0.05}
    assert run_attempt(store, home, late.id, 1, **how) == SUCCEEDED
    assert Registry(home.models).versions("pydocs") == [1]
    assert store.get_job(late.id).status == SUCCEEDED


def test_a_fenced_attempt_that_publishes_says_nothing_and_is_ended(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ends = claimed(store), Ends()

    def stuck(self: Publisher, *_: Any) -> None:
        store.mark_lost(job.id, 1, max_attempts=9)
        store.claim_job("test", lease_seconds=60)
        ends.deaf()

    monkeypatch.setattr(Publisher, "publish", stuck)
    assert (
        run_attempt(
            store,
            home,
            job.id,
            1,
            **{**QUICK, "train_function": good, "exit_process": ends, "stop_grace_seconds": 0.05},
        )
        == FENCED
    )
    assert (store.get_job(job.id).status, store.get_job(job.id).attempt) == (RUNNING, 2)


def test_who_stood_still_asks_before_it_goes_on(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads of a stopped process stand still; the one that works may be the first to go on,
    with another's job in hand.
    """
    job, after = claimed(store), []

    def training(spec: Any, *, progress: Callable[[Progress], None], **more: Any) -> TrainResult:
        told = Progress("TRAINING", 1, 2, 0.1, 1.0, 1.0, "")
        progress(told)
        store.mark_lost(job.id, 1, max_attempts=9)
        store.claim_job("test", lease_seconds=60)
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 601.0)
        progress(told)
        after.append("went on")
        return good(spec, **more)

    how = {**QUICK, "stop_poll_seconds": 600.0, "heartbeat_seconds": 600.0}
    assert run_attempt(store, home, job.id, 1, train_function=training, **how) == FENCED
    assert not after


def test_a_store_that_takes_no_writes_delays_no_stop(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, free, caught = claimed(store), threading.Event(), threading.Event()
    real = store.heartbeat

    def stuck(*args: Any, **more: Any) -> bool:
        if threading.current_thread().name == "xcray-heartbeat":
            caught.set()
            assert free.wait(SOON)
        return real(*args, **more)

    def training(*_: Any, **more: Any) -> TrainResult:
        assert caught.wait(SOON)
        store.request_stop(job.id)
        try:
            return attentive(**more)
        finally:
            free.set()

    monkeypatch.setattr(store, "heartbeat", stuck)
    assert run_attempt(store, home, job.id, 1, train_function=training, **QUICK) == STOPPED


def test_trouble_with_the_store_is_no_stop(
    store: JobStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, looks, real = claimed(store), [], store.find_job

    def flaky(job_id: str) -> Job | None:
        looks.append(job_id)
        if len(looks) % 2:
            raise Unavailable("locked")
        return real(job_id)

    def training(spec: Any, **more: Any) -> TrainResult:
        deadline = time.monotonic() + SOON
        while len(looks) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return good(spec, **more)

    monkeypatch.setattr(store, "find_job", flaky)
    assert run_attempt(store, home, job.id, 1, train_function=training, **QUICK) == SUCCEEDED


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


def test_a_process_ends_with_all_that_came_from_it(tmp_path: Path) -> None:
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
    wait_for(lambda: not any(alive(pid) for pid in below))


def alive(pid: int) -> bool:
    """Whether a process runs; ended ones that nobody has collected do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(wish: Callable[[], bool]) -> None:
    """Return when a wish comes true."""
    deadline = time.monotonic() + SOON
    while not wish():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.02)


# --- logs


def test_a_log_keeps_head_and_tail_and_tells_what_is_missing(tmp_path: Path) -> None:
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
    kept = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(kept) if line.startswith("---"))
    assert kept[:at] == lines[:at]
    assert kept[at + 1 :] == lines[-(len(kept) - at - 1) :]
    assert kept[at] == f"--- {left_out} bytes of this log were left out here ---\n"
    assert left_out == len("".join(lines)) - len(text) + len(kept[at])


def test_small_and_missing_logs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x\n")
    assert (truncate_log(tmp_path / "log", 2), truncate_log(tmp_path / "none", 2)) == (0, 0)
    assert (tmp_path / "log").read_text() == "x\n"


def test_a_log_of_one_endless_line_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 100_000)
    assert truncate_log(path, 1000) > 99_000
    assert path.stat().st_size < 1000


def test_a_heart_bounds_the_log_of_its_job(store: JobStore, home: Home) -> None:
    job = claimed(store)
    path = home.log(job.id)

    def training(spec: Any, **more: Any) -> TrainResult:
        with open(path, "ab") as log:
            log.write(b"much ado\n" * 10_000)
        wait_for(lambda: path.stat().st_size < 20_000)
        return good(spec, **more)

    assert (
        run_attempt(
            store,
            home,
            job.id,
            1,
            train_function=training,
            log_limit=LogLimit(path, 20_000),
            **QUICK,
        )
        == SUCCEEDED
    )


def test_a_beat_counts_running_time_once(store: JobStore) -> None:
    job = claimed(store, timeout_seconds=1000.0)
    began = time.monotonic()
    heart = AttemptMonitor(store, job.id, 1, StopFlag(), **QUICK)
    for _ in range(5):
        time.sleep(0.02)
        heart.send_heartbeat()
    assert 0.1 <= store.get_job(job.id).ran_seconds <= time.monotonic() - began
