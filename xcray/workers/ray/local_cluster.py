"""xcray's own local Ray, shared by processes: started when needed, found when there, ended by whoever may.

    cluster = LocalCluster(home.ray)
    info = cluster.ensure()        # reuses the living one, else starts one
    with connect(info.address, token_path=info.token_path):
        ...

A keeper process holds it (`python -m xcray.workers.ray.local_cluster --dir DIR`), in a session of its own, so it outlives the process
that asked for it. It ends on SIGTERM, and when nobody touched `wanted` for ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from xcray.errors import NotFound, Unavailable
from xcray.storage.atomic import read_json
from xcray.system.cores import cores
from xcray.workers.ray.local_daemon import Keeper
from xcray.workers.ray.session import (
    TOKEN_HEADER,
    auth_environment,
    check_dashboard,
    connect,
    local_ray,
    reachable,
)

__all__ = ["Cluster", "ClusterInfo", "JoinedCluster", "LocalCluster", "connect", "local_ray"]

START_SECONDS: Final = 120.0
GRACE_SECONDS: Final = 600.0
END_SECONDS: Final = 90.0  # a keeper may take 26 by its own clock: runners, Ray, what is left of both; and more where it is slow
OBJECT_STORE: Final = 512 << 20  # bytes


class ClusterInfo(NamedTuple):
    """Where a Ray is. `address` for drivers, `dashboard` for people and for jobs; the token is in a file, never in here."""

    address: str
    dashboard: str
    token_path: Path | None  # None: the cluster is not ours, and the environment says how to get in
    pid: int  # of the keeper; 0 when the cluster is not ours

    @property
    def environment(self) -> dict[str, str]:
        """Settings with which a child process may join."""
        return {
            **(auth_environment(self.token_path) if self.token_path else {}),
            "RAY_ADDRESS": self.address,
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the dashboard's API, for a process that must not become part of Ray. Never print them."""
        return (
            {TOKEN_HEADER: f"Bearer {self.token_path.read_text().strip()}"}
            if self.token_path
            else {}
        )


class Cluster(Protocol):
    """A Ray to run jobs on. `joined`: somebody else runs it; what is not there can't be started by us."""

    joined: bool

    def ensure(self) -> ClusterInfo:
        """Where it is, once it answers. Raises Unavailable."""

    def info(self) -> ClusterInfo | None:
        """Where it is, or None while there is none."""

    def touch(self) -> None:
        """Say that somebody needs it."""

    def stop(self) -> None:
        """End it, if it is ours."""


class JoinedCluster:
    """A Ray that somebody else runs: joined, never started nor ended. `address` for drivers, `dashboard` for jobs."""

    joined = True

    def __init__(self, address: str, dashboard: str, token_path: Path | None = None) -> None:
        self._info = ClusterInfo(address, dashboard, token_path, 0)

    def ensure(self) -> ClusterInfo:
        """Where it is. Raises Unavailable when its head, or its dashboard, does not answer or refuses us."""
        if not reachable(self._info.address):
            raise Unavailable(
                f"no Ray answers at {self._info.address}: is the cluster up?",
                code="RAY_UNREACHABLE",
            )
        try:
            headers = self._info.headers
        except OSError as error:
            raise Unavailable(
                f"the file with Ray's token can't be read ({error.strerror}): is the Secret mounted?",
                code="RAY_REFUSED",
            ) from error
        check_dashboard(self._info.dashboard, headers)
        return self._info

    def info(self) -> ClusterInfo | None:
        """Where it is."""
        return self._info

    def touch(self) -> None:
        """Nothing: it is not ours to keep."""

    def stop(self) -> None:
        """Nothing: it is not ours to end."""


