"""An S3 for tests: moto's server on the loopback interface, and a door before it that can break what goes through.

It speaks the real protocol, with signatures and parts, over real sockets; what it keeps is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "models"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}

Fault = Callable[[dict[str, Any], Iterable[bytes]], Iterable[bytes]]


class Quiet(WSGIRequestHandler):
    """Logs nothing."""

    protocol_version = "HTTP/1.1"

    def connection_dropped(
        self, error: BaseException, environ: dict[str, Any] | None = None
    ) -> None:
        """What a fault cut stays cut: the client is not left waiting."""
        self.close_connection = True

    def log(self, type: str, message: str, *args: Any) -> None:
        """Nothing."""


class Door:
    """Counts requests, and lets a fault at them. fault: sees each request and its answer, and gives the answer to be sent."""

    def __init__(self) -> None:
        self._behind = DomainDispatcherApplication(create_backend_app)
        self.fault: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """One request."""
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        answer = self._behind(environ, start)
        return answer if self.fault is None else self.fault(environ, answer)

    @property
    def client(self) -> Any:
        """A client that goes past nothing: Amazon's own."""
        return boto3.client("s3", endpoint_url=self.url, **KEYS)

    def keys(self) -> list[str]:
        """Names of all objects."""
        return [
            each["Key"] for each in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        ]


@contextmanager
def s3() -> Iterator[Door]:
    """A server with one empty bucket."""
    door = Door()
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        door.url = f"http://127.0.0.1:{server.port}"
        door.client.create_bucket(Bucket=BUCKET)
        yield door
    finally:
        server.shutdown()
        thread.join(10)


def cut_once(path: str, after: int) -> Fault:
    """The first answer with the body of an object whose path ends so breaks off after some bytes."""
    done: list[bool] = []

    def fault(environ: dict[str, Any], answer: Iterable[bytes]) -> Iterable[bytes]:
        if done or environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(path):
            return answer
        done.append(True)
        return _cut(answer, after)

    return fault


def _cut(answer: Iterable[bytes], after: int) -> Iterator[bytes]:
    """The beginning of an answer, and then a connection that breaks."""
    content = b"".join(answer)
    yield content[:after]
    raise ConnectionResetError("cut")
