"""Several processes that answer on one port, kept by one that does not: it holds the home's lock and supervises the jobs.

Each worker is the whole app in a process of its own (`worker`), with the same model files mapped, so they share one copy in memory.
The system deals new connections out among their sockets (SO_REUSEPORT), evenly and only to workers that live; where that is not to
be had (macOS) they share one socket. The first worker also leads: it builds data sets and sweeps what was left. A worker that dies
is started again, at once the first time, later each time it does not last. When the keeper dies, its workers see the end of their
standard input, drain and end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, Protocol

from prometheus_client import multiprocess

from xcray.errors import Unavailable
from xcray.service.observability.metrics import METRICS
from xcray.service.observability.request_log import LOGGER
from xcray.service.processes.home_lock import Place
from xcray.service.processes.sockets import listen
from xcray.service.settings import Settings

LASTING: Final = 30.0  # seconds after which a worker's death is the first one again
LONGEST_PAUSE: Final = 15.0  # seconds before a worker is started again, at most
STEP: Final = 0.1  # seconds between looks
START_SECONDS: Final = 120.0  # for the first start


class Child(Protocol):
    """What the keeper needs of a worker process."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""

    def ready(self) -> bool:
        """Whether it answers requests."""

    def signal(self, number: int) -> None:
        """Send a signal to it."""

    def close(self) -> None:
        """Let go of its pipes."""


class Keeper:
    """Keeps `count` workers alive. All decisions, no clock and no process of its own."""

    def __init__(
        self,
        count: int,
        spawn: Callable[[int], Child],
        clock: Callable[[], float],
        buried: Callable[[Child], None],
    ) -> None:
        """spawn: starts worker number i. buried: hears of each that has ended."""
        self._spawn = spawn
        self._clock = clock
        self._buried = buried
        self._children: dict[int, Child] = {}
        self._begun = dict.fromkeys(range(count), -float("inf"))
        self._due = dict.fromkeys(range(count), -float("inf"))
        self._deaths = dict.fromkeys(range(count), 0)
        self._lived: set[int] = set()
        self.ending = False

    @property
    def alive(self) -> int:
        """How many answer requests."""
        return sum(child.poll() is None and child.ready() for child in self._children.values())

    @property
    def still_born(self) -> bool:
        """Whether one has ended that never answered, before any of its number did."""
        return any(deaths and place not in self._lived for place, deaths in self._deaths.items())

    @property
    def ended(self) -> bool:
        """Whether none is left."""
        return not self._children

    def step(self) -> None:
        """Look after each place: bury its worker, or start another when it is time."""
        now = self._clock()
        for place in self._due:
            child = self._children.get(place)
            if child is not None and child.poll() is None:
                if child.ready():
                    self._lived.add(place)
                continue
            if child is not None:
                self._bury(place, child, now)
            if not self.ending and self._due[place] <= now:
                self._begun[place] = now
                self._children[place] = self._spawn(place)

    def signal(self, number: int) -> None:
        """Send a signal to all."""
        for child in self._children.values():
            child.signal(number)

    def _bury(self, place: int, child: Child, now: float) -> None:
        """Note a death, and when the next worker may start: after 0, 0.25, 0.5, 1... seconds."""
        del self._children[place]
        self._deaths[place] = 1 if now - self._begun[place] >= LASTING else self._deaths[place] + 1
        pause = (
            0.0
            if self._deaths[place] == 1
            else min(LONGEST_PAUSE, 0.125 * 2.0 ** (self._deaths[place] - 1))
        )
        self._due[place] = now + pause
        if not self.ending:
            facts = {
                "worker": place,
                "worker_pid": child.pid,
                "exit": child.poll(),
                "again_in": pause,
            }
            LOGGER.error("a worker ended; another is started", extra=facts)
        self._buried(child)


