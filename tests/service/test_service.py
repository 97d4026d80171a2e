"""The service over HTTP: data sets, jobs, event streams, models, operations and failures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import FastAPI

from tests.support.live_service import (
    LABELS,
    OCTETS,
    TEXTS,
    build_stub,
    client_of,
    publish,
    settings_for,
)
from tests.support.waiting import until
from xcray.errors import Conflict, ParameterError
from xcray.jobs.states import SUCCEEDED
from xcray.service import constants
from xcray.service.app import AppParts, create_app
from xcray.service.app_state import AppState
from xcray.service.models.cache import ModelCache, ModelTarget
from xcray.service.processes.sockets import listen
from xcray.service.settings import Settings

LINES = "".join(
    json.dumps({"text": text, "labels": [label]}) + "\n"
    for text, label in zip(TEXTS * 5, LABELS * 5, strict=True)
)

# Seconds until a wait is given up: a slow machine may have to compile kernels.
PATIENCE = 600.0


class Service(NamedTuple):
    """A served app, its state, and a client."""

    http: httpx.Client
    app_state: AppState
    app: FastAPI


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service for requests that change nothing, with a small limit of uploads."""
    with stub_service(tmp_path_factory.mktemp("shared"), upload_bytes=2000) as service:
        ready_dataset(service)
        yield service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service of one test."""
    with stub_service(tmp_path) as service:
        yield service


@contextmanager
def stub_service(folder: Path, **changes: Any) -> Iterator[Service]:
    """Yield a service with a stub that builds data sets at once."""
    app = create_app(
        settings_for(folder / "home", **changes),
        parts=AppParts(build_command=build_stub(folder)),
    )
    with client_of(app) as http:
        yield Service(http, app.state.app_state, app)


def settled(http: httpx.Client, dataset_id: str) -> dict[str, Any]:
    """Wait until a data set is no longer BUILDING and return it."""

    def look() -> dict[str, Any] | None:
        body: dict[str, Any] = http.get(f"/v1/datasets/{dataset_id}").json()
        return None if body["status"] == "BUILDING" else body

    result: dict[str, Any] = until(look)
    return result


def ready_dataset(service: Service) -> str:
    """Build a data set with the stub and return its id."""
    response = service.http.post("/v1/datasets", json={"name": "data", "format": "pydocs"})
    assert response.status_code == 201, response.text
    return str(settled(service.http, response.json()["id"])["id"])


def submitted(service: Service, **more: Any) -> dict[str, Any]:
    """Submit a job and return it."""
    response = service.http.post(
        "/v1/jobs", json={"dataset": ready_dataset(service), "model": "m", **more}
    )
    assert response.status_code == 201, response.text
    return dict(response.json())


# Data sets


def test_a_text_file_becomes_a_data_set(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        response = http.post(
            "/v1/datasets?name=docs&format=jsonl", content=LINES.encode(), headers=OCTETS
        )
        assert (response.status_code, response.json()["status"]) == (201, "BUILDING")
        assert response.headers["location"] == f"/v1/datasets/{response.json()['id']}"
        record = settled(http, response.json()["id"])
        assert (record["status"], record["name"]) == ("READY", "docs"), record
        assert (record["stats"]["n_labels"], record["stats"]["splits"]["train"]["n_rows"]) == (
            4,
            20,
        )
        assert [one["id"] for one in http.get("/v1/datasets").json()["datasets"]] == [record["id"]]
        job = http.post("/v1/jobs", json={"dataset": "docs", "model": "docs"})
        assert (job.status_code, job.json()["spec"]["dataset"]) == (201, record["id"])
        assert str(tmp_path) not in job.text + json.dumps(record)
        assert http.delete(f"/v1/datasets/{record['id']}").json()["code"] == "STATE"
        http.post(f"/v1/jobs/{job.json()['id']}/stop")
        assert http.delete(f"/v1/datasets/{record['id']}").status_code == 204
        assert http.get(f"/v1/datasets/{record['id']}").status_code == 404
        assert not list((tmp_path / "home" / "datasets").iterdir())
        assert not list((tmp_path / "home" / "uploads").iterdir())
        assert not list((tmp_path / "home" / "builds").iterdir())


@pytest.mark.parametrize(
    ("query", "content", "headers", "status", "code"),
    [
        ("name=a&format=jsonl", b"", OCTETS, 400, "EMPTY_BODY"),
        ("name=a&format=jsonl", b"x" * 2001, OCTETS, 413, "BODY_TOO_LARGE"),
        ("name=a&format=xlsx", b"x", OCTETS, 422, "FORMAT"),
        ("format=jsonl", b"x", OCTETS, 422, "FORMAT"),
        ("name=../a&format=jsonl", b"x", OCTETS, 422, "BAD_NAME"),
        ("name=a&format=jsonl&sha256=00", b"x", OCTETS, 422, "SHA256"),
        (f"name=a&format=jsonl&sha256={'0' * 64}", b"x", OCTETS, 422, "UPLOAD_TRUNCATED"),
        ("name=a&format=jsonl&options={", b"x", OCTETS, 400, "JSON_INVALID"),
        ("name=a&format=jsonl&options=[]", b"x", OCTETS, 422, "TYPE"),
        ('name=a&format=jsonl&options={"nope":1}', b"x", OCTETS, 422, "PARAMETER"),
        ('name=a&format=xc&options={"labels_file":"/etc/passwd"}', b"x", OCTETS, 422, "FORBIDDEN"),
        (
            'name=a&format=jsonl&options={"text":{"token_pattern":"(a*)*b"}}',
            b"x",
            OCTETS,
            422,
            "FORBIDDEN",
        ),
        (
            "name=a&format=jsonl",
            b"x",
            {"Content-Type": "multipart/form-data; boundary=x"},
            415,
            "CONTENT_TYPE",
        ),
        (
            "name=a&format=jsonl",
            b"x",
            {**OCTETS, "Content-Encoding": "br"},
            415,
            "CONTENT_ENCODING",
        ),
    ],
)
def test_uploads_are_refused_and_leave_nothing(
    shared: Service, query: str, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = shared.http.post(f"/v1/datasets?{query}", content=content, headers=headers)
    # A forbidden option has its own code, which gives 403.
    expected = (403 if code == "FORBIDDEN" else status, code)
    assert (answer.status_code, answer.json()["code"]) == expected, answer.text
    assert len(shared.http.get("/v1/datasets").json()["datasets"]) == 1
    assert not list((shared.app_state.home.path / "uploads").iterdir())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "a", "format": "jsonl"}, "FORMAT"),
        ({"name": "a", "format": "jsonl", "uploads": {"test": "upl_x"}}, "FORMAT"),
        ({"name": "a", "format": "jsonl", "uploads": {"train": "../../x"}}, "PARAMETER"),
        ({"name": "a", "format": "pydocs", "path": "/etc"}, "FORMAT"),
        ({"name": "a", "format": "svmlight", "path": "/etc/passwd"}, "FORBIDDEN"),
        ({"name": "a", "format": "svmlight", "path": "/no/such/file"}, "FORBIDDEN"),
        ({"name": "a", "format": "nothing"}, "CHOICE"),
        ({"name": "A", "format": "pydocs"}, "BAD_NAME"),
        ({"name": "a", "format": "pydocs", "options": {"labels_file": "x"}}, "FORBIDDEN"),
        ({"name": "a", "format": "synthetic", "options": {"synthetic": {"nope": 1}}}, "PARAMETER"),
        ({"name": "a"}, "MISSING_FIELD"),
    ],
)
def test_data_set_requests_are_refused(shared: Service, options: dict[str, Any], code: str) -> None:
    answer = shared.http.post("/v1/datasets", json=options)
    expected = (code, 403 if code == "FORBIDDEN" else 422)
    assert (answer.json()["code"], answer.status_code) == expected, answer.text


def test_only_paths_below_an_allowed_root_are_accepted(tmp_path: Path) -> None:
    root, outside = tmp_path / "open", tmp_path / "closed"
    for folder in (root, outside):
        folder.mkdir()
        (folder / "a.jsonl").write_text(LINES)
    (root / "link").symlink_to(outside)
    app = create_app(
        settings_for(tmp_path / "home", dataset_roots=(root,)),
        parts=AppParts(build_command=build_stub(tmp_path)),
    )
    with client_of(app) as http:

        def status(path: str) -> int:
            return http.post(
                "/v1/datasets", json={"name": "a", "format": "jsonl", "path": path}
            ).status_code

        assert status(str(root / "a.jsonl")) == 201
        for path in (
            outside / "a.jsonl",
            root / "link" / "a.jsonl",
            root / ".." / "closed" / "a.jsonl",
            root / "none",
            "a\x00b",
        ):
            assert status(str(path)) == 403
        assert (root / "a.jsonl").is_file()


def test_uploads_and_builds_of_a_crashed_service_are_swept_and_resumed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    forever = build_stub(tmp_path, "time.sleep(600)")
    first = create_app(settings_for(home), parts=AppParts(build_command=forever))
    with client_of(first) as http:
        body = http.post(
            "/v1/datasets?name=a&format=jsonl", content=LINES.encode(), headers=OCTETS
        ).json()
    (home / "uploads" / ".upl_half.part").mkdir()
    assert (home / "builds" / body["id"] / "train.jsonl").read_text() == LINES
    second = create_app(settings_for(home), parts=AppParts(build_command=build_stub(tmp_path)))
    with client_of(second) as http:
        assert settled(http, body["id"])["status"] == "READY"
        # Inputs are deleted after the result is reported.
        until(lambda: not any(list((home / place).iterdir()) for place in ("uploads", "builds")))


@pytest.mark.parametrize(
    ("code", "seconds", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 600, "BUILD_DIED"),
        ("sys.exit(3)", 600, "BUILD_DIED"),
        ("time.sleep(600)", 1, "TIME_LIMIT"),
    ],
)
def test_a_build_that_dies_is_reported(
    tmp_path: Path, code: str, seconds: int, expected: str
) -> None:
    app = create_app(
        settings_for(tmp_path / "home", build_seconds=seconds),
        parts=AppParts(build_command=build_stub(tmp_path, code)),
    )
    with client_of(app) as http:
        body = http.post("/v1/datasets", json={"name": "a", "format": "pydocs"}).json()
        job = settled(http, body["id"])
        assert (job["status"], job["stats"]["problem"]["code"]) == ("FAILED", expected)


def test_the_memory_of_a_build_is_limited(tmp_path: Path) -> None:
    """A build in the real child process that exceeds its memory limit fails with an error."""
    from xcray.service.datasets import ingest

    limited = build_stub(
        tmp_path,
        "from xcray.service.datasets import ingest\ningest.build = lambda *a: bytearray(8_000_000_000)\nsys.exit(ingest.main(sys.argv[1:]))",
    )
    assert ingest.MAX_ERRORS == 20
    app = create_app(
        settings_for(tmp_path / "home", build_memory_bytes=4_000_000_000),
        parts=AppParts(build_command=limited),
    )
    with client_of(app) as http:
        body = http.post("/v1/datasets", json={"name": "a", "format": "pydocs"}).json()
        assert settled(http, body["id"])["stats"]["problem"]["code"] == "MEMORY_LIMIT"


def test_deleting_a_data_set_ends_its_build(tmp_path: Path) -> None:
    app = create_app(
        settings_for(tmp_path / "home"),
        parts=AppParts(
            build_command=build_stub(
                tmp_path, "(folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(600)"
            )
        ),
    )
    with client_of(app) as http:
        body = http.post("/v1/datasets", json={"name": "a", "format": "pydocs"}).json()
        mark = tmp_path / "home" / "builds" / body["id"] / "pid"
        until(lambda: mark.is_file() and mark.read_text())
        pid = int(mark.read_text())
        assert http.delete(f"/v1/datasets/{body['id']}").status_code == 204
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not mark.parent.exists()


def test_a_full_disk_refuses_only_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "disk_reserve", lambda total: 10**18)
    app = create_app(settings_for(tmp_path / "home"))
    with client_of(app) as http:
        refused = http.post("/v1/uploads", content=b"x", headers=OCTETS)
        assert (refused.status_code, refused.json()["code"]) == (507, "DISK_FULL")
        assert http.get("/v1/jobs").status_code == 200
        unready = http.get("/readyz")
        assert (unready.status_code, unready.json()["reasons"]) == (503, ["DISK"])


# Jobs


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"solver": "magic"}, 422, "UNKNOWN_SOLVER"),
        ({"params": {"C": -1}}, 422, "PARAMETER"),
        ({"params": {"nope": 1}}, 422, "UNKNOWN_PARAMETER"),
        ({"params": {"C": "one"}}, 422, "PARAMETER"),
        ({"params": [1]}, 422, "TYPE"),
        ({"model": "../m"}, 422, "BAD_NAME"),
        ({"dataset": "ds_nobody"}, 404, "NOT_FOUND"),
        ({"pool": "cloud"}, 422, "CHOICE"),
        ({"workers": -1}, 422, "RANGE"),
        ({"workers": 10**9}, 422, "RANGE"),
        ({"auto": ""}, 422, "LENGTH"),
        ({"max_seconds": 0}, 422, "RANGE"),
        ({"max_seconds": 1e12}, 422, "RANGE"),
        ({"max_seconds": "60"}, 422, "TYPE"),
        ({"memory_limit": 0}, 422, "RANGE"),
        ({"memory_limit": "4GiB"}, 422, "TYPE"),
        ({"ray_address": "10.0.0.1:6379"}, 422, "UNKNOWN_FIELD"),
        ({"priority": True}, 422, "TYPE"),
    ],
)
def test_specs_are_checked_before_they_are_accepted(
    shared: Service, change: dict[str, Any], status: int, code: str
) -> None:
    request = {"dataset": "data", "model": "m", **change}
    answer = shared.http.post("/v1/jobs", json=request)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert shared.http.get("/v1/jobs").json()["jobs"] == []


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Return (id, event, data) of each event of a stream."""
    blocks = [
        dict(line.split(": ", 1) for line in block.splitlines())
        for block in text.split("\n\n")
        if block.startswith("id")
    ]
    return [(int(block["id"]), block["event"], json.loads(block["data"])) for block in blocks]


