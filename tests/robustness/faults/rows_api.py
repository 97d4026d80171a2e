"""Rows about API clients and the API process.

The API process dies; clients repeat requests, send them slowly or incompletely, or all at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.measurements import percentile
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.rows_store import postgres
from tests.robustness.faults.service import PATIENCE, Service, store_of
from tests.robustness.faults.stage import Stage, until
from tests.robustness.faults.work import QUICK, again, ok, submit
from tests.support.postgres import PostgresServer
from xcray.cli.terminal.processes import PROC
from xcray.client import Client
from xcray.jobs.states import PENDING, SUCCEEDED, TERMINAL
from xcray.jobs.store.jobs import JobFilter, JobSubmission

OCTETS = {"Content-Type": "application/octet-stream"}


def stop_all(stage: Stage, service: Service) -> float:
    """Stop every job that has not ended; return the seconds until all have ended."""
    began = time.monotonic()
    store = store_of(service.home)
    for status in ("PENDING", "RUNNING"):
        while jobs := store.jobs.list_page(JobFilter(status=status), limit=1000)[0]:
            for job in jobs:
                again(lambda job=job: service.http.post(f"/v1/jobs/{job.id}/stop"))
            if status == "RUNNING":
                time.sleep(0.2)
    store.close()
    return time.monotonic() - began


@row(
    "F4",
    "kill -9 of the service",
    "SIGKILL every 0.5 to 3 s while 4 clients submit with keys and retries",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/service/processes/test_manager.py",
)
def service_killed(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    expected = 40 if stage.small else 200 * stage.runs
    left, lock = iter(range(expected)), threading.Lock()
    done = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=PATIENCE) as http:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                submit(http, stage.ledger, data, "m", f"key-{number}", priority=-1)
                # slow enough that kills happen during the submits
                time.sleep(0.2 if stage.small else 0.0)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    waiter = threading.Thread(target=lambda: ([each.join() for each in clients], done.set()))
    waiter.start()
    while not done.wait(stage.random.uniform(0.5, 1.0 if stage.small else 3.0)):
        service.kill()
        with stage.measurements.recovering():
            service.up()
        stage.measurements.runs += 1
        values = len(stage.ledger.ids("job"))
        until(
            lambda observations=values: (
                done.is_set() or len(stage.ledger.ids("job")) > observations
            ),
            "a client is answered between two kills",
        )
        # On machines where a start takes long, five kills are enough.
        if stage.small and stage.measurements.runs == 5:
            break
    waiter.join()
    # All jobs were submitted before the first kill.
    if not stage.measurements.runs:
        service.kill()
        with stage.measurements.recovering():
            service.up()
        stage.measurements.runs += 1
    stage.measurements.details["submitted"] = expected
    store = store_of(service.home)
    stage.expect(len(stage.ledger.ids("job")) == expected, "a client gave up")
    there = (
        len(store.jobs.list_page(limit=1000)[0])
        if expected < 1000
        else sum(store.statistics.read().jobs.values())
    )
    if there > expected:
        stage.measurements.double(f"{there} jobs for {expected} keys")
    store.close()
    stop_all(stage, service)
    drained(stage, service)


@row(
    "F11",
    "half an upload",
    "raw sockets: reset after 0, 1, 50, 99 %; Content-Length too small and too large; wrong sha256; the service "
    "killed in the middle",
    "tests/service/http/test_limits.py",
)
def half_uploads(stage: Stage) -> None:
    service = Service(stage, BODY_IDLE_SECONDS=2.0)
    service.up()
    body = b"".join(b'{"text": "row %d of a file", "labels": ["a"]}\n' % i for i in range(20_000))
    path = "/v1/datasets?name=half&format=jsonl"
    for turn in range(stage.runs):
        for share in (0.0, 0.01, 0.5, 0.99):
            _broken_off(service, path, body, share)
            _nothing_there(stage, service, f"reset at {share:.0%}")
        for declared in (len(body) // 2, len(body) + 1000):
            _declared(service, path, body, declared)
        wrong = service.http.post(path + "&sha256=" + "0" * 64, content=body, headers=OCTETS)
        stage.expect(
            wrong.status_code == 400 or wrong.status_code == 422,
            f"a wrong sha256 was answered {wrong.status_code}",
        )
        _nothing_there(stage, service, "wrong sha256", but=1)
        if turn == 0:
            _killed_in_the_middle(stage, service, path, body)
    whole = ok(
        service.http.post(
            path + f"&sha256={hashlib.sha256(body).hexdigest()}", content=body, headers=OCTETS
        )
    )
    stage.ledger.acknowledged("dataset", whole["id"])
    until(
        lambda: ok(service.http.get(f"/v1/datasets/{whole['id']}"))["status"] != "BUILDING",
        "the whole one",
    )
    until(
        lambda: all(
            each["status"] != "BUILDING"
            for each in ok(service.http.get("/v1/datasets"))["datasets"]
        ),
        "all builds",
    )
    drained(stage, service)


def _head(path: str, length: int) -> bytes:
    """Return the head of an upload request with a Content-Length."""
    fields = {
        "Host": "localhost",
        "Content-Type": "application/octet-stream",
        "Content-Length": length,
    }
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    ).encode()


def _broken_off(service: Service, path: str, body: bytes, share: float) -> None:
    """Send a share of a body, then reset the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(_head(path, len(body)) + body[: int(share * len(body))])
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _declared(service: Service, path: str, body: bytes, length: int) -> None:
    """Send a body with a wrong Content-Length.

    If it is too small, the service takes the declared bytes as a complete file. If it is too large,
    the service gives up after its timeout.
    """
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(
            _head(path.replace("half", "cut") if length < len(body) else path, length) + body
        )
        with contextlib.suppress(OSError):
            connection.recv(4096)


