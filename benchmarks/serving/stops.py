"""How soon a job stops, whatever it is at; how soon a runner gives its job back; how soon the first
work of a job begins.

`python -m benchmarks.serving.stops [--repeats 5] [--rows 20000] [--only WORD] [--json FILE]`

Real runners as processes, launched by a supervisor with the settings of the service; data sets are
synthetic. Seconds from the request to the end, which is when the store says so and the runner's
process is gone with all its children:

queued, starting, loading        before there is anything to stop SOLVER on POOL
in the middle of its training; `class without end`: in one class of the hinge loss that never ends
merging and so on                at the end, just before the model is published deaf
a program in the runner's place that looks at nothing: `loop` computes, `stopped` stands still twice
asked ten times at once sigterm                          the runner is told to give its job back:
PENDING, to be claimed again

`wait` is the time from submitting to the first phase that the training tells, and to the first
report of work. Ends are counted by
status: every job must have one, STOPPED or, when it was quicker, SUCCEEDED.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.common import arguments
from xcray.data.build import BuildOptions, build
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.states import PENDING, RUNNING, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision import launch
from xcray.jobs.supervision.launch import ProcessLauncher, RunnerId
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.system.processes import descendants

ENDLESS: Final = {
    "loss": "hinge",
    "eps": 1e-300,
    "C": 1e9,
    "tau": 1e-6,
    "max_sweeps": 2**31 - 1,
    "max_rounds": 2**31 - 1,
}
SPECS: Final[dict[str, dict[str, Any]]] = {
    "ppdsparse on threads": {"solver": "ppdsparse", "pool": "threads", "params": {"eps": 1e-5}},
    "ppdsparse on serial": {"solver": "ppdsparse", "pool": "serial", "params": {"eps": 1e-5}},
    "class without end": {"solver": "ppdsparse", "pool": "threads", "params": ENDLESS},
    "class without end, serial": {"solver": "ppdsparse", "pool": "serial", "params": ENDLESS},
    "pdsparse on threads": {"solver": "pdsparse", "pool": "threads"},
    "dsmlr on threads": {"solver": "dsmlr", "pool": "threads"},
    "lbfgs on threads": {"solver": "lbfgs", "pool": "threads"},
    "lc on threads": {"solver": "lc", "pool": "threads"},
}
QUICK: Final = {"solver": "ppdsparse", "pool": "threads", "params": {"eps": 0.1}}
DEAF: Final = {
    "deaf, loop": "while True: pass",
    "deaf, stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}
LATE_PHASES: Final = ("MERGING", "EVALUATING", "PUBLISHING")
PATIENCE: Final = 120.0


class Bench:
    """A home, a store and a supervisor that launches runners."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.home = Home(folder / "home")
        self.store = JobStore(self.home.store_url)
        self.launcher = ProcessLauncher(self.home)
        self.supervisor = Supervisor(self.store, self.launcher, max_running=4)
        sizes = {"rows": rows, "features": rows // 2, "labels": rows // 4, "seed": 7}
        options = BuildOptions.from_dict({"test_fraction": 0.2, "synthetic": sizes})
        self.data = build("synthetic", {}, folder / "data", options).path
        self.programs: dict[str, str] = {}

    def submit(self, spec: dict[str, Any], program: str | None = None) -> str:
        """A job; with a program that stands for its runner."""
        job, _ = self.store.submit(
            {"dataset": str(self.data), "name": "bench", "workers": 2, **spec}, name="bench"
        )
        if program is not None:
            self.programs[job.id] = program
        return job.id

    def command(self, home: Home, url: str, job: Job) -> list[str]:
        """What starts the runner of a job."""
        program = self.programs.get(job.id)
        return COMMAND(home, url, job) if program is None else [sys.executable, "-c", program]

    def until(self, job_id: str, wish: Callable[[Job], bool]) -> Job:
        """A job once it is as wished, or has ended."""
        deadline = time.monotonic() + PATIENCE
        while not (wish(job := self.store.get_job(job_id)) or job.status in TERMINAL):
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{job_id} is still {job.status} {job.phase}: see {self.home.log(job_id)}"
                )
            time.sleep(0.004)
        return job

    def process(self, job: Job) -> subprocess.Popen[bytes] | None:
        """The process of its runner, once there is one."""
        return self.launcher._runners.get(RunnerId(job.id, job.attempt))


COMMAND = launch.runner_command


def stopped(
    bench: Bench, job_id: str, ready: Callable[[Job], bool], times: int = 1
) -> tuple[float, float, str]:
    """Seconds until a stop was acknowledged, until all has ended, and as what."""
    bench.until(job_id, ready)
    job = bench.store.get_job(job_id)
    process = bench.process(job)
    below = [process.pid, *descendants(process.pid)] if process is not None else []
    began = time.monotonic()
    for _ in range(times):
        bench.store.request_stop(job_id)
    acknowledged = time.monotonic() - began
    end = bench.until(job_id, lambda _: False)
    while any(lives(pid) for pid in below):
        time.sleep(0.004)
    return acknowledged, time.monotonic() - began, end.status


