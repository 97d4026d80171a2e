"""Worker processes on one port: the restart policy, and a real service with two workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.support.live_service import client_of, publish, settings_for
from tests.support.service_processes import (
    children,
    process,
    read_process_file,
    worker_processes,
)
from tests.support.waiting import until
from xcray.errors import Conflict, Unavailable
from xcray.jobs.home import Home
from xcray.jobs.supervision.launch import ProcessLauncher
from xcray.model.registry import Registry
from xcray.service.app import AppParts, AppRole, create_app
from xcray.service.processes import fork_server
from xcray.service.processes.manager import (
    STABLE_SECONDS,
    WorkerManager,
    check_workers,
)
from xcray.service.processes.sockets import listen, reserve_address
from xcray.service.settings import Settings
from xcray.system.cores import available_cores
from xcray.system.processes import lower_priority

pytestmark = pytest.mark.drill

# Seconds until a wait is given up: on a slow machine two processes compile kernels.
PATIENCE = 600.0


class SimulatedWorker:
    """A simulated worker controlled by the test."""

    def __init__(self, place: int, pid: int) -> None:
        self.position = place
        self.pid = pid
        self.exit: int | None = None
        self.answers = False
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.exit

    def ready(self) -> bool:
        return self.answers

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def close(self) -> None:
        """Close nothing."""


class Stage:
    """A manager of simulated workers with a clock that the test sets."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.all = []
        self.buried = []
        self.keeper = WorkerManager(count, self.spawn, lambda: self.now, self.buried.append)

    all: list[SimulatedWorker]
    buried: list[Any]

    def spawn(self, place: int) -> Any:
        self.all.append(SimulatedWorker(place, 100 + len(self.all)))
        return self.all[-1]

    def step(self, now: float) -> list[int]:
        """Advance the clock and return the slots of the workers started by this step."""
        before, self.now = len(self.all), now
        self.keeper.poll_workers()
        return [each.position for each in self.all[before:]]


