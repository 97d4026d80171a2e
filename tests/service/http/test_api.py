"""REST API: idempotency keys, ETags, filters, paging, limits, logs and event streams."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter

from tests.support.live_service import OCTETS, build_stub, client_of, publish, settings_for
from xcray.api.job_replies import DatasetView, JobView
from xcray.errors import Conflict, NotFound
from xcray.jobs.states import FAILED
from xcray.jobs.store.jobs import JobSubmission
from xcray.service.app import AppParts, create_app
from xcray.service.app_state import AppState
from xcray.service.http.etags import counter_etag
from xcray.service.observability.log_tail import read_from, read_last_lines
from xcray.service.routes.datasets import dataset_fields as members_of_dataset
from xcray.service.routes.job_replies import job_fields


class Service(NamedTuple):
    """A served app, its app_state, a client, and a data set that is READY."""

    http: httpx.Client
    app_state: AppState
    app: FastAPI
    data: str


def stub_app(home: Path) -> FastAPI:
    """Return an app with a stub that builds data sets at once."""
    home.parent.mkdir(parents=True, exist_ok=True)
    return create_app(settings_for(home), parts=AppParts(build_command=build_stub(home.parent)))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    app = stub_app(tmp_path / "home")
    app_state: AppState = app.state.app_state
    data = app_state.store.datasets.add("news", str(tmp_path / "nowhere"), stats={"n_labels": 4}).id
    with client_of(app) as http:
        yield Service(http, app_state, app, data)


def submit(service: Service, key: str | None = None, **more: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.http.post(
        "/v1/jobs", json={"dataset": service.data, "model": "m", **more}, headers=headers
    )


# Idempotency keys


def test_repeated_requests_with_one_key_are_one_job(service: Service) -> None:
    first, again = submit(service, "k"), submit(service, "k")
    assert (first.status_code, "idempotency-replayed" in first.headers) == (201, False)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    other = submit(service, "k", model="other")
    assert (other.status_code, other.json()["code"], other.json()["job"]) == (
        409,
        "IDEMPOTENCY_MISMATCH",
        first.json()["id"],
    )
    # Spelling out a default value gives another body.
    assert submit(service, "k", solver="ppdsparse").status_code == 409
    assert len(service.http.get("/v1/jobs").json()["jobs"]) == 1
    stored = service.app_state.store.jobs.get(first.json()["id"]).spec
    assert (stored["name"], stored["dataset"].endswith("nowhere")) == ("m", True)


def test_concurrent_requests_with_one_key_create_one(service: Service) -> None:
    with ThreadPoolExecutor(10) as threads:
        jobs = list(threads.map(lambda _: submit(service, "k"), range(30)))
        sets = list(threads.map(lambda _: build(service, "k"), range(30)))
    for answers in (jobs, sets):
        assert sorted(answer.status_code for answer in answers) == [200] * 29 + [201]
        assert len({answer.json()["id"] for answer in answers}) == 1
    # The other one is the fixture's.
    assert len(service.http.get("/v1/datasets").json()["datasets"]) == 2


def test_a_key_is_valid_as_long_as_its_job_exists(service: Service) -> None:
    first = submit(service, "k").json()["id"]
    service.http.post(f"/v1/jobs/{first}/stop")
    assert submit(service, "k").json()["id"] == first
    assert service.http.delete(f"/v1/jobs/{first}").status_code == 204
    second = submit(service, "k", model="other")
    assert (second.status_code, second.json()["id"] != first) == (201, True)


def test_a_replay_is_not_checked_again(service: Service) -> None:
    """A request is replayed even if it would not be accepted any more."""
    job = submit(service, "k").json()
    service.http.post(f"/v1/jobs/{job['id']}/stop")
    assert service.http.delete(f"/v1/datasets/{service.data}").status_code == 204
    assert submit(service, "k").json()["id"] == job["id"]
    assert submit(service, "new").status_code == 404


def build(service: Service, key: str | None, name: str = "docs") -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.http.post(
        "/v1/datasets", json={"name": name, "format": "pydocs"}, headers=headers
    )


def test_one_key_creates_one_data_set(service: Service) -> None:
    first, again, other = build(service, "k"), build(service, "k"), build(service, "k", "other")
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert (again.headers["idempotency-replayed"], again.json()["id"]) == (
        "true",
        first.json()["id"],
    )
    assert other.json()["code"] == "IDEMPOTENCY_MISMATCH"
    service.http.delete(f"/v1/datasets/{first.json()['id']}")
    assert build(service, "k", "other").status_code == 201


def test_a_replay_of_a_data_set_does_not_need_its_uploads(
    service: Service,
) -> None:
    upload = service.http.post("/v1/uploads", content=b"1 1:1\n", headers=OCTETS).json()["id"]
    body = {"name": "docs", "format": "svmlight", "uploads": {"train": upload}}
    first = service.http.post("/v1/datasets", json=body, headers={"Idempotency-Key": "k"})
    again = service.http.post("/v1/datasets", json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code, again.json()["id"]) == (
        201,
        200,
        first.json()["id"],
    )
    assert service.http.post("/v1/datasets", json=body).status_code == 404


@pytest.mark.parametrize("step", ["uploads.path", "builder.accept", "store.datasets.add"])
def test_a_request_overtaken_by_another_process_is_the_same_data_set(
    service: Service, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process accepts the same request just before `step`."""
    upload = service.http.post("/v1/uploads", content=b"1 1:1\n", headers=OCTETS).json()["id"]
    content = {"name": "docs", "format": "svmlight", "uploads": {"train": upload}}
    more = {"json": content, "headers": {"Idempotency-Key": "k"}}
    place, _, name = step.rpartition(".")
    owner = attrgetter(place)(service.app_state)
    proceed, earlier = getattr(owner, name), []

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        if not earlier:
            with client_of(stub_app(service.app_state.home.path)) as other:
                earlier.append(other.post("/v1/datasets", **more))
        return proceed(*args, **kwargs)

    monkeypatch.setattr(owner, name, overtaken)
    answer = service.http.post("/v1/datasets", **more)
    assert (earlier[0].status_code, answer.status_code) == (201, 200)
    assert answer.json()["id"] == earlier[0].json()["id"]
    assert not list((service.app_state.home.path / "uploads").iterdir())


