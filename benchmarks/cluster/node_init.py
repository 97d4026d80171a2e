"""First process of a node: sets up network, shared memory and folders, starts Ray, reaps children.

`python benchmarks/cluster/node_init.py JSON` is started by `benchmarks.cluster.raylets`. It begins
when it reads a line. It ends when Ray ends, on SIGTERM, or when its parent ends, and then ends all
processes of its node. It starts fast, because it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PATIENCE = 20.0  # seconds that Ray has to end after SIGTERM


def main(words: str) -> int:
    """Start Ray and return its exit status, or 0 after SIGTERM."""
    document = json.loads(words)
    if not sys.stdin.readline():
        return 0  # the parent has ended
    for command in document["before"]:
        subprocess.run(command, check=True)
    libc: Any = ctypes.CDLL(None)
    if os.getpid() != 1:  # without namespaces: orphans become children of this process
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    reports: list[float] = []
    child = subprocess.Popen(
        document["command"],
        env=document["environment"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )

    def on_sigterm(_number: int, _frame: Any) -> None:
        reports.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_sigterm)
    status = None
    while status is None and not (reports and time.monotonic() - reports[0] > PATIENCE):
        status = _collect(child.pid)
        time.sleep(0.05)
    if os.getpid() != 1:  # when the first process of a namespace ends, the kernel ends all others
        _end_all()
    return 0 if reports else status or 0


def _collect(pid: int) -> int | None:
    """Reap all ended children; return the exit status of `pid` if it is among them."""
    result = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                result = os.waitstatus_to_exitcode(ended[1])
    return result


def _end_all() -> None:
    """Kill all descendants; orphans become children and are killed in the next round."""
    for _ in range(200):
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _collect(0)
        if not children:
            return
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
