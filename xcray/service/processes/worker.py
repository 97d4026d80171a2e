"""Worker processes: `python -m xcray.service.processes.worker CHANNEL`, see `manager.run_workers`.

It is the fork server of a channel's descriptor, and every copy of it becomes a worker.

A worker reads its configuration from one line of JSON on standard input, serves on an inherited
socket, and writes a byte to standard output when it is ready. It drains at SIGTERM, or when its
standard input ends because the manager has ended.
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
from typing import Any, Final

import uvloop

from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.kernels.cache import load_compiled
from xcray.kernels.canonical import first_fault
from xcray.kernels.search.bounded_scan import rank_of, score_one
from xcray.kernels.search.choose_scan import (
    search_narrow_rows,
    search_short_rows,
    search_wide_rows,
)
from xcray.kernels.text import vectorize_texts
from xcray.service.app import AppParts, AppRole, create_app
from xcray.service.models.loading import open_predictor_soon
from xcray.service.observability.request_log import configure_logging
from xcray.service.processes.fork_server import fork_workers
from xcray.service.processes.manager import check_workers
from xcray.service.processes.server import Server
from xcray.service.settings import Settings
from xcray.service.supervision import Checks, cluster_checks
from xcray.storage.atomic import read_json
from xcray.system.garbage_collection import collect_rarely
from xcray.system.malloc import limit_arenas

# loaded before workers are forked, with numba's code generator: about 45 MB that they share
SHARED_KERNELS: Final = (
    first_fault,
    vectorize_texts,
    search_narrow_rows,
    search_short_rows,
    search_wide_rows,
    rank_of,
    score_one,
)


def main() -> int:
    """Serve until the process is stopped."""
    for kernel in SHARED_KERNELS:
        load_compiled(kernel)
    descriptor = fork_workers(socket.socket(fileno=int(sys.argv[1])))
    if descriptor is None:  # the fork server's end
        return 0
    config = json.loads(sys.stdin.buffer.readline())
    settings = Settings(**config["settings"])
    limit_arenas()
    configure_logging(None, settings.log_level, settings.log_format)
    home = Home(settings.home)
    with (
        socket.socket(fileno=descriptor) as listener,
        contextlib.closing(_store(settings)) as store,
    ):
        checks: Checks = {
            **cluster_checks(settings, home),
            "WORKERS": partial(check_workers, partial(_read_info, Path(config["info_path"]))),
        }
        opener = partial(open_predictor_soon, verified=Path(config["verified_path"]))
        app = create_app(
            settings,
            parts=AppParts(store=store, checks=checks, opener=opener),
            role=AppRole(leader_eligible=config["leader_eligible"]),
        )
        server = Server(app, settings, _report_ready)
        threading.Thread(
            target=_stop_with_manager, args=(server,), name="xcray-manager", daemon=True
        ).start()
        collect_rarely()
        uvloop.run(server.serve(sockets=[listener]))
    return 0


def _store(settings: Settings) -> JobStore:
    """Return the store. The manager has upgraded it if necessary."""
    return JobStore(settings.store_url, upgrade=False)


def _report_ready() -> None:
    """Report to the manager that requests are served."""
    os.write(1, b"r")


def _stop_with_manager(server: Server) -> None:
    """Stop the server when the manager has ended."""
    # not of sys.stdin, whose lock the end of the interpreter would wait for
    while os.read(0, 1):
        continue
    server.handle_exit(signal.SIGTERM, None)


def _read_info(info_path: Path) -> dict[str, Any]:
    """Return the manager's info file."""
    return dict(read_json(info_path))


if __name__ == "__main__":
    sys.exit(main())
