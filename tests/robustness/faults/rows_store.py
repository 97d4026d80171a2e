"""Rows about the store: writers that are killed."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

from tests.robustness.faults import invariants, strace
from tests.robustness.faults.catalogue import row
from tests.robustness.faults.service import environment
from tests.robustness.faults.stage import Stage
from tests.support.next_release import ADDED, upgrade_to
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

SUBMITTER = """
import sys
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
store = JobStore(sys.argv[1])
n = 0
while True:
    spec, key = {"n": n, "fill": "x" * 2000}, f"{sys.argv[2]}-{n}"
    job, _ = store.jobs.submit(JobSubmission(spec, name="load", idempotency_key=key))
    print(job.id, flush=True)
    n += 1
"""


@row(
    "F23",
    "a process that writes to the store is killed",
    "SIGKILL of processes in the middle of commits; an upgrade killed at its n-th system call",
)
def writers_killed(stage: Stage) -> None:
    url = f"sqlite:///{stage.folder / 'written.db'}"
    JobStore(url).close()
    for turn in range(4 * stage.runs):
        _killed_commit(stage, url, turn)
    _upgrade_killed(stage)


def _killed_commit(stage: Stage, url: str, turn: int) -> None:
    """Kill a process that submits as fast as it can.

    All printed jobs must be in the store, at most one more, and the file must be intact.
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, url, str(turn)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(stage.folder),
    )
    assert writer.stdout is not None
    reports = [writer.stdout.readline().strip()]
    timer = threading.Timer(stage.random.uniform(0.05, 0.4), writer.kill)
    timer.start()
    reports += [line.strip() for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    with stage.measurements.recovering():
        store = JobStore(url)
        there = {
            job.id
            for job in invariants.all_jobs(store)
            if str(job.idempotency_key).startswith(f"{turn}-")
        }
    store.close()
    for job in set(reports) - there:
        stage.measurements.lose(f"{job} was acknowledged and is gone")
    stage.expect(
        len(there - set(reports)) <= 1,
        f"{len(there - set(reports))} jobs were stored and not acknowledged",
    )
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        stage.expect(
            raw.execute("PRAGMA integrity_check").fetchone() == ("ok",), "the file is not sound"
        )
    stage.measurements.runs += 1


def _upgrade_killed(stage: Stage) -> None:
    """Kill an upgrade at each system call; the steps must be complete and no job lost."""
    if not strace.is_available():
        stage.measurements.note("no upgrade was killed: it needs strace")
        return
    beginning = stage.place("before")
    store = JobStore(f"sqlite:///{beginning / 'xcray.db'}")
    reports = {store.jobs.submit(JobSubmission({"n": n}, name="old"))[0].id for n in range(30)}
    store.close()

    def upgrade(folder: Path) -> None:
        upgrade_to(ADDED, f"sqlite:///{folder / 'xcray.db'}")

    rehearsal = stage.folder / "rehearsal"
    shutil.copytree(beginning, rehearsal)
    result = strace.counts(lambda: upgrade(rehearsal), stage.folder / "calls")
    for call, count in result.items():
        for when in stage.random.sample(
            range(1, count + 1), min(count, 4 if stage.small else 4 * stage.runs)
        ):
            folder = stage.folder / f"upgrade-{call}-{when}"
            shutil.copytree(beginning, folder)
            # The lambda is called at once, so it sees the current loop variables.
            strace.inject(lambda: upgrade(folder), call, "signal=KILL", when)  # noqa: B023
            upgrade(folder)
            store = JobStore(f"sqlite:///{folder / 'xcray.db'}")
            there = {job.id for job in invariants.all_jobs(store)}
            store.close()
            for job in reports - there:
                stage.measurements.lose(f"{job} is gone after an upgrade killed at {call} {when}")
            stage.measurements.runs += 1
            shutil.rmtree(folder)
