"""Daemon of xcray's own local Ray: starts it, watches it, and ends it with all its descendants.

The daemon adopts orphans of its own tree (on Linux, as their subreaper), so it can also end what
Ray leaves behind. Ray itself runs as a child, `ray start --head --block`. It is not a driver, so
no xcray process dies with the head.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any, Final

from xcray.errors import Unavailable
from xcray.storage.atomic import write_json
from xcray.system.processes import descendants
from xcray.workers.ray.session import (
    free_port,
    local_ray_environment,
    make_short_root,
    takes_jobs,
)
from xcray.workers.ray.token import auth_header, write_token

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
POLL_SECONDS: Final = 0.25
# `ray start --block` lives on if these end with status 0, as a raylet without its agent does.
NODE_PROGRAMS: Final = (b"gcs_server", b"raylet")
RUNNER_MARKER: Final = b"xcray.jobs.runner.main"  # identifies runners among the descendants
# Without it, as on macOS, `ps` is used; a small Linux has no `ps`.
PROC: Final = Path("/proc/self/stat")


class LocalRayDaemon:
    """One local Ray from start to end. `directory` holds ray.json, token, ray.log and `wanted`."""

    def __init__(
        self, directory: Path, num_cpus: int, object_store_memory: int, grace: float
    ) -> None:
        self.directory = directory
        self.grace = grace
        self.num_cpus = num_cpus
        self.object_store_memory = object_store_memory
        self.stop_requested = False
        self.root = make_short_root()
        self.ray: subprocess.Popen[bytes] | None = None
        self.node_processes: list[int] = []

    def run(self, start_seconds: float) -> int:
        """Run a Ray until a signal, its own end, or the end of the grace; return an exit status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self.start(start_seconds)
            return self.watch()
        except Unavailable as error:
            return self._fail(error.message)
        finally:
            self.shut_down()

    def start(self, seconds: float) -> None:
        """Start Ray and publish ray.json when it answers. Raises Unavailable."""
        token = self.directory / "token"
        token.unlink(missing_ok=True)  # a new token each time: old copies become invalid
        write_token(token)
        dashboard = free_port()
        # Ray's dashboard forks its parts from a server whose folder stays where TMPDIR was
        environment = {
            **os.environ,
            **local_ray_environment(token),
            "TMPDIR": str(self.root),
        }
        for name in ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_TOKEN"):
            environment.pop(name, None)
        deadline = time.monotonic() + seconds
        with open(self.directory / "ray.log", "wb") as log:
            self.ray = subprocess.Popen(
                self._command(dashboard),
                env=environment,
                cwd=self.directory,  # Ray's programs import from it: a user's six.py is not theirs
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # safe: this process has one thread
            )
        address = self._wait_until_ready(dashboard, token, deadline)
        info = {
            "pid": os.getpid(),
            "address": address,
            "dashboard": f"http://127.0.0.1:{dashboard}",
            "token_path": str(token),
            "root": str(self.root),
        }
        self.node_processes = [pid for pid in descendants(os.getpid()) if _runs_node(pid)]
        (self.directory / "wanted").touch()
        write_json(self.directory / "ray.json", info)

    def watch(self) -> int:
        """Return 0 on a signal or after `grace` seconds without use, 1 if Ray ended by itself.

        The reason is then in failed.json.
        """
        mark, since = None, time.monotonic()
        while not self.stop_requested:
            time.sleep(POLL_SECONDS)
            if self.ray is None or self.ray.poll() is not None:
                return self._fail("Ray ended by itself: see ray.log next to ray.json")
            if not all(map(_runs_node, self.node_processes)):
                return self._fail("a process of Ray's node ended by itself, raylet or gcs_server")
            _reap(self.ray.pid)
            latest = _mtime_ns(self.directory / "wanted")
            # Compare marks, but measure with the monotonic clock: the wall clock can jump.
            if latest != mark:
                mark, since = latest, time.monotonic()
            if time.monotonic() - since > self.grace:
                return 0
        return 0

    def shut_down(self) -> None:
        """End Ray and all descendants, and remove the temporary folder.

        Runners get a signal first, so that they can return their jobs.
        """
        for name in ("ray.json", "token"):
            (self.directory / name).unlink(missing_ok=True)
        runners = [pid for pid in descendants(os.getpid()) if RUNNER_MARKER in _command_line(pid)]
        _signal_and_wait(runners, signal.SIGTERM, 6.0)
        if self.ray is not None and self.ray.poll() is None:
            _signal_and_wait([self.ray.pid], signal.SIGTERM, 10.0)
        deadline = time.monotonic() + 10.0
        while (remaining := descendants(os.getpid())) and time.monotonic() < deadline:
            _signal_and_wait(remaining, signal.SIGKILL, 1.0)
        shutil.rmtree(self.root, ignore_errors=True)

    def _fail(self, message: str) -> int:
        """Record why Ray is gone, for `ManagedLocalRay`; return the exit status."""
        write_json(self.directory / "failed.json", {"message": message})
        return 1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal: end at the next poll."""
        self.stop_requested = True

    def _command(self, dashboard: int) -> list[str]:
        """Return the command that starts Ray, with ports of its own."""
        options = {
            "port": 0,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": dashboard,
            # cannot be disabled; the token protects it
            "ray-client-server-port": free_port(),
            "min-worker-port": 0,
            "max-worker-port": 0,
            "include-dashboard": "true",
            "num-cpus": self.num_cpus,
            "object-store-memory": self.object_store_memory,
            "temp-dir": self.root / "r",
        }
        start = [
            sys.executable,
            "-m",
            "xcray.workers.ray.session",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
        ]
        return start + [f"--{name}={value}" for name, value in options.items()]

    def _wait_until_ready(self, dashboard: int, token: Path, deadline: float) -> str:
        """Return the address of Ray once its dashboard and the agent of its jobs answer.

        Raises Unavailable.
        """
        assert self.ray is not None
        known = self.root / "r" / "ray_current_cluster"
        while time.monotonic() < deadline and not self.stop_requested:
            if self.ray.poll() is not None:
                raise Unavailable(
                    f"Ray ended at its start with status {self.ray.returncode}: "
                    "see ray.log next to ray.json"
                )
            if (
                known.exists()
                and (address := known.read_text().strip())
                and _dashboard_answers(dashboard, token)
                and takes_jobs(known.parent)
            ):
                return address
            time.sleep(0.1)
        raise Unavailable(
            "Ray was not ready in time: see ray.log next to ray.json; is the machine busy?"
        )


def _dashboard_answers(dashboard: int, token: Path) -> bool:
    """Return whether the dashboard lists its jobs for this token."""
    headers = auth_header(token)
    request = urllib.request.Request(f"http://127.0.0.1:{dashboard}/api/jobs/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=2.0) as reply:
            return isinstance(json.load(reply), list)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _signal_and_wait(pids: list[int], number: int, seconds: float) -> None:
    """Send a signal to processes of this tree and wait for their end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while pids and time.monotonic() < deadline and set(pids) & set(descendants(os.getpid())):
        _reap()
        time.sleep(0.05)
    _reap()


def _reap(except_pid: int | None = None) -> None:
    """Collect ended children, adopted ones too, except `except_pid`, which has its own Popen."""
    with contextlib.suppress(ChildProcessError):
        while True:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if child is None or child.si_pid == except_pid:
                return
            os.waitpid(child.si_pid, os.WNOHANG)


def _command_line(pid: int) -> bytes:
    """Return the command line of a process, empty if it is gone or not accessible."""
    if not PROC.exists():
        return subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, check=False
        ).stdout
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _runs_node(pid: int) -> bool:
    """Whether a process runs gcs_server or raylet; False for an ended one, also as a zombie."""
    program = re.split(rb"[\0 ]", _command_line(pid))[0]
    return program.rpartition(b"/")[2] in NODE_PROGRAMS


def _mtime_ns(path: Path) -> int | None:
    """Return when a file was last touched, in nanoseconds of its file system's clock."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return None


def _die_with_parent() -> None:
    """Make the child end with the daemon, so that even kill -9 of the daemon leaves no Ray."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Call Linux's prctl; do nothing elsewhere."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(option, value, 0, 0, 0)
