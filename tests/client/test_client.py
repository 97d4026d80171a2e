"""The Python client against the real service: all resources, errors, lost responses and streams."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.live_service import LABELS, TEXTS, plain_model, serving, settings_for, text_model
from xcray import errors
from xcray.client import Client
from xcray.client.connection import ERROR_CLASSES
from xcray.errors import (
    Conflict,
    Corrupt,
    InputError,
    NotFound,
    ParameterError,
    Refused,
    Unavailable,
    XcrayError,
)
from xcray.jobs.states import FAILED, SUCCEEDED
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.service import child_work
from xcray.service.app import create_app
from xcray.service.app_state import AppState

LINES = "".join(
    json.dumps({"text": text, "labels": [label]}) + "\n"
    for text, label in zip(TEXTS * 5, LABELS * 5, strict=True)
)


class ServerSetup:
    """A served app with a client."""

    def __init__(self, app_state: AppState, client: Client) -> None:
        self.app_state = app_state
        self.client = client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    home = tmp_path_factory.mktemp("client") / "home"
    app = create_app(settings_for(home))
    app_state: AppState = app.state.app_state
    text_model(home / "a")
    plain_model(home / "b")
    app_state.registry.publish("text", home / "a")
    app_state.registry.publish("vector", home / "b")
    app_state.store.datasets.add("ready", str(home / "nowhere"))
    with serving(app) as url, Client(url) as client:
        yield ServerSetup(app_state, client)


def test_data_sets_and_jobs(server: ServerSetup, tmp_path: Path) -> None:
    client, file = server.client, tmp_path / "docs.jsonl"
    file.write_text(LINES)
    labels = tmp_path / "labels.tsv"
    labels.write_text("csv\tTables of text\nother\tOther\n")
    dataset = client.datasets.upload(file, name="docs", format="jsonl", test=file, labels=labels)
    result = client.datasets.wait(dataset["id"], seconds=600)
    assert (result["status"], result["stats"]["splits"]["test"]["n_rows"]) == ("READY", 20)
    assert [each["code"] for each in result["stats"]["warnings"]] == ["COPIED_ROWS"]
    assert result["stats"]["label_texts"] == {"labels": 1, "others": 1}
    assert next(one["id"] for one in client.datasets.list()) == result["id"]
    found = client.datasets.histograms(result["id"], examples=2)
    assert found["parts"]["train"]["examples"][0]["labels"]
    assert client.datasets.picture(result["id"], width=400).startswith("<svg ")
    request: dict[str, Any] = {
        "dataset": result["id"],
        "model": "docs",
        "params": {"C": 2.0},
        "name": "my job",
        "priority": 1,
        "calibrate": True,
    }
    job = client.jobs.submit(**request, idempotency_key="abc")
    assert job["spec"]["calibrate"] is True
    assert client.jobs.submit(**request, idempotency_key="abc") == job
    assert (job["name"], job["status"], client.jobs.get(job["id"])) == ("my job", "PENDING", job)
    with pytest.raises(Conflict) as other:
        client.jobs.submit(dataset=result["id"], model="docs", idempotency_key="abc")
    assert other.value.code == "IDEMPOTENCY_MISMATCH"
    assert client.jobs.stop(job["id"])["status"] == "STOPPED"
    assert [one["id"] for one in client.jobs.list(status="STOPPED")] == [job["id"]]
    assert client.jobs.resume(job["id"])["status"] == "PENDING"
    assert client.jobs.logs(job["id"]) == ""
    with pytest.raises(Conflict) as running:
        client.jobs.delete(job["id"])
    assert running.value.details["state"] == "PENDING"
    assert [client.jobs.stop(job["id"])["status"] for _ in range(2)] == ["STOPPED"] * 2
    home = server.app_state.home
    home.run(job["id"]).mkdir()
    home.log(job["id"]).write_text("a line\n")
    client.jobs.delete(job["id"])
    assert not home.run(job["id"]).exists()
    assert not home.log(job["id"]).exists()
    for ask in (client.jobs.get, client.jobs.logs, client.jobs.stop, client.jobs.resume):
        with pytest.raises(NotFound):
            ask(job["id"])
    client.datasets.delete(result["id"])
    with pytest.raises(NotFound):
        client.datasets.get(result["id"])


def test_lists_continue_over_pages(server: ServerSetup) -> None:
    results = [server.client.jobs.submit(dataset="ready", model="m")["id"] for _ in range(53)]
    assert [job["id"] for job in server.client.jobs.list()][:53] == results[::-1]
    for job_id in results:
        server.client.jobs.stop(job_id)


def test_a_bad_file_is_an_error_with_its_line(server: ServerSetup, tmp_path: Path) -> None:
    file = tmp_path / "bad.svm"
    file.write_text("0 1:1\n0 2:x\n")
    dataset = server.client.datasets.upload(file, name="bad", format="svmlight")
    with pytest.raises(InputError) as caught:
        server.client.datasets.wait(dataset["id"], seconds=600)
    assert (caught.value.code, caught.value.details["line"]) == ("SVM_BAD_VALUE", 2)
    with pytest.raises(Conflict) as refused:
        server.client.jobs.submit(dataset=dataset["id"], model="m")
    assert refused.value.code == "DATASET_NOT_READY"
    with pytest.raises(NotFound):
        server.client.datasets.upload(tmp_path / "none", name="bad", format="svmlight")


def test_predictions_equal_those_of_the_predictor(server: ServerSetup) -> None:
    texts = ["read rows of a csv file", "socket", ""]
    predictor = Predictor(Model.open(server.app_state.registry.resolve("text")))
    expected = predictor.scored_labels(predictor.predict(texts, 3))
    for model in ("text", "text:1", "text@latest"):
        answer = server.client.predict(model, texts, top_k=3)
        pairs = [
            list(zip(one["labels"], one["scores"], strict=True)) for one in answer["predictions"]
        ]
        assert pairs == [[(one.label, one.score) for one in row] for row in expected]
        assert answer["model"] == {"name": "text", "version": 1, "sha256": predictor.model.sha256}
    why = server.client.explain("text", texts[0], label="csv", top=3)
    own = predictor.explain(texts[0], "csv", 3)
    assert (why["score"], why["rank"], why["rest"], why["gap_to_top"]) == (
        own.score,
        own.rank,
        own.rest,
        own.gap_to_top,
    )
    assert [part["feature"] for part in why["contributions"]] == [
        part.feature for part in own.contributions
    ]


def test_sparse_rows(server: ServerSetup) -> None:
    predictor = Predictor(Model.open(server.app_state.registry.resolve("vector")))
    dense = np.zeros((1, 6), np.float32)
    dense[0, [4, 1]] = 0.25, -1.5
    answer = server.client.predict(
        "vector", [{"indices": [4, 1], "values": [0.25, -1.5]}], top_k=4
    )["predictions"][0]
    assert answer["scores"] == predictor.predict(dense, 4).scores[0].tolist()


def test_models(server: ServerSetup) -> None:
    models = server.client.models
    assert [model["name"] for model in models.list()] == ["text", "vector"]
    assert models.set_alias("text", "prod", 1)["aliases"] == {"latest": 1, "prod": 1}
    assert models.get("text")["latest"] == models.version("text", 1)
    assert models.card("text", 1).startswith("# Model card")
    with pytest.raises(Conflict, match="prod"):
        models.delete_version("text", 1)
    models.delete_alias("text", "prod")
    assert server.client.health()["status"] == "ok"


def test_a_version_is_downloaded_and_compared(server: ServerSetup, tmp_path: Path) -> None:
    models, target = server.client.models, tmp_path / "text"
    assert models.download("text", 1, target) == target
    assert Model.open(target, verify=True).sha256 == models.version("text", 1)["sha256"]
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    with pytest.raises(Conflict, match="exists already"):
        models.download("text", 1, target)
    assert models.diff("text", 1, 1)["same_content"] is True
    assert models.report("text", 1)["gaps"] is None  # not trained, so no gaps
    with pytest.raises(NotFound, match="no timeline"):
        models.picture("text", 1, "timeline")


@pytest.mark.parametrize(
    ("ask", "kind", "code"),
    [
        (lambda c: c.models.get("nobody"), NotFound, "NOT_FOUND"),
        (lambda c: c.predict("text", []), InputError, "INSTANCES"),
        (lambda c: c.predict("vector", ["a"]), InputError, "NO_TEXT"),
        (lambda c: c.predict("text", ["a"], top_k=0), InputError, "K_RANGE"),
        (lambda c: c.jobs.submit(dataset="ready", model="No"), ParameterError, "BAD_NAME"),
        (lambda c: c.jobs.submit(dataset="ready", model="m", nope=1), InputError, "UNKNOWN_FIELD"),
        (lambda c: c.datasets.register("/etc", name="x"), errors.Refused, "FORBIDDEN"),
        (lambda c: c.jobs.get("../../x"), NotFound, "NO_SUCH_PATH"),
        (lambda c: c.jobs.get(".."), InputError, "BAD_NAME"),
        (lambda c: c.models.version("text", 77), NotFound, "NOT_FOUND"),
    ],
)
def test_problems_are_raised_as_their_class(
    server: ServerSetup, ask: Callable[[Client], object], kind: type[XcrayError], code: str
) -> None:
    with pytest.raises(XcrayError) as caught:
        ask(server.client)
    assert (type(caught.value), caught.value.code) == (kind, code)


def test_every_class_of_errors_can_be_raised() -> None:
    named = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, XcrayError)
    }
    assert set(ERROR_CLASSES) == named


def test_each_event_is_received_once_until_the_end(server: ServerSetup) -> None:
    store = server.app_state.store
    job = server.client.jobs.submit(dataset="ready", model="m", priority=100)
    reports: list[tuple[int, str]] = []

    def run() -> None:
        claimed = store.attempts.claim("test", lease_seconds=60)
        assert claimed is not None
        assert claimed.id == job["id"]
        for done in range(20):
            store.attempts.append_event(
                claimed.id,
                claimed.attempt,
                "progress",
                {"phase": "TRAINING", "done": done, "total": 20},
            )
            time.sleep(0.01)
        store.attempts.finish(
            claimed.id, claimed.attempt, FAILED, reason="TEST", message="as wished"
        )

    runner = threading.Thread(target=run)
    runner.start()
    ended = server.client.jobs.wait(
        job["id"], on_event=lambda event: reports.append((event["seq"], event["kind"]))
    )
    runner.join()
    assert (ended["status"], ended["reason"]) == ("FAILED", "TEST")
    assert [kind for _, kind in reports].count("progress") == 20
    assert [seq for seq, _ in reports] == sorted({seq for seq, _ in reports})
    assert [
        (event["seq"], event["kind"]) for event in server.client.jobs.events(job["id"])
    ] == reports


# Network failures, simulated by a transport.


def played(
    *answers: Callable[[httpx.Request], httpx.Response],
) -> tuple[Client, list[httpx.Request]]:
    """Return a client that receives the responses in order, and the list of its requests."""
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answers[min(len(requests), len(answers)) - 1](request)

    return Client(
        "http://xcray.test", transport=httpx.MockTransport(handle), key="secret"
    ), requests


def lose_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset", request=request)


def busy(_: httpx.Request) -> httpx.Response:
    problem = {"kind": "Unavailable", "code": "BUSY", "detail": "later", "status": 503}
    return httpx.Response(503, json=problem, headers={"Retry-After": "0"})


def job_made(_: httpx.Request) -> httpx.Response:
    return httpx.Response(201, json={"id": "job_1"})


def test_a_lost_response_is_retried_with_the_same_key() -> None:
    client, query = played(lose_connection, busy, job_made)
    assert client.jobs.submit(dataset="d", model="m")["id"] == "job_1"
    assert len({request.headers["idempotency-key"] for request in query}) == 1
    assert len({request.content for request in query}) == 1
    assert len(query) == 3
    assert query[0].headers["authorization"] == "Bearer secret"


def test_every_creating_request_has_its_own_key(tmp_path: Path) -> None:
    """Otherwise a retry after a lost response would create the object twice."""
    file = tmp_path / "rows.svm"
    file.write_text("1 1:1\n")
    values = set()
    for calls, make in (
        (2, lambda client: client.datasets.upload(file, name="a", format="svmlight")),
        (1, lambda client: client.datasets.build("a", "pydocs")),
        (1, lambda client: client.datasets.register("/data/a", name="a")),
        (1, lambda client: client.jobs.submit(dataset="d", model="m")),
        (2, lambda client: client.jobs.predict("m", format="svmlight", file=file)),
    ):
        client, query = played(lose_connection, busy, job_made, lose_connection, busy, job_made)
        make(client)
        keys = [request.headers["idempotency-key"] for request in query]
        assert len(keys) == 3 * calls
        assert [len(set(keys[part : part + 3])) for part in range(0, len(keys), 3)] == [1] * calls
        values |= set(keys)
    assert len(values) == 7


@pytest.mark.parametrize("value", [{"deadline_ms": float("inf")}, {"allow": ["\ud800"]}])
def test_values_that_json_does_not_have_are_refused(value: dict[str, Any]) -> None:
    client, query = played(job_made)
    with pytest.raises(InputError, match="the request can't be written"):
        client.predict("m", ["a"], **value)
    assert not query


def test_a_deletion_with_a_lost_response_succeeds() -> None:
    def not_found(_: httpx.Request) -> httpx.Response:
        return httpx.Response(
            404, json={"kind": "NotFound", "code": "NOT_FOUND", "detail": "there is no job"}
        )

    client, request = played(lose_connection, not_found)
    client.jobs.delete("job_1")
    assert len(request) == 2
    client, request = played(not_found)
    with pytest.raises(NotFound):
        client.jobs.delete("job_1")
    client, request = played(busy, not_found)  # nothing was lost: the job never existed
    with pytest.raises(NotFound):
        client.jobs.delete("job_1")


def test_retry_after_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits Retry-After seconds plus a random time, and fails at once for 61 s."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)

    def later(
        status: int, seconds: int, **problem: Any
    ) -> Callable[[httpx.Request], httpx.Response]:
        return lambda _: httpx.Response(status, headers={"Retry-After": f"{seconds}"}, **problem)

    limited = {"kind": "Unavailable", "code": "RATE_LIMIT", "detail": "too often"}
    for _ in range(20):
        client, _asked = played(
            later(429, 7, json=limited),
            later(503, 3, text="a proxy"),
            later(429, 2, text="a proxy"),
            job_made,
        )
        assert client.jobs.submit(dataset="d", model="m")["id"] == "job_1"
    by_try = [waited[server::3] for server in range(3)]
    for report, waits in zip((7, 3, 2), by_try, strict=True):
        assert report < min(waits) < max(waits) < report + 2
        assert len(set(waits)) > 10
    client, request = played(later(429, 61, json=limited))
    with pytest.raises(Unavailable) as caught:
        client.jobs.submit(dataset="d", model="m")
    assert (len(request), caught.value.details["retry_after"]) == (1, 61)
    refused = {"kind": "Refused", "code": "QUOTA", "detail": "100 of your jobs are pending"}
    client, request = played(later(429, 1, json=refused))
    with pytest.raises(Refused):
        client.jobs.submit(dataset="d", model="m")
    assert len(request) == 1


def test_jobs_are_listed_by_filters(server: ServerSetup) -> None:
    client = server.client
    ids = [
        client.jobs.submit(
            dataset="ready", model=f"list{n % 2}", name=f"listed {n}", timeout_seconds=60
        )["id"]
        for n in range(6)
    ]
    client.jobs.stop(ids[2])
    assert [job["id"] for job in client.jobs.list(model="list0", page=2)] == [
        ids[4],
        ids[2],
        ids[0],
    ]
    assert [job["id"] for job in client.jobs.list(model="list0", status=["STOPPED", "FAILED"])] == [
        ids[2]
    ]
    assert [job["timeout_seconds"] for job in client.jobs.list(name="listed 3", kind="train")] == [
        60
    ]
    assert list(client.jobs.list(created_before="2000-01-01T00:00:00Z")) == []
    for job_id in ids:
        client.jobs.stop(job_id)


def test_a_log_is_followed_to_its_end(server: ServerSetup) -> None:
    job = server.client.jobs.submit(dataset="ready", model="followed")
    log = server.app_state.home.log(job["id"])
    log.write_text("one\ntwo\nthree\n")
    pieces = server.client.jobs.follow_logs(job["id"], tail=2, pause=0.01)
    assert next(pieces) == "two\nthree\n"
    with open(log, "a") as out:
        out.write("four\n")
    assert next(pieces) == "four\n"
    with open(log, "a") as out:
        out.write("five\n")
    server.client.jobs.stop(job["id"])
    assert list(pieces) == ["five\n"]


def test_a_request_that_takes_its_time_is_awaited() -> None:
    with Client() as client:
        assert client._connection._http.timeout.read > child_work.MAX_SECONDS


def test_no_server() -> None:
    with (
        pytest.raises(Unavailable, match="xcray serve"),
        Client("http://127.0.0.1:9", retries=0) as client,
    ):
        client.health()
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "x"):
        with pytest.raises(InputError, match="not a URL"):
            Client(url)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            httpx.Response(502, text="<html>Bad Gateway</html>", headers={"Retry-After": "61"}),
            Unavailable,
        ),
        (httpx.Response(403, json=["no"]), InputError),
        (httpx.Response(500, json={"kind": "excerpt", "code": "X", "detail": "y"}), XcrayError),
        (
            httpx.Response(
                503, json={"kind": "Corrupt", "code": "CORRUPT", "detail": "y", "message": "z"}
            ),
            Corrupt,
        ),
    ],
)
def test_responses_of_other_servers_are_errors(
    answer: httpx.Response, kind: type[XcrayError]
) -> None:
    client, _ = played(lambda _: answer)
    with pytest.raises(XcrayError) as caught:
        client.datasets.build("a", "pydocs")
    assert type(caught.value) is kind


def test_a_broken_stream_continues_after_the_last_event() -> None:
    def part(*blocks: str) -> Callable[[httpx.Request], httpx.Response]:
        headers = {"Content-Type": "text/event-stream"}
        return lambda _: httpx.Response(
            200, text="retry: 1000\n\n" + "".join(blocks), headers=headers
        )

    def event(seq: int) -> str:
        return f'id: {seq}\nevent: progress\ndata: {{"time": "t", "done": {seq}}}\n\n'

    client, query = played(
        part(event(1), ": alive\n\n", event(2), "id: 3\nevent: progress\nda"),
        lose_connection,
        busy,
        part(event(3)),
        lambda _: httpx.Response(204),
    )
    results: list[Any] = list(client.jobs.events("job_1"))
    assert [one["data"] for one in results] == [{"done": 1}, {"done": 2}, {"done": 3}]
    assert [request.headers["last-event-id"] for request in query] == ["0", "2", "2", "2", "3"]


def test_success_has_a_result(server: ServerSetup) -> None:
    store = server.app_state.store
    job = server.client.jobs.submit(dataset="ready", model="m", priority=100)
    claimed = store.attempts.claim("test", lease_seconds=60)
    assert claimed is not None
    store.attempts.finish(
        claimed.id,
        claimed.attempt,
        SUCCEEDED,
        result={"model": "m", "version": 1, "measures": {"P@1": 0.5}},
    )
    assert server.client.jobs.wait(job["id"])["result"] == {
        "model": "m",
        "version": 1,
        "measures": {"P@1": 0.5},
    }
