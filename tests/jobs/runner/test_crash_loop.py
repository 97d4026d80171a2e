"""Jobs that crash, hang or overload their runners.

Attempts are exact, pauses grow, other jobs live, and no process is left. A poison is a program that
runs in place of the runner, as faulty native code would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import WallClock
from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision import launch
from xcray.jobs.supervision.launch import ProcessLauncher, RunnerId
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.system.processes import descendants

ENDS = {
    "segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "exit": "import sys; sys.exit(1)",
    "killed for want of memory": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); x = bytearray(1 << 30)",
    "a huge log": "import sys\nfor _ in range(2000): sys.stderr.write('x' * 999 + chr(10))\nsys.exit(1)",
}
LOG_BYTES = 100_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def store(home: Home, clock: WallClock) -> Iterator[JobStore]:
    store = JobStore(home.store_url, now=clock, monotonic=clock)
    yield store
    store.close()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Has a job's runner be another program."""
    programs: dict[str, str] = {}
    real = launch.runner_command

    def command(home: Home, url: str, job: Job) -> list[str]:
        program = programs.get(job.id)
        return real(home, url, job) if program is None else [sys.executable, "-c", program]

    monkeypatch.setattr(launch, "runner_command", command)
    return programs.__setitem__


def submit(store: JobStore, spec: dict[str, Any] | None = None, **more: Any) -> str:
    return store.submit(spec or {"dataset": "/nowhere"}, name="a", **more)[0].id


def until(wish: Callable[[], Any], step: Callable[[], None] = lambda: None) -> Any:
    """The first true value of a wish."""
    deadline = time.monotonic() + 600
    while not (value := wish()):
        assert time.monotonic() < deadline, "in vain"
        step()
        time.sleep(0.02)
    return value


def test_every_poison_is_tried_exactly_so_often_and_neighbours_live(
    store: JobStore, home: Home, clock: WallClock, poison: Callable[[str, str], None], tiny: Any
) -> None:
    bad = {kind: submit(store) for kind in ENDS}
    for kind, job_id in bad.items():
        poison(job_id, ENDS[kind])
    twice = submit(store, max_attempts=2)
    poison(twice, ENDS["exit"])
    neighbour = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    supervisor = Supervisor(
        store, ProcessLauncher(home, max_log_bytes=LOG_BYTES), max_running=3, stop_grace_seconds=600
    )
    waits: dict[str, set[int]] = {job_id: set() for job_id in bad.values()}

    def step() -> None:
        supervisor.step()
        for job_id in bad.values():
            job = store.get_job(job_id)
            if job.status == PENDING and job.attempt == 2:
                waits[job_id].add(job.attempt)
        if not store.list_running():
            clock.ahead += 1.0  # only pauses are left

    until(
        lambda: all(
            store.get_job(each).status in TERMINAL for each in (*bad.values(), twice, neighbour)
        ),
        step,
    )
    supervisor.stop()
    for kind, job_id in bad.items():
        job = store.get_job(job_id)
        assert (job.status, job.reason, job.attempt) == (FAILED, "CRASH_LOOP", 3), kind
        assert waits[job_id] == {2}, kind  # after the second loss it had to wait
    assert (store.get_job(twice).status, store.get_job(twice).attempt) == (FAILED, 2)
    assert store.get_job(neighbour).status == SUCCEEDED
    for kind, words in {
        "segfault": "signal 11",
        "exit": "status 1",
        "killed for want of memory": "signal 9",
    }.items():
        assert words in home.log(bad[kind]).read_text(), kind
    assert "MemoryError" in home.log(bad["memory"]).read_text()
    assert home.log(bad["a huge log"]).stat().st_size <= LOG_BYTES
    assert "left out here" in home.log(bad["a huge log"]).read_text()
    until(
        lambda: not supervisor._launcher.list_runners()
    )  # the neighbour's process takes a moment to end


FORKS = "import subprocess, time\nfor _ in range(5): subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)"


