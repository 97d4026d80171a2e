"""Two servers to compare with, under the HTTP server of the service (uvicorn with httptools).

`python -m benchmarks.serving.baselines bare|fastapi FILE` writes its URL to a file. `bare` is an
ASGI function, `fastapi` an `async def` route. Both read the body and answer with a constant of 200
bytes, without logs, metrics, keys and limits.
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
from fastapi import FastAPI, Request, Response

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


def fastapi() -> FastAPI:
    """Return an app with one route."""
    app = FastAPI()

    @app.post("/v1/models/{reference}")
    async def answer(reference: str, request: Request) -> Response:
        await request.body()
        return Response(ANSWER, media_type="application/json")

    return app


@contextlib.contextmanager
def baseline(kind: str, folder: Path, cores: set[int]) -> Iterator[tuple[str, psutil.Process]]:
    """Start one of these servers on some cores; yield its URL and process."""
    ready = folder / f"{kind}.url"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serving.baselines", kind, str(ready)]
    )
    os.sched_setaffinity(process.pid, cores)
    try:
        while not ready.is_file() or not ready.read_text():
            if process.poll() is not None:
                raise SystemExit(f"{kind} ended with {process.returncode}")
            time.sleep(0.05)
        time.sleep(1.0)  # the socket listens already; let the server start
        yield ready.read_text(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Serve until the process is stopped."""
    kind, file = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    app: Any = bare if kind == "bare" else fastapi()
    config = uvicorn.Config(app, access_log=False, log_level="warning", loop="uvloop")
    Path(file).write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