class LocalCluster:
    """The local Ray that belongs to a directory. `grace`: seconds it lives on with nobody wanting it."""

    joined = False

    def __init__(
        self,
        directory: Path | str,
        *,
        num_cpus: int | None = None,
        object_store_memory: int = OBJECT_STORE,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self.directory = Path(directory).absolute()
        self._options = {
            "cpus": num_cpus or cores(),
            "object-store": object_store_memory,
            "grace": grace,
        }

    def ensure(self, seconds: float = START_SECONDS) -> ClusterInfo:
        """The living Ray of this directory, started when there is none. Raises Unavailable when it is not ready in time.

        A keeper that is ending, as after the death of its head, is waited for: while it lives no other may begin.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + seconds
        with _locked(self.directory / "start.lock", deadline):
            info = self._settled(deadline)
            if info is None and not self._held():
                self._clear()
                self._spawn(seconds)
                info = self._settled(deadline)
                if info is None and not self._held():
                    raise Unavailable(self._reason(), code="RAY_START")
        if info is None:
            self.stop()
            raise Unavailable(
                f"Ray was not ready within {seconds:.0f} s; is the machine busy? Try again",
                code="RAY_START",
            )
        self.touch()
        return info

    def _settled(self, deadline: float) -> ClusterInfo | None:
        """Where the Ray of the keeper that lives now is; None when there is no keeper, or no longer, or at the deadline."""
        while (info := self.info()) is None and self._held() and time.monotonic() < deadline:
            time.sleep(0.1)
        return info

    def info(self) -> ClusterInfo | None:
        """Where the Ray is, or None while there is none."""
        if not self._held():
            return None
        try:
            found = read_json(self.directory / "ray.json")
        except NotFound:
            return None
        return ClusterInfo(
            found["address"], found["dashboard"], Path(found["token_path"]), found["pid"]
        )

    def touch(self) -> None:
        """Say that somebody needs this Ray; to be repeated within the grace."""
        (self.directory / "wanted").touch()

    def stop(self) -> None:
        """End the Ray of this directory and wait for it; nothing happens when there is none. Raises Unavailable if it won't end."""
        deadline = time.monotonic() + END_SECONDS
        while self._held():
            pid = int((self.directory / "keeper.lock").read_text() or 0)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the keeper of Ray (process {pid}) does not end: end it by hand",
                    code="RAY_STOP",
                )
            time.sleep(0.1)

    def _held(self) -> bool:
        """Whether a keeper lives: it holds the lock, and the kernel drops locks of the dead."""
        with contextlib.suppress(FileNotFoundError):
            with open(self.directory / "keeper.lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        return False

    def _spawn(self, seconds: float) -> None:
        """Start a keeper; the child detaches itself and is nobody's zombie."""
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

    def _clear(self) -> None:
        """Remove what a killed keeper left: its temporary folder is named in ray.json."""
        with contextlib.suppress(NotFound):
            root = Path(read_json(self.directory / "ray.json")["root"])
            if root.name.startswith("xr-") and root.is_dir() and root.stat().st_uid == os.getuid():
                shutil.rmtree(root, ignore_errors=True)
        for name in ("ray.json", "failed.json", "token"):
            (self.directory / name).unlink(missing_ok=True)

    def _reason(self) -> str:
        """Why the keeper ended."""
        try:
            return str(read_json(self.directory / "failed.json")["message"])
        except NotFound:
            return f"the keeper of Ray ended at its start: see {self.directory.name}/keeper.log and ray.log"


@contextlib.contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Hold a lock file; Unavailable when another process holds it until the deadline."""
    with open(path, "a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "another process has been starting Ray for too long: try again",
                        code="RAY_START",
                    ) from None
                time.sleep(0.1)
        yield


def main(arguments: list[str] | None = None) -> int:
    """Become the keeper of a directory's Ray; returns at once in the process that was started."""
    parser = argparse.ArgumentParser(
        prog="xcray.workers.ray.local_cluster", description="hold a local Ray"
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--cpus", type=int, default=cores())
    parser.add_argument("--object-store", type=int, default=OBJECT_STORE)
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS)
    parser.add_argument("--start", type=float, default=START_SECONDS)
    chosen = parser.parse_args(arguments)
    lock = os.open(chosen.dir / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _becomes_keeper(lock):
        return 0  # there is one
    os.ftruncate(
        lock, 0
    )  # what stands there is the process of another keeper, which `stop` would end
    if os.fork():
        os._exit(0)
    os.write(lock, str(os.getpid()).encode())
    return Keeper(chosen.dir, chosen.cpus, chosen.object_store, chosen.grace).run(chosen.start)


def _becomes_keeper(lock: int, seconds: float = 5.0) -> bool:
    """Take the keeper's lock, which is shared with forks and kept until all are gone. Who only looks holds it for a moment, too."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
