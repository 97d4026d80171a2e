"""A worker process: `python -m xcray.service.processes.worker`, started by `workers.keep`, told what to do by one line of JSON.

It answers on the socket it was given, writes a byte to standard output once it does, and drains at SIGTERM or when its standard
input ends, which is when the keeper has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import create_app
from xcray.service.observability.request_log import log_to
from xcray.service.processes.manager import check_workers
from xcray.service.processes.server import Server
from xcray.service.processes.supervision import Checks, checks_of
from xcray.service.settings import Settings
from xcray.storage.atomic import read_json
from xcray.system.malloc import share_arenas


def main() -> int:
    """Serve until the end."""
    told = json.loads(sys.stdin.buffer.readline())
    settings = Settings(**told["settings"])
    share_arenas()
    log_to(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with (
        socket.socket(fileno=told["listener"]) as listener,
        contextlib.closing(_store(settings)) as store,
    ):
        checks: Checks = {
            **checks_of(settings, home),
            "WORKERS": partial(check_workers, partial(_told, Path(told["facts"]))),
        }
        app = create_app(settings, store=store, checks=checks, leads=told["leads"])
        server = Server(app, settings, _say_ready)
        threading.Thread(target=_follow, args=(server,), name="xcray-keeper", daemon=True).start()
        uvloop.run(server.serve(sockets=[listener]))
    return 0


def _store(settings: Settings) -> JobStore:
    """The keeper has upgraded it, if that was to be done."""
    return JobStore(settings.store_url, upgrade=False)


def _say_ready() -> None:
    """Tell the keeper that requests are answered."""
    os.write(1, b"r")


def _follow(server: Server) -> None:
    """End when the keeper has ended."""
    while sys.stdin.buffer.read(1):
        continue
    server.handle_exit(signal.SIGTERM, None)


def _told(facts: Path) -> dict[str, Any]:
    """What the keeper has written down."""
    return dict(read_json(facts))


if __name__ == "__main__":
    sys.exit(main())
