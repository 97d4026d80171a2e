"""Jobs that crash, hang or overload their runners.

The number of attempts is exact, pauses grow, other jobs are not affected, and no process is left. A
faulty program runs in place of the runner, as faulty native code would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import WallClock
from tests.support.waiting import until
from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision import launch
from xcray.jobs.supervision.launch import ProcessLauncher, RunnerId
from xcray.jobs.supervision.supervisor import Supervisor, SupervisorOptions
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
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that replaces the runner of a job by another program."""
    programs: dict[str, str] = {}
    real = launch.runner_command

    def command(home: Home, url: str, job: Job) -> list[str]:
        program = programs.get(job.id)
        return real(home, url, job) if program is None else [sys.executable, "-c", program]

    monkeypatch.setattr(launch, "runner_command", command)
    return programs.__setitem__


def submit(store: JobStore, spec: dict[str, Any] | None = None, **more: Any) -> str:
    return store.jobs.submit(JobSubmission(spec or {"dataset": "/nowhere"}, name="a", **more))[0].id


def test_every_crashing_job_gets_the_exact_number_of_attempts_and_others_succeed(
    store: JobStore, home: Home, clock: WallClock, poison: Callable[[str, str], None], tiny: Any
) -> None:
    bad = {kind: submit(store) for kind in ENDS}
    for kind, job_id in bad.items():
        poison(job_id, ENDS[kind])
    twice = submit(store, max_attempts=2)
    poison(twice, ENDS["exit"])
    neighbour = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    supervisor = Supervisor(
        store,
        ProcessLauncher(home, max_log_bytes=LOG_BYTES),
        SupervisorOptions(max_running=3, stop_grace_seconds=600),
    )
    waits: dict[str, set[int]] = {job_id: set() for job_id in bad.values()}

    def step() -> None:
        supervisor.step()
        for job_id in bad.values():
            job = store.jobs.get(job_id)
            if job.status == PENDING and job.attempt == 2:
                waits[job_id].add(job.attempt)
        if not store.attempts.list_running():
            clock.ahead += 1.0  # only retry pauses are left

    until(
        lambda: all(
            store.jobs.get(each).status in TERMINAL for each in (*bad.values(), twice, neighbour)
        ),
        tick=step,
    )
    supervisor.stop()
    for kind, job_id in bad.items():
        job = store.jobs.get(job_id)
        assert (job.status, job.reason, job.attempt) == (FAILED, "CRASH_LOOP", 3), kind
        assert waits[job_id] == {2}, kind  # after the second loss it was paused
    assert (store.jobs.get(twice).status, store.jobs.get(twice).attempt) == (FAILED, 2)
    assert store.jobs.get(neighbour).status == SUCCEEDED
    for kind, words in {
        "segfault": "signal 11",
        "exit": "status 1",
        "killed for want of memory": "signal 9",
    }.items():
        assert words in home.log(bad[kind]).read_text(), kind
    assert "MemoryError" in home.log(bad["memory"]).read_text()
    assert home.log(bad["a huge log"]).stat().st_size <= LOG_BYTES
    assert "left out here" in home.log(bad["a huge log"]).read_text()
    # The process of the good job can take a moment to exit.
    until(lambda: not supervisor._launcher.list_runners())


FORKS = "import subprocess, time\nfor _ in range(5): subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)"


