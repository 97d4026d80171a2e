"""A private PostgreSQL from the binaries of this machine, with its own folder and local port.

No other server is searched or touched. There is one per test session, from the fixture `postgres`.
It ends with the test process, also when that is killed. Without the binaries its tests are skipped,
which the report says: no other tests can be skipped.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from xcray.workers.ray.session import free_port

USER = "xcray"
PASSWORD = "a secret of the tests"
SET_PARENT_DEATH_SIGNAL = 1
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
)
WHERE_THEY_LACK = (
    "PostgreSQL's initdb and postgres are not on this machine: nothing was tested on PostgreSQL"
)


def binaries() -> Path | None:
    """The folder with initdb and postgres, of the newest version that is there; None when there is
    none.
    """
    on_path = shutil.which("initdb")
    found = [folder for place in PLACES for folder in Path("/").glob(place[1:])]
    found.sort(
        key=lambda folder: [
            int(digits)
            for digits in "".join(c if c.isdigit() else " " for c in str(folder)).split()
        ]
    )
    folders = [*reversed(found), *([Path(on_path).resolve().parent] if on_path else [])]
    return next(
        (
            folder
            for folder in folders
            if (folder / "initdb").is_file() and (folder / "postgres").is_file()
        ),
        None,
    )


def account() -> dict[str, Any]:
    """How to run it: as root it refuses, so then as another user."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError(
        "PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody"
    )


class PostgresServer:
    """A server that tests may stop, kill and start again. `durable`: whether commits are synced to
    disk, as in earnest.
    """

    def __init__(self, folder: Path, tools: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._tools = tools
        self._durable = durable
        self._who = account()
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._make()
        self.port: int = free_port()

    @property
    def pid(self) -> int:
        """The process of the server."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """The address of a database, for `JobStore`."""
        return (
            f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/{database}"
        )

    @property
    def socket(self) -> Path:
        """Its socket of the file system, for programs in namespaces without a way to 127.0.0.1."""
        return self._folder / f".s.PGSQL.{self.port}"

    def database(self) -> str:
        """A new, empty database; its address."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def emptied(self) -> str:
        """The address of one database that is used again and again, with its tables but nothing in
        them.
        """
        if not self.run("SELECT 1 FROM pg_database WHERE datname = 'emptied'"):
            self.run("CREATE DATABASE emptied")
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT IN ('alembic_version', 'oldest_program')"
        names = ", ".join(row[0] for row in self.run(tables, "emptied"))
        if names:
            self.run(f"TRUNCATE {names} RESTART IDENTITY", "emptied")
        return self.url("emptied")

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction; its rows."""
        import psycopg

        named = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": USER,
            "password": PASSWORD,
            "dbname": database,
        }
        with psycopg.connect(**named, autocommit=True, connect_timeout=300) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
        }
        options |= {"max_connections": 200, "logging_collector": "off", "shared_buffers": "64MB"}
        if not self._durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        command = [str(self._tools / "postgres"), "-D", str(self._data)]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", preexec_fn=_die_with_parent, **self._who
            )
        self._wait()

    def stop(self) -> None:
        """End it at once, as a crash would; what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(300)
            self._process = None

    def kill(self) -> None:
        """Kill it, with all its processes."""
        assert self._process is not None, "the server does not run"
        family = self._stopped()
        for pid in reversed(
            family
        ):  # the first last: until then those that have ended are not collected
            os.kill(pid, signal.SIGKILL)
        self._process.wait(300)
        deadline = time.monotonic() + 300
        while any(
            state(pid) != "Z" for pid in family
        ):  # the next server finds their shared memory, and refuses to start beside them
            assert time.monotonic() < deadline, "a process of PostgreSQL does not end"
            time.sleep(0.01)
        self._process = None
        (self._data / "postmaster.pid").unlink(
            missing_ok=True
        )  # its number may be another process' by now

    @contextmanager
    def paused(self) -> Iterator[None]:
        """All its processes stopped (SIGSTOP): connections stay open and hear nothing."""
        family = self._stopped()
        try:
            yield
        finally:
            for pid in reversed(family):
                os.kill(pid, signal.SIGCONT)

    def _stopped(self) -> list[int]:
        """All its processes, once they stand still: first the one that makes the others."""
        os.kill(self.pid, signal.SIGSTOP)
        while state(self.pid) not in "TZ":
            time.sleep(0.001)
        family = [self.pid, *children(self.pid)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        return family

    def _make(self) -> None:
        """Its folder, with a user and a password."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)  # the folder is its owner's
        if self._who:
            os.chown(self._folder, self._who["user"], self._who["group"])
        command = [
            str(self._tools / "initdb"),
            "--no-sync",
            "--no-instructions",
            "--encoding=UTF8",
            "--locale=C",
        ]
        command += [
            "--auth=scram-sha-256",
            f"--username={USER}",
            f"--pwfile={secret}",
            f"--pgdata={self._data}",
        ]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._who)

    def _wait(self) -> None:
        """Until it answers."""
        import psycopg

        deadline = time.monotonic() + 300
        while True:
            try:
                self.run("SELECT 1")
                return
            except psycopg.OperationalError:
                log = (self._folder / "log").read_text(errors="replace")[-2000:]
                assert self._process is not None
                assert self._process.poll() is None, f"PostgreSQL ended:\n{log}"
                assert time.monotonic() < deadline, f"PostgreSQL does not answer:\n{log}"
                time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Processes that a process started and that live, by what the kernel says."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(words[1]) == pid and words[0] != "Z":
            found.append(int(path.parent.name))
    return found


def unhurried(url: str) -> str:
    """The address for those who wait for a connection however long it takes, as where fifty threads
    ask for one of a slow machine; by itself a store gives up after four seconds.
    """
    return f"{url}?connect_timeout=300"


def state(pid: int) -> str:
    """The state of a process, as the kernel calls it; Z, a zombie's, when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def private_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A running server in a folder of its own, which goes with it. Raises FileNotFoundError when
    the binaries lack.
    """
    tools = binaries()
    if tools is None:
        raise FileNotFoundError(WHERE_THEY_LACK)
    folder = Path(tempfile.mkdtemp(prefix="xcray-postgres-"))
    try:
        server = PostgresServer(folder, tools, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def server_or_skip() -> Iterator[PostgresServer]:
    """What the fixture `postgres` gives."""
    if binaries() is None:
        pytest.skip(WHERE_THEY_LACK)
    with private_postgres() as server:
        yield server


def _die_with_parent() -> None:
    """Ask the kernel to end the server when the tests do, however they do."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGQUIT)
