"""serve: the app under uvicorn, in this process or in several, with the supervisor of jobs or without. run_jobs: it alone.

Both until SIGTERM or Ctrl-C. See `places` for who may be beside whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from xcray import __version__
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import create_app
from xcray.service.app_state import Rooms, Supervising
from xcray.service.http.connection_limits import BoundedProtocol, Bounds
from xcray.service.observability.request_log import LOGGER, log_to
from xcray.service.processes.home_lock import Place, take_place
from xcray.service.processes.manager import keep
from xcray.service.processes.sockets import admit_no_more, listen, reserve
from xcray.service.processes.supervision import checks_of, supervision
from xcray.service.settings import Settings, check_address
from xcray.storage.atomic import write_json
from xcray.system.malloc import share_arenas

SETTLE = 0.1  # seconds in which connections that were made last are accepted, and most say what they want
LATE = 2.0  # seconds more for those that have said nothing yet: their clients are on a busy machine, or never will
KEEP_ALIVE = 75  # seconds an idle connection may stay


def serve(
    settings: Settings, *, runner: bool = True, ready: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` hears the URL once requests are answered.

    runner: whether jobs are run and data sets are built from here too; else by `run_jobs` in another process.
    SIGTERM: readiness says no, requests in flight finish, jobs stay recoverable, a local Ray that was started here ends.
    Raises ParameterError (public address), Conflict (another service holds this home, or the port is taken).
    """
    share_arenas()
    log_to(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with contextlib.ExitStack() as held:
        place = held.enter_context(take_place(settings, home, "serve"))
        if runner and not settings.shares_store:
            held.enter_context(take_place(settings, home, "runner"))
        store = held.enter_context(
            contextlib.closing(JobStore(settings.store_url, upgrade=settings.store_upgrade))
        )
        check_address(settings, store.has_keys)
        address = held.enter_context(
            contextlib.closing((listen if settings.workers == 1 else reserve)(settings))
        )
        supervisor, checks = (
            held.enter_context(supervision(settings, home, store))
            if runner
            else (None, checks_of(settings, home))
        )
        url = _url(settings, address)
        if settings.workers == 1:
            app = create_app(
                settings, store=store, supervisor=supervisor, checks=checks, leads=runner
            )
            uvloop.run(
                Server(app, settings, lambda: _announce(place, url, ready)).serve(sockets=[address])
            )
        else:
            _keep(settings, place, url, address, supervisor, ready)


def run_jobs(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Run jobs, build data sets, sweep what is kept no longer, until SIGTERM or SIGINT; `ready` hears where health and figures are.

    Raises Conflict (another process runs the jobs of this home, or the port is taken).
    """
    settings = settings.model_copy(
        update={"host": settings.runner_host, "port": settings.runner_port, "workers": 1}
    )
    share_arenas()
    log_to(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with contextlib.ExitStack() as held:
        place = held.enter_context(take_place(settings, home, "runner"))
        address = held.enter_context(contextlib.closing(listen(settings)))
        store = held.enter_context(
            contextlib.closing(JobStore(settings.store_url, upgrade=settings.store_upgrade))
        )
        check_address(settings, store.has_keys)
        supervisor, checks = held.enter_context(supervision(settings, home, store))
        app = create_app(
            settings, store=store, supervisor=supervisor, checks=checks, alone=False, whole=False
        )
        url = _url(settings, address)
        uvloop.run(
            Server(app, settings, lambda: _announce(place, url, ready)).serve(sockets=[address])
        )


def _keep(
    settings: Settings,
    place: Place,
    url: str,
    address: socket.socket,
    supervisor: Supervising | None,
    ready: Callable[[str], None] | None,
) -> None:
    """Serve by several processes; this one supervises the jobs, if anybody here does."""

    facts = {**_facts(url), "workers": settings.workers}

    def told(alive: int) -> None:
        write_json(place.facts, {**facts, "alive": alive})

    def start() -> None:
        if supervisor is not None:
            supervisor.start()
        told(settings.workers)
        LOGGER.info("started", extra={"workers": settings.workers})
        if ready is not None:
            ready(url)

    try:
        keep(settings, place, told, address, start, leads=supervisor is not None)
    finally:
        if supervisor is not None:
            supervisor.stop()
        LOGGER.info("ended")


class Server(uvicorn.Server):
    """uvicorn that drains: after a signal it first only says that it is not ready, and it lets our own cleaning up run."""

    def __init__(self, app: FastAPI, settings: Settings, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, bounds=Bounds.of(settings)),  # type: ignore[arg-type]  # called as the class is
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ssl_certfile=settings.tls_certfile,
                ssl_keyfile=settings.tls_keyfile,
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
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # signals are the main thread's
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody in any more, then finish with those who are: also with connections that were made and not yet accepted."""
        held = [admit_no_more(listener) for listener in sockets or []]
        if not all(held):
            LOGGER.info(
                "no filter can be set here: connections that begin at this very moment are reset"
            )
        await asyncio.sleep(SETTLE)
        ends = time.monotonic() + LATE
        while (
            any(each.is_new for each in self._connections())
            and time.monotonic() < ends
            and not self.force_exit
        ):
            await asyncio.sleep(SETTLE)
        await super().shutdown(sockets)

    def _connections(self) -> list[BoundedProtocol]:
        """Those that are open."""
        return [each for each in self.server_state.connections if isinstance(each, BoundedProtocol)]

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._told is not None and time.monotonic() - self._told >= self._drain_seconds:
            self.should_exit = True
        return await super().on_tick(counter)


def _url(settings: Settings, listener: socket.socket) -> str:
    """Where people find it."""
    host = settings.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        host, f"[{host}]" if ":" in host and not host.startswith("[") else host
    )
    return (
        f"http{'' if settings.tls_certfile is None else 's'}://{shown}:{listener.getsockname()[1]}"
    )


def _announce(place: Place, url: str, ready: Callable[[str], None] | None) -> None:
    """Say where we are, to files and to whoever asked."""
    write_json(place.facts, _facts(url))
    if ready is not None:
        ready(url)


def _facts(url: str) -> dict[str, Any]:
    """What is written down of a service that runs."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "url": url, "started": started, "version": __version__}