def test_events_stream_from_the_first_to_the_last(service: Service) -> None:
    job = submitted(service)
    store, path = service.app_state.store, f"/v1/jobs/{job['id']}/events"
    reports: list[str] = []

    def listen() -> None:
        with service.http.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reports.extend(answer.iter_text())

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: ": alive" in "".join(reports))  # a sign of life while nothing happens
    claimed = store.attempts.claim("test", lease_seconds=60)
    assert claimed is not None
    step = {"phase": "TRAINING", "done": 1, "total": 4, "eta": None, "note": "a\nb\u2028"}
    store.attempts.append_event(claimed.id, claimed.attempt, "progress", step)
    store.attempts.finish(
        claimed.id, claimed.attempt, SUCCEEDED, result={"model": "m", "version": 1}
    )
    listener.join(PATIENCE)
    assert not listener.is_alive()
    result = events_of("".join(reports))
    assert [kind for _, kind, _ in result] == ["status", "status", "progress", "status"]
    assert [data["status"] for _, kind, data in result if kind == "status"] == [
        "PENDING",
        "RUNNING",
        "SUCCEEDED",
    ]
    assert result[2][2]["note"] == "a\nb\u2028"
    assert events_of(service.http.get(path).text) == result
    seqs = [seq for seq, _, _ in result]
    assert seqs == sorted(set(seqs))
    assert events_of(service.http.get(path, params={"after": seqs[1]}).text) == result[2:]
    resumed = service.http.get(path, headers={"Last-Event-ID": str(seqs[2])}, params={"after": 0})
    assert events_of(resumed.text) == result[3:]
    assert service.http.get(path, headers={"Last-Event-ID": str(seqs[-1])}).status_code == 204
    assert service.http.get(path, headers={"Last-Event-ID": "x"}).status_code == 422
    assert service.http.get(path, params={"after": -1}).status_code == 422