class WorkerProcess:
    """A worker: `python -m xcray.service.processes.worker`, told on its standard input what to do; it writes a byte once it answers."""

    def __init__(
        self, settings: Settings, number: int, listener: socket.socket, place: Place, leads: bool
    ) -> None:
        """number: the first one may keep the house, when `leads`. place: of the service in its home."""
        told: dict[str, Any] = {
            "settings": settings.model_dump(mode="json"),
            "listener": listener.fileno(),
        }
        told |= {"leads": leads and number == 0, "facts": str(place.facts)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "xcray.service.processes.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, METRICS: str(place.metrics)},
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C is for the keeper alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._ready = False
        os.set_blocking(self._process.stdout.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it ended at once: `poll` tells
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()  # and stays open: its end is the keeper's end

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    def ready(self) -> bool:
        """Whether it has said that it answers."""
        if not self._ready and self._process.stdout is not None:
            self._ready = bool(self._process.stdout.read(1))
        return self._ready

    def signal(self, number: int) -> None:
        """Send a signal to it, if it lives."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Close its pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def keep(
    settings: Settings,
    place: Place,
    told: Callable[[int], None],
    address: socket.socket,
    start: Callable[[], None],
    *,
    leads: bool = True,
) -> None:
    """Keep workers until SIGTERM or SIGINT, then drain them. The caller has the place.

    address: as `listening.reserve` gave it. told: hears how many workers answer, whenever that changes; start: called once all
    do. leads: whether the first worker may keep the house. Raises Unavailable when the first ones can't be started.
    """
    metrics = place.metrics
    shutil.rmtree(metrics, ignore_errors=True)
    metrics.mkdir(mode=0o700)

    def spawn(number: int) -> Child:
        with contextlib.closing(listen(settings, beside=address)) as listener:
            return WorkerProcess(settings, number, listener, place, leads)

    def bury(child: Child) -> None:
        child.close()
        multiprocess.mark_process_dead(child.pid, str(metrics))  # type: ignore[no-untyped-call]

    keeper = Keeper(settings.workers, spawn, time.monotonic, bury)
    with _signals() as heard:
        try:
            _begin(keeper, settings.workers, heard)
            if not heard:
                start()
            known = -1
            while not heard:
                keeper.step()
                if known != (known := keeper.alive):
                    told(known)
                heard.wait(STEP)
        finally:
            _end(keeper, settings, heard)
            if place.name != "serve":  # a name that nobody will use again
                shutil.rmtree(metrics, ignore_errors=True)


class _Heard:
    """Signals that have come."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self.count > 0

    def hear(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.count += 1
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the next signal."""
        if self._event.wait(seconds):
            self._event.clear()


@contextlib.contextmanager
def _signals() -> Iterator[_Heard]:
    """Hear SIGTERM and SIGINT meanwhile."""
    heard = _Heard()
    before = {
        number: signal.signal(number, heard.hear) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin(keeper: Keeper, count: int, heard: _Heard) -> None:
    """Start all; return once they answer."""
    deadline = time.monotonic() + START_SECONDS
    while not heard:
        keeper.step()
        if keeper.alive == count:
            return
        if keeper.still_born or time.monotonic() > deadline:
            raise Unavailable(
                "a worker process did not start: the log above says why; try with --workers 1",
                code="WORKERS",
            )
        heard.wait(STEP)


def _end(keeper: Keeper, settings: Settings, heard: _Heard) -> None:
    """Have all drain and end; those that do not in time are killed."""
    keeper.ending, passed_on = True, 1
    keeper.signal(signal.SIGTERM)
    deadline = time.monotonic() + settings.drain_seconds + settings.grace_seconds + 5.0
    while True:
        keeper.step()
        if keeper.ended:
            return
        if heard.count > passed_on:  # somebody is in a hurry
            passed_on = heard.count
            keeper.signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            keeper.signal(signal.SIGKILL)
        heard.wait(STEP)


def check_workers(told: Callable[[], Mapping[str, Any]]) -> None:
    """Raise Unavailable when fewer workers answer than there should be, by what the keeper has written down."""
    facts = told()
    if facts.get("alive", 0) < facts.get("workers", 0):
        raise Unavailable(f"{facts['alive']} of {facts['workers']} workers answer", code="WORKERS")
