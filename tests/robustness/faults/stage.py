"""The environment of a row: private namespaces, a temporary folder, the end of every process.

With namespaces, the kernel ends all processes when the stage ends, processes of others are
invisible, and /dev/shm and the network are private. Where namespaces are not allowed, processes are
identified by their ancestors. Orphans are re-parented to this process, which is their subreaper.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.robustness.faults.ledger import Ledger
from tests.robustness.faults.measurements import Measurements
from xcray.system.processes import (
    find_descendants,
    kill_processes,
    list_processes,
    wait_for_exit,
)

INSIDE: Final = "FAULTS_INSIDE"  # set in processes that run in private namespaces
FOLDER: Final = "FAULTS_FOLDER"  # the folder that the outer process removes at the end
PLAIN: Final = "plain process groups"
ROOT: Final = Path(__file__).parents[3]
SPACES: Final = (
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
    "--net",
    "--ipc",
    "--mount",
)
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_PDEATHSIG: Final = 1
LAST_WORDS: Final = 30.0  # seconds from SIGTERM to SIGKILL


class Terminated(Exception):
    """SIGTERM was received: the row ends and reports its measurements so far."""


class Stage(NamedTuple):
    """The environment of a row.

    `small` selects the quick form that the test suite runs. `runs` is the number of repetitions.
    """

    folder: Path
    measurements: Measurements
    ledger: Ledger
    random: random.Random
    runs: int
    small: bool
    closing: list[Callable[[], None]]

    def expect(self, holds: bool, sentence: str) -> bool:
        """Count a wrong state unless `holds` is true; return `holds`."""
        return self.measurements.expect(holds, sentence)

    def place(self, name: str) -> Path:
        """Create a new folder and return it."""
        path = self.folder / name
        path.mkdir()
        return path


def enter(
    arguments: list[str], plain: bool = False, module: str = "tests.robustness.faults"
) -> None:
    """Run this command, `python -m MODULE ARGUMENTS`, again in private namespaces.

    Returns inside the namespaces, or at once where they are not allowed. From then on SIGTERM
    raises Terminated.
    """
    if os.environ.get(INSIDE) is None:
        kind = None if plain else allowed()
        if kind is not None:
            words = [*kind, *SPACES, sys.executable, "-m", module, *arguments]
            environment = {**os.environ, INSIDE: "user namespaces" if kind else "namespaces"}
            with _swept_folder() as folder:
                sys.exit(_inside(["unshare", *words], {**environment, FOLDER: str(folder)}))
        os.environ[INSIDE] = PLAIN
    signal.signal(signal.SIGTERM, _on_sigterm)
    if namespaces():
        _loopback_up()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "shm", "/dev/shm"], check=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def _swept_folder() -> Iterator[Path]:
    """Yield a new folder that is removed after the block, even if this process is killed.

    The path is short because it contains sockets.
    """
    folder = Path(tempfile.mkdtemp(prefix="xf-"))
    again = "for _ in range(50):\n    shutil.rmtree(sys.argv[1], True)\n    time.sleep(0.1)\n"
    sweep = f"import shutil, sys, time\nsys.stdin.read()\n{again}"
    # The removal is repeated: other processes can still be writing.
    words = [sys.executable, "-c", sweep, str(folder)]
    quiet = subprocess.DEVNULL
    sweeper = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sweeper.kill()
        sweeper.wait()


def _inside(words: list[str], environment: dict[str, str]) -> int:
    """Run a command in namespaces and return its exit status.

    `unshare` ignores SIGTERM, so the signal is sent to its children. They are killed if they do not
    exit. The signal is repeated: the first process of a namespace does not receive it before it has
    set a handler.
    """
    with subprocess.Popen(words, cwd=ROOT, env=environment, preexec_fn=_die_with_parent) as process:

        def end() -> None:
            deadline = time.monotonic() + LAST_WORDS
            while process.poll() is None and time.monotonic() < deadline:
                for child, parent in list_processes().items():
                    if parent == process.pid:
                        kill(child.pid, signal.SIGTERM)
                time.sleep(0.2)
            process.kill()

        def pass_on(_number: int, _frame: Any) -> None:
            threading.Thread(target=end, daemon=True).start()

        signal.signal(signal.SIGTERM, pass_on)
        return 1 if process.wait() else 0


def _die_with_parent() -> None:
    """Let the kernel kill this child when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _on_sigterm(_number: int, _frame: Any) -> None:
    """Handle the first SIGTERM; ignore later ones."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated("it was terminated before it was done")


def namespaces() -> bool:
    """Return whether this process has private namespaces."""
    return os.environ.get(INSIDE, PLAIN) != PLAIN


@contextmanager
def stage(row: str, title: str, *, runs: int, seed: int, small: bool = False) -> Iterator[Stage]:
    """Yield the stage of a row; at the end, kill all child processes and remove the folder."""
    measurements = Measurements(row, title)
    measurements.note(
        "private namespaces" if namespaces() else "no namespaces here: plain process groups"
    )
    began = time.monotonic()
    # The path must be short: Ray creates sockets below it.
    folder = Path(os.environ.pop(FOLDER, None) or tempfile.mkdtemp(prefix="xf-"))
    folder.chmod(0o711)  # PostgreSQL runs as another user
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    set = Stage(
        folder, measurements, Ledger(folder / "ledger.jsonl"), random.Random(seed), runs, small, []
    )
    try:
        yield set
    finally:
        for close in reversed(set.closing):
            close()
        end_all()
        set.ledger.close()
        shutil.rmtree(folder, ignore_errors=True)
        measurements.seconds = round(time.monotonic() - began, 1)


def ours() -> list[Any]:
    """Return the descendants of this process except zombies."""
    return [each for each in find_descendants([os.getpid()]) if each.pid != os.getpid()]


def end_all(seconds: float = 10.0) -> None:
    """Kill every descendant of this process by its id."""
    deadline = time.monotonic() + seconds
    while (left := ours()) and time.monotonic() < deadline:
        kill_processes(left)
        wait_for_exit(left, 1.0)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of `megabytes` MB at `path`.

    Raises PermissionError where mounting is not allowed.
    """
    path.mkdir(parents=True, exist_ok=True)
    process = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "faults", str(path)],
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise PermissionError(process.stderr.strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def until(check: Callable[[], Any], what: str, seconds: float = 600.0, pause: float = 0.05) -> Any:
    """Return the first true result of `check`.

    Raises TimeoutError with `what` after `seconds`, a limit that only detects hangs.
    """
    deadline = time.monotonic() + seconds
    while not (result := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)
    return result


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to a process; return whether the process existed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def allowed() -> list[str] | None:
    """Return the additional options of `unshare` to get SPACES.

    They are empty for root and create a user namespace for others. Returns None where the kernel
    does not allow namespaces.
    """
    return next((each for each in ([], ["-r"]) if _allowed(each)), None)


def _allowed(kind: list[str]) -> bool:
    """Return whether the kernel allows these namespaces."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "try", "/dev/shm"]
    return subprocess.run(["unshare", *kind, *SPACES, *mount], capture_output=True).returncode == 0


def _loopback_up() -> None:
    """Enable the loopback interface of the new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        flags = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(handle, 0x8914, flags)  # SIOCSIFFLAGS
