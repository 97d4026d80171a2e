"""Entry points: `serve` runs the app under uvicorn, `run_jobs` runs only the job supervisor.

`serve` uses one process or several, with or without job supervision. Both run until SIGTERM or
Ctrl-C. `home_lock` defines which processes can share a home.
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
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.service.app import AppParts, AppRole, create_app
from xcray.service.app_state import AppState
from xcray.service.http.connection_limits import BoundedProtocol
from xcray.service.observability.request_log import LOGGER, configure_logging
from xcray.service.processes.home_lock import RoleLock, acquire_role
from xcray.service.processes.manager import run_workers
from xcray.service.processes.sockets import listen, reserve_address, stop_accepting
from xcray.service.settings import Settings, check_address
from xcray.service.supervision import cluster_checks, supervision
from xcray.storage.atomic import write_json
from xcray.system.garbage_collection import collect_rarely
from xcray.system.malloc import limit_arenas

SETTLE_SECONDS = 0.1  # to accept the last connections; most then send their request
SILENT_CONNECTION_SECONDS = 2.0  # further time for connections without a request yet
KEEP_ALIVE_SECONDS = 75  # for idle connections


def serve(
    settings: Settings, *, with_runner: bool = True, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` is called with the URL once requests are served.

    with_runner: whether this process also runs jobs and builds data sets; otherwise `run_jobs` does
    so in another process. At SIGTERM the service becomes unready, running requests finish, jobs
    stay recoverable, and a local Ray started here ends. Raises ParameterError (public address),
    Conflict (another service uses this home, or the port is taken).
    """
    limit_arenas()
    configure_logging(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with contextlib.ExitStack() as stack:
        role_lock = stack.enter_context(acquire_role(settings, home, "serve"))
        if with_runner and not settings.has_shared_store:
            stack.enter_context(acquire_role(settings, home, "runner"))
        store = stack.enter_context(
            contextlib.closing(JobStore(settings.store_url, upgrade=settings.store_upgrade))
        )
        check_address(settings, store.keys.has_any)
        address = stack.enter_context(
            contextlib.closing((listen if settings.processes == 1 else reserve_address)(settings))
        )
        supervisor, checks = (
            stack.enter_context(supervision(settings, home, store))
            if with_runner
            else (None, cluster_checks(settings, home))
        )
        url = _public_url(settings, address)
        if settings.processes == 1:
            app = create_app(
                settings,
                parts=AppParts(store=store, supervisor=supervisor, checks=checks),
                role=AppRole(leader_eligible=with_runner),
            )
            collect_rarely()
            uvloop.run(
                Server(app, settings, lambda: _announce(role_lock, url, on_ready)).serve(
                    sockets=[address]
                )
            )
        else:
            _serve_with_workers(settings, role_lock, url, address, supervisor, on_ready)


def run_jobs(settings: Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Run jobs, build data sets and remove expired files until SIGTERM or SIGINT.

    `on_ready` is called with the URL of health and metrics. Raises Conflict (another process runs
    the jobs of this home, or the port is taken).
    """
    settings = settings.model_copy(update={"port": settings.runner_port, "processes": 1})
    limit_arenas()
    configure_logging(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with contextlib.ExitStack() as stack:
        role_lock = stack.enter_context(acquire_role(settings, home, "runner"))
        address = stack.enter_context(contextlib.closing(listen(settings)))
        store = stack.enter_context(
            contextlib.closing(JobStore(settings.store_url, upgrade=settings.store_upgrade))
        )
        check_address(settings, store.keys.has_any)
        supervisor, checks = stack.enter_context(supervision(settings, home, store))
        app = create_app(
            settings,
            parts=AppParts(store=store, supervisor=supervisor, checks=checks),
            role=AppRole(exclusive_home=False, all_routes=False),
        )
        url = _public_url(settings, address)
        uvloop.run(
            Server(app, settings, lambda: _announce(role_lock, url, on_ready)).serve(
                sockets=[address]
            )
        )


def _serve_with_workers(
    settings: Settings,
    role_lock: RoleLock,
    url: str,
    address: socket.socket,
    supervisor: Supervisor | None,
    on_ready: Callable[[str], None] | None,
) -> None:
    """Serve with several worker processes; this one supervises the jobs, if configured."""
    info = {**_service_info(url), "workers": settings.processes}

    def write_ready_count(ready_count: int) -> None:
        write_json(role_lock.info_path, {**info, "alive": ready_count})

    def start() -> None:
        if supervisor is not None:
            supervisor.start()
        write_ready_count(settings.processes)
        LOGGER.info("started", extra={"workers": settings.processes})
        if on_ready is not None:
            on_ready(url)

    try:
        run_workers(
            settings,
            role_lock,
            write_ready_count,
            address,
            start,
            leader_eligible=supervisor is not None,
        )
    finally:
        if supervisor is not None:
            supervisor.stop()
        LOGGER.info("ended")


class Server(uvicorn.Server):
    """uvicorn server that drains: after a signal it first only becomes unready.

    Cleanup code of this package runs after the server.
    """

    def __init__(self, app: FastAPI, settings: Settings, announce: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, max_connections=settings.connections),  # type: ignore[arg-type]  # called as the class is
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ssl_certfile=settings.tls_certfile,
                ssl_keyfile=settings.tls_keyfile,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=settings.grace_seconds,
            )
        )
        self._app_state: AppState = app.state.app_state
        self._app_state.prediction.batcher.requests = self.server_state.tasks
        self._drain_seconds = settings.drain_seconds
        self._announce = announce
        self._drain_started_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, then announce it."""
        await super().startup(sockets=sockets)
        if self.started:
            self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while serving.

        uvicorn would raise them again afterwards, which skips the code that follows.
        """
        # Only the main thread can handle signals.
        if threading.current_thread() is not threading.main_thread():
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
        """Drain at the first signal, end the drain at the second, drop requests at the third."""
        self.force_exit = self.should_exit
        if self._drain_started_at is not None:
            self.should_exit = True
        else:
            self._app_state.draining = True
            self._drain_started_at = time.monotonic()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, then finish the open ones.

        That includes connections that were made and are not accepted yet.
        """
        filtered = [stop_accepting(listener) for listener in sockets or []]
        if not all(filtered):
            LOGGER.info(
                "cannot set a socket filter: connections that start at this moment are reset"
            )
        await asyncio.sleep(SETTLE_SECONDS)
        deadline = time.monotonic() + SILENT_CONNECTION_SECONDS
        while (
            any(each.is_new for each in self._connections())
            and time.monotonic() < deadline
            and not self.force_exit
        ):
            await asyncio.sleep(SETTLE_SECONDS)
        await super().shutdown(sockets)

    def _connections(self) -> list[BoundedProtocol]:
        """Return the open connections."""
        return [each for each in self.server_state.connections if isinstance(each, BoundedProtocol)]

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end. Called ten times per second."""
        if (
            self._drain_started_at is not None
            and time.monotonic() - self._drain_started_at >= self._drain_seconds
        ):
            self.should_exit = True
        return await super().on_tick(counter)


def _public_url(settings: Settings, listener: socket.socket) -> str:
    """Return the URL of the service for people."""
    host = settings.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        host, f"[{host}]" if ":" in host and not host.startswith("[") else host
    )
    return (
        f"http{'' if settings.tls_certfile is None else 's'}://{shown}:{listener.getsockname()[1]}"
    )


def _announce(role_lock: RoleLock, url: str, on_ready: Callable[[str], None] | None) -> None:
    """Write the info file and call `on_ready`."""
    write_json(role_lock.info_path, _service_info(url))
    if on_ready is not None:
        on_ready(url)


def _service_info(url: str) -> dict[str, Any]:
    """Return the info of a running service."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "url": url, "started": started, "version": __version__}