def test_a_worker_is_restarted_at_once_and_then_with_growing_delays() -> None:
    stage = Stage(2)
    assert stage.step(0.0) == [0, 1]
    for worker in stage.all:
        worker.answers = True
    assert stage.step(1.0) == []
    assert (stage.keeper.ready_count, stage.keeper.failed_at_start) == (2, False)
    waits, now = [], 100.0
    stage.all[1].exit = -9
    for _ in range(9):
        died = now
        while not (begun := stage.step(now)):
            now += 0.125
        assert begun == [1]
        waits.append(now - died)
        stage.all[-1].exit = 1
    assert waits == [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert [child.pid for child in stage.buried] == [
        each.pid for each in stage.all if each.exit is not None
    ][:9]
    stage.all[-1].exit, stage.all[-1].answers = None, True
    now += STABLE_SECONDS
    stage.all[-1].exit = 1
    assert stage.step(now) == [1]  # it ran long enough, so it is restarted at once


def test_no_worker_is_started_while_stopping() -> None:
    stage = Stage(2)
    stage.step(0.0)
    stage.keeper.is_stopping = True
    stage.keeper.signal(signal.SIGTERM)
    assert [each.signals for each in stage.all] == [[signal.SIGTERM]] * 2
    stage.all[0].exit = 0
    assert stage.step(1.0) == []
    assert not stage.keeper.has_ended
    stage.all[1].exit = 0
    assert stage.step(2.0) == []
    assert stage.keeper.has_ended


def test_a_first_worker_that_never_becomes_ready_is_detected() -> None:
    stage = Stage(1)
    stage.step(0.0)
    assert not stage.keeper.failed_at_start
    stage.all[0].exit = 1
    stage.step(0.1)
    assert stage.keeper.failed_at_start


def test_missing_workers_are_reported() -> None:
    check_workers(lambda: {"alive": 2, "workers": 2})
    check_workers(dict)
    with pytest.raises(Unavailable, match="1 of 2"):
        check_workers(lambda: {"alive": 1, "workers": 2})


def test_an_address_is_reserved_for_the_workers_that_share_it(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with reserve_address(settings) as state:
        port = state.getsockname()[1]
        with listen(settings, reserved=state) as one, listen(settings, reserved=state) as two:
            for listener in (one, two):
                listener.listen()
                assert listener.getsockname()[1] == port
            selection = settings_for(tmp_path, port=port)
            for attempt in (listen, reserve_address):
                with pytest.raises(Conflict, match="--port 0"):
                    attempt(selection)
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
                assert one.family == socket.AF_INET


def test_only_the_leader_builds_data_sets_of_all_workers(tmp_path: Path) -> None:
    """Only the leader builds data sets, including those accepted by another worker.

    A deleted data set is given up.
    """
    stub = tmp_path / "stub.py"
    stub.write_text(
        "import json, pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1]).parent\n"
        "slow = json.loads((folder / 'request.json').read_text())['name'] == 'slow'\n(folder / 'begun').touch()\n"
        "time.sleep(600 if slow else 0)\n(folder / 'outcome.json').write_text('{\"stats\": {}}')\n"
    )
    parts = AppParts(build_command=(sys.executable, str(stub)))
    settings = settings_for(tmp_path / "home", processes=2)
    with (
        client_of(create_app(settings, parts=parts)) as leader,
        client_of(create_app(settings, parts=parts, role=AppRole(leader_eligible=False))) as other,
    ):
        quick = other.post("/v1/datasets", json={"name": "quick", "format": "pydocs"}).json()["id"]
        until(lambda: leader.get(f"/v1/datasets/{quick}").json()["status"] == "READY")
        slow = other.post("/v1/datasets", json={"name": "slow", "format": "pydocs"}).json()["id"]
        until(lambda: (settings.home / "builds" / slow / "begun").exists())
        assert other.delete(f"/v1/datasets/{slow}").status_code == 204
        third = leader.post("/v1/datasets", json={"name": "third", "format": "pydocs"}).json()["id"]
        # Builds run one at a time, so the slow one is gone.
        until(lambda: other.get(f"/v1/datasets/{third}").json()["status"] == "READY")
        # Inputs are deleted after the result is reported.
        until(lambda: not list((settings.home / "builds").iterdir()))


def read(path: Path) -> str:
    """Return the text of a file in /proc, or "" if its process is gone."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_two_workers_serve_restart_one_and_drain(tmp_path: Path) -> None:
    home = tmp_path / "home"
    registry = Registry(Home(home).models)
    publish(registry, "docs", tmp_path / "staged")
    body = {"instances": [{"text": "read a csv file"}], "top_k": 1}
    with process(home, "serve", "--processes", "2") as serve:
        report = read_process_file(home, serve, "serve")
        assert (report["pid"], report["workers"], report["alive"]) == (serve.pid, 2, 2)

        def ask() -> httpx.Response:
            return httpx.post(
                f"{report['url']}/v1/models/docs:predict",
                json=body,
                trust_env=False,
                timeout=PATIENCE,
            )

        # one connection per request: both workers get some
        replies = [ask() for _ in range(24)]
        assert {one.status_code for one in replies} == {200}
        assert len({one.content for one in replies}) == 1
        workers = worker_processes(serve.pid)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        until(lambda: len(new := worker_processes(serve.pid)) == 2 and workers[0] not in new)
        until(lambda: json.loads((home / "serve.json").read_text())["alive"] == 2)
        until(
            lambda: (
                httpx.get(f"{report['url']}/readyz", trust_env=False, timeout=PATIENCE).json()[
                    "degraded"
                ]
                == []
            )
        )
        assert ask().status_code == 200
        figures = httpx.get(f"{report['url']}/metrics", trust_env=False, timeout=PATIENCE).text
        # The sum over all workers, including the dead one.
        assert "xcray_predict_instances_total 25.0" in figures
        publish(registry, "docs", tmp_path / "again", seed=1)
        # Each process loads the version at its own time.
        until(lambda: {ask().json()["model"]["version"] for _ in range(8)} == {2})
        last = worker_processes(serve.pid)
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(PATIENCE) == 0, (home / "processes.log").read_text()
    assert not [pid for pid in last if read(Path(f"/proc/{pid}/cmdline"))]
    assert not (home / "serve.json").exists()


@pytest.fixture
def server() -> Iterator[fork_server.ForkServer]:
    """Start a fork server whose copies print a request id and end by a command."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = fork_server.ForkServer(environment, "tests.support.forked_worker")
    yield server
    server.close()


def forked(server: fork_server.ForkServer, command: str) -> tuple[fork_server.ForkedWorker, bytes]:
    """Return a worker that runs a command of `tests.support.forked_worker`, and its request id."""
    (stdin, to_worker), (from_worker, stdout) = os.pipe(), os.pipe()
    os.write(to_worker, command.encode() + b"\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = server.start(listener, stdin, stdout)
    request_id = os.read(from_worker, 100)
    # to_worker stays open: a worker that waits ends with the process of the tests at the latest
    for descriptor in (stdin, from_worker, stdout):
        os.close(descriptor)
    return worker, request_id


def test_forked_workers_have_exit_codes_and_request_ids_of_their_own(
    server: fork_server.ForkServer,
) -> None:
    workers, ids = zip(*[forked(server, command) for command in ("3", "9", "wait")], strict=True)
    workers[2].send_signal(signal.SIGKILL)
    until(lambda: all(worker.poll() is not None for worker in workers))
    assert [worker.poll() for worker in workers] == [3, 9, -signal.SIGKILL]
    assert len(set(ids)) == 3


def test_workers_outlive_a_killed_fork_server_and_others_come_from_a_new_one(
    server: fork_server.ForkServer,
) -> None:
    first, _ = forked(server, "wait")
    (parent,) = (pid for pid in children(os.getpid()) if first.pid in children(pid))
    os.kill(parent, signal.SIGKILL)
    second, _ = forked(server, "5")
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    until(lambda: second.poll() is not None and first.poll() is not None)
    assert (first.poll(), second.poll()) == (fork_server.UNKNOWN_EXIT, 5)


def test_runners_have_a_lower_priority_than_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []

    class Process:
        """Simulates a runner that has ended."""

        returncode = 0

        def __init__(self, command: list[str], **how: Any) -> None:
            begun.append(command)

        def poll(self) -> int:
            return 0

    monkeypatch.setattr("xcray.jobs.supervision.launch.subprocess.Popen", Process)
    launcher = ProcessLauncher(Home(tmp_path / "home"), nice=Settings().job_nice)
    launcher.launch(SimpleNamespace(id="job_1", attempt=1))  # type: ignore[arg-type]  # all that is looked at
    assert begun[0][-2:] == ["--nice", "10"]
    assert [each.job_id for each in launcher.poll()] == ["job_1"]


def test_a_runner_lowers_the_priority_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The priority of the session is lowered, too: the kernel may schedule by session."""
    reports: list[int] = []
    monkeypatch.setattr("xcray.jobs.runner.main.os.nice", reports.append)
    group = tmp_path / "autogroup"
    lower_priority(10, group)
    assert not group.exists()  # no autogroup on this system: nothing is written
    group.write_text("/autogroup-1 nice 0")
    lower_priority(10, group)
    assert (reports, group.read_text()) == ([10, 10], "10")
    lower_priority(0, group)
    assert group.read_text() == "10"
    lower_priority(5, tmp_path)  # not writable: ignored
    assert reports == [10, 10, 0, 5]


def test_processes_are_a_setting() -> None:
    assert (Settings().processes, Settings(processes=3).processes) == (1, 3)
    assert Settings(processes=2).prediction_threads == max(1, available_cores() // 2)
    assert Settings(processes=256).prediction_threads == 1


def test_threads_share_the_memory_of_the_allocator() -> None:
    """Threads reuse the memory that other threads have freed.

    The allocator's own statistics in a separate process show it.
    """
    program = (
        "import ctypes, sys, threading\n"
        "from xcray.system.malloc import limit_arenas\n"
        "limited = limit_arenas()\n"
        "barrier = threading.Barrier(8)\n"
        "def work():\n"
        "    blocks = [bytes(1000) for _ in range(1000)]\n"
        "    barrier.wait()\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "print(limited, flush=True)\n"
        "if limited: ctypes.CDLL(None).malloc_stats()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    report = ended.stdout.strip() == "True"
    assert ended.stderr.count("Arena ") <= (2 if report else 0)
