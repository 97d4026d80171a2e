"""Data sets by URI: protection against server-side request forgery."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.live_service import settings_for
from tests.support.raw_requests import ask
from xcray.errors import InputError, Refused, Unavailable, XcrayError
from xcray.service import constants
from xcray.service.app import AppParts, create_app
from xcray.service.datasets.fetching import fetch, is_public
from xcray.service.settings import Settings

PREFIX: Final = "https://data.example/sets/"


class Canary:
    """A local listener that counts connections."""

    def __init__(self) -> None:
        self.came = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.came += 1
            connection.close()


@pytest.fixture
def canary() -> Iterator[Canary]:
    listening = Canary()
    yield listening
    listening.listener.close()


# {port} is the port of the canary. These URIs are refused before any look-up, whatever prefixes the
# operator lists.
WRITTEN: Final = (
    *(
        "http://127.0.0.1:{port}/a",
        "https://127.0.0.1:{port}/a",
        "http://localhost:{port}/a",
        "http://[::1]:{port}/a",
    ),
    *(
        "http://0:{port}/a",
        "http://2130706433:{port}/a",
        "http://0x7f.1:{port}/a",
        "http://0177.0.0.1:{port}/a",
        "http://127.1:{port}/",
    ),
    *(
        "http://[::ffff:127.0.0.1]:{port}/a",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00::1]/a",
        "//127.0.0.1:{port}/a",
    ),
    *(
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "gopher://127.0.0.1:{port}/_x",
        "ftp://127.0.0.1:{port}/a",
        "data:,x",
    ),
    *(
        "dict://127.0.0.1:{port}/",
        "s3://bucket/a",
        "simplecache::http://127.0.0.1:{port}/a",
        "zip://a::http://127.0.0.1:{port}/a",
    ),
    *(
        "https://data.example@127.0.0.1:{port}/sets/a",
        "https://user:pass@data.example/sets/a",
        "HTTPS://data.example/sets/a",
    ),
    *(
        "https://data.example.evil.example/sets/a",
        "https://data.example:{port}/sets/a",
        "https://data.example\\@127.0.0.1:{port}/sets/",
    ),
    *(
        "https://data.example/sets/../secret",
        "https://data.example/sets/%2e%2e/secret",
        "https://data.example/sets/%252e%252e/secret",
    ),
    *(
        "https://data.example/sets/a\r\nHost: evil",
        "https://data.example/sets/a b",
        "https://data.example/sets/\u2025/a",
        "",
        " ",
    ),
    *(
        "https://data.example/sets/..\\secret",
        "https://data.example/sets/a#b",
        "https://data.example/sets/a::b",
        "a" * 3000,
    ),
)
# These hosts are refused because of their addresses, even if the operator lists them.
HOSTS: Final = (
    *(
        "127.0.0.1",
        "localhost",
        "0",
        "2130706433",
        "0x7f.1",
        "127.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
    ),
    *("100.64.0.1", "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
)


def settings(home: Path, *prefixes: str, **changes: Any) -> Settings:
    return settings_for(home, dataset_uris=prefixes, **changes)


def test_uris_that_are_not_listed_are_not_contacted(canary: Canary, own_home: Path) -> None:
    assert len(WRITTEN) >= 30
    for written in WRITTEN:
        with pytest.raises(Refused) as caught:
            list(fetch(written.format(port=canary.port), settings(own_home, PREFIX)))
        assert caught.value.code == "URI_FORBIDDEN"
    with pytest.raises(Refused):
        list(fetch(PREFIX + "a", settings(own_home)))  # an empty list of prefixes allows nothing
    assert canary.came == 0


@pytest.mark.parametrize("host", HOSTS)
def test_listed_hosts_must_be_public(canary: Canary, own_home: Path, host: str) -> None:
    prefix = f"http://{host}:{canary.port}/"
    with pytest.raises(XcrayError) as caught:
        list(fetch(f"{prefix}a", settings(own_home, prefix)))
    assert caught.value.code in ("URI_FORBIDDEN", "URI_UNREACHABLE")
    assert canary.came == 0


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "::1",
            "::",
            "0.0.0.0",
            "10.1.2.3",
            "169.254.169.254",
            "fe80::1",
            "fe80::1%eth0",
            "fc00::1",
            "fd12::1",
            "ff02::1",
        ),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "100.64.0.1",
            "no address",
        ),
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_all_addresses_of_a_host_are_checked_and_it_is_resolved_once(
    canary: Canary, own_home: Path
) -> None:
    run_requests: list[str] = []
    prefix = f"http://rebound.example:{canary.port}/"

    def turning(host: str, port: int) -> list[str]:
        run_requests.append(host)
        return ["93.184.216.34", "127.0.0.1"]

    with pytest.raises(Refused, match="not a public address"):
        list(fetch(f"{prefix}a", settings(own_home, prefix), turning))
    assert run_requests == ["rebound.example"]
    assert canary.came == 0


class Files(BaseHTTPRequestHandler):
    """A server of valid files and of invalid responses."""

    def do_GET(self) -> None:
        """Answer according to the path."""
        self.server.hosts.append(self.headers["Host"])  # type: ignore[attr-defined]
        if self.path == "/sets/moved":
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)  # type: ignore[attr-defined]
            self.end_headers()
            return
        body = b'{"text": "a", "labels": ["b"]}\n' * (
            3 if self.path.startswith("/sets/a.jsonl") else 10_000
        )
        self.send_response(404 if self.path == "/sets/none" else 200)
        if self.path == "/sets/zipped":
            self.send_header("Content-Encoding", "gzip")
        if self.path != "/sets/untold":
            self.send_header("Content-Length", str(len(body) + (self.path == "/sets/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@contextmanager
def files(elsewhere: str = "") -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.hosts, server.elsewhere = [], elsewhere  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def resolved(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def test_a_listed_file_is_fetched_from_the_address_that_was_checked(
    own_home: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    with files() as server:
        prefix = f"http://data.example:{server.server_port}/sets/"
        mine = settings(own_home, prefix, dataset_uris_private=True, upload_bytes=100_000)
        assert b"".join(fetch(f"{prefix}a.jsonl?v=1", mine, resolved)).count(b"\n") == 3
        assert server.hosts == [f"data.example:{server.server_port}"]  # type: ignore[attr-defined]
    assert canary.came == 0


def test_invalid_responses_are_refused(own_home: Path, canary: Canary) -> None:
    with files(f"http://127.0.0.1:{canary.port}/") as server:
        prefix = f"http://data.example:{server.server_port}/sets/"
        mine = settings(own_home, prefix, dataset_uris_private=True, upload_bytes=10_000)
        for name, code in (
            ("moved", "URI_ANSWER"),
            ("none", "URI_ANSWER"),
            ("zipped", "URI_ANSWER"),
            ("large", "BODY_TOO_LARGE"),
        ):
            with pytest.raises(InputError) as caught:
                list(fetch(prefix + name, mine, resolved))
            assert caught.value.code == code, name
        with pytest.raises(InputError) as caught:
            list(fetch(f"{prefix}untold", mine, resolved))
        assert caught.value.code == "URI_ANSWER"
        with pytest.raises((InputError, Unavailable)):
            list(fetch(f"{prefix}short", mine.model_copy(update={"upload_bytes": 10**9}), resolved))
    assert canary.came == 0


@pytest.mark.parametrize(
    "begun", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"]
)
def test_a_slow_response_is_given_up(
    own_home: Path, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DATASET_URI_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(begun)
                while not ended.wait(0.02):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        threading.Thread(target=drip, daemon=True).start()
        prefix = f"http://data.example:{listener.getsockname()[1]}/"
        mine = settings(own_home, prefix, dataset_uris_private=True)
        try:
            with pytest.raises(InputError) as caught:
                list(fetch(f"{prefix}a", mine, resolved))
            assert caught.value.code == "URI_SLOW"
        finally:
            ended.set()


def test_prefixes_must_contain_a_complete_host(own_home: Path) -> None:
    for wrong in (
        "https://data.example",
        "https://",
        "file:///",
        "data.example/",
        "https://u@data.example/",
        "https://*/",
        "s3://b/",
    ):
        with pytest.raises(ValueError, match="prefix"):
            settings(own_home, wrong)


def test_the_route_accepts_listed_files_and_leaves_nothing_of_others(own_home: Path) -> None:
    with files() as server:
        prefix = f"http://localhost:{server.server_port}/sets/"
        app = create_app(
            settings(own_home, prefix, dataset_uris_private=True),
            parts=AppParts(check_spec=lambda spec: spec),
        )

        async def run_requests() -> None:
            body = {"name": "docs", "format": "jsonl", "uri": f"{prefix}a.jsonl"}
            for wrong, status in (
                ({**body, "sha256": "0" * 64}, 422),
                ({**body, "uri": f"{prefix}none"}, 422),
                ({**body, "uri": "http://localhost:1/"}, 403),
                ({**body, "format": "dataset"}, 422),
                ({**body, "path": "/x"}, 422),
            ):
                response = await ask(app, "POST", "/v1/datasets", body=json.dumps(wrong).encode())
                assert response.status == status, (wrong, response)
                assert str(own_home).encode() not in response.body
            assert list((own_home / "uploads").iterdir()) == []
            assert app.state.app_state.store.datasets.list_page()[0] == []
            response = await ask(app, "POST", "/v1/datasets", body=json.dumps(body).encode())
            assert (response.status, json.loads(response.body)["status"]) == (201, "BUILDING")

        asyncio.run(run_requests())
        record = app.state.app_state.store.datasets.list_page()[0][0]
        request = json.loads((own_home / "builds" / record.id / "request.json").read_text())
        assert Path(request["sources"]["train"]).read_bytes().count(b"\n") == 3