@pytest.mark.parametrize("program", [FORKS, "while True: pass"], ids=["fork", "infinite loop"])
def test_a_runner_that_never_ends_is_ended_when_it_is_stopped(
    store: JobStore,
    home: Home,
    poison: Callable[[str, str], None],
    program: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xcray.jobs.supervision.supervisor.STOP_MARGIN_SECONDS", 0.0)
    job_id = submit(store)
    poison(job_id, program)
    launcher = ProcessLauncher(home)
    supervisor = Supervisor(store, launcher, stop_grace_seconds=0.2, start_seconds=600)
    process = until(lambda: launcher._runners.get(RunnerId(job_id, 1)), supervisor.step)
    if program is FORKS:
        until(lambda: len(descendants(process.pid)) == 5)
    below = descendants(process.pid)
    supervisor.step()
    assert process.poll() is None  # nobody wished it to end
    store.request_stop(job_id)
    until(lambda: store.get_job(job_id).status == STOPPED, supervisor.step)
    until(
        lambda: (
            not any(
                Path(f"/proc/{pid}").exists() and state(pid) not in "ZX"
                for pid in (process.pid, *below)
            )
        )
    )
    assert store.get_job(job_id).attempt == 1
    supervisor.stop()


def state(pid: int) -> str:
    """The state of a process, X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def test_a_runner_that_stands_still_is_replaced_and_does_not_come_back(
    store: JobStore,
    home: Home,
    clock: WallClock,
    poison: Callable[[str, str], None],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP: nothing is raised anywhere. The lease tells, the next attempt does the work, the
    first one's process is ended.
    """
    monkeypatch.setattr("xcray.jobs.supervision.supervisor.EXIT_GRACE_SECONDS", 0.0)
    job_id = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    poison(job_id, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    launcher = ProcessLauncher(home)
    supervisor = Supervisor(
        store, launcher, stop_grace_seconds=0.2, start_seconds=600.0, max_running=2
    )
    first = until(lambda: launcher._runners.get(RunnerId(job_id, 1)), supervisor.step)
    until(lambda: state(first.pid) == "T")
    supervisor.step()
    clock.ahead += 601.0
    poison(job_id, None)  # type: ignore[arg-type]  # from now on the real runner
    until(lambda: store.get_job(job_id).status in TERMINAL, supervisor.step)
    assert (store.get_job(job_id).status, store.get_job(job_id).attempt) == (SUCCEEDED, 2), (
        home.log(job_id).read_text()
    )
    until(lambda: first.poll() is not None, supervisor.step)
    assert first.returncode == -signal.SIGKILL
    supervisor.stop()


TOLD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(600)
"""


def test_runners_that_end_with_their_service_give_their_jobs_back(
    store: JobStore, home: Home, poison: Callable[[str, str], None]
) -> None:
    job_id = submit(store)
    poison(job_id, TOLD)
    launcher = ProcessLauncher(home)
    job = store.claim_job("test", lease_seconds=60)
    assert job is not None
    launcher.launch(job)
    until(lambda: "ready" in home.log(job_id).read_text())
    launcher.release_jobs()
    assert launcher.list_runners() == []
    assert launcher.poll() == [RunnerId(job_id, 1)]


def test_what_was_not_launched_here_is_left_alone(home: Home) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        ProcessLauncher(home).terminate(RunnerId("job_x", 1))
        assert stranger.poll() is None
        os.kill(stranger.pid, signal.SIGKILL)


def test_a_tenant_runs_no_more_than_its_keys_and_the_operator_allow(store: JobStore) -> None:
    now = [0.0]
    quota = RunningQuota(store, 3, monotonic=lambda: now[0])
    store.add_key("one", "a", ["submit"], "d1", limits={"max_running": 1})
    store.add_key("one", "b", ["submit"], "d2", limits={"max_running": 2})
    store.add_key("one", "reader", ["predict"], "d3")
    store.add_key("two", "c", ["submit"], "d4")
    store.add_key("three", "d", ["admin"], "d5", limits={"max_running": 9})
    quota.refresh()
    assert [quota(tenant) for tenant in ("one", "two", "three", "unknown")] == [2, 3, 3, 3]
    assert RunningQuota(store, None)("one") is None
    third = store.add_key("one", "e", ["submit"], "d6")
    quota.refresh()
    assert quota("one") == 2  # it looks every few seconds
    now[0] += 6
    quota.refresh()
    assert quota("one") == 3
    store.revoke_key(third.id)
    now[0] += 6
    quota.refresh()
    jobs = [submit(store, tenant="one") for _ in range(3)] + [submit(store, tenant="two")]
    claimed = [
        store.claim_job("test", lease_seconds=60, max_running=10, quota=quota) for _ in range(4)
    ]
    assert {job.id for job in claimed if job} == {jobs[0], jobs[1], jobs[3]}
    assert store.get_job(jobs[0], "one").status == RUNNING


LOCKS = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_runner_stopped_in_the_middle_of_a_write_does_not_lock_the_store_for_ever(
    home: Home, poison: Callable[[str, str], None], tiny: Any
) -> None:
    """The embedded store has one writer at a time. When that one is stopped by a signal, nobody can
    even take its job away.
    """
    store = JobStore(home.store_url, busy_seconds=0.1)
    job_id = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    poison(job_id, LOCKS.replace("sys.argv[1]", repr(str(home.path / "xcray.db"))))
    launcher = ProcessLauncher(home, max_suspended_seconds=3600.0)
    supervisor = Supervisor(store, launcher, tick_seconds=0.02)
    supervisor.start()
    first = until(lambda: launcher._runners.get(RunnerId(job_id, 1)))
    until(lambda: first.poll() is None and state(first.pid) == "T")
    with pytest.raises(Unavailable):
        store.request_stop(job_id)
    assert store.get_job(job_id).status == RUNNING  # it can be read
    poison(job_id, None)  # type: ignore[arg-type]  # from now on the real runner
    launcher._max_suspended_seconds = 0.2
    until(lambda: store.get_job(job_id).status in TERMINAL)
    assert (store.get_job(job_id).status, store.get_job(job_id).attempt) == (SUCCEEDED, 2), (
        home.log(job_id).read_text()
    )
    supervisor.stop()
    store.close()
