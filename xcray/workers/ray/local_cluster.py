"""xcray's own local Ray, shared by processes: started on demand, reused, and stopped when unused.

    cluster = ManagedLocalRay(home.ray)
    info = cluster.ensure()        # reuses the running Ray, else starts one
    with connect(info.address, token_path=info.token_path):
        ...

A daemon process holds it (`python -m xcray.workers.ray.local_cluster --dir DIR`) in a session of
its own, so it outlives the process that started it. It ends on SIGTERM, and when no process touched
the file `wanted` for ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from xcray.errors import NotFound, Unavailable
from xcray.storage.atomic import read_json
from xcray.system.cores import available_cores
from xcray.system.file_lock import try_lock, wait_for_lock
from xcray.workers.ray.local_daemon import LocalRayDaemon
from xcray.workers.ray.session import (
    START_SECONDS,
    check_dashboard,
    connect,
    is_reachable,
    local_ray,
)
from xcray.workers.ray.token import auth_header

__all__ = ["Cluster", "ClusterInfo", "ExternalRay", "ManagedLocalRay", "connect", "local_ray"]

GRACE_SECONDS: Final = 600.0
FAILURE_SECONDS: Final = 600.0
# The daemon can take 26 by its own clock (runners, Ray, remaining processes), and more on a
# slow machine.
STOP_TIMEOUT_SECONDS: Final = 90.0
DAEMON_LOCK_SECONDS: Final = 5.0  # for which a new daemon waits for tests of its lock
OBJECT_STORE_BYTES: Final = 512 << 20


class ClusterInfo(NamedTuple):
    """Location of a Ray: `address` for drivers, `dashboard` for people and for jobs.

    The token is in a file, never in this object.
    """

    address: str
    dashboard: str
    token_path: Path | None  # None: external cluster, the environment has the credentials
    pid: int  # of the daemon; 0 for an external cluster

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the dashboard's API, for processes that do not join Ray. Never print them."""
        return auth_header(self.token_path) if self.token_path else {}


class Cluster(Protocol):
    """A Ray to run jobs on. `is_external`: xcray does not run it, and cannot start it."""

    is_external: bool

    def ensure(self) -> ClusterInfo:
        """Return its location once it answers. Raises Unavailable."""

    def info(self) -> ClusterInfo | None:
        """Return its location, or None while it does not run."""

    def touch(self) -> None:
        """Report that it is needed."""

    def check(self) -> None:
        """Raise Unavailable RAY_UNREACHABLE, RAY_REFUSED or RAY_ENDED if it is broken."""

    def close(self) -> None:
        """Stop it, unless it is external; later calls of `ensure` are refused."""


class ExternalRay:
    """A Ray that xcray does not run: joined, never started nor stopped.

    `address` is for drivers, `dashboard` for jobs.
    """

    is_external = True

    def __init__(self, address: str, dashboard: str, token_path: Path | None = None) -> None:
        self._info = ClusterInfo(address, dashboard, token_path, 0)

    def ensure(self) -> ClusterInfo:
        """Return its location.

        Raises Unavailable if its head or its dashboard does not answer, or refuses access.
        """
        if not is_reachable(self._info.address):
            raise Unavailable(
                f"no Ray answers at {self._info.address}: is the cluster up?",
                code="RAY_UNREACHABLE",
            )
        try:
            headers = self._info.headers
        except OSError as error:
            raise Unavailable(
                f"the file with Ray's token cannot be read ({error.strerror}): "
                "is the Secret mounted?",
                code="RAY_REFUSED",
            ) from error
        check_dashboard(self._info.dashboard, headers)
        return self._info

    def info(self) -> ClusterInfo | None:
        """Return its location."""
        return self._info

    def touch(self) -> None:
        """Do nothing: xcray does not manage it."""

    def check(self) -> None:
        """Raise Unavailable as `ensure` does."""
        self.ensure()

    def close(self) -> None:
        """Do nothing: xcray does not manage it."""


