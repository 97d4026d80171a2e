"""HTTP/1.1 connections: uvicorn's httptools protocol with limits on size and time.

httptools (llhttp, the parser of Node.js) is many times faster than h11, but uvicorn limits headers
only with h11. This class counts the bytes received since the parser last produced output: a
complete header, a piece of a body, or the end of a message. Headers above `MAX_HEADER_BYTES_READ`,
and endless chunk extensions or trailers, are rejected here. The edge middleware applies its own,
lower limit to headers. The number of pipelined requests per connection is limited, too: those
below the limit are answered, then the connection is closed, so the client sends the others again.

Trailers of chunked bodies are dropped, because uvicorn would append them to the headers of the
request, where they could pass for credentials. The host of a request target in absolute form
replaces the header Host (RFC 9112, 3.2.2).

uvicorn has a time limit only for idle connections. Here each connection checks itself periodically.
It is closed if a header is not complete in time, if a body arrives too slowly while the app waits
for it, or if the client does not read the response.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from xcray.service import constants

MAX_HEADER_BYTES_READ: Final = 65_536
MAX_PIPELINED_REQUESTS: Final = 16  # further requests of one connection that can wait
RATE_WINDOW_SECONDS: Final = 10.0  # over which the rate of a body is measured


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection with limits, which are those of `constants`."""

    def __init__(self, *args: Any, max_connections: int, **kwargs: Any) -> None:
        """Create it. max_connections: of this process."""
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self._unparsed_bytes = 0
        self._is_rejected = False
        self._is_draining = False  # close after the accepted pipelined requests
        self._has_request = False  # a header was complete
        self._header_started_at: float | None = None  # start of an incomplete header
        self._receives_body = False  # a body is being received
        self._body_bytes = 0
        self._window_started_at = 0.0  # start of the rate window
        self._unread_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_new(self) -> bool:
        """Return whether the client has not sent a request yet and still can."""
        return not (self._has_request or self._is_rejected or self.transport.is_closing())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; reject it with 503 if there are too many."""
        super().connection_made(transport)
        self._header_started_at = self.loop.time()
        if len(self.connections) > self._max_connections:
            self._reject(503)
            return
        self._timer = self.loop.call_later(_check_interval(), self._check_timeouts)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of a closed connection."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; reject endless headers, drop too many pipelined requests."""
        if self._is_rejected or self._is_draining:
            return
        self._unparsed_bytes += len(data)
        if self._header_started_at is None and not self._receives_body:
            self._header_started_at = self.loop.time()
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEADER_BYTES_READ:
            self._reject(431)
        elif len(self.pipeline) > MAX_PIPELINED_REQUESTS:
            self._is_draining = True
            while len(self.pipeline) > MAX_PIPELINED_REQUESTS:
                self.pipeline.popleft()  # the newest

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP, or a request target above the limit of headers."""
        received = max(self._unparsed_bytes, len(getattr(self, "url", b"")))
        self._reject(431 if received >= MAX_HEADER_BYTES_READ else 400)

    def on_message_begin(self) -> None:
        """Start the header timeout. The bytes may also have ended the previous message."""
        if self._header_started_at is None:
            self._header_started_at = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; drop a trailer."""
        if not self._receives_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the header timeout and start to measure the rate of the body."""
        if not self.url.startswith((b"/", b"*")):
            host = urlsplit(self.url).netloc
            self.headers[:] = [pair for pair in self.headers if pair[0] != b"host"]
            self.headers.append((b"host", host))
        self._unparsed_bytes = 0
        self._header_started_at, self._receives_body, self._has_request = None, True, True
        self._body_bytes, self._window_started_at = 0, self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a piece of a body."""
        self._unparsed_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; further bytes belong to the next one."""
        self._unparsed_bytes = 0
        self._receives_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request, or close a connection that had too many."""
        is_last = self._is_draining and not self.pipeline
        super().on_response_complete()
        if is_last and not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        """Note when the client stopped reading."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        self._unread_since = None
        super().resume_writing()

    def _check_timeouts(self) -> None:
        """Reject or abort the connection if it is too slow, otherwise schedule the next check."""
        now = self.loop.time()
        if self._header_is_late(now):
            self._reject(408)
        elif self._receives_body and self._body_is_slow(now):
            self._reject(408, replaces_response=not self.cycle.response_started)
        elif (
            self._unread_since is not None
            and now - self._unread_since > constants.BODY_IDLE_SECONDS
        ):
            self._is_rejected = True
            self.transport.abort()
        if not self._is_rejected and not self.transport.is_closing():
            self._timer = self.loop.call_later(_check_interval(), self._check_timeouts)

    def _header_is_late(self, now: float) -> bool:
        """Return whether a header is overdue while no earlier request is being answered."""
        idle = self.cycle is None or self.cycle.response_complete
        return (
            idle
            and self._header_started_at is not None
            and now - self._header_started_at > constants.HEADER_TIMEOUT_SECONDS
        )

    def _body_is_slow(self, now: float) -> bool:
        """Return whether a body was too slow for a whole window in which the app waited for it."""
        if (
            self.flow.read_paused
            or self.cycle.waiting_for_100_continue
            or self.cycle.response_complete
        ):
            self._body_bytes, self._window_started_at = 0, now
            return False
        passed = now - self._window_started_at
        if passed < _rate_window():
            return False
        slow = self._body_bytes < constants.MIN_BODY_BYTES_PER_SECOND * passed
        self._body_bytes, self._window_started_at = 0, now
        return slow

    def _reject(self, status: int, replaces_response: bool = False) -> None:
        """Send an error response if possible, and close the connection.

        It is possible if no response is being sent, or if the error `replaces_response`.
        """
        self._is_rejected = True
        if self.transport.is_closing():
            return
        if replaces_response or self.cycle is None or self.cycle.response_complete:
            retry = b"retry-after: 5\r\n" if status == 503 else b""
            self.transport.write(
                STATUS_LINE[status] + retry + b"connection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()


def _rate_window() -> float:
    """Return the seconds over which the rate of a body is measured."""
    return min(RATE_WINDOW_SECONDS, constants.BODY_IDLE_SECONDS)


def _check_interval() -> float:
    """Return the seconds between two checks of a connection."""
    return max(0.05, min(constants.HEADER_TIMEOUT_SECONDS, _rate_window()) / 4)
