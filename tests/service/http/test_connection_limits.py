"""Connection limits: endless headers, pipelined requests, invalid framing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import client_of, publish, raw, settings_for
from xcray.errors import Unavailable
from xcray.jobs.store.tokens import create_token
from xcray.service.app import AppParts, create_app
from xcray.service.http.connection_limits import MAX_HEADER_BYTES_READ, MAX_PIPELINED_REQUESTS

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
PATIENCE = 300.0  # seconds until a wait is given up
CHUNKED = b"POST /v1/models/a:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_of(create_app(settings_for(tmp_path_factory.mktemp("protocol") / "home"))) as http:
        yield str(http.base_url)


def status(answer: bytes) -> int:
    """Return the status of the first answer, or 0 if there is none."""
    return int(answer.split(b" ")[1]) if answer else 0


def sent_until_closed(url: str, begin: bytes, piece: bytes, most: int) -> tuple[int, int]:
    """Send pieces until the peer closes; return the bytes sent and the status of the reply."""
    parts = httpx.URL(url)
    messages, answer = 0, b""
    with socket.socket() as connection:
        # Otherwise the system chooses a buffer of megabytes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_HEADER_BYTES_READ)
        connection.settimeout(PATIENCE)
        connection.connect((parts.host, parts.port or 80))
        try:
            connection.sendall(begin)
            while messages < most:
                connection.sendall(piece)
                messages += len(piece)
        except OSError:
            most = messages
        try:
            while chunk := connection.recv(4096):
                answer += chunk
        except OSError:
            return messages, status(answer)
    return messages, status(answer)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (GET + b"X-Endless: ", b"a" * 4096),
        (GET, b"X-Many: a\r\n" * 400),
        (b"GET /" + b"a" * 10, b"b" * 4096),
        (CHUNKED + b"1;", b"x" * 4096),
        (CHUNKED + b"0\r\nX-Trailer: ", b"y" * 4096),
    ],
    ids=["one header", "many headers", "path", "chunk extension", "trailer"],
)
def test_endless_requests_are_refused_early(url: str, begin: bytes, piece: bytes) -> None:
    messages, result = sent_until_closed(url, begin, piece, 100 * MAX_HEADER_BYTES_READ)
    # Bytes in the buffers of the system count as sent.
    assert messages < 50 * MAX_HEADER_BYTES_READ
    assert result in (0, 400, 404, 414, 431)
    assert httpx.get(f"{url}/healthz", trust_env=False, timeout=PATIENCE).status_code == 200


def test_a_long_request_target_is_reported_as_such(url: str) -> None:
    target = b"/" + b"a" * (MAX_HEADER_BYTES_READ + 10)
    assert status(raw(url, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)) == 431
    assert status(raw(url, b"no HTTP\r\n\r\n")) == 400


def test_a_head_below_the_read_limit_gets_an_error_document(url: str) -> None:
    answer = raw(
        url,
        GET + b"Connection: close\r\nX-Big: " + b"a" * (MAX_HEADER_BYTES_READ // 2) + b"\r\n\r\n",
    )
    assert status(answer) == 431
    assert b"HEADERS_TOO_LARGE" in answer


def test_many_small_chunks_do_not_count_as_a_head(url: str) -> None:
    chunks = b"".join(b"1\r\n \r\n" for _ in range(MAX_HEADER_BYTES_READ)) + b"0\r\n\r\n"
    assert len(chunks) > 5 * MAX_HEADER_BYTES_READ
    answer = raw(url, CHUNKED.replace(b"chunked\r\n", b"chunked\r\nConnection: close\r\n") + chunks)
    assert status(answer) == 400
    assert b"EMPTY_BODY" in answer


def test_two_hosts_are_refused(url: str) -> None:
    answer = raw(
        url,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    assert status(answer) == 400
    assert b"BAD_HEADER" in answer


def test_pipelined_requests_are_answered_in_order(url: str) -> None:
    paths = [b"/healthz", b"/nowhere", b"/v1/jobs"]
    ahead = b"".join(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths * 2)
    answer = raw(url, ahead[:-2] + b"Connection: close\r\n\r\n")
    assert [int(part.split(b" ")[0]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [
        200,
        404,
        200,
    ] * 2


@pytest.mark.parametrize("target", [b"/healthz", b"http://localhost/healthz"])
def test_a_request_target_can_be_absolute(url: str, target: bytes) -> None:
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target
    assert status(raw(url, head)) == 200


@pytest.mark.parametrize(
    ("target", "host"),
    [
        (b"/healthz", b"evil@127.0.0.1"),
        (b"/healthz", b"127.0.0.1:80:evil"),
        (b"/healthz", b"127.0.0.1:"),
        (b"/healthz", b"[::1"),
        (b"/healthz", b"127.0.0.1/evil"),
        (b"/healthz", b""),
        (b"http://evil.example/healthz", b"localhost"),
        (b"http://evil@localhost/healthz", b"localhost"),
    ],
)
def test_another_host_is_refused(url: str, target: bytes, host: bytes) -> None:
    head = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host)
    answer = raw(url, head)
    assert status(answer) == 400
    assert b"HOST" in answer


def test_a_trailer_is_not_a_header(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    key = create_token()
    app.state.app_state.store.keys.add("t", "n", ["submit"], key.digest, key_id=key.key_id)
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n"
    credentials = b"Authorization: Bearer %s\r\n" % key.token.encode()
    body = b"\r\n2\r\n{}\r\n0\r\n"
    with client_of(app) as http:
        as_header = raw(str(http.base_url), head + credentials + body + b"\r\n")
        as_trailer = raw(str(http.base_url), head + body + credentials + b"\r\n")
    assert status(as_header) == 422
    assert status(as_trailer) == 401


def test_the_number_of_pipelined_requests_is_bounded(tmp_path: Path) -> None:
    """Requests behind an unfinished one are queued and answered up to a limit; others are not."""
    go = threading.Event()

    def slow(path: Path) -> Any:
        go.wait(2 * PATIENCE)
        raise Unavailable("so slow")

    app = create_app(settings_for(tmp_path / "home"), parts=AppParts(opener=slow))
    publish(app.state.app_state.registry, "docs", tmp_path / "staged")
    body = b'{"instances": [{"text": "a"}]}'
    first = b"POST /v1/models/docs:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    first += b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with client_of(app) as http:
        parts = http.base_url
        with socket.create_connection(
            (parts.host, parts.port or 80), timeout=PATIENCE
        ) as connection:
            connection.sendall(first + (GET + b"\r\n") * (MAX_PIPELINED_REQUESTS + 500))
            go.set()
            answer = b""
            while chunk := connection.recv(65_536):  # until the service closes the connection
                answer += chunk
        answers = answer.split(b"HTTP/1.1 ")[1:]
        assert [int(part[:3]) for part in answers] == [503] + [200] * MAX_PIPELINED_REQUESTS
        assert http.get("/healthz").status_code == 200
