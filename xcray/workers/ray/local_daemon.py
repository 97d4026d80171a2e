"""The process that holds xcray's own local Ray: starts it, watches it, ends it and all that came from it.

It adopts orphans of its own tree (Linux: as their subreaper), so that what Ray leaves behind is still its to end. Ray itself is
`ray start --head --block` as a child: no driver, nothing of xcray dies with the head.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
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
    SLOW,
    TOKEN_HEADER,
    free_port,
    own_environment,
    short_root,
    write_token,
)

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
TICK: Final = 0.25  # seconds
RUNNER: Final = b"xcray.jobs.runner.main"  # how a runner is known among our descendants
PROC: Final = Path(
    "/proc/self/stat"
)  # where it lacks, as on macOS, `ps` tells; a small Linux has no `ps`


class Keeper:
    """One local Ray, from `start` to `end`. `directory` holds ray.json, token, ray.log and `wanted`."""

    def __init__(
        self, directory: Path, num_cpus: int, object_store_memory: int, grace: float
    ) -> None:
        self.directory = directory
        self.grace = grace
        self.num_cpus = num_cpus
        self.object_store_memory = object_store_memory
        self.told = False
        self.root = short_root()
        self.ray: subprocess.Popen[bytes] | None = None

    def run(self, start_seconds: float) -> int:
        """Hold a Ray until told to end, until Ray ends, or until nobody wants it. Returns the exit status."""
        signal.signal(signal.SIGTERM, self._tell)
        signal.signal(signal.SIGINT, self._tell)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self.start(start_seconds)
            return self.watch()
        except Unavailable as error:
            write_json(self.directory / "failed.json", {"message": error.message})
            return 1
        finally:
            self.end()

    def start(self, seconds: float) -> None:
        """Start Ray and publish ray.json when it answers. Raises Unavailable."""
        token = self.directory / "token"
        token.unlink(missing_ok=True)  # a new one each time: an old copy opens nothing
        write_token(token)
        dashboard = free_port()
        environment = {**os.environ, **own_environment(token)}
        for name in ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_TOKEN"):
            environment.pop(name, None)
        deadline, address = time.monotonic() + seconds, ""
        while not address:
            with open(self.directory / "ray.log", "wb") as log:
                self.ray = subprocess.Popen(
                    self._command(dashboard),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_end_with_parent,  # safe: this process has one thread
                )
            address = self._wait(dashboard, token, deadline)
        info = {
            "pid": os.getpid(),
            "address": address,
            "dashboard": f"http://127.0.0.1:{dashboard}",
            "token_path": str(token),
            "root": str(self.root),
        }
        (self.directory / "wanted").touch()
        write_json(self.directory / "ray.json", info)

    def watch(self) -> int:
        """Return 0 when told to end or when nobody wanted Ray for `grace` seconds, 1 when Ray ended by itself."""
        mark, since = None, time.monotonic()
        while not self.told:
            time.sleep(TICK)
            if self.ray is None or self.ray.poll() is not None:
                return 1
            _reap(self.ray.pid)
            latest = _changed(self.directory / "wanted")
            if latest != mark:  # compare marks, measure with our own clock: the wall clock may jump
                mark, since = latest, time.monotonic()
            if time.monotonic() - since > self.grace:
                return 0
        return 0

    def end(self) -> None:
        """End Ray and every descendant, remove the temporary folder. Runners are told first: they give their jobs back."""
        for name in ("ray.json", "token"):
            (self.directory / name).unlink(missing_ok=True)
        runners = [pid for pid in descendants(os.getpid()) if RUNNER in _command_line(pid)]
        _tell_and_wait(runners, signal.SIGTERM, 6.0)
        if self.ray is not None and self.ray.poll() is None:
            _tell_and_wait([self.ray.pid], signal.SIGTERM, 10.0)
        deadline = time.monotonic() + 10.0
        while (remaining := descendants(os.getpid())) and time.monotonic() < deadline:
            _tell_and_wait(remaining, signal.SIGKILL, 1.0)
        shutil.rmtree(self.root, ignore_errors=True)

    def _tell(self, _number: int, _frame: FrameType | None) -> None:
        """A signal: end at the next tick."""
        self.told = True

    def _command(self, dashboard: int) -> list[str]:
        """The command that starts Ray, with ports of its own."""
        options = {
            "port": 0,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": free_port(),
            "ray-client-server-port": free_port(),  # it can't be switched off; the token guards it
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
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
        ]
        return start + [f"--{name}={value}" for name, value in options.items()]

    def _wait(self, dashboard: int, token: Path, deadline: float) -> str:
        """The address of Ray, once it and its dashboard answer; empty when it gave up as one that was too slow, and may be begun
        again."""
        assert self.ray is not None
        known = self.root / "r" / "ray_current_cluster"
        while time.monotonic() < deadline and not self.told:
            if self.ray.poll() is not None:
                if SLOW.encode() in (self.directory / "ray.log").read_bytes():
                    _tell_and_wait(descendants(os.getpid()), signal.SIGKILL, 10.0)
                    known.unlink(missing_ok=True)
                    return ""
                raise Unavailable(
                    f"Ray ended at its start with status {self.ray.returncode}: see ray.log beside ray.json"
                )
            if (
                known.exists()
                and (address := known.read_text().strip())
                and _answers(dashboard, token)
            ):
                return address
            time.sleep(0.1)
        raise Unavailable(
            "Ray was not ready in time: see ray.log beside ray.json; is the machine busy?"
        )


def _answers(dashboard: int, token: Path) -> bool:
    """Whether the dashboard lists its jobs for the bearer of the token."""
    headers = {TOKEN_HEADER: f"Bearer {token.read_text()}"}
    request = urllib.request.Request(f"http://127.0.0.1:{dashboard}/api/jobs/", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=2.0) as reply:
            return isinstance(json.load(reply), list)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _tell_and_wait(pids: list[int], number: int, seconds: float) -> None:
    """Send a signal to processes of our own tree and wait for their end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while pids and time.monotonic() < deadline and set(pids) & set(descendants(os.getpid())):
        _reap()
        time.sleep(0.05)
    _reap()


def _reap(but: int | None = None) -> None:
    """Collect ended children, adopted ones too; `but` is left for its own Popen."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def _command_line(pid: int) -> bytes:
    """The command of a process, or nothing when it is gone or not ours to see."""
    if not PROC.exists():
        return subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, check=False
        ).stdout
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _changed(path: Path) -> int | None:
    """When a file was last touched, in nanoseconds of its file system's clock."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return None


def _end_with_parent() -> None:
    """In the child: end when the keeper is killed, so that even kill -9 of it leaves no Ray."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing."""
    if sys.platform == "linux":
        libc: Any = ctypes.CDLL(None, use_errno=True)
        libc.prctl(option, value, 0, 0, 0)
