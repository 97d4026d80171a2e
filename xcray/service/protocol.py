"""HTTP/1.1 on a connection: uvicorn's httptools protocol, with bounds on what a connection may hold before a request is seen.

httptools (llhttp, the parser of Node.js) is many times as fast as h11, but uvicorn bounds headers only with h11. Here the bytes
are counted that came since the parser last had something to give away: a head, a piece of a body, the end of a message. A head
that grows beyond `HEADERS_READ`, and chunk extensions and trailers without end, are refused; the guard answers below that, by its
own, lower limit. Requests that a client sends ahead of answers wait, but not in any number.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADERS_READ: Final = 65_536  # bytes of headers that are read at all
AHEAD: Final = 16  # requests of one connection that may wait for the answer to an earlier one


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = 0
        self._refused = False

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse what does not end."""
        if self._refused:
            return
        self._since += len(data)
        super().data_received(data)
        if self._since > HEADERS_READ:
            self._refuse(431)
        elif len(self.pipeline) > AHEAD:
            self._refuse(429)

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._since = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._since = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole; what else came with it belongs to the next."""
        self._since = 0
        super().on_message_complete()

    def _refuse(self, status: int) -> None:
        """Say why, when no answer is under way, and close."""
        self._refused = True
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
