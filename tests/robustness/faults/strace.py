"""Make the n-th system call of a function fail or kill the process: `strace -e inject`."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

CALLS: Final = (
    "write",
    "pwrite64",
    "writev",
    "fsync",
    "fdatasync",
    "rename",
    "renameat2",
    "unlink",
    "mkdir",
    "ftruncate",
)
PR_SET_PTRACER: Final = 0x59616D61
LINE: Final = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\(")


def is_available() -> bool:
    """Return whether strace is installed and can trace."""
    if shutil.which("strace") is None:
        return False
    return (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    )


def counts(do: Callable[[], None], log: Path, calls: Sequence[str] = CALLS) -> Counter[str]:
    """Return how often an undisturbed function makes each system call.

    log: a file to write. Raises RuntimeError if the function fails.
    """
    if code := _traced(do, ["-o", str(log), "-e", f"trace={','.join(calls)}"]):
        raise RuntimeError(f"undisturbed, it ended with {code}")
    tally = Counter(
        match[1] for line in log.read_text().splitlines() if (match := LINE.match(line))
    )
    log.unlink()
    return Counter({call: tally[call] for call in calls if tally[call]})


def inject(do: Callable[[], None], call: str, what: str, when: int) -> int:
    """Run a function in a child process whose `when`-th `call` fails or kills it.

    what: "signal=KILL" or "error=EIO". Returns the exit status: 0 if the function returned, 1 if it
    raised, negative for a signal.
    """
    return _traced(
        do, ["-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{what}:when={when}"]
    )


def _traced(do: Callable[[], None], how: Sequence[str]) -> int:
    """Fork, attach strace to the child, run the function there and return the exit status.

    A new Python process would take a second to start.
    """
    waiting, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # needed where only parents can trace
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))
            os.read(waiting, 1)
            do()
            code = 0
        finally:
            os._exit(code)
    os.close(waiting)
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", *how, "-p", str(pid)], stderr=subprocess.DEVNULL
    )
    while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text() and tracer.poll() is None:
        time.sleep(0.002)
    os.write(go, b"g")
    os.close(go)
    _, status = os.waitpid(pid, 0)
    tracer.wait()
    return os.waitstatus_to_exitcode(status)