@pytest.mark.parametrize("program", [FORKS, "while True: pass"], ids=["fork", "infinite loop"])
def test_a_runner_that_never_exits_is_killed_when_its_job_is_stopped(
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
    supervisor = Supervisor(
        store, launcher, SupervisorOptions(stop_grace_seconds=0.2, start_seconds=600)
    )
    process = until(lambda: launcher._runners.get(RunnerId(job_id, 1)), tick=supervisor.step)
    if program is FORKS:
        until(lambda: len(descendants(process.pid)) == 5)
    below = descendants(process.pid)
    supervisor.step()
    assert process.poll() is None  # no stop was requested yet
    store.jobs.request_stop(job_id)
    until(lambda: store.jobs.get(job_id).status == STOPPED, tick=supervisor.step)
    until(
        lambda: (
            not any(
                Path(f"/proc/{pid}").exists() and state(pid) not in "ZX"
                for pid in (process.pid, *below)
            )
        )
    )
    assert store.jobs.get(job_id).attempt == 1
    supervisor.stop()


def state(pid: int) -> str:
    """Return the state of a process, or X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def test_a_suspended_runner_is_replaced_and_killed(
    store: JobStore,
    home: Home,
    clock: WallClock,
    poison: Callable[[str, str], None],
    tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner stopped by SIGSTOP loses its job at the end of its lease and is killed.

    No error is raised anywhere. The next attempt completes the job.
    """
    monkeypatch.setattr("xcray.jobs.supervision.supervisor.EXIT_GRACE_SECONDS", 0.0)
    job_id = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    poison(job_id, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    launcher = ProcessLauncher(home, max_suspended_seconds=3600.0)
    supervisor = Supervisor(
        store,
        launcher,
        SupervisorOptions(stop_grace_seconds=0.2, start_seconds=600.0, max_running=2),
    )
    first = until(lambda: launcher._runners.get(RunnerId(job_id, 1)), tick=supervisor.step)
    until(lambda: state(first.pid) == "T")
    supervisor.step()
    clock.ahead += 601.0
    poison(job_id, None)  # type: ignore[arg-type]  # from now on the real runner
    until(lambda: store.jobs.get(job_id).status in TERMINAL, tick=supervisor.step)
    assert (store.jobs.get(job_id).status, store.jobs.get(job_id).attempt) == (SUCCEEDED, 2), (
        home.log(job_id).read_text()
    )
    until(lambda: first.poll() is not None, tick=supervisor.step)
    assert first.returncode == -signal.SIGKILL
    supervisor.stop()


REPORTED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
time.sleep(600)
"""


def test_runners_release_their_jobs_when_the_service_ends(
    store: JobStore, home: Home, poison: Callable[[str, str], None]
) -> None:
    job_id = submit(store)
    poison(job_id, REPORTED)
    launcher = ProcessLauncher(home)
    job = store.attempts.claim("test", lease_seconds=60)
    assert job is not None
    launcher.launch(job)
    until(lambda: "ready" in home.log(job_id).read_text())
    launcher.release_jobs()
    assert launcher.list_runners() == []
    assert launcher.poll() == [RunnerId(job_id, 1)]


def test_processes_of_other_launchers_are_not_terminated(home: Home) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as unrelated:
        ProcessLauncher(home).terminate(RunnerId("job_x", 1))
        assert unrelated.poll() is None
        os.kill(unrelated.pid, signal.SIGKILL)


def test_a_tenant_runs_no_more_than_its_keys_and_the_operator_allow(store: JobStore) -> None:
    now = [0.0]
    quota = RunningQuota(store.keys, 3, monotonic=lambda: now[0])
    store.keys.add("one", "a", ["submit"], "d1", limits={"max_running": 1})
    store.keys.add("one", "b", ["submit"], "d2", limits={"max_running": 2})
    store.keys.add("one", "reader", ["predict"], "d3")
    store.keys.add("two", "c", ["submit"], "d4")
    store.keys.add("three", "d", ["admin"], "d5", limits={"max_running": 9})
    quota.refresh()
    assert [quota(tenant) for tenant in ("one", "two", "three", "unknown")] == [2, 3, 3, 3]
    assert RunningQuota(store.keys, None)("one") is None
    third = store.keys.add("one", "e", ["submit"], "d6")
    quota.refresh()
    assert quota("one") == 2  # quotas are read every few seconds
    now[0] += 6
    quota.refresh()
    assert quota("one") == 3
    store.keys.revoke(third.id)
    now[0] += 6
    quota.refresh()
    jobs = [submit(store, tenant="one") for _ in range(3)] + [submit(store, tenant="two")]
    claimed = [
        store.attempts.claim("test", lease_seconds=60, max_running=10, quota=quota)
        for _ in range(4)
    ]
    assert {job.id for job in claimed if job} == {jobs[0], jobs[1], jobs[3]}
    assert store.jobs.get(jobs[0], "one").status == RUNNING


LOCKS = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_runner_suspended_during_a_write_does_not_lock_the_store_forever(
    home: Home, poison: Callable[[str, str], None], tiny: Any
) -> None:
    """A runner that is suspended while it holds SQLite's write lock is ended.

    SQLite has one writer at a time, so until then no process can even mark the job as lost.
    """
    store = JobStore(home.store_url, busy_seconds=0.1)
    job_id = submit(store, {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"})
    poison(job_id, LOCKS.replace("sys.argv[1]", repr(str(home.path / "xcray.db"))))
    launcher = ProcessLauncher(home, options=("--lease", "600"), max_suspended_seconds=3600.0)
    options = SupervisorOptions(tick_seconds=0.02, start_seconds=600.0)
    supervisor = Supervisor(store, launcher, options)
    supervisor.start()
    first = until(lambda: launcher._runners.get(RunnerId(job_id, 1)))
    until(lambda: first.poll() is None and state(first.pid) == "T")
    with pytest.raises(Unavailable):
        store.jobs.request_stop(job_id)
    assert store.jobs.get(job_id).status == RUNNING  # reads still work
    poison(job_id, None)  # type: ignore[arg-type]  # from now on the real runner
    launcher._max_suspended_seconds = 0.2
    until(lambda: store.jobs.get(job_id).status in TERMINAL)
    assert (store.jobs.get(job_id).status, store.jobs.get(job_id).attempt) == (SUCCEEDED, 2), (
        home.log(job_id).read_text()
    )
    supervisor.stop()
    store.close()