def _nothing_there(stage: Stage, service: Service, what: str, but: int = 0) -> None:
    """Check that no data set of the name is listed and none of its files is left."""
    listed = [
        each for each in ok(service.http.get("/v1/datasets"))["datasets"] if each["name"] == "half"
    ]
    stage.expect(not listed, f"{what}: a half upload is listed")
    began = time.monotonic()
    uploads = service.home.path / "uploads"
    until(lambda: not [*uploads.iterdir()], f"{what}: what was received is removed")
    stage.measurements.recovery.append(time.monotonic() - began)
    stage.measurements.runs += 1


def _killed_in_the_middle(stage: Stage, service: Service, path: str, body: bytes) -> None:
    """Kill the service while it receives a body; the next start removes the incomplete upload."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(_head(path, len(body)) + body[: len(body) // 2])
        until(
            lambda: [*(service.home.path / "uploads").glob(".*/body")], "the first half is on disk"
        )
        service.kill()
    service.up()
    _nothing_there(stage, service, "killed in the middle")


@row(
    "F18",
    "duplicate requests",
    "50 submits of one key at once to two worker processes; the same key with another body; a reply that is lost",
    "tests/jobs/store/test_store.py",
    "tests/service/http/test_api.py",
)
def asked_twice(stage: Stage) -> None:
    service = Service(stage, words=("--processes", "2"))
    service.up()
    data = service.dataset()
    with ThreadPoolExecutor(50) as pool:
        for turn in range(stage.runs):
            body = {**QUICK, "dataset": data, "model": "m"}
            go = threading.Barrier(50)
            answers = [
                *pool.map(lambda _, b=body, t=turn, g=go: _once(service, b, f"k{t}", g), range(50))
            ]
            codes = sorted({each.status_code for each in answers})
            stage.expect(set(codes) <= {200, 201}, f"answers to one key were {codes}")
            ids = {each.json()["id"] for each in answers if each.is_success}
            for each in ids:
                stage.ledger.acknowledged("job", each, key=f"k{turn}")
            if len(ids) > 1 or sum(each.status_code == 201 for each in answers) != 1:
                stage.measurements.double(
                    f"one key made {len(ids)} jobs, 201 was said {sum(each.status_code == 201 for each in answers)} times"
                )
            other = service.http.post(
                "/v1/jobs", json={**body, "model": "other"}, headers={"Idempotency-Key": f"k{turn}"}
            )
            stage.expect(
                other.status_code == 409,
                f"the key with another body was answered {other.status_code}",
            )
            _lost_reply(service, body, f"lost{turn}")
            service.submit(data, "m", f"lost{turn}")
            stage.measurements.runs += 51
    store = store_of(service.home)
    stage.expect(
        sum(store.statistics.read().jobs.values()) == 2 * stage.runs,
        f"{store.statistics.read().jobs} for {2 * stage.runs} keys",
    )
    store.close()
    stop_all(stage, service)
    drained(stage, service)


def _once(
    service: Service, body: dict[str, Any], key: str, go: threading.Barrier
) -> httpx.Response:
    """Send one of several simultaneous submits on its own connection."""
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as http:
        http.get("/healthz")
        go.wait(60)
        return http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})


def _lost_reply(service: Service, body: dict[str, Any], key: str) -> None:
    """Send a submit and disconnect before the answer."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: {key}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(head + content)