def test_streams_end_when_the_service_drains_or_the_job_ends(service: Service) -> None:
    first, second = submitted(service), submitted(service)
    with ThreadPoolExecutor(2) as pool:
        streams = [
            pool.submit(service.http.get, f"/v1/jobs/{job['id']}/events") for job in (first, second)
        ]
        until(lambda: b"xcray_event_streams 2.0" in service.app_state.metrics.render())
        service.app_state.store.jobs.request_stop(first["id"])
        assert "STOPPED" in streams[0].result(PATIENCE).text
        service.app_state.draining = True
        assert events_of(streams[1].result(PATIENCE).text)[0][2]["status"] == "PENDING"
    assert service.http.get("/readyz").json()["reasons"] == ["DRAINING"]
    assert service.http.get("/healthz").status_code == 200


# Models


def test_the_cache_loads_a_model_once_and_is_bounded(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    app_state: AppState = app.state.app_state
    for name in ("a", "b", "c"):
        publish(app_state.registry, name, tmp_path / name)
    opened: list[str] = []
    opener = app_state.prediction.model_cache._loader.opener

    def slow(path: Path) -> Any:
        opened.append(path.parts[-3])
        time.sleep(0.1)
        return opener(path)

    cache = ModelCache(app_state.registry_of, app_state.metrics, 2, slow)
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(
                cache.get, [ModelTarget("default", each) for each in ("a", "a:1", "a@latest")] * 4
            )
        )
    assert opened == ["a"]
    assert len({id(one.predictor) for one in results}) == 1
    for name in ("b", "a", "c", "a", "b"):
        cache.get(ModelTarget("default", name))
    assert opened == ["a", "b", "c", "b"]
    cache.close()


