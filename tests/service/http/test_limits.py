"""Limits of callers and connections: rates, concurrency, body memory, slow clients, quotas."""

from __future__ import annotations

import asyncio
import hashlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.clocks import Clock
from tests.support.live_service import OCTETS, PATIENCE, client_of, serving, settings_for
from tests.support.raw_requests import ask
from tests.support.waiting import until
from xcray.errors import Unavailable
from xcray.jobs.store.tokens import KeyLimits, create_token
from xcray.service import constants
from xcray.service.app import AppParts, create_app
from xcray.service.http.auth import ANONYMOUS, Caller
from xcray.service.http.limits import (
    MAX_ACCOUNTS,
    FailedKeys,
    Limiter,
    RateLimited,
    TokenBucket,
    network_of,
)
from xcray.service.prediction import fast_decode
from xcray.service.prediction.fast_decode import decode_fast

# Callers


def test_a_token_bucket_holds_one_minute_and_fills_evenly() -> None:
    bucket = TokenBucket(60, 0.0)
    assert [bucket.take(1, 0.0) for _ in range(60)] == [0.0] * 60
    assert bucket.take(1, 0.0) == pytest.approx(1.0)
    assert bucket.take(1, 1.0) == 0.0
    assert bucket.take(1, 1.5) == pytest.approx(0.5)
    # one hour with ten requests per second
    selection = sum(bucket.take(1, 2.0 + second / 10) == 0.0 for second in range(36_000))
    assert selection == pytest.approx(3600, abs=2)


def test_a_bucket_can_be_overdrawn_once() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.take(1000, 0.0) == 0.0
    assert bucket.take(1, 0.0) == pytest.approx((900 + 1) * 60 / 100)
    assert bucket.take(1, 541.0) == 0.0
    assert TokenBucket(0, 0.0).take(1, 5.0) > 0


def limiter(clock: Clock, home: Path, **changes: Any) -> Limiter:
    return Limiter(settings_for(home, **changes), clock)


def test_callers_have_separate_rate_limits(tmp_path: Path) -> None:
    clock = Clock()
    room = limiter(clock, tmp_path, requests_per_minute=5)
    own = Caller(key_id="key_a", limits=KeyLimits(requests_per_minute=2))
    for caller, address, most in (
        (ANONYMOUS, "10.0.0.1", 5),
        (ANONYMOUS, "10.0.0.2", 5),
        (own, "10.0.0.1", 2),
    ):
        for _ in range(most):
            room.admit(caller, address).close()
        with pytest.raises(RateLimited) as caught:
            room.admit(caller, address)
        assert caught.value.details["retry_after"] == 60 // most
    changed = Caller(key_id="key_a", limits=KeyLimits(requests_per_minute=9))
    for _ in range(9):
        room.admit(changed, "10.0.0.1").close()


def test_an_ipv6_network_is_one_caller(tmp_path: Path) -> None:
    assert (
        network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    )
    assert network_of("10.0.0.1") == "10.0.0.1"
    room = limiter(Clock(), tmp_path, requests_per_minute=1)
    room.admit(ANONYMOUS, "2001:db8::1")
    with pytest.raises(RateLimited):
        room.admit(ANONYMOUS, "2001:db8::2")


def test_request_slots_and_memory_are_released(tmp_path: Path) -> None:
    room = limiter(Clock(), tmp_path, max_concurrent_requests=2, max_body_memory_bytes=1000)
    first, second = room.admit(ANONYMOUS, "a"), room.admit(ANONYMOUS, "a")
    with pytest.raises(RateLimited) as caught:
        room.admit(ANONYMOUS, "a")
    assert caught.value.code == "CONCURRENCY"
    first.hold_bytes(600)
    second.hold_bytes(400)
    with pytest.raises(Unavailable) as full:
        second.hold_bytes(1)
    assert full.value.code == "BUSY"
    first.close()
    second.hold_bytes(600)
    second.close()
    assert room.held_bytes == 0
    room.admit(ANONYMOUS, "a")


def test_accounts_are_bounded(tmp_path: Path) -> None:
    room = limiter(Clock(), tmp_path)
    state = room.admit(ANONYMOUS, "first")
    for number in range(MAX_ACCOUNTS + 50):
        room.admit(ANONYMOUS, f"address {number}").close()
    assert len(room._accounts) == MAX_ACCOUNTS
    assert "first" in room._accounts  # its request is still running
    state.close()


