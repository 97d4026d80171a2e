"""Fork server of worker processes: it imports the program once, and each worker is a copy of it.

Workers then share the memory of the imported program, about 100 MB, and start without importing it
(1.6 s of processor time). The fork server has no event loop, no store and no threads of its own,
and does nothing but fork, so a copy of it is as good as a new process.

The manager has a `ForkServer`. The process runs `fork_workers`. They exchange messages over a Unix
socket: a request carries the listener, the standard input and the standard output of a worker, and
the answer is its process id. The exit code follows when the worker has ended. The fork server ends
when the manager does. Linux only.

The forkserver of multiprocessing does not fit: if it is killed, workers that still run are reported
as ended with code 255, its environment is that of the manager, which jobs inherit, and each worker
runs the main module of the manager again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xcray.errors import Unavailable

WORKER_MODULE: Final = "xcray.service.processes.worker"
MESSAGE_BYTES: Final = 256
START_TIMEOUT_SECONDS: Final = 120.0  # to import the program and fork
START_ATTEMPTS: Final = 2  # the second one with another fork server
UNKNOWN_EXIT: Final = 255  # exit code of a worker whose fork server has ended before it


class ForkedWorker:
    """A process of the fork server, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, else None."""
        return self._server.exit_code(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it lives."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The manager's side: starts the fork server with the first worker, and again if it ends."""

    def __init__(self, environment: Mapping[str, str], module: str = WORKER_MODULE) -> None:
        """Create it. environment: of the workers. module: calls `fork_workers`."""
        self._environment = dict(environment)
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._exit_codes: dict[int, int] = {}
        self._children: set[int] = set()  # of the running process

    def start(self, listener: socket.socket, stdin: int, stdout: int) -> ForkedWorker:
        """Return a new worker. Raises Unavailable if the fork server does not answer.

        The descriptors are copied: the caller closes its own.
        """
        self._read_messages()
        for _ in range(START_ATTEMPTS):
            pid = self._fork(listener, stdin, stdout)
            if pid is not None:
                self._exit_codes.pop(pid, None)  # of an earlier process
                self._children.add(pid)
                return ForkedWorker(self, pid)
        raise Unavailable(
            "a worker process did not start: see the log above; try --processes 1", code="WORKERS"
        )

    def _fork(self, listener: socket.socket, stdin: int, stdout: int) -> int | None:
        """Return the id of a new process; None if the fork server ended or does not answer."""
        channel = self._channel if self._channel is not None else self._start_process()
        try:
            socket.send_fds(channel, [b"start"], [listener.fileno(), stdin, stdout])
            channel.settimeout(START_TIMEOUT_SECONDS)
            while self._channel is not None:
                message = self._receive(channel)
                if "started" in message:
                    return int(message["started"])
        except OSError:
            self._end_process()
        return None

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a worker, None while it runs."""
        self._read_messages()
        code = self._exit_codes.get(pid)
        if code is None and pid not in self._children and not _exists(pid):
            return UNKNOWN_EXIT
        return code

    def close(self) -> None:
        """End the fork server. Workers that still run are not affected."""
        self._end_process()

    def _start_process(self) -> socket.socket:
        """Start the process, which imports the program before it answers; return its channel."""
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(other.fileno(),),
                start_new_session=True,  # only the manager handles Ctrl-C
            )
        return self._channel

    def _read_messages(self) -> None:
        """Read the messages that have arrived."""
        while self._channel is not None and select.select([self._channel], [], [], 0)[0]:
            self._receive(self._channel)

    def _receive(self, channel: socket.socket) -> dict[str, Any]:
        """Return the next message, after it was noted; empty if the fork server has ended."""
        try:
            data = channel.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._end_process()
            return {}
        message: dict[str, Any] = json.loads(data)
        if "ended" in message:
            self._exit_codes[message["ended"]] = message["exit"]
        return message

    def _end_process(self) -> None:
        """Close the socket and end the process, which has no work of its own."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._children.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def fork_workers(channel: socket.socket) -> int | None:
    """Fork workers until the manager ends.

    Returns twice per worker: in the new process with the descriptor of its listener, and in the
    fork server, at its end, with None.
    """
    gc.collect()
    gc.freeze()  # so that collections do not write to the shared memory
    wake, wakeup = os.pipe()
    for descriptor in (wake, wakeup):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the manager has ended
        while True:
            ready = select.select([channel.fileno(), wake], [], [])[0]
            if wake in ready:
                os.read(wake, 4096)
                _report_exits(channel)
            if channel.fileno() in ready:
                message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
                if not message:
                    break
                pid = os.fork()
                if pid == 0:
                    return _become_worker(channel, (wake, wakeup), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                channel.send(json.dumps({"started": pid}).encode())
    return None


def _report_exits(channel: socket.socket) -> None:
    """Send the exit codes of the workers that have ended."""
    with contextlib.suppress(ChildProcessError):  # there is no child
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            code = os.waitstatus_to_exitcode(status)
            channel.send(json.dumps({"ended": pid, "exit": code}).encode())


def _become_worker(channel: socket.socket, wakeup: tuple[int, int], descriptors: list[int]) -> int:
    """Turn a copy of the fork server into a worker; return the descriptor of its listener."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel.close()
    listener, stdin, stdout = descriptors
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    for descriptor in (*wakeup, stdin, stdout):
        os.close(descriptor)
    return listener


def _exists(pid: int) -> bool:
    """Return whether a process exists and has not ended: another parent may not wait for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
