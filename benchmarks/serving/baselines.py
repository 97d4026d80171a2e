"""A bare ASGI app to compare with, under the HTTP server of the service (uvicorn with httptools).

`python -m benchmarks.serving.baselines FILE` writes its URL to a file. It reads the body and
answers with a constant of 200 bytes, without logs, metrics, keys and limits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import uvicorn

ANSWER: Final = b'{"predictions":[{"labels":["' + b"x" * 160 + b'"]}]}\n'
HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(ANSWER)).encode()),
]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Answer any request."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        continue
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


@contextlib.contextmanager
def baseline(folder: Path, cores: set[int]) -> Iterator[tuple[str, psutil.Process]]:
    """Start the server on some cores; yield its URL and process."""
    ready = folder / "bare.url"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.serving.baselines", str(ready)])
    os.sched_setaffinity(process.pid, cores)
    try:
        while not ready.is_file() or not ready.read_text():
            if process.poll() is not None:
                raise SystemExit(f"the bare app ended with {process.returncode}")
            time.sleep(0.05)
        time.sleep(1.0)  # the socket listens already; let the server start
        yield ready.read_text(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Serve until the process is stopped."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(bare, access_log=False, log_level="warning", loop="uvloop")
    Path(sys.argv[1]).write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
