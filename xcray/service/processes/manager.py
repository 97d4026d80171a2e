"""Manager of several worker processes that serve one port.

The manager serves no requests: it holds the home's lock and supervises the jobs. Each worker is the
whole app in a process of its own (`worker`), forked by a process that has imported the program
(`fork_server`), with the same model files mapped, so that they share one copy of both in memory.
The kernel distributes new connections evenly among the sockets of live workers (SO_REUSEPORT). A
worker listens when it has loaded the models of XCRAY_PRELOAD, or failed to (GET /readyz then names
the reason). The first worker can also run maintenance: build data sets and remove leftovers. A
worker that dies is started again, at first immediately, later with a growing delay. When the
manager dies, its workers see the end of their standard input, drain and exit. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from prometheus_client import multiprocess

from xcray.errors import Unavailable
from xcray.service.observability.metrics import MULTIPROCESS_DIR_VARIABLE
from xcray.service.observability.request_log import LOGGER
from xcray.service.processes.fork_server import ForkServer
from xcray.service.processes.home_lock import RoleLock
from xcray.service.processes.sockets import listen
from xcray.service.settings import Settings

STABLE_SECONDS: Final = 30.0  # after this time an exit counts as the first one
MAX_RESTART_DELAY_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.1
START_TIMEOUT_SECONDS: Final = 120.0  # without models to load
VERIFIED_FILE: Final = "verified.json"  # checksums that a worker has verified, until the next start


class WorkerManager:
    """Keeps `count` workers alive. It makes all decisions; clock and processes are passed in."""

    def __init__(
        self,
        count: int,
        spawn: Callable[[int], WorkerProcess],
        clock: Callable[[], float],
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        """Create it. spawn: starts worker `i`. on_exit: called for each worker that has ended."""
        self._spawn = spawn
        self._clock = clock
        self._on_exit = on_exit
        self._children: dict[int, WorkerProcess] = {}
        self._started_at = dict.fromkeys(range(count), -float("inf"))
        self._restart_at = dict.fromkeys(range(count), -float("inf"))
        self._exits = dict.fromkeys(range(count), 0)
        self._was_ready: set[int] = set()
        self.is_stopping = False

    @property
    def ready_count(self) -> int:
        """Return how many workers serve requests."""
        return sum(child.poll() is None and child.ready() for child in self._children.values())

    @property
    def failed_at_start(self) -> bool:
        """Return whether a worker ended before its slot ever served requests."""
        return any(exits and slot not in self._was_ready for slot, exits in self._exits.items())

    @property
    def has_ended(self) -> bool:
        """Return whether no worker is left."""
        return not self._children

    def poll_workers(self) -> None:
        """Poll all workers; record exits and start replacements that are due."""
        now = self._clock()
        for slot in self._restart_at:
            child = self._children.get(slot)
            if child is not None and child.poll() is None:
                if child.ready():
                    self._was_ready.add(slot)
                continue
            if child is not None:
                self._record_exit(slot, child, now)
            if not self.is_stopping and self._restart_at[slot] <= now:
                self._started_at[slot] = now
                self._children[slot] = self._spawn(slot)

    def signal(self, number: int) -> None:
        """Send a signal to all workers."""
        for child in self._children.values():
            child.signal(number)

    def _record_exit(self, slot: int, child: WorkerProcess, now: float) -> None:
        """Record an exit and schedule the restart.

        The delays are 0, 0.25, 0.5, 1... seconds.
        """
        del self._children[slot]
        self._exits[slot] = (
            1 if now - self._started_at[slot] >= STABLE_SECONDS else self._exits[slot] + 1
        )
        delay = (
            0.0
            if self._exits[slot] == 1
            else min(MAX_RESTART_DELAY_SECONDS, 0.125 * 2.0 ** (self._exits[slot] - 1))
        )
        self._restart_at[slot] = now + delay
        if not self.is_stopping:
            info = {
                "worker": slot,
                "worker_pid": child.pid,
                "exit": child.poll(),
                "restart_in": delay,
            }
            LOGGER.error("a worker ended; starting another", extra=info)
        self._on_exit(child)


class WorkerProcess:
    """A worker process with its pipes.

    It reads its configuration from standard input, and writes a byte when it serves requests.
    """

    def __init__(
        self,
        settings: Settings,
        number: int,
        listener: socket.socket,
        lock: RoleLock,
        leader_eligible: bool,
        fork_server: ForkServer,
    ) -> None:
        """Start the worker.

        number: with `leader_eligible`, worker 0 can run maintenance. lock: the role lock of the
        service.
        """
        config: dict[str, Any] = {
            "settings": settings.model_dump(mode="json"),
            "leader_eligible": leader_eligible and number == 0,
            "info_path": str(lock.info_path),
            "verified_path": str(lock.metrics_dir / VERIFIED_FILE),
        }
        worker_stdin, stdin = os.pipe()
        stdout, worker_stdout = os.pipe()
        # The pipes stay open; the worker exits when its standard input is closed.
        self._stdin, self._stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        try:
            self._process = fork_server.start(listener, worker_stdin, worker_stdout)
        finally:
            os.close(worker_stdin)
            os.close(worker_stdout)
        self.pid = self._process.pid
        self._ready = False
        os.set_blocking(stdout, False)
        # If the process has ended already, `poll` returns its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(config).encode() + b"\n")
            self._stdin.flush()

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, else None."""
        return self._process.poll()

    def ready(self) -> bool:
        """Return whether the worker has reported that it serves requests."""
        if not self._ready:
            self._ready = bool(self._stdout.read(1))
        return self._ready

    def signal(self, number: int) -> None:
        """Send a signal to the process if it lives."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def run_workers(
    settings: Settings,
    lock: RoleLock,
    on_ready_count: Callable[[int], None],
    address: socket.socket,
    start: Callable[[], None],
    *,
    leader_eligible: bool = True,
) -> None:
    """Run workers until SIGTERM or SIGINT, then drain them. The caller holds the role lock.

    address: the socket of `sockets.reserve_address`. on_ready_count: called with the number of
    workers that serve requests when it changes. start: called once all workers are ready.
    leader_eligible: whether the first worker can run maintenance. Raises Unavailable if the first
    workers cannot be started.
    """
    if sys.platform != "linux":
        raise Unavailable("several processes need Linux: use --processes 1", code="WORKERS")
    metrics = lock.metrics_dir
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir(mode=0o700)

    fork_server = ForkServer({**os.environ, MULTIPROCESS_DIR_VARIABLE: str(metrics)})

    def spawn(number: int) -> WorkerProcess:
        with contextlib.closing(listen(settings, reserved=address)) as listener:
            return WorkerProcess(settings, number, listener, lock, leader_eligible, fork_server)

    def close_worker(child: WorkerProcess) -> None:
        child.close()
        multiprocess.mark_process_dead(child.pid, str(metrics))  # type: ignore[no-untyped-call]

    manager = WorkerManager(settings.processes, spawn, time.monotonic, close_worker)
    with _counted_signals() as signals:
        try:
            _start_workers(manager, settings, signals)
            if not signals:
                start()
            last_count = -1
            while not signals:
                manager.poll_workers()
                if last_count != (last_count := manager.ready_count):
                    on_ready_count(last_count)
                signals.wait(POLL_SECONDS)
        finally:
            _stop_workers(manager, settings, signals)
            fork_server.close()
            # This name is not used again.
            if lock.name != "serve":
                shutil.rmtree(metrics, ignore_errors=True)


class _SignalCounter:
    """Counter of received signals."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self.count > 0

    def count_signal(self, number: int, frame: FrameType | None) -> None:
        """Count a signal."""
        self.count += 1
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Sleep until the next signal, at most `seconds`."""
        if self._event.wait(seconds):
            self._event.clear()


@contextlib.contextmanager
def _counted_signals() -> Iterator[_SignalCounter]:
    """Count SIGTERM and SIGINT during the block."""
    signals = _SignalCounter()
    before = {
        number: signal.signal(number, signals.count_signal)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_workers(manager: WorkerManager, settings: Settings, signals: _SignalCounter) -> None:
    """Start all workers and return once they are ready."""
    # Verification takes as long as it takes to read all models of XCRAY_PRELOAD.
    timeout = float("inf") if settings.preload else START_TIMEOUT_SECONDS
    deadline = time.monotonic() + timeout
    while not signals:
        manager.poll_workers()
        if manager.ready_count == settings.processes:
            return
        if manager.failed_at_start or time.monotonic() > deadline:
            raise Unavailable(
                "a worker process did not start: see the log above; try --processes 1",
                code="WORKERS",
            )
        signals.wait(POLL_SECONDS)


def _stop_workers(manager: WorkerManager, settings: Settings, signals: _SignalCounter) -> None:
    """Drain and end all workers; kill those that exceed the time limit."""
    manager.is_stopping, forwarded = True, 1
    manager.signal(signal.SIGTERM)
    deadline = time.monotonic() + settings.drain_seconds + settings.grace_seconds + 5.0
    while True:
        manager.poll_workers()
        if manager.has_ended:
            return
        # A repeated signal shortens the drain.
        if signals.count > forwarded:
            forwarded = signals.count
            manager.signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            manager.signal(signal.SIGKILL)
        signals.wait(POLL_SECONDS)


def check_workers(read_info: Callable[[], Mapping[str, Any]]) -> None:
    """Raise Unavailable if workers are missing, according to the manager's info file."""
    info = read_info()
    if info.get("alive", 0) < info.get("workers", 0):
        raise Unavailable(
            f"{info['alive']} of {info['workers']} workers are running", code="WORKERS"
        )