# Operations and security


def test_the_number_of_series_does_not_grow_with_names(service: Service) -> None:
    def series() -> set[str]:
        text = service.http.get("/metrics").text
        return {
            line.rsplit(" ", 1)[0]
            for line in text.splitlines()
            if not line.startswith("#") and "_bucket" not in line
        }

    def visit(name: str) -> None:
        for path in (f"/v1/models/{name}", f"/v1/jobs/{name}", f"/{name}", f"/static/{name}"):
            service.http.get(path)
        service.http.request("BREW", f"/{name}")

    def submit(name: str) -> None:
        assert (
            service.http.post("/v1/jobs", json={"dataset": "data", "model": name}).status_code
            == 201
        )

    ready_dataset(service)
    visit("a")
    submit("a")
    until(lambda: 'xcray_jobs{status="PENDING"}' in series())  # the store has been read
    before = series()
    for i in range(20):
        visit(f"name{i}")
        submit(f"name{i}")
    assert series() == before


def test_pages_load_nothing_from_other_servers(shared: Service) -> None:
    for path in ("/", "/docs"):
        page = shared.http.get(path)
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        own, vendored = asset_texts(shared, path, page.text)
        own = own.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, not an address
        assert "http://" not in page.text + own
        assert "https://" not in page.text + own
        assert "cdn." not in vendored
        assert "<script>" not in page.text