@row(
    "F20",
    "slow clients",
    "raw sockets: a header and a body of one byte a second, a reader that does not read, 200 idle connections",
    "tests/service/http/test_connection_limits.py",
    "tests/robustness/test_bad_input.py",
)
def slow_clients(stage: Stage) -> None:
    service = Service(stage, BODY_IDLE_SECONDS=3.0)
    service.up()
    data = service.dataset()
    job = service.ended(service.submit(data, "m", "k"))
    assert job["status"] == SUCCEEDED, job
    before = _paces(service, 100)
    idle = [
        socket.create_connection(("127.0.0.1", service.port))
        for _ in range(40 if stage.small else 200)
    ]
    header, body = (socket.create_connection(("127.0.0.1", service.port)) for _ in range(2))
    body.sendall(_head("/v1/uploads", 1000))
    reader = socket.create_connection(("127.0.0.1", service.port))
    reader.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
    began, cut = time.monotonic(), {}
    seconds = 6.0 if stage.small else 25.0
    paces: list[float] = []
    text = iter(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000)
    while time.monotonic() - began < seconds and len(cut) < 2:
        paces += _paces(service, 20)
        for name, connection, byte in (
            ("header", header, bytes([next(text)])),
            ("body", body, b"a"),
        ):
            if name not in cut and not _drips(connection, byte):
                cut[name] = time.monotonic() - began
        time.sleep(1.0)
    for connection in (*idle, header, body, reader):
        connection.close()
    stage.measurements.details |= {
        "predict_p99_ms_before": round(1000 * percentile(before, 0.99), 1),
        "p99_ms_beside": round(1000 * percentile(paces, 0.99), 1),
        **{f"{name}_cut_after_s": round(when, 1) for name, when in cut.items()},
    }
    for name in {"header", "body"} - set(cut):
        stage.measurements.note(
            f"a {name} of one byte a second was still held after {seconds:.0f} s: a proxy in front must cut it"
        )
    stage.measurements.runs += 3 + len(idle)
    stage.expect(
        service.http.get("/healthz", timeout=10).status_code == 200,
        "the service does not answer others",
    )
    drained(stage, service)


def _paces(service: Service, count: int) -> list[float]:
    """Return the seconds of `count` consecutive predictions."""
    out = []
    body = {"instances": [{"indices": [1, 2], "values": [1.0, 1.0]}], "top_k": 3}
    for _ in range(count):
        began = time.perf_counter()
        ok(service.http.post("/v1/models/m:predict", json=body))
        out.append(time.perf_counter() - began)
    return out


def _drips(connection: socket.socket, byte: bytes) -> bool:
    """Send one byte and return whether the peer still holds the connection."""
    try:
        connection.sendall(byte)
        connection.setblocking(False)
        return connection.recv(1) != b"" and False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            connection.setblocking(True)