def test_failed_keys_are_limited_per_network_in_bounded_memory() -> None:
    clock = Clock()
    failures = FailedKeys(2, clock)
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"):
        failures.count(address)
    for address in ("10.0.0.1", "2001:db8::3"):
        with pytest.raises(RateLimited) as caught:
            failures.count(address)
        assert (caught.value.code, caught.value.details["retry_after"]) == ("FAILED_KEYS", 30)
    clock.seconds += 30
    failures.count("10.0.0.1")
    for number in range(MAX_ACCOUNTS + 50):
        failures.count(f"address {number}")
    assert len(failures._buckets) == MAX_ACCOUNTS
    unlimited = FailedKeys(0, clock)
    for _ in range(100):
        unlimited.count("10.0.0.1")


def test_wrong_keys_are_slowed_down_and_valid_ones_are_not(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "FAILED_KEYS_PER_MINUTE", 3)
    app = create_app(settings_for(own_home))
    clock = Clock()
    monkeypatch.setattr(FailedKeys.__init__, "__defaults__", (clock,))
    credential = create_token()
    app.state.app_state.store.keys.add(
        "default", "n", ["admin"], credential.digest, key_id=credential.key_id
    )

    async def ask_with(token: str) -> tuple[int, str, str]:
        response = await ask(app, "GET", "/v1/jobs", headers={"authorization": f"Bearer {token}"})
        return response.status, response.code, response.headers.get("retry-after", "")

    async def send_requests() -> None:
        for _ in range(3):
            assert await ask_with(create_token().token) == (401, "UNAUTHORISED", "")
        assert await ask_with(create_token().token) == (429, "FAILED_KEYS", "20")
        assert (await ask_with(credential.token))[
            0
        ] == 200  # the same address, not in the cache before
        assert (await ask(app, "GET", "/v1/jobs")).code == "FAILED_KEYS"  # without any key
        clock.seconds += 20
        assert (await ask_with(create_token().token))[0] == 401

    asyncio.run(send_requests())
    figures = app.state.app_state.metrics.render().decode()
    assert 'xcray_http_rejected_requests_total{code="FAILED_KEYS"} 2.0' in figures


def test_a_key_with_limits_gets_them_in_headers(own_home: Path) -> None:
    app = create_app(settings_for(own_home))
    (bounds,) = [each.kwargs["limits"] for each in app.user_middleware if "limits" in each.kwargs]
    bounds.now = Clock()
    token = create_token()
    limits = {"requests_per_minute": 3, "instances_per_minute": 4}
    app.state.app_state.store.keys.add(
        "default", "n", ["admin"], token.digest, key_id=token.key_id, limits=limits
    )
    own = {"authorization": f"Bearer {token.token}"}
    body = json.dumps({"instances": [{"text": "a"}] * 5}).encode()

    async def send_requests() -> None:
        response = await ask(app, "GET", "/v1/jobs", headers=own)
        assert response.headers["ratelimit-policy"] == '"requests";q=3;w=60'
        assert response.headers["ratelimit"].startswith('"requests";r=2;t=')
        # The request takes five instances at once; later requests wait until they are paid for.
        for status, code in (
            (404, "NOT_FOUND"),
            (429, "RATE_LIMIT"),
        ):
            response = await ask(app, "POST", "/v1/models/none:predict", headers=own, body=body)
            assert (response.status, response.code) == (status, code)
        response = await ask(app, "GET", "/v1/jobs", headers=own)
        assert (response.status, response.code) == (429, "RATE_LIMIT")
        assert int(response.headers["retry-after"]) == 20

    asyncio.run(send_requests())


# Connections