class ManagedLocalRay:
    """The local Ray of a directory. `grace`: seconds that it runs on without being needed."""

    is_external = False

    def __init__(
        self,
        directory: Path | str,
        *,
        num_cpus: int | None = None,
        object_store_memory: int = OBJECT_STORE_BYTES,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.directory = Path(directory).absolute()
        self._options = {
            "cpus": num_cpus or available_cores(),
            "object-store": object_store_memory,
            "grace": grace,
        }
        self._closed = threading.Event()

    def ensure(self, seconds: float = START_SECONDS) -> ClusterInfo:
        """Return the running Ray of this directory, starting it if needed.

        A daemon that is ending, for example after the death of its head, is waited for: no other
        daemon can start while it lives. Raises Unavailable if Ray is not ready in time, or if this
        object is closed meanwhile.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + seconds
        with _start_lock(self.directory, seconds):
            info = self._wait_for_start(deadline)
            self._check_open()
            if info is None and not self._is_daemon_alive():
                self._remove_stale_files()
                self._spawn_daemon(seconds)
                info = self._wait_for_start(deadline)
                if info is None and not self._is_daemon_alive():
                    raise Unavailable(self._start_error(), code="RAY_START")
        if info is None:
            self.stop()
            self._check_open()
            raise Unavailable(
                f"Ray was not ready within {seconds:.0f} s; is the machine busy? Try again",
                code="RAY_START",
            )
        self.touch()
        return info

    def _check_open(self) -> None:
        """Raise Unavailable once `close` was called."""
        if self._closed.is_set():
            raise Unavailable("the local Ray is being stopped", code="RAY_START")

    def _wait_for_start(self, deadline: float) -> ClusterInfo | None:
        """Return the location of the daemon's Ray; None without a daemon or at the deadline."""
        while (
            (info := self.info()) is None
            and self._is_daemon_alive()
            and time.monotonic() < deadline
            and not self._closed.is_set()
        ):
            time.sleep(0.1)
        return info

    def info(self) -> ClusterInfo | None:
        """Return the location of the Ray, or None while it does not run."""
        if not self._is_daemon_alive():
            return None
        try:
            content = read_json(self.directory / "ray.json")
        except NotFound:
            return None
        return ClusterInfo(
            content["address"], content["dashboard"], Path(content["token_path"]), content["pid"]
        )

    def touch(self) -> None:
        """Report that this Ray is needed; repeat within the grace time."""
        (self.directory / "wanted").touch()

    def check(self) -> None:
        """Raise Unavailable RAY_ENDED if the last Ray ended by itself, until the next one starts.

        A job that needs Ray starts it. Without one, this is reported for FAILURE_SECONDS.
        """
        path = self.directory / "failed.json"
        with contextlib.suppress(NotFound, FileNotFoundError):
            if time.time() - path.stat().st_mtime < FAILURE_SECONDS:
                raise Unavailable(str(read_json(path)["message"]), code="RAY_ENDED")

    def close(self) -> None:
        """Stop the Ray of this directory, also one that is just being started by `ensure`.

        Later calls of `ensure` are refused. Raises Unavailable if it does not end.
        """
        self._closed.set()
        if self.directory.is_dir():
            with _start_lock(self.directory, STOP_TIMEOUT_SECONDS):
                self.stop()

    def stop(self) -> None:
        """Stop the Ray of this directory, if any, and wait for its end.

        Raises Unavailable if it does not end.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while self._is_daemon_alive():
            pid = int((self.directory / "keeper.lock").read_text() or 0)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the daemon of Ray (process {pid}) does not end: end it by hand",
                    code="RAY_STOP",
                )
            time.sleep(0.1)

    def _is_daemon_alive(self) -> bool:
        """Return whether a daemon lives: it holds a lock that the kernel drops at its death."""
        with contextlib.suppress(FileNotFoundError):
            with open(self.directory / "keeper.lock") as lock:
                return not try_lock(lock, shared=True)
        return False

    def _spawn_daemon(self, seconds: float) -> None:
        """Start a daemon; the child detaches itself and leaves no zombie."""
        options = [
            f"--{name}={value}" for name, value in {**self._options, "start": seconds}.items()
        ]
        with open(self.directory / "keeper.log", "ab") as log:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "xcray.workers.ray.local_cluster",
                    f"--dir={self.directory}",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
            )

    def _remove_stale_files(self) -> None:
        """Remove the files of a killed daemon; ray.json contains its temporary folder."""
        with contextlib.suppress(NotFound):
            root = Path(read_json(self.directory / "ray.json")["root"])
            if root.name.startswith("xr-") and root.is_dir() and root.stat().st_uid == os.getuid():
                shutil.rmtree(root, ignore_errors=True)
        for name in ("ray.json", "failed.json", "token"):
            (self.directory / name).unlink(missing_ok=True)

    def _start_error(self) -> str:
        """Return why the daemon ended."""
        try:
            return str(read_json(self.directory / "failed.json")["message"])
        except NotFound:
            name = self.directory.name
            return f"the daemon of Ray ended at its start: see {name}/keeper.log and ray.log"


@contextlib.contextmanager
def _start_lock(directory: Path, seconds: float) -> Iterator[None]:
    """Hold the lock for starts of Ray. Raises Unavailable if it is not free within `seconds`."""
    with open(directory / "start.lock", "a") as lock:
        if not wait_for_lock(lock, seconds):
            raise Unavailable(
                "another process has been starting Ray for too long: try again", code="RAY_START"
            )
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run the daemon of a directory's Ray; returns at once in the process that was started."""
    parser = argparse.ArgumentParser(
        prog="xcray.workers.ray.local_cluster", description="run a local Ray"
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--cpus", type=int, default=available_cores())
    parser.add_argument("--object-store", type=int, default=OBJECT_STORE_BYTES)
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS)
    parser.add_argument("--start", type=float, default=START_SECONDS)
    options = parser.parse_args(arguments)
    lock = os.open(options.dir / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # The lock is shared with forks and held until all end. Tests of the lock hold it briefly.
    if not wait_for_lock(lock, DAEMON_LOCK_SECONDS, poll_seconds=0.02):
        return 0  # another daemon lives
    # Remove the process id of an earlier daemon, which `stop` would signal.
    os.ftruncate(lock, 0)
    if os.fork():
        os._exit(0)
    os.write(lock, str(os.getpid()).encode())
    return LocalRayDaemon(options.dir, options.cpus, options.object_store, options.grace).run(
        options.start
    )


if __name__ == "__main__":
    sys.exit(main())
