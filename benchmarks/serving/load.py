"""Load generator of `benchmarks.serving`: requests from a separate process on its own core.

It reads one JSON object from standard input and writes one to standard output. Bodies are text, or
with `binary` bytes as characters of Latin-1. There are two modes:

- closed: `connections` clients, each sends its next request after each answer. This measures the
  capacity of the service.
- open: requests are due at random times (a Poisson process of `rate` per second, from `seed`),
  independently of the service. Latency counts from the time at which a request was due, even if all
  connections were busy, so waiting is included.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}


class Connection(asyncio.Protocol):
    """One connection with one request at a time; calls `done(self, due, status)` on an answer."""

    def __init__(self, on_answer: Callable[[Connection, float, int], None]) -> None:
        self._on_answer = on_answer
        self._buffer = b""
        self._due = 0.0
        self._pending = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Store the transport."""
        self.transport = transport

    def ask(self, request: bytes, due: float) -> None:
        """Send a request that was due at `due` (monotonic seconds)."""
        self._due, self._pending = due, True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect an answer; it is complete when its body has the length of its header."""
        self._buffer = self._buffer + data if self._buffer else data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._buffer.index(b"content-length: ") + 16
        length = int(self._buffer[at : self._buffer.index(b"\r", at)])
        if len(self._buffer) < head + 4 + length:
            return
        status, self._buffer, self._pending = int(self._buffer[9:12]), b"", False
        self._on_answer(self, self._due, status)

    def connection_lost(self, error: Exception | None) -> None:
        """Report status 0 if the connection closes before the answer."""
        if self._pending:
            self._pending = False
            self._on_answer(self, self._due, 0)


class Load:
    """Counter of answers, with the seconds of those with status 200."""

    def __init__(self, requests: list[bytes], seconds: float, warm: float) -> None:
        self._requests = requests
        self._next = 0
        self.begin = time.perf_counter() + warm  # earlier requests do not count
        self.end = self.begin + seconds
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.under_way = 0

    def request(self) -> bytes:
        """Return the next request, in turn."""
        self._next = (self._next + 1) % len(self._requests)
        return self._requests[self._next]

    def ask(self, connection: Connection, due: float) -> None:
        """Send the next request."""
        self.under_way += 1
        connection.ask(self.request(), due)

    def note(self, due: float, status: int) -> float:
        """Count an answer and return the time of its arrival."""
        now = time.perf_counter()
        self.under_way -= 1
        if self.begin <= due < self.end:
            self.statuses[status] += 1
            if status == 200:
                self.seconds.append(now - due)
        return now

    async def settled(self) -> None:
        """Wait until no request is in progress, at most ten seconds."""
        for _ in range(1000):
            if not self.under_way:
                return
            await asyncio.sleep(0.01)

    def result(self) -> dict[str, Any]:
        """Return requests per second and milliseconds."""
        milliseconds = np.array(self.seconds) * 1e3
        shown = (
            {
                name: round(float(np.percentile(milliseconds, q)), 3)
                for name, q in PERCENTILES.items()
            }
            if len(milliseconds)
            else {}
        )
        return {
            "requests_a_second": round(len(self.seconds) / (self.end - self.begin), 1),
            "answered": len(self.seconds),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            **shown,
            **(
                {
                    "mean": round(float(milliseconds.mean()), 3),
                    "max": round(float(milliseconds.max()), 3),
                }
                if shown
                else {}
            ),
        }


async def connections(
    host: str, port: int, count: int, on_answer: Callable[[Connection, float, int], None]
) -> list[Connection]:
    """Open `count` connections."""
    loop = asyncio.get_running_loop()
    return [
        (await loop.create_connection(lambda: Connection(on_answer), host, port))[1]
        for _ in range(count)
    ]


async def closed(host: str, port: int, load: Load, count: int) -> None:
    """Let each connection send, wait, and send again."""

    def on_answer(connection: Connection, due: float, status: int) -> None:
        now = load.note(due, status)
        if now < load.end and status:
            load.ask(connection, now)

    for connection in await connections(host, port, count, on_answer):
        load.ask(connection, time.perf_counter())
    await asyncio.sleep(max(0.0, load.end - time.perf_counter()))
    await load.settled()


async def opened(host: str, port: int, load: Load, count: int, rate: float, seed: int) -> None:
    """Send requests when they are due, on a free connection or the next one that becomes free."""
    free: list[Connection] = []
    late: deque[float] = deque()

    def on_answer(connection: Connection, due: float, status: int) -> None:
        load.note(due, status)
        if not status:
            return
        if late:
            load.ask(connection, late.popleft())
        else:
            free.append(connection)

    free.extend(await connections(host, port, count, on_answer))
    rng = np.random.default_rng(seed)
    due = time.perf_counter()
    while due < load.end:
        due += rng.exponential(1.0 / rate)
        wait = due - time.perf_counter()
        if wait > 0.0:
            await asyncio.sleep(wait)
        if free:
            load.ask(free.pop(), due)  # the last one used, to use as few connections as possible
        else:
            late.append(due)
    await load.settled()


def http_request(url: str, path: str, content: bytes, more_headers: dict[str, str]) -> bytes:
    """Return a request as bytes."""
    headers = {
        "Host": urlsplit(url).netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **more_headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def main() -> None:
    """Run one measurement."""
    document = json.load(sys.stdin)
    place = urlsplit(document["url"])
    encoding = "latin-1" if document.get("binary") else "utf-8"
    headers = document.get("headers") or [{}] * len(document["bodies"])
    requests = [
        http_request(document["url"], document["path"], body.encode(encoding), more)
        for body, more in zip(document["bodies"], headers, strict=True)
    ]
    load = Load(requests, document["seconds"], document.get("warm", 1.0))
    host, port, count = str(place.hostname), int(place.port or 80), document["connections"]
    if "rate" in document:
        uvloop.run(opened(host, port, load, count, document["rate"], document.get("seed", 0)))
    else:
        uvloop.run(closed(host, port, load, count))
    print(json.dumps(load.result()))


if __name__ == "__main__":
    main()