@pytest.fixture(scope="module")
def slow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of the service with short timeouts."""
    return tmp_path_factory.mktemp("slow") / "home"


@pytest.fixture(scope="module")
def limited(slow_home: Path) -> Iterator[str]:
    """Start a service for few connections and yield its URL."""
    with serving(create_app(settings_for(slow_home, connections=20))) as url:
        yield url


@pytest.fixture
def slow(limited: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a service with short timeouts, for this test only."""
    monkeypatch.setattr(constants, "HEADER_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(constants, "BODY_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(constants, "MIN_BODY_BYTES_PER_SECOND", 100_000)
    return limited


def until_closed(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes; the socket timeout ends a wait that is too long."""
    connection.settimeout(PATIENCE)
    out = b""
    try:
        while part := connection.recv(65_536):
            out += part
    except ConnectionResetError:
        return out
    return out


def answered(url: str) -> None:
    """Check that the service still answers.

    On a busy machine this request can time out, too, so it is repeated.
    """
    poll(lambda: httpx.get(f"{url}/healthz", trust_env=False, timeout=PATIENCE), 200)


def connected(url: str) -> socket.socket:
    parts = httpx.URL(url)
    return socket.create_connection((parts.host, parts.port or 80), timeout=PATIENCE)


BEGINNINGS = {
    "nothing": b"",
    "half a line": b"GET /heal",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "blank lines": b"\r\n\r\n",
    "the second head": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /",
    "no body": b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("begun", BEGINNINGS, ids=str)
def test_stalled_requests_are_cut_off(slow: str, begun: str) -> None:
    with closing(connected(slow)) as connection:
        connection.sendall(BEGINNINGS[begun])
        output = until_closed(connection)
    assert b"408" in output
    answered(slow)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /v1/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\nContent-Length: 999999\r\n\r\n",
    ],
)
def test_single_bytes_do_not_keep_a_connection_open(
    slow: str, head: bytes, slow_home: Path
) -> None:
    with closing(connected(slow)) as connection:
        connection.sendall(head)
        messages: list[bytes] = []
        reader = threading.Thread(target=lambda: messages.append(until_closed(connection)))
        reader.start()
        for _ in range(int(PATIENCE / 0.05)):
            if not reader.is_alive():
                break
            try:
                connection.sendall(b"x")
            except OSError:
                break
            time.sleep(0.05)
        reader.join(PATIENCE)
    assert b"408" in messages[0]
    until(lambda: not list((slow_home / "uploads").iterdir()))


def test_connections_above_the_limit_are_refused_and_others_work(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections above the limit are refused at once and the others work.

    The limit is 20: the client's connection and 19 silent ones.
    """
    monkeypatch.setattr(constants, "HEADER_TIMEOUT_SECONDS", 600)
    with client_of(create_app(settings_for(own_home, connections=20))) as client:
        client.get("/healthz")
        idle = [connected(str(client.base_url)) for _ in range(40)]

        def closed() -> list[socket.socket]:
            return select.select(idle, [], [], 0)[0]

        try:
            until(lambda: len(closed()) >= 21)
            refused = closed()
            assert len(refused) == 21
            assert all(b"503" in until_closed(each) for each in refused)
            assert client.get("/healthz").status_code == 200
            assert len(closed()) == 21  # no other connection was closed
        finally:
            for each in idle:
                each.close()
        answered(str(client.base_url))


def test_bodies_wait_for_their_turn_to_be_decoded(tmp_path: Path) -> None:
    async def decoded() -> None:
        room = limiter(Clock(), tmp_path, max_body_memory_bytes=1000)
        tickets = [room.admit(ANONYMOUS, "a") for _ in range(4)]
        for ticket in tickets:
            ticket.hold_bytes(100)
        order: list[int] = []

        async def decode(number: int, n: int) -> None:
            await tickets[number].hold_decoded_bytes(n)
            order.append(number)

        # The first is larger than the limit; the last would fit, but is not earlier than others.
        tasks = [
            asyncio.create_task(decode(number, n)) for number, n in enumerate((5000, 500, 500, 1))
        ]

        async def settle() -> list[int]:
            for _ in range(20):
                await asyncio.sleep(0)
            return list(order)

        assert await settle() == [0]
        tickets[0].close()
        assert await settle() == [0, 1]
        assert room.held_bytes == 300 + 500
        tasks[2].cancel()
        tickets[2].close()
        assert await settle() == [0, 1, 3]
        for ticket in (tickets[1], tickets[3]):
            ticket.close()
        assert room.held_bytes == 0

    asyncio.run(decoded())


def test_few_large_bodies_are_decoded_at_once(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty bodies whose objects take a megabyte each, where three of them fit."""
    most = 4_000_000
    app = create_app(settings_for(own_home, max_body_memory_bytes=most))
    (bounds,) = [each.kwargs["limits"] for each in app.user_middleware if "limits" in each.kwargs]
    body = json.dumps({"instances": [{"values": [0.5] * 20_000}]}).encode()
    items: list[int] = []

    def decode(data: bytes, max_instances: int) -> Any:
        items.append(bounds.held_bytes)
        return decode_fast(data, max_instances)

    monkeypatch.setattr(fast_decode, "decode_fast", decode)

    async def send_requests() -> list[int]:
        requests = [ask(app, "POST", "/v1/models/none:predict", body=body) for _ in range(60)]
        return [report.status for report in await asyncio.gather(*requests)]

    statuses = asyncio.run(send_requests())
    assert set(statuses) <= {404, 503}
    assert statuses.count(404) == len(items) > 2
    assert 1_000_000 < max(items) <= most
    assert bounds.held_bytes == 0


def test_the_memory_of_all_bodies_is_bounded(own_home: Path) -> None:
    app = create_app(settings_for(own_home, max_body_memory_bytes=150_000))
    with client_of(app) as http:
        parts = httpx.URL(str(http.base_url))
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        with closing(socket.create_connection((parts.host, parts.port or 80))) as half:
            half.sendall(head + b" " * 90_000)
            (limits,) = [
                each.kwargs["limits"] for each in app.user_middleware if "limits" in each.kwargs
            ]
            # If the request came earlier, it would hold memory and the half body would be refused.
            until(lambda: limits.held_bytes >= 90_000)
            answer = poll(
                lambda: http.post(
                    "/v1/jobs", content=b" " * 100_000, headers={"Content-Type": "application/json"}
                ),
                503,
            )
            assert (answer.json()["code"], answer.headers["retry-after"]) == ("BUSY", "1")
        poll(
            lambda: http.post(
                "/v1/jobs", content=b" " * 100_000, headers={"Content-Type": "application/json"}
            ),
            400,
        )


def poll(ask_once: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """Repeat a request until it has this status; return the answer."""
    ends = time.monotonic() + PATIENCE
    while (answer := ask_once()).status_code != status:
        assert time.monotonic() < ends, f"{answer.status_code} and never {status}"
        time.sleep(0.02)
    return answer


# Uploads (F11)


@pytest.fixture(scope="module")
def uploading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, FastAPI]]:
    """Yield a client of a service with small quotas of uploads, and its app."""
    home = tmp_path_factory.mktemp("uploads") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "UPLOADS_PER_TENANT", 1.25)
        app = create_app(settings_for(home, upload_bytes=200_000))
        with client_of(app) as client:
            yield client, app


@pytest.fixture
def app(uploading: tuple[httpx.Client, FastAPI]) -> Iterator[FastAPI]:
    """Return the app; what a test uploaded is removed after it."""
    app = uploading[1]
    yield app
    for name in upload_names(app):
        app.state.app_state.uploads.remove(name)


@pytest.fixture
def http(uploading: tuple[httpx.Client, FastAPI], app: FastAPI) -> httpx.Client:
    return uploading[0]


def upload_names(app: FastAPI) -> list[str]:
    """Return the names in the folder of uploads."""
    return sorted(path.name for path in (app.state.app_state.home.path / "uploads").iterdir())


@pytest.mark.parametrize(
    ("path", "share"),
    [("/v1/uploads", 0.0), ("/v1/uploads", 0.99), ("/v1/datasets?name=a&format=jsonl", 0.5)],
)
def test_an_interrupted_upload_leaves_nothing(
    http: httpx.Client, app: FastAPI, path: str, share: float
) -> None:
    parts = httpx.URL(str(http.base_url))
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n"
    connection = socket.create_connection((parts.host, parts.port or 80))
    connection.sendall(head.encode() + b"x" * int(100_000 * share))
    until(lambda: len(upload_names(app)) == 1)  # it is being received under a hidden name
    assert upload_names(app)[0].startswith(".")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
    connection.close()
    until(lambda: not upload_names(app))
    assert http.get("/v1/datasets").json()["datasets"] == []
    assert http.post("/v1/uploads", content=b"whole", headers=OCTETS).status_code == 201


def test_an_upload_that_differs_from_its_declaration_leaves_nothing(
    http: httpx.Client, app: FastAPI
) -> None:
    wrong = http.post("/v1/uploads", params={"sha256": "0" * 64}, content=b"x", headers=OCTETS)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "UPLOAD_TRUNCATED")
    too_much = http.post("/v1/uploads", content=b"x" * 200_001, headers=OCTETS)
    assert too_much.status_code == 413
    # no Content-Length
    blocks = http.post("/v1/uploads", content=iter([b"x" * 50_000] * 5), headers=OCTETS)
    assert blocks.status_code == 413
    assert upload_names(app) == []


def test_a_repeated_upload_is_the_same_upload(http: httpx.Client, app: FastAPI) -> None:
    again = {**OCTETS, "Idempotency-Key": "k1"}
    first = http.post("/v1/uploads", content=b"one", headers=again).json()
    assert first["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert http.post("/v1/uploads", content=b"one", headers=again).json() == first
    assert http.post("/v1/uploads", content=b"one", headers=OCTETS).json()["id"] != first["id"]
    other = http.post("/v1/uploads", content=b"two", headers=again)
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    assert len(upload_names(app)) == 2
    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                http.post("/v1/uploads", content=b"x", headers={**again, "Idempotency-Key": "k2"})
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(upload_names(app)) == 3


def test_the_total_of_uploads_of_a_tenant_is_bounded(http: httpx.Client, app: FastAPI) -> None:
    first = http.post("/v1/uploads", content=b"x" * 200_000, headers=OCTETS).json()["id"]
    # refused by its Content-Length, or while it is received
    for content in (
        b"x" * 60_000,
        iter([b"x" * 60_000]),
    ):
        answer = http.post("/v1/uploads", content=content, headers=OCTETS)
        assert (answer.status_code, answer.json()["code"]) == (507, "UPLOAD_QUOTA")
        assert "250,000" in answer.json()["detail"]
    assert upload_names(app) == [first]
    parts = httpx.URL(str(http.base_url))
    head = b"POST /v1/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\nContent-Length: 40000\r\n\r\n"
    with closing(socket.create_connection((parts.host, parts.port or 80))) as half:
        half.sendall(head)
        until(lambda: len(upload_names(app)) == 2)
        # 40,000 bytes are reserved for the other upload.
        assert http.post("/v1/uploads", content=b"x" * 20_000, headers=OCTETS).status_code == 507
    until(lambda: upload_names(app) == [first])
    app.state.app_state.uploads.remove(first)
    assert http.post("/v1/uploads", content=b"x" * 60_000, headers=OCTETS).status_code == 201


def test_data_sets_of_a_tenant_are_counted(own_home: Path) -> None:
    app = create_app(settings_for(own_home, tenant_datasets=1))
    app.state.app_state.store.datasets.add("a", "/none")

    async def send_requests() -> None:
        response = await ask(
            app, "POST", "/v1/datasets", body=b'{"name": "b", "format": "synthetic"}'
        )
        assert (response.status, response.code) == (507, "DATASET_QUOTA")

    asyncio.run(send_requests())
    assert len(app.state.app_state.store.datasets.list_page()[0]) == 1


def test_pending_jobs_are_bounded_per_key(own_home: Path, tmp_path: Path) -> None:
    app = create_app(settings_for(own_home), parts=AppParts(check_spec=lambda spec: spec))
    store = app.state.app_state.store
    token = create_token()
    store.keys.add(
        "default", "n", ["submit"], token.digest, key_id=token.key_id, limits={"max_queued": 1}
    )
    store.datasets.add("docs", str(tmp_path))

    async def send_requests() -> None:
        for status in (201, 429):
            headers = {"authorization": f"Bearer {token.token}"}
            response = await ask(
                app, "POST", "/v1/jobs", headers=headers, body=b'{"dataset": "docs", "model": "m"}'
            )
            assert response.status == status, response
        assert (response.code, "retry-after" in response.headers) == ("QUOTA", True)

    asyncio.run(send_requests())
    assert [job.key_id for job in store.jobs.list_page()[0]] == [token.key_id]
