"""HTTP/1.1 on a connection: uvicorn's httptools protocol, with bounds on what a connection may hold, and for how long.

httptools (llhttp, the parser of Node.js) is many times as fast as h11, but uvicorn bounds headers only with h11. Here the bytes
are counted that came since the parser last had something to give away: a head, a piece of a body, the end of a message. A head
that grows beyond `HEADERS_READ`, and chunk extensions and trailers without end, are refused; the guard answers below that, by its
own, lower limit. Requests that a client sends ahead of answers wait, but not in any number.

uvicorn has no time limits but one, for idle connections. Here each connection looks at itself now and then: a head that is not
whole in time, a body that comes too slowly though somebody waits for it, and a reader who takes nothing are cut off.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from xcray.service.settings import Settings

HEADERS_READ: Final = 65_536  # bytes of headers that are read at all
AHEAD: Final = 16  # requests of one connection that may wait for the answer to an earlier one
WINDOW: Final = 10.0  # seconds over which the rate of a body is taken


class Bounds(NamedTuple):
    """What connections may do at most: their number; seconds until a head is whole; bytes a second that a body has at least, taken
    over `window` seconds; seconds a reader may take nothing."""

    connections: int = 2000
    head_seconds: float = 15.0
    body_rate: float = 1000.0
    window: float = WINDOW
    unread_seconds: float = 60.0

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """As the operator has set them."""
        window = min(WINDOW, settings.body_seconds)
        return cls(
            settings.connections,
            settings.head_seconds,
            settings.body_rate,
            window,
            settings.body_seconds,
        )

    @property
    def step(self) -> float:
        """Seconds between two looks."""
        return max(0.05, min(self.head_seconds, self.window, self.unread_seconds) / 4)


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, bounds: Bounds = Bounds(), **kwargs: Any) -> None:  # noqa: B008  # a tuple of numbers
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._since = 0
        self._refused = False
        self._asked = False  # the head of a request was whole
        self._head_begun: float | None = None  # when the head that is not whole yet began
        self._body = False  # a body is on its way
        self._came = 0
        self._came_since = 0.0  # bytes of it since
        self._unread_since: float | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def is_new(self) -> bool:
        """Whether its client has not asked anything yet, and still may."""
        return not (self._asked or self._refused or self.transport.is_closing())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: with one too many, it hears so."""
        super().connection_made(transport)
        self._head_begun = self.loop.time()
        if len(self.connections) > self._bounds.connections:
            self._refuse(503)
            return
        self._look = self.loop.call_later(self._bounds.step, self._watch)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; refuse what does not end."""
        if self._refused:
            return
        self._since += len(data)
        if self._head_begun is None and not self._body:
            self._head_begun = self.loop.time()
        super().data_received(data)
        if self._since > HEADERS_READ:
            self._refuse(431)
        elif len(self.pipeline) > AHEAD:
            self._refuse(429)

    def on_message_begin(self) -> None:
        """A head begins, perhaps in the same bytes that ended a message."""
        if self._head_begun is None:
            self._head_begun = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._since = 0
        self._head_begun, self._body, self._asked = None, True, True
        self._came, self._came_since = 0, self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._since = 0
        self._came += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole; what else came with it belongs to the next."""
        self._since = 0
        self._body = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has taken what it was sent."""
        self._unread_since = None
        super().resume_writing()

    def _watch(self) -> None:
        """Cut off who is too slow; else look again later."""
        now = self.loop.time()
        if self._is_headless(now):
            self._refuse(408)
        elif self._body and self._is_slow(now):
            self._refuse(408, instead=not self.cycle.response_started)
        elif (
            self._unread_since is not None
            and now - self._unread_since > self._bounds.unread_seconds
        ):
            self._refused = True
            self.transport.abort()
        if not self._refused and not self.transport.is_closing():
            self._look = self.loop.call_later(self._bounds.step, self._watch)

    def _is_headless(self, now: float) -> bool:
        """Whether a head should be whole by now, and no earlier request is being answered."""
        idle = self.cycle is None or self.cycle.response_complete
        return (
            idle
            and self._head_begun is not None
            and now - self._head_begun > self._bounds.head_seconds
        )

    def _is_slow(self, now: float) -> bool:
        """Whether a body came too slowly through a whole window in which somebody waited for it."""
        if (
            self.flow.read_paused
            or self.cycle.waiting_for_100_continue
            or self.cycle.response_complete
        ):
            self._came, self._came_since = 0, now
            return False
        passed = now - self._came_since
        if passed < self._bounds.window:
            return False
        slow = self._came < self._bounds.body_rate * passed
        self._came, self._came_since = 0, now
        return slow

    def _refuse(self, status: int, instead: bool = False) -> None:
        """Say why, when no answer is under way or this comes `instead` of it, and close."""
        self._refused = True
        if self.transport.is_closing():
            return
        if instead or self.cycle is None or self.cycle.response_complete:
            again = b"retry-after: 5\r\n" if status == 503 else b""
            self.transport.write(
                STATUS_LINE[status] + again + b"connection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()