def given_back(bench: Bench, job_id: str, ready: Callable[[Job], bool]) -> tuple[float, float, str]:
    """Seconds from SIGTERM until the job waits again and the process is gone."""
    job = bench.until(job_id, ready)
    process = bench.process(bench.store.get_job(job_id))
    if process is None or job.status in TERMINAL:
        return 0.0, 0.0, job.status
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    end = bench.until(job_id, lambda job: job.status == PENDING or job.attempt > 1)
    while lives(process.pid):
        time.sleep(0.004)
    seconds = time.monotonic() - began
    bench.store.request_stop(job_id)
    bench.until(job_id, lambda _: False)
    return 0.0, seconds, PENDING if end.status in (PENDING, RUNNING) else end.status


def lives(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def in_training(job: Job) -> bool:
    """Whether it has told of its work."""
    return job.phase == "TRAINING"


def cases(bench: Bench) -> Iterator[tuple[str, Callable[[], tuple[float, float, str]]]]:
    """What is stopped, and how to do it once."""
    yield "queued", lambda: stopped(bench, _waiting(bench), lambda _: True)
    yield "starting", lambda: stopped(bench, bench.submit(QUICK), lambda job: job.status == RUNNING)
    yield "loading", lambda: stopped(bench, bench.submit(QUICK), lambda job: job.phase == "LOADING")
    for name, spec in SPECS.items():
        yield name, lambda spec=spec: stopped(bench, bench.submit(spec), _later(in_training))
        yield (
            f"sigterm, {name}",
            lambda spec=spec: given_back(bench, bench.submit(spec), _later(in_training)),
        )
    yield (
        "merging and so on",
        lambda: stopped(bench, bench.submit(QUICK), lambda job: job.phase in LATE_PHASES),
    )
    yield (
        "twice",
        lambda: stopped(bench, bench.submit(SPECS["ppdsparse on threads"]), in_training, times=10),
    )
    for name, program in DEAF.items():
        yield (
            name,
            lambda program=program: stopped(
                bench, bench.submit(QUICK, program), _later(lambda job: job.status == RUNNING)
            ),
        )


def _waiting(bench: Bench) -> str:
    """A job that nobody claims, because it may not begin yet."""
    job, _ = bench.store.submit({"dataset": "/nowhere"}, name="bench", priority=-100)
    return job.id


def _later(ready: Callable[[Job], bool], seconds: float = 0.7) -> Callable[[Job], bool]:
    """The same wish, some time later."""
    since: list[float] = []

    def wish(job: Job) -> bool:
        if ready(job):
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] > seconds

    return wish


def waits(bench: Bench, repeats: int) -> dict[str, list[float]]:
    """Seconds from submitting to the first phase, and to the first work."""
    found: dict[str, list[float]] = {"first phase": [], "first work": []}
    for _ in range(repeats):
        began = time.monotonic()
        job_id = bench.submit({"solver": "ppdsparse", "pool": "threads", "params": {"eps": 1e-5}})
        bench.until(job_id, lambda job: job.phase == "LOADING")
        found["first phase"].append(time.monotonic() - began)
        bench.until(job_id, in_training)
        found["first work"].append(time.monotonic() - began)
        stopped(bench, job_id, lambda _: True)
    return found


@contextmanager
def benches(rows: int) -> Iterator[Bench]:
    """A bench whose supervisor works."""
    with tempfile.TemporaryDirectory(prefix="xcray-stops-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), rows)
        with mock.patch.object(launch, "command", bench.command):
            bench.supervisor.start()
            try:
                yield bench
            finally:
                bench.supervisor.stop()
                for runner in bench.launcher.list_runners():
                    bench.launcher.terminate(runner)
                bench.store.close()


def main() -> None:
    """Measure, print a table and one line of JSON."""
    chosen = arguments(
        __doc__ or "",
        repeats={"type": int, "default": 5, "help": "times that each case is done"},
        rows={"type": int, "default": 20_000, "help": "rows of the data set"},
        only={"default": "", "help": "only cases whose name has this word"},
    )
    result: dict[str, Any] = {}
    with benches(chosen.rows) as bench:
        print(f"{'at':32} {'p50 s':>8} {'max s':>8} {'ack ms':>8}  ends")
        for name, once in cases(bench):
            if chosen.only in name:
                runs = [once() for _ in range(chosen.repeats)]
                ends, seconds = (
                    Counter(end for _, _, end in runs),
                    [seconds for _, seconds, _ in runs],
                )
                acknowledged = max(first for first, _, _ in runs) * 1000
                facts = {"p50": round(statistics.median(seconds), 3), "max": round(max(seconds), 3)}
                result[name] = {**facts, "ack_ms": round(acknowledged, 1), "ends": dict(ends)}
                print(
                    f"{name:32} {facts['p50']:8.3f} {facts['max']:8.3f} {acknowledged:8.1f}  {dict(ends)}",
                    flush=True,
                )
        if chosen.only in "wait":
            found = waits(bench, chosen.repeats)
            result["wait"] = {
                name: round(statistics.median(seconds), 3) for name, seconds in found.items()
            }
            print("wait", result["wait"])
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
