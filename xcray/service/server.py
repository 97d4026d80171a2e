"""serve: the app under uvicorn, in this process or in several, with the supervisor of jobs, until SIGTERM or Ctrl-C.

HOME/serve.json tells the address and the process; HOME/serve.lock admits one service a home, and falls free when it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from xcray import __version__
from xcray.errors import Conflict
from xcray.files import write_json
from xcray.jobs.home import Home
from xcray.jobs.store import JobStore
from xcray.service.app import create_app
from xcray.service.listening import listen, reserve
from xcray.service.logs import LOGGER, log_to
from xcray.service.protocol import BoundedProtocol
from xcray.service.running import supervision
from xcray.service.settings import Settings, check_address
from xcray.service.state import Rooms, Supervising
from xcray.service.workers import keep

KEEP_ALIVE = 75  # seconds an idle connection may stay


def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; `ready` hears the URL once requests are answered.

    SIGTERM: readiness says no, requests in flight finish, jobs stay recoverable, a local Ray that was started here ends.
    Raises ParameterError (public address), Conflict (another service holds this home, or the port is taken).
    """
    check_address(settings)
    log_to(None, settings.log_level)
    home = Home(settings.home)
    with _only_one(home), contextlib.closing((listen if settings.workers == 1 else reserve)(settings)) as address:
        url = _url(settings.host, address)
        with contextlib.closing(JobStore(home.store_url)) as store, supervision(settings, home, store) as (supervisor, checks):
            try:
                if settings.workers == 1:
                    app = create_app(settings, store=store, supervisor=supervisor, checks=checks)
                    uvloop.run(Server(app, settings, lambda: _announce(home, url, ready)).serve(sockets=[address]))
                else:
                    _keep(settings, home, url, address, supervisor, ready)
            finally:
                (home.path / "serve.json").unlink(missing_ok=True)


def _keep(
    settings: Settings,
    home: Home,
    url: str,
    address: socket.socket,
    supervisor: Supervising,
    ready: Callable[[str], None] | None,
) -> None:
    """Serve by several processes; this one supervises the jobs."""

    facts = {**_facts(url), "workers": settings.workers}

    def told(alive: int) -> None:
        write_json(home.path / "serve.json", {**facts, "alive": alive})

    def start() -> None:
        supervisor.start()
        told(settings.workers)
        LOGGER.info("started", extra={"workers": settings.workers})
        if ready is not None:
            ready(url)

    try:
        keep(settings, home, told, address, start)
    finally:
        supervisor.stop()
        LOGGER.info("ended")


class Server(uvicorn.Server):
    """uvicorn that drains: after a signal it first only says that it is not ready, and it lets our own cleaning up run."""

    def __init__(self, app: FastAPI, settings: Settings, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=settings.grace_seconds,
            )
        )
        self._rooms: Rooms = app.state.rooms
        self._drain_seconds = settings.drain_seconds
        self._announce = announce
        self._told: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, then say so."""
        await super().startup(sockets=sockets)
        if self.started:
            self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear SIGTERM and SIGINT while serving. uvicorn would raise them again after it, which skips everything that follows."""
        if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one does not wait for that, a third not even for requests."""
        self.force_exit = self.should_exit
        if self._told is not None:
            self.should_exit = True
        else:
            self._rooms.draining = True
            self._told = time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._told is not None and time.monotonic() - self._told >= self._drain_seconds:
            self.should_exit = True
        return await super().on_tick(counter)


@contextlib.contextmanager
def _only_one(home: Home) -> Iterator[None]:
    """Hold the lock of a home."""
    with open(home.path / "serve.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            there = f"another xcray serve holds the home {home.path}"
            raise Conflict(f"{there}: use that one ({_told_url(home)}), or another --home", code="HOME_IN_USE") from None
        yield


def _told_url(home: Home) -> str:
    """What serve.json says, for people."""
    path: Path = home.path / "serve.json"
    return path.read_text().strip().replace("\n", " ") if path.is_file() else "it has not said where yet"


def _url(host: str, listener: socket.socket) -> str:
    """Where people find it."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host and not host.startswith("[") else host)
    return f"http://{shown}:{listener.getsockname()[1]}"


def _announce(home: Home, url: str, ready: Callable[[str], None] | None) -> None:
    """Say where we are, to files and to whoever asked."""
    write_json(home.path / "serve.json", _facts(url))
    if ready is not None:
        ready(url)


def _facts(url: str) -> dict[str, Any]:
    """What is written down of a service that runs."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "url": url, "started": started, "version": __version__}