@row(
    "F29",
    "all clients come back at once",
    "SIGKILL of the service while 200 clients (the client library's own retries) ask for predictions",
    "tests/client/test_client.py",
)
def retry_storm(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.trained(data)
    before = percentile(_paces(service, 200), 0.99)
    ending, errors, paces = threading.Event(), [], []
    instance = {"indices": [1, 2], "values": [1.0, 1.0]}

    def client() -> None:
        with Client(service.url, retries=8) as mine:
            while not ending.is_set():
                began = time.monotonic()
                try:
                    mine.predict("m", [instance], top_k=3)
                    paces.append((time.monotonic(), time.monotonic() - began))
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}")
                ending.wait(stage.random.uniform(0.5, 1.5))

    clients = [threading.Thread(target=client) for _ in range(20 if stage.small else 200)]
    for each in clients:
        each.start()
    for _ in range(min(1, stage.runs)):
        time.sleep(3.0)
        service.kill()
        back = service.up()
        since = time.monotonic()
        time.sleep(8.0)
        late = [
            when - since for when, pace in paces if when > since and pace > max(10 * before, 0.5)
        ]
        stage.measurements.recovery.append(back + max(late, default=0.0))
        stage.measurements.runs += 1
    ending.set()
    for each in clients:
        each.join()
    stage.measurements.details |= {
        "clients": len(clients),
        "predictions": len(paces),
        "failed": len(errors),
    }
    stage.expect(
        not errors, f"{len(errors)} predictions failed in spite of retries, first: {errors[:1]}"
    )
    drained(stage, service)


@row(
    "F16",
    "ten thousand queued jobs",
    "submits of 4 clients until as many wait; a restart; all stopped",
    "tests/jobs/store/test_store.py",
    limit=600,
)
def many_jobs(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.submit(data, "m", "template")
    until(lambda: ok(service.http.get("/v1/jobs"))["jobs"][0]["status"] in TERMINAL, "the first")
    store = store_of(service.home)
    spec = store.jobs.list_page()[0][0].spec
    expected, resident = (500 if stage.small else 10_000), _resident(service)
    before = [
        store.jobs.submit(JobSubmission(spec, name="m", priority=-1))
        for _ in range(max(0, expected - 500))
    ]
    paces = []
    for number in range(min(expected, 500)):
        began = time.perf_counter()
        service.submit(data, "m", f"many{number}", priority=-1)
        paces.append(time.perf_counter() - began)
    lists = []
    for _ in range(100):
        began = time.perf_counter()
        ok(service.http.get("/v1/jobs?limit=50"))
        lists.append(time.perf_counter() - began)
    stage.measurements.details |= {
        "queued": len(before) + len(paces),
        "submit_p99_ms": round(1000 * percentile(paces, 0.99)),
        "list_p99_ms": round(1000 * percentile(lists, 0.99)),
        "resident_grew_mb": round((_resident(service) - resident) / 1e6),
    }
    service.kill()
    with stage.measurements.recovering():
        service.up()
    stage.expect(
        store.statistics.read().jobs[PENDING] >= expected * 0.9,
        f"after the restart {store.statistics.read().jobs}",
    )
    stop_all(stage, service)
    stage.measurements.runs += expected
    store.close()
    drained(stage, service)


def _resident(service: Service) -> int:
    """Return the resident memory of the service in bytes."""
    status = (PROC / str(service.pid) / "status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@row(
    "F27",
    "out of file descriptors",
    "prlimit of the service to 20 open files more than it has, and 100 connections",
)
def few_descriptors(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.trained(data)
    import resource

    for _ in range(stage.runs):
        before = len([*(PROC / str(service.pid) / "fd").iterdir()])
        limits = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
        # Only the soft limit is lowered: a lowered hard limit cannot be raised again.
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (before + 20, limits[1]))
        items = []
        with contextlib.suppress(OSError):
            items.extend(
                socket.create_connection(("127.0.0.1", service.port), timeout=2) for _ in range(100)
            )
        time.sleep(1.0)
        stage.expect(service.alive, "the service ended without file descriptors")
        for connection in items:
            connection.close()
        with stage.measurements.recovering():
            until(
                lambda: (
                    again(
                        lambda: httpx.get(f"{service.url}/healthz", trust_env=False, timeout=5)
                    ).status_code
                    == 200
                ),
                "it answers",
                60,
            )
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)
        _paces(service, 20)
        until(
            lambda b=before: len([*(PROC / str(service.pid) / "fd").iterdir()]) <= b + 5,
            "descriptors are given back",
            60,
        )
        stage.measurements.runs += 1
    service.submit(data, "m", "after")
    assert service.ended(stage.ledger.ids("job")[-1])["status"] == SUCCEEDED
    drained(stage, service)


