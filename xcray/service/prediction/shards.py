"""Requests to the services of the label ranges of a model in shards."""

from __future__ import annotations

import time
import weakref
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from xcray.model.manifest import LabelRange
from xcray.service.observability.request_log import LOGGER

PAUSE_SECONDS: Final = 1.0  # a shard that did not reply in time is not asked for so long
CONNECT_SECONDS: Final = 1.0  # shards are connected one after another


class _Certificate(msgspec.Struct, gc=False):
    """The certificate of a row in a reply."""

    exact: bool
    labels_scored: int
    postings_read: int
    bound_gap: float | None


class _Prediction(msgspec.Struct, gc=False):
    """One row of a reply. labels: numbers in the whole model, which are the names in a shard."""

    labels: list[int]
    scores: list[float]
    certificate: _Certificate


class _ServedBy(msgspec.Struct):
    """The version that answered."""

    sha256: str


class ShardReply(msgspec.Struct):
    """What is read of a reply, see `PredictReply`."""

    model: _ServedBy
    predictions: list[_Prediction]


_DECODER: Final = msgspec.json.Decoder(ShardReply, strict=False)  # label names are read as numbers


class ShardLost(Exception):
    """A shard has no answer; the message is the reason."""


class ShardQuestion(NamedTuple):
    """A request to a shard. n_labels: allowed labels of its range. end: time limit, monotonic."""

    body: bytes
    n_labels: int
    end: float

    def seconds(self) -> float:
        """Return the seconds that are left, more than 0."""
        return max(0.001, self.end - time.monotonic())


class ShardService:
    """The service of one label range. Thread-safe; each request has a connection of its own."""

    def __init__(self, labels: LabelRange, address: str, key: str | None) -> None:
        """Create it without a connection. address: http://host:port, or https://...

        key: API key of the service, or None.
        """
        self.labels = labels
        self._address = urlsplit(address)
        self._path = f"/v1/models/{labels.name}:predict"
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._idle: deque[HTTPConnection] = deque()
        self._pause_until = 0.0
        self._failure = ""  # of the last request, which is logged once
        # a version is unloaded when the last request that uses it ends
        weakref.finalize(self, _close_all, self._idle)

    def send(self, question: ShardQuestion) -> HTTPConnection:
        """Send a request, and return its connection. Raises ShardLost."""
        if time.monotonic() < self._pause_until:
            raise ShardLost("it did not reply in time a moment ago")
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            return self._request(connection, question)
        except (OSError, HTTPException) as error:
            raise self._failed(connection, error) from None

    def receive(self, connection: HTTPConnection, question: ShardQuestion) -> ShardReply:
        """Return the reply to a request that was sent. Raises ShardLost."""
        try:
            try:
                connection.sock.settimeout(question.seconds())
                response = connection.getresponse()
            except ConnectionError:  # an idle connection that the service has closed
                connection.close()
                response = self._request(connection, question).getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            raise self._failed(connection, error) from None
        if not response.will_close:
            self._idle.append(connection)
        if response.status != 200:
            raise self._lost(f"it replied with status {response.status}")
        try:
            reply = _DECODER.decode(content)
        except msgspec.DecodeError as error:
            raise self._lost(f"its reply is not valid: {error}") from None
        if reply.model.sha256 != self.labels.sha256:
            raise self._lost("it has a shard of another model")
        self._failure = ""
        return reply

    def _connect(self) -> HTTPConnection:
        """Return a new connection, which is opened by its first request."""
        kind = HTTPSConnection if self._address.scheme == "https" else HTTPConnection
        return kind(self._address.hostname or "", self._address.port)

    def _request(self, connection: HTTPConnection, question: ShardQuestion) -> HTTPConnection:
        """Send a request, again if an idle connection was closed by the service."""
        if connection.sock is not None:
            connection.sock.settimeout(question.seconds())
            try:
                connection.request("POST", self._path, question.body, self._headers)
                return connection
            except ConnectionError:
                connection.close()
        connection.timeout = min(CONNECT_SECONDS, question.seconds())
        connection.connect()
        connection.sock.settimeout(question.seconds())
        connection.request("POST", self._path, question.body, self._headers)
        return connection

    def _failed(self, connection: HTTPConnection, error: Exception) -> ShardLost:
        """Close a connection that failed, and return the error of its request."""
        connection.close()
        if isinstance(error, TimeoutError):
            self._pause_until = time.monotonic() + PAUSE_SECONDS
        return self._lost(f"{type(error).__name__}: {error}")

    def _lost(self, reason: str) -> ShardLost:
        """Return the error of a request, which is logged if it is another one than before."""
        if reason != self._failure:
            self._failure = reason
            place = {"model": self.labels.name, "address": self._address.netloc, "detail": reason}
            LOGGER.warning("a shard does not answer", extra=place)
        return ShardLost(reason)


def _close_all(connections: deque[HTTPConnection]) -> None:
    """Close connections."""
    for connection in connections:
        connection.close()