def test_a_data_set_beyond_the_quota_keeps_its_upload(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", tenant_datasets=0))
    with client_of(app) as http:
        upload = http.post("/v1/uploads", content=b"1 1:1\n", headers=OCTETS).json()["id"]
        body = {"name": "docs", "format": "svmlight", "uploads": {"train": upload}}
        answer = http.post("/v1/datasets", json=body)
        assert (answer.status_code, answer.json()["code"]) == (507, "DATASET_QUOTA")
    assert app.state.app_state.uploads.path(upload).is_file()
    assert not list((tmp_path / "home" / "builds").iterdir())


def test_a_full_disk_leaves_nothing_of_a_build(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("xcray.service.datasets.builds.write_json", fail)
    answer = service.http.post("/v1/datasets", json={"name": "docs", "format": "pydocs"})
    assert (answer.status_code, answer.json()["code"]) == (507, "DISK_FULL")
    assert not list((service.app_state.home.path / "builds").iterdir())


def test_keys_apply_to_raw_bodies_too(service: Service) -> None:
    def send(content: bytes, query: str = "name=a&format=svmlight") -> httpx.Response:
        return service.http.post(
            f"/v1/datasets?{query}", content=content, headers={**OCTETS, "Idempotency-Key": "k"}
        )

    first, again, other = send(b"1 1:1\n"), send(b"1 1:1\n"), send(b"1 1:2\n")
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json()["id"] == first.json()["id"]
    assert send(b"1 1:1\n", "name=b&format=svmlight").status_code == 409
    assert not list((service.app_state.home.path / "uploads").iterdir())


def test_a_request_repeated_before_its_record_exists_gets_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two requests with one key and one upload was answered by 404, or by 500."""
    upload = service.http.post("/v1/uploads", content=b"1 1:1\n", headers=OCTETS).json()["id"]
    body = {"name": "docs", "format": "svmlight", "uploads": {"train": upload}}
    table, repeated, replies = service.app_state.store.datasets, threading.Event(), []
    add, find_by_key = table.add, table.find_by_key

    def find(*key: Any) -> Any:
        found = find_by_key(*key)
        if replies:
            repeated.set()
        return found

    def add_later(*values: Any, **more: Any) -> Any:
        if not replies:  # the files are moved, and the record is not written
            replies.append(pool.submit(send))
            assert repeated.wait(600)
        return add(*values, **more)

    def send() -> httpx.Response:
        return service.http.post("/v1/datasets", json=body, headers={"Idempotency-Key": "k"})

    monkeypatch.setattr(table, "find_by_key", find)
    monkeypatch.setattr(table, "add", add_later)
    with ThreadPoolExecutor(1) as pool:
        first = send()
        again = replies[0].result()
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]


def test_invalid_keys_are_refused(service: Service) -> None:
    for key in ("", "a b", "x" * 256):
        answer = submit(service, key)
        assert (answer.status_code, answer.headers["content-type"]) == (
            422,
            "application/problem+json",
        )


# ETags


def test_a_current_etag_gets_not_modified(service: Service) -> None:
    publish(
        service.app_state.registry_of("default"), "docs", service.app_state.home.path / "staged"
    )
    service.app_state.registry_of("default").label_sets("docs").put("files", ["csv"])
    job = submit(service).json()["id"]
    model = "/v1/models/docs"
    for path in (
        *(
            f"/v1/jobs/{job}",
            "/v1/jobs",
            f"/v1/datasets/{service.data}",
            "/v1/datasets",
            "/v1/models",
            model,
        ),
        *(
            f"{model}/versions/1",
            f"{model}/versions/1/card",
            f"{model}/label-sets",
            f"{model}/label-sets/files",
        ),
    ):
        first = service.http.get(path)
        etag = first.headers["etag"]
        for inputs in (etag, f'"other", {etag}', f"W/{etag}", "*"):
            again = service.http.get(path, headers={"If-None-Match": inputs})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag), (
                path
            )
        assert service.http.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_an_etag_changes_with_the_visible_state(service: Service) -> None:
    path = f"/v1/jobs/{submit(service).json()['id']}"
    values = [service.http.get(path).headers["etag"]]
    job = service.app_state.store.attempts.claim("me", lease_seconds=3600)
    assert job is not None
    values.append(service.http.get(path).headers["etag"])
    service.app_state.store.attempts.heartbeat(job.id, job.attempt, lease_seconds=3600)
    assert service.http.get(path).headers["etag"] == values[-1]
    service.app_state.store.attempts.append_event(
        job.id, job.attempt, "progress", {"phase": "TRAINING", "done": 1}
    )
    values.append(service.http.get(path).headers["etag"])
    service.http.post(f"{path}/stop")
    values.append(service.http.get(path).headers["etag"])
    service.app_state.store.attempts.finish(
        job.id, job.attempt, FAILED, reason="MEMORY", message="too large"
    )
    values.append(service.http.get(path).headers["etag"])
    assert len(set(values)) == len(values)


def test_jobs_change_only_if_the_etag_matches(service: Service) -> None:
    job = submit(service)
    path, old = f"/v1/jobs/{job.json()['id']}", job.headers["etag"]
    stopped = service.http.post(f"{path}/stop", headers={"If-Match": old})
    assert (stopped.status_code, stopped.json()["status"]) == (200, "STOPPED")
    for method, what in (("POST", f"{path}/resume"), ("POST", f"{path}/stop"), ("DELETE", path)):
        answer = service.http.request(method, what, headers={"If-Match": old})
        assert (answer.status_code, answer.json()["code"], answer.json()["etag"]) == (
            412,
            "PRECONDITION",
            stopped.headers["etag"],
        )
    assert (
        service.http.post(
            f"{path}/resume", headers={"If-Match": f'"x", {stopped.headers["etag"]}'}
        ).status_code
        == 200
    )
    assert service.http.post(f"{path}/stop", headers={"If-Match": "*"}).status_code == 200
    assert (
        service.http.delete(
            path, headers={"If-Match": service.http.get(path).headers["etag"]}
        ).status_code
        == 204
    )


def test_the_store_detects_changes_after_the_check(service: Service) -> None:
    """The store detects changes between the check of the ETag and the write."""
    job = service.app_state.store.jobs.get(submit(service).json()["id"])
    service.app_state.store.jobs.request_stop(job.id)
    for change in (
        service.app_state.store.jobs.request_stop,
        service.app_state.store.jobs.resume,
        service.app_state.store.jobs.delete,
    ):
        with pytest.raises(Conflict, match="has changed since") as changed:
            change(job.id, if_events=job.events)
        assert changed.value.code == "PRECONDITION"
    service.app_state.store.datasets.update(service.data, stats={})
    with pytest.raises(Conflict, match="has changed since"):
        service.app_state.store.datasets.delete(service.data, if_version=1)
    service.app_state.store.datasets.delete(service.data, if_version=2)
    with pytest.raises(NotFound):
        service.app_state.store.datasets.delete(service.data, if_version=2)


def test_models_and_label_sets_change_only_if_the_etag_matches(service: Service) -> None:
    registry = service.app_state.registry_of("default")
    for seed in (1, 2):
        publish(registry, "docs", service.app_state.home.path / f"staged{seed}", seed=seed)
    model, alias, a_set = (
        "/v1/models/docs",
        "/v1/models/docs/aliases/live",
        "/v1/models/docs/label-sets/files",
    )

    def put(path: str, body: Any, etag: str) -> int:
        return service.http.put(path, json=body, headers={"If-Match": etag}).status_code

    old = service.http.get(model).headers["etag"]
    assert put(alias, {"version": 1}, old) == 200
    assert put(alias, {"version": 2}, old) == 412
    assert registry.aliases.of("docs")["live"] == 1
    for path in (alias, f"{model}/versions/2"):
        assert service.http.delete(path, headers={"If-Match": old}).status_code == 412
    new = service.http.get(model).headers["etag"]
    assert put(alias, {"version": 2}, new) == 200
    service.http.put(a_set, json={"labels": ["csv"]})
    old = service.http.get(a_set).headers["etag"]
    assert put(a_set, {"labels": ["json"]}, old) == 200
    assert put(a_set, {"labels": ["io"]}, old) == 412
    assert service.http.delete(a_set, headers={"If-Match": old}).status_code == 412
    assert service.http.get(a_set).json()["labels"] == ["json"]
    assert (
        service.http.delete(
            a_set, headers={"If-Match": service.http.get(a_set).headers["etag"]}
        ).status_code
        == 204
    )


def test_one_of_several_changes_with_the_same_etag_succeeds(service: Service) -> None:
    publish(
        service.app_state.registry_of("default"), "docs", service.app_state.home.path / "staged"
    )
    path = "/v1/models/docs/label-sets/files"
    service.http.put(path, json={"labels": ["csv"]})
    headers = {"If-Match": service.http.get(path).headers["etag"]}
    with ThreadPoolExecutor(8) as threads:
        response = threads.map(
            lambda n: (
                service.http.put(path, json={"labels": [f"{n}"]}, headers=headers).status_code
            ),
            range(16),
        )
    assert sorted(response) == [200] + [412] * 15


def test_data_sets_are_deleted_only_if_the_etag_matches(service: Service) -> None:
    path = f"/v1/datasets/{service.data}"
    old = service.http.get(path).headers["etag"]
    service.app_state.store.datasets.update(service.data, stats={"n_labels": 5})
    assert service.http.delete(path, headers={"If-Match": old}).status_code == 412
    assert (
        service.http.delete(
            path, headers={"If-Match": service.http.get(path).headers["etag"]}
        ).status_code
        == 204
    )


# Lists


def listed(service: Service, query: str) -> list[str]:
    answer = service.http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["jobs"]]


def test_jobs_are_filtered_by_their_properties(service: Service) -> None:
    other = service.app_state.store.datasets.add("other", "nowhere").id
    submit(service, name="a", model="x")
    second = submit(service, name="b", model="y").json()
    submit(service, name="c", model="x", dataset=other)
    service.app_state.store.jobs.submit(JobSubmission({}, name="d", kind="predict", model="x"))
    service.http.post(f"/v1/jobs/{second['id']}/stop")
    for query, names in {
        "": ["d", "c", "b", "a"],
        "status=STOPPED": ["b"],
        "status=STOPPED&status=PENDING": ["d", "c", "b", "a"],
        "status=RUNNING&status=FAILED": [],
        "kind=predict": ["d"],
        "kind=train&model=x": ["c", "a"],
        "name=c": ["c"],
        f"dataset={other}": ["c"],
        "model=z": [],
        "created_after=2000-01-01T00:00:00Z": ["d", "c", "b", "a"],
        "created_before=2000-01-01T00:00:00Z": [],
        "created_after=2999-01-01T00:00:00.5%2B01:00": [],
    }.items():
        assert listed(service, query) == names, query


def test_times_are_accepted_in_any_time_zone(service: Service) -> None:
    submit(service, name="a")
    time.sleep(0.01)
    submit(service, name="b")
    newest = datetime.fromisoformat(service.http.get("/v1/jobs").json()["jobs"][0]["created"])
    assert listed(
        service, f"created_after={newest.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"
    ) == ["b"]
    moved = newest.isoformat().replace("+00:00", "%2B00:00")
    assert listed(service, f"created_before={moved}") == ["a"]


def test_filters_are_checked(service: Service) -> None:
    for query, code in (
        ("status=DONE", "CHOICE"),
        ("kind=path", "CHOICE"),
        ("created_after=yesterday", "BAD_NAME"),
        ("created_after=2026-13-01T00:00:00Z", "TIME"),
        ("created_after=2026-01-01T00:00:00", "BAD_NAME"),
        ("created_before=0001-01-01T00:00:00%2B23:59", "TIME"),
        ("limit=0", "RANGE"),
        ("limit=1001", "RANGE"),
        ("page_token=x", "PARAMETER"),
        ("name=", "LENGTH"),
    ):
        answer = service.http.get(f"/v1/jobs?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


def test_pages_stay_correct_while_jobs_are_added(service: Service) -> None:
    ids = [
        submit(service, name=f"{n}", model="even" if n % 2 == 0 else "odd").json()["id"]
        for n in range(12)
    ]
    values, token = [], ""
    for _ in range(10):
        page = service.http.get(f"/v1/jobs?model=even&limit=2{token}").json()
        values += [job["name"] for job in page["jobs"]]
        submit(service, name="late", model="even")  # newer than the page, so it is not listed
        if page["next_page_token"] is None:
            break
        token = f"&page_token={page['next_page_token']}"
        service.http.post(f"/v1/jobs/{ids[8]}/stop")
    assert values == ["10", "8", "6", "4", "2", "0"]


def test_list_entries_match_the_response_models(service: Service) -> None:
    """Entries of lists match the response models; the service itself does not validate each one."""
    submit(service, timeout_seconds=60, expires_seconds=600, max_attempts=2)
    job = service.app_state.store.attempts.claim("me", lease_seconds=3600)
    assert job is not None
    service.app_state.store.attempts.append_event(
        job.id, job.attempt, "progress", {"phase": "TRAINING", "done": 1, "rate": 0.5}
    )
    for result in service.http.get("/v1/jobs").json()["jobs"]:
        assert TypeAdapter(JobView).validate_python(result, strict=True, extra="forbid") == result
        assert result == service.http.get(f"/v1/jobs/{result['id']}").json()
    assert set(job_fields(job)) == set(JobView.__annotations__)
    assert str(service.app_state.home.path) not in json.dumps(job_fields(job))
    record = service.app_state.store.datasets.get(service.data)
    assert set(members_of_dataset(record)) == set(DatasetView.__annotations__)


def test_limits_of_a_job_are_kept(service: Service) -> None:
    before = time.time()
    document = submit(service, timeout_seconds=60, expires_seconds=600.5, max_attempts=2).json()
    assert (document["timeout_seconds"], document["max_attempts"]) == (60, 2)
    spec = submit(service, max_seconds=60, memory_limit=2**32).json()["spec"]
    assert (spec["max_seconds"], spec["memory_limit"]) == (60.0, 2**32)
    assert document["spec"]["max_seconds"] is None
    assert (
        before + 600 < datetime.fromisoformat(document["expires"]).timestamp() < time.time() + 601
    )
    for wrong in (
        {"timeout_seconds": 0},
        {"expires_seconds": -1},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
    ):
        assert submit(service, **wrong).status_code == 422


# Logs


def test_logs_are_returned_in_complete_lines(service: Service) -> None:
    job = submit(service).json()["id"]
    path = f"/v1/jobs/{job}/logs"
    assert service.http.get(path).text == ""
    log = service.app_state.home.log(job)
    log.write_text("".join(f"line {n} ä\n" for n in range(300)))
    tail = service.http.get(f"{path}?tail=2")
    assert tail.text == "line 298 ä\nline 299 ä\n"
    assert (
        int(tail.headers["log-next-offset"]) == int(tail.headers["log-size"]) == log.stat().st_size
    )
    assert len(service.http.get(path).text.splitlines()) == 200
    read, offset = "", 0
    for _ in range(100):
        piece = service.http.get(f"{path}?offset={offset}&limit=100")
        assert int(piece.headers["log-offset"]) == offset
        if not piece.text:
            break
        assert piece.text.endswith("\n")
        read, offset = read + piece.text, int(piece.headers["log-next-offset"])
    assert read == log.read_text()
    with open(log, "a") as out:
        out.write("half a li")
    assert service.http.get(f"{path}?offset={offset}").text == ""  # not a complete line yet
    with open(log, "a") as out:
        out.write("ne\n")
    assert service.http.get(f"{path}?offset={offset}").text == "half a line\n"
    assert service.http.get(f"{path}?offset={10**9}").headers["log-next-offset"] == str(
        log.stat().st_size
    )
    assert service.http.get(f"{path}?offset=0&tail=1").json()["code"] == "CHOICE"
    assert service.http.get("/v1/jobs/job_x/logs").status_code == 404


def test_parts_of_unusual_logs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_last_lines(log, 5).text == read_from(log, 0, 10).text == ""
    log.write_bytes("ääää\n".encode() * 3)
    for limit in range(1, 9):  # a line longer than the limit is cut between characters
        text, offset = "", 0
        while (piece := read_from(log, offset, limit)).end > offset:
            text, offset = text + piece.text, piece.end
        assert text == log.read_text() or limit == 1
    log.write_bytes(b"\xff\xfe\nok\n")
    assert read_from(log, 0, 100).text == "\\xff\\xfe\nok\n"
    log.write_bytes(b"x" * 3_000_000 + b"\nend\n")
    assert read_last_lines(log, 1).text == "end\n"
    assert len(read_last_lines(log, 5).text) == 1 << 20


# Streams


def events_of(answer: httpx.Response) -> list[tuple[int, str]]:
    """Return (id, kind) of each event of a finished stream."""
    blocks = [block.splitlines() for block in answer.text.split("\n\n") if "data:" in block]
    return [
        (int(lines[0].removeprefix("id: ")), lines[1].removeprefix("event: ")) for lines in blocks
    ]


def test_a_stream_continues_after_a_restart_and_at_another_replica(tmp_path: Path) -> None:
    first = stub_app(tmp_path / "home")
    with client_of(first) as http:
        store = first.state.app_state.store
        data = store.datasets.add("news", "nowhere").id
        job_id = http.post("/v1/jobs", json={"dataset": data, "model": "m"}).json()["id"]
        job = store.attempts.claim("me", lease_seconds=3600)
        assert job is not None
        store.attempts.append_event(job.id, job.attempt, "phase", {"phase": "TRAINING"})
        with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert (stream.headers["x-accel-buffering"], stream.headers["cache-control"]) == (
                "no",
                "no-store, no-transform",
            )
            values = []
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    values.append(int(line.removeprefix("id: ")))
                if len(values) == 3:
                    break
    with client_of(stub_app(tmp_path / "home")) as http:
        second = http
        store = made_store(tmp_path / "home")
        store.attempts.finish(job.id, job.attempt, FAILED, reason="MEMORY", message="too large")
        rest = events_of(
            second.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(values[-1])})
        )
        everything = events_of(second.get(f"/v1/jobs/{job_id}/events"))
        store.close()
    assert [*values, *(number for number, _ in rest)] == [number for number, _ in everything]
    assert rest[-1][1] == "status"


def made_store(home: Path) -> Any:
    from xcray.jobs.home import Home
    from xcray.jobs.store.job_store import JobStore

    return JobStore(Home(home).store_url)


def test_a_deleted_job_ends_its_stream(service: Service) -> None:
    job = submit(service).json()["id"]
    with service.http.stream("GET", f"/v1/jobs/{job}/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("id: ")) == "id: 1"
        service.app_state.store.jobs.request_stop(job)
        service.app_state.store.jobs.delete(job)
        assert not [line for line in lines if line.startswith("event: progress")]
    assert (
        service.http.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "1"}).status_code
        == 404
    )


def test_etags_belong_to_a_version_of_xcray() -> None:
    assert counter_etag(3) != counter_etag(4)
    assert counter_etag(3).startswith('"3-')
