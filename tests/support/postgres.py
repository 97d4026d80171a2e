"""A private PostgreSQL from the binaries of this machine, with its own folder and local port.

No other server is used. One server per test session comes from the fixture `postgres`. It ends with
the test process, even if that is killed. If the binaries are missing, the PostgreSQL tests are
skipped and the report says so; no other tests can be skipped.
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

from tests.support.service_processes import children
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
WHERE_THEY_LACK = "this machine has no initdb and postgres: nothing was tested on PostgreSQL"


def binaries() -> Path | None:
    """Return the folder with the newest initdb and postgres, or None if there is none."""
    on_path = shutil.which("initdb")
    results = [folder for place in PLACES for folder in Path("/").glob(place[1:])]
    results.sort(
        key=lambda folder: [
            int(digits)
            for digits in "".join(c if c.isdigit() else " " for c in str(folder)).split()
        ]
    )
    folders = [*reversed(results), *([Path(on_path).resolve().parent] if on_path else [])]
    return next(
        (
            folder
            for folder in folders
            if (folder / "initdb").is_file() and (folder / "postgres").is_file()
        ),
        None,
    )


def account() -> dict[str, Any]:
    """Return the user for the server: another one than root, because PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError(
        "PostgreSQL does not run as root, and this machine has no unprivileged user for it"
    )


class PostgresServer:
    """A server that tests can stop, kill and start again.

    durable: whether commits are synced to disk, as in production.
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
        """The process id of the server."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, for `JobStore`.

        The connection timeout is 300 s instead of the store's 4 s, for a busy machine.
        """
        account = f"{USER}:{PASSWORD.replace(' ', '%20')}"
        return f"postgresql://{account}@127.0.0.1:{self.port}/{database}?connect_timeout=300"

    @property
    def socket(self) -> Path:
        """The Unix socket, for programs in namespaces that cannot reach 127.0.0.1."""
        return self._folder / f".s.PGSQL.{self.port}"

    def database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.url(name)

    def emptied(self) -> str:
        """Return the URL of one reused database after deleting the rows of its tables."""
        if not self.run("SELECT 1 FROM pg_database WHERE datname = 'emptied'"):
            self.run("CREATE DATABASE emptied")
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'store_schema'"
        names = ", ".join(row[0] for row in self.run(tables, "emptied"))
        if names:
            self.run(f"TRUNCATE {names} RESTART IDENTITY", "emptied")
        return self.url("emptied")

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside of any transaction and return its rows."""
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
        """Start the server and wait until it accepts connections."""
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
        """Stop the server at once, like a crash; committed data stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(300)
            self._process = None

    def kill(self) -> None:
        """Kill the server with all its processes."""
        assert self._process is not None, "the server does not run"
        family = self._stopped()
        for pid in reversed(family):  # parents last, so that no ended process is reaped before
            os.kill(pid, signal.SIGKILL)
        self._process.wait(300)
        deadline = time.monotonic() + 300
        # The next server does not start while they hold its shared memory.
        while any(state(pid) != "Z" for pid in family):
            assert time.monotonic() < deadline, "a process of PostgreSQL does not end"
            time.sleep(0.01)
        self._process = None
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # its process id may be reused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all processes with SIGSTOP: connections stay open but get no response."""
        family = self._stopped()
        try:
            yield
        finally:
            for pid in reversed(family):
                os.kill(pid, signal.SIGCONT)

    def _stopped(self) -> list[int]:
        """Stop all processes and return them: the parent first, so that it starts no others."""
        os.kill(self.pid, signal.SIGSTOP)
        while state(self.pid) not in "TZ":
            time.sleep(0.001)
        family = [self.pid, *children(self.pid)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        return family

    def _make(self) -> None:
        """Create the data folder, with a user and a password."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)  # only the owner can read the folder
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
        """Wait until the server accepts connections."""
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


def state(pid: int) -> str:
    """Return the kernel's state of a process; Z (zombie) if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def private_postgres(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Run a server in a temporary folder. Raises FileNotFoundError if the binaries are missing."""
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
    """Run a private server, or skip the test if the binaries are missing."""
    if binaries() is None:
        pytest.skip(WHERE_THEY_LACK)
    with private_postgres() as server:
        yield server


def _die_with_parent() -> None:
    """Let the kernel end the server when the test process ends for any reason."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGQUIT)
