"""An S3 server for tests: moto on the loopback interface, behind a proxy that can inject faults.

It uses the real protocol, with signatures and multipart uploads, over real sockets. Objects are in
memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from xcray.storage.objectstore import client

BUCKET = "models"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}

Fault = Callable[[dict[str, Any], Iterable[bytes]], Iterable[bytes]]


class Quiet(WSGIRequestHandler):
    """Request handler without logs."""

    protocol_version = "HTTP/1.1"

    def connection_dropped(
        self, error: BaseException, environ: dict[str, Any] | None = None
    ) -> None:
        """Close a connection after a fault, so that the client does not wait."""
        self.close_connection = True

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing."""


class FaultProxy:
    """Proxy that counts requests and injects a fault.

    fault: receives each request and its response, and returns the response to send.
    """

    def __init__(self) -> None:
        # Moto's dispatcher would search all services for the one of each request.
        self._behind = create_backend_app("s3")
        self._lock = threading.Lock()  # moto fails if an object is deleted while others are listed
        self.fault: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Handle one request."""
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        with self._lock:
            answer = self._behind(environ, start)
        return answer if self.fault is None else self.fault(environ, answer)

    @property
    def client(self) -> Any:
        """A boto3 client without the fault injection of the tests."""
        return boto3.client("s3", endpoint_url=self.url, **KEYS)

    def keys(self) -> list[str]:
        """Return the names of all objects."""
        return [
            each["Key"] for each in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        ]


@contextmanager
def s3() -> Iterator[FaultProxy]:
    """Run a server with one empty bucket."""
    door = FaultProxy()
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


def use_server(server: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of an S3 client of a server, with fast retries; forget its requests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.001)
    server.requests.clear()


def cut_once(path: str, after: int) -> Fault:
    """Return a fault that cuts the first response with an object whose path ends with `path`."""
    done: list[bool] = []

    def fault(environ: dict[str, Any], answer: Iterable[bytes]) -> Iterable[bytes]:
        if done or environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(path):
            return answer
        done.append(True)
        return _cut(answer, after)

    return fault


def _cut(answer: Iterable[bytes], after: int) -> Iterator[bytes]:
    """Yield the beginning of a response, then break the connection."""
    content = b"".join(answer)
    yield content[:after]
    raise ConnectionResetError("cut")