def asset_texts(service: Service, path: str, page: str) -> tuple[str, str]:
    """Return the scripts and styles that a page and its modules refer to: own and vendored.

    Modules import by paths from their own place; other addresses are relative to the page.
    """
    root, waiting, seen = path, [(path, page)], set[str]()
    texts = {False: "", True: ""}
    while waiting:
        place, text = waiting.pop()
        for reference in re.findall(r'"((?:static|\.\.?)/[^"]+\.[a-z]+)"', text):
            path = urljoin(place if reference.startswith(".") else root, reference)
            if path not in seen:
                seen.add(path)
                answer = service.http.get(path)
                assert answer.status_code == 200, path
                is_fixed = path.startswith("/static/vendor/")
                assert ("immutable" in answer.headers["cache-control"]) == is_fixed
                vendored = is_fixed or path.startswith("/static/swagger/")
                texts[vendored] += answer.text
                waiting += [] if vendored else [(path, answer.text)]
    assert seen
    return texts[False], texts[True]


def test_settings_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XCRAY_HOME", str(tmp_path))
    monkeypatch.setenv("XCRAY_MAX_RUNNING_JOBS", "7")
    monkeypatch.setenv("XCRAY_STORE", "")  # as a file of Compose sets it: the default
    result = Settings()
    assert result.store is None
    assert (result.home, result.max_running_jobs) == (tmp_path, 7)
    assert Settings(max_running_jobs=2).max_running_jobs == 2


# The process


def test_uploads_stream_with_flat_memory(service: Service) -> None:
    """An upload of 64 MB is written in pieces, and its hash is correct."""
    block = os.urandom(1 << 20)

    def blocks() -> Iterator[bytes]:
        for _ in range(64):
            yield block

    import resource

    # The first upload loads all code.
    assert (
        service.http.post("/v1/uploads", content=iter([block, block]), headers=OCTETS).json()[
            "bytes"
        ]
        == 2 << 20
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = service.http.post("/v1/uploads", content=blocks(), headers=OCTETS).json()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert answer["bytes"] == 64 << 20
    assert answer["sha256"] == hashlib.sha256(block * 64).hexdigest()
    assert grown < 40_000  # KB


def test_replies_are_sent_without_delay(tmp_path: Path) -> None:
    """The listener has an explicit protocol.

    Otherwise asyncio does not set TCP_NODELAY, and each reply waits 40 ms for an acknowledgement.
    """
    with listen(settings_for(tmp_path)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_in_use_is_reported_with_the_fix(tmp_path: Path) -> None:
    with listen(settings_for(tmp_path)) as listener, pytest.raises(Conflict, match="--port 0"):
        listen(settings_for(tmp_path, port=listen_port(listener)))
    with pytest.raises(ParameterError, match="not an address"):
        listen(settings_for(tmp_path, host="no.such.host.invalid"))


def listen_port(listener: socket.socket) -> int:
    """Start listening on a socket and return its port."""
    listener.listen()
    return int(listener.getsockname()[1])