@row(
    "F30",
    "readiness is correct",
    "PostgreSQL killed, disk below its reserve, Ray away, model missing: /readyz, /healthz and predictions",
    "tests/service/observability/test_readiness.py",
    "tests/service/processes/test_manager.py",
)
def readiness(stage: Stage) -> None:
    server = postgres(stage)
    service = Service(
        stage, ray_address="127.0.0.1:9", ray_dashboard="http://127.0.0.1:9", **_another(server)
    )
    service.up()
    data = service.dataset()
    service.trained(data)
    response = until(
        lambda: (reply := ok(service.http.get("/readyz"))).get("degraded") and reply,
        "Ray is away",
        60,
    )
    stage.expect(
        response["ready"] and response["degraded"] == ["RAY"],
        f"with Ray away /readyz said {response}",
    )
    missing = service.http.post(
        "/v1/models/none:predict", json={"instances": [{"indices": [1], "values": [1.0]}]}
    )
    stage.expect(missing.status_code == 404, f"a missing model was answered {missing.status_code}")
    other = Service(
        stage,
        "full",
        stage.folder / "full",
        DISK_RESERVE_BYTES=1 << 60,
        DISK_RESERVE_SHARE=1e6,
        KEYS_GRACE_SECONDS=0.0,
        **_another(server),
    )
    other.start()
    until(lambda: _health(other) == 200, "it lives", 60)
    full = until(
        lambda: (r := other.http.get("/readyz")).json()["reasons"] == ["DISK"] and r,
        "the disk alone is the reason",
        60,
    )
    stage.expect(full.status_code == 503, f"with a full disk: {full.text}")
    for _ in range(min(stage.runs, 2) if server else 0):
        _without_store(stage, service, other, server)
    other.end()
    stage.measurements.runs += 3
    drained(stage, service)


def _another(server: PostgresServer | None) -> dict[str, str]:
    """Return the setting of another store on the same server."""
    return {} if server is None else {"store": server.database()}


def _health(service: Service) -> int:
    """Return the status of /healthz, or 0 if the service is unreachable."""
    try:
        return service.http.get("/healthz", timeout=5).status_code
    except httpx.TransportError:
        return 0


def _without_store(stage: Stage, service: Service, strict: Service, server: PostgresServer) -> None:
    """Kill the database and check readiness, liveness and predictions; then start it again.

    A service that can authenticate from its cache stays ready and is degraded. A service that
    accepts no key without the store is not ready. Both are alive.
    """
    body = {"instances": [{"indices": [1], "values": [1.0]}]}
    server.kill()
    until(
        lambda: "STORE" in service.http.get("/readyz", timeout=60).json()["degraded"],
        "degraded",
        60,
    )
    stage.expect(
        service.http.post("/v1/models/m:predict", json=body).status_code == 200,
        "predictions depend on the store",
    )
    stage.expect(
        service.http.get("/readyz", timeout=60).status_code == 200,
        "predictions work, but the service is not ready",
    )
    response = until(
        lambda: "STORE" in (r := strict.http.get("/readyz", timeout=60)).json()["reasons"] and r,
        "not ready",
        60,
    )
    stage.expect(response.status_code == 503, f"without a store: {response.text}")
    stage.expect(_health(service) == _health(strict) == 200, "liveness depends on the store")
    server.start()
    with stage.measurements.recovering():
        service.ready()
    stage.measurements.runs += 1
