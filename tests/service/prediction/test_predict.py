"""Predictions over HTTP: filters, deadlines, certificates, probabilities, and model changes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from pydantic import TypeAdapter

from tests.support.live_service import (
    LABELS,
    TEXTS,
    client_of,
    plain_model,
    publish,
    settings_for,
)
from xcray.api.model_replies import PredictReply
from xcray.index import search
from xcray.index.search import SearchIndex
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.predict import Predictor
from xcray.service import constants
from xcray.service.app import AppParts, create_app
from xcray.service.app_state import AppState
from xcray.service.http import auth
from xcray.service.models import loading
from xcray.service.models.cache import ModelCache, ModelTarget
from xcray.service.models.loading import open_predictor_soon
from xcray.service.prediction import encode, handler
from xcray.service.prediction.fast_path import PredictFastPath

PREDICT = "/v1/models/docs:predict"


class Service(NamedTuple):
    """A served app with a text model."""

    http: httpx.Client
    app_state: AppState
    predictor: Predictor


@pytest.fixture(scope="module")
def model_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("predict") / "home"
    app = create_app(settings_for(home))
    app_state: AppState = app.state.app_state
    publish(app_state.registry, "docs", home / "staged")
    app_state.registry.label_sets("docs").put("files", ["csv", "json", "gone"])
    with client_of(app) as http:
        yield Service(http, app_state, Predictor(Model.open(app_state.registry.resolve("docs"))))


def target(reference: str) -> ModelTarget:
    """Return a target of the tenant `default`."""
    return ModelTarget("default", reference)


def answers(model_service: Service, **more: Any) -> list[dict[str, Any]]:
    """Return the predictions of all texts."""
    response = model_service.http.post(
        PREDICT, json={"instances": [{"text": text} for text in TEXTS], **more}
    )
    assert response.status_code == 200, response.text
    return list(response.json()["predictions"])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"top_k": 1},
        {"certificate": True},
        {"top_k": 100},
        {"allow": ["csv", "io"], "deadline_ms": 1000, "certificate": True},
    ],
)
def test_replies_conform_to_their_description(model_service: Service, more: dict[str, Any]) -> None:
    """The encoded bytes match the schema, and the values are those of the predictor."""
    answer = model_service.http.post(
        PREDICT, json={"instances": [{"text": text} for text in TEXTS], **more}
    )
    reply = TypeAdapter(PredictReply).validate_python(answer.json(), strict=True, extra="forbid")
    assert reply == answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    among = model_service.predictor.filter(more.get("allow"))
    prediction = model_service.predictor.search(list(TEXTS), more.get("top_k", 5), allow=among)
    assert [one["scores"] for one in reply["predictions"]] == prediction.scores.tolist()
    assert [one["labels"] for one in reply["predictions"]] == [
        [LABELS[j] for j in row] for row in prediction.labels
    ]
    for i, one in enumerate(reply["predictions"]):
        assert ("certificate" in one) == ("certificate" in more)
        if "certificate" in one:
            assert one["certificate"]["exact"] is bool(prediction.exact[i])


@pytest.mark.parametrize("more", [{}, {"deadline_ms": 1000}, {"allow": ["csv"]}])
def test_instances_without_a_feature_are_named_in_warnings(
    model_service: Service, more: dict[str, Any]
) -> None:
    """Empty texts, unknown words and rows of zeros are counted, with any option and decoder."""
    known, empty = {"text": TEXTS[0]}, {"indices": [], "values": []}
    instances = [known, {"text": " "}, {"text": "quux flurb"}, empty, known]
    reply = model_service.http.post(PREDICT, json={"instances": instances, **more}).json()
    [warning] = reply["warnings"]
    assert warning["code"] == "EMPTY_ROWS"
    assert warning["instances"] == [1, 2, 3]
    assert warning["message"].startswith("3 of 5 rows have no feature")
    TypeAdapter(PredictReply).validate_python(reply, strict=True, extra="forbid")
    # a null makes the fast decoder leave the body to the strict one
    body = {"instances": instances, "deny": None, **more}
    assert model_service.http.post(PREDICT, json=body).json() == reply
    texts = {"instances": instances[:2], **more}
    [warning] = model_service.http.post(PREDICT, json=texts).json()["warnings"]
    assert warning["instances"] == [1]


def test_a_large_reply_has_warnings_too(
    model_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that is encoded in chunks has the bytes of one that is not."""
    body = {"instances": [{"text": text} for text in (*TEXTS, "", "quux")], "top_k": 2}
    whole = model_service.http.post(PREDICT, json=body)
    monkeypatch.setattr(encode, "LABELS_PER_CHUNK", 4)
    assert model_service.http.post(PREDICT, json=body).content == whole.content
    assert whole.json()["warnings"][0]["instances"] == [len(TEXTS), len(TEXTS) + 1]


def test_a_few_rows_are_answered_while_kernels_are_compiled(
    model_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are the same; NumPy cannot stop at a deadline."""
    body = {"instances": [{"text": text} for text in TEXTS], "top_k": 3}
    expected = model_service.http.post(PREDICT, json=body).content
    searches = list[str]()
    search_all = SearchIndex._search_all

    def note(self: SearchIndex, *args: Any) -> None:
        searches.append("kernels")
        search_all(self, *args)

    monkeypatch.setattr(SearchIndex, "_search_all", note)
    monkeypatch.setattr(SearchIndex, "is_compiled", False)
    monkeypatch.setattr(SearchIndex, "_numpy_seconds", 0.0)
    assert model_service.http.post(PREDICT, json=body).content == expected
    for more in ({"allow": ["csv"]}, {"certificate": True}):
        assert model_service.http.post(PREDICT, json={**body, **more}).status_code == 200
    assert searches == []
    assert model_service.http.post(PREDICT, json={**body, "deadline_ms": 1000}).status_code == 200
    assert searches == ["kernels"]


def test_a_model_answers_before_its_kernels_are_compiled(
    model_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only models that NumPy searches too slowly, and compiled ones, are warmed up first."""
    path = model_service.app_state.registry.resolve("docs")
    threads = list[str]()
    go_on = threading.Event()
    warmed = threading.Event()

    def warm_up(predictor: Predictor) -> None:
        threads.append(threading.current_thread().name)
        if threads[-1] == "xcray-warm-up":
            warmed.set()
            assert go_on.wait(600)

    monkeypatch.setattr(loading, "_warm_up_search", warm_up)
    open_predictor_soon(path)
    monkeypatch.setattr(SearchIndex, "is_compiled", False)
    monkeypatch.setattr(search, "MAX_SCAN_WEIGHTS", 0)
    open_predictor_soon(path)
    monkeypatch.setattr(search, "MAX_SCAN_WEIGHTS", 1 << 25)
    assert open_predictor_soon(path).search(["csv"], 1).labels.shape == (1, 1)
    assert warmed.wait(600)
    go_on.set()
    assert threads == ["MainThread", "MainThread", "xcray-warm-up"]


def test_requests_answered_together_get_their_own_warnings(model_service: Service) -> None:
    """The batcher computes requests with one call; warnings count the rows of one request."""
    loaded = model_service.app_state.prediction.model_cache
    version = asyncio.run(loaded.find(target("docs")))
    payloads = [["", TEXTS[0]], [TEXTS[0]], ["quux"]]
    metrics = model_service.app_state.metrics
    results = handler._predict_batch(metrics, version, 3, False, payloads)
    assert [each.empty.tolist() for each in results] == [[True, False], [False], [True]]


def test_labels_are_allowed_and_denied_by_name_and_by_set(model_service: Service) -> None:
    for more, expected in (
        ({"allow": ["io", "csv"]}, {"io", "csv"}),
        ({"deny": ["io"]}, {"csv", "json", "socket"}),
        ({"allow": ["set:files"]}, {"csv", "json"}),
        ({"allow": ["set:files", "io"], "deny": ["csv"]}, {"json", "io"}),
    ):
        for _ in range(2):  # the second time from the cache
            assert [set(one["labels"]) for one in answers(model_service, top_k=100, **more)] == [
                expected
            ] * len(TEXTS)
    model_service.app_state.registry.label_sets("docs").put("files", ["socket"])
    assert {
        label for one in answers(model_service, allow=["set:files"]) for label in one["labels"]
    } == {"socket"}
    model_service.app_state.registry.label_sets("docs").put("files", ["csv", "json", "gone"])


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"allow": ["nothing"]}, 404, "NOT_FOUND"),
        ({"allow": ["set:nothing"]}, 404, "NOT_FOUND"),
        ({"allow": ["csv"], "deny": ["csv"]}, 422, "NO_LABELS"),
        ({"allow": []}, 422, "LENGTH"),
        ({"allow": "csv"}, 422, "TYPE"),
        ({"deny": [1]}, 422, "TYPE"),
        ({"deadline_ms": 0}, 422, "RANGE"),
        ({"deadline_ms": "5"}, 422, "TYPE"),
        ({"certificate": 1}, 422, "TYPE"),
        ({"probabilities": True}, 422, "NOT_CALIBRATED"),
        ({"probabilities": True, "allow": ["csv"]}, 422, "NOT_CALIBRATED"),
        ({"labels": ["csv"]}, 422, "UNKNOWN_FIELD"),
    ],
)
def test_impossible_options_are_refused(
    model_service: Service, more: dict[str, Any], status: int, code: str
) -> None:
    answer = model_service.http.post(PREDICT, json={"instances": [{"text": "a"}], **more})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    if code == "NOT_CALIBRATED":
        assert "calibrate" in answer.json()["detail"]


def test_concurrent_requests_get_their_own_answers(model_service: Service) -> None:
    """Concurrent requests differ in the number of labels and rows, with and without batching."""
    requests = [
        {"instances": [{"text": text}] * (1 + i % 3), "top_k": 1 + i % 4}
        for i, text in enumerate(TEXTS * 30)
    ]
    expected = {
        text: model_service.predictor.predict([text], 4).scores[0].tolist() for text in TEXTS
    }
    with ThreadPoolExecutor(16) as pool:
        document = list(
            pool.map(
                lambda body: model_service.http.post(PREDICT, json=body).json()["predictions"],
                requests,
            )
        )
    for body, predictions in zip(requests, document, strict=True):
        scores = expected[str(body["instances"][0]["text"])][: body["top_k"]]  # type: ignore[index]
        assert [one["scores"] for one in predictions] == [scores] * len(body["instances"])  # type: ignore[arg-type]


def test_sparse_rows_of_several_requests_are_joined(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    model = plain_model(tmp_path / "staged")
    predictor = Predictor(model)
    rng = np.random.default_rng(5)
    dense = (rng.normal(size=(60, 6)) * (rng.random((60, 6)) < 0.6)).astype(np.float32)
    bodies = [
        [{"indices": np.flatnonzero(row)[::-1].tolist(), "values": row[row != 0][::-1].tolist()}]
        for row in dense
    ]
    expected = predictor.predict(dense, 3).scores.tolist()
    app.state.app_state.registry.publish("rows", tmp_path / "staged")
    with client_of(app) as http, ThreadPoolExecutor(16) as pool:
        path = "/v1/models/rows:predict"
        body = list(
            pool.map(
                lambda one: http.post(path, json={"instances": one, "top_k": 3}).json(), bodies
            )
        )
    assert [reply["predictions"][0]["scores"] for reply in body] == expected


def test_the_fast_path_and_the_route_give_the_same_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the fast path, the FastAPI route returns the same bytes, problems and metrics."""
    bodies = [
        b'{"instances": [{"text": "a csv file"}]}',
        b'{"instances": [{"text": "a csv file"}, {"text": ""}, {"text": "quux"}]}',
        b'{"instances": []}',
        b"[",
        b'{"instances": [{"text": "a"}], "top_k": 0}',
    ]
    tensor = b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a csv"]}]'
    requests = [(PREDICT, body) for body in bodies]
    for path in ("/v2/models/docs/infer", "/v2/models/docs/versions/01/infer"):
        binary = b', "parameters": {"binary_data_output": true}}'
        requests += [(path, tensor + b"}"), (path, tensor + binary), (path, b"[")]

    def replies_of(app: FastAPI) -> list[Any]:
        with client_of(app) as http:
            headers = {"Content-Type": "application/json", "X-Request-ID": "same"}
            replies = [http.post(path, content=body, headers=headers) for path, body in requests]
            locate_and_count = [
                line
                for line in http.get("/metrics").text.splitlines()
                if line.startswith("xcray_http_requests_total")
            ]
            return [
                [(one.status_code, one.content, _kind_of(one)) for one in replies],
                locate_and_count,
            ]

    def app_of(name: str) -> FastAPI:
        app = create_app(settings_for(tmp_path / name))
        publish(app.state.app_state.registry, "docs", tmp_path / f"{name}.staged")
        return app

    with_fast_path = replies_of(app_of("a"))
    monkeypatch.setattr(
        PredictFastPath,
        "__call__",
        lambda self, scope, receive, send: self._app(scope, receive, send),
    )
    assert replies_of(app_of("b")) == with_fast_path
    assert (
        '/v1/models/{reference}:predict",status="2xx"'
        in with_fast_path[1][0] + with_fast_path[1][1]
    )


def _kind_of(reply: httpx.Response) -> tuple[str, str | None]:
    """Return the type of a reply, and the length of its JSON object if tensors follow it."""
    return reply.headers["content-type"], reply.headers.get("Inference-Header-Content-Length")


def test_the_fast_path_authenticates(tmp_path: Path) -> None:
    async def authenticate(request: Request) -> auth.Caller:
        return auth.Caller("other", frozenset({"read"}))

    app = create_app(settings_for(tmp_path / "home"), parts=AppParts(authenticate=authenticate))
    publish(app.state.app_state.registry, "docs", tmp_path / "staged")
    with client_of(app) as http:
        answer = http.post(PREDICT, json={"instances": [{"text": "a"}]})
        assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


def test_a_full_batcher_refuses_at_once_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of waiting rows is bounded, and other requests get a retry time."""
    reached, go = threading.Event(), threading.Event()

    class Slow(Predictor):
        """A predictor that returns when the test allows it."""

        def search(self, rows: Any, k: int = 5, **how: Any) -> Any:
            reached.set()
            assert go.wait(300)
            return super().search(rows, k, **how)

    def open_and_record(path: Path) -> Predictor:
        return Slow(Model.open(path))

    monkeypatch.setattr(constants, "PREDICT_BATCH_SECONDS", 0.0)
    app = create_app(
        settings_for(tmp_path / "home", max_instances=5),
        parts=AppParts(opener=open_and_record),
    )
    publish(app.state.app_state.registry, "docs", tmp_path / "staged")
    body = {"instances": [{"text": "a"}] * 4}
    with client_of(app) as http, ThreadPoolExecutor(12) as pool:
        first = pool.submit(http.post, PREDICT, json=body)
        assert reached.wait(300)
        others = [pool.submit(http.post, PREDICT, json=body) for _ in range(11)]
        refused = [one for one in others if wait_for_refusal(one, go, others)]
        assert len(refused) == 10
        assert all(one.result().headers["retry-after"] == "1" for one in refused)
        assert http.get("/healthz").status_code == 200
        assert app.state.app_state.prediction.batcher.pending_rows == 8
        go.set()
        assert first.result().status_code == 200
        assert sorted(one.result().status_code for one in others) == [200] + [503] * 10
        assert http.post(PREDICT, json=body).status_code == 200
        assert app.state.app_state.prediction.batcher.pending_rows == 0


def wait_for_refusal(one: Any, go: threading.Event, others: list[Any]) -> bool:
    """Return whether a request was refused while the first still waits: ten of eleven are."""
    while not one.done() and sum(each.done() for each in others) < 10:
        go.wait(0.01)
    return bool(one.done() and one.result().status_code == 503)


def test_references_are_cached_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    app_state: AppState = app.state.app_state
    for seed in (1, 2):
        publish(app_state.registry, "docs", tmp_path / f"m{seed}", seed=seed)
    looked: list[str] = []
    route = Registry.resolve_split

    def locate_and_count(self: Registry, reference: str) -> tuple[str, TrafficSplit]:
        # Look-ups while a model is loaded are not counted.
        looked.extend([reference] if ":" not in reference else [])
        return route(self, reference)

    monkeypatch.setattr(Registry, "resolve_split", locate_and_count)
    monkeypatch.setattr("xcray.model.registry.SETTLE_SECONDS", 1e6)
    app_state.prediction.model_cache.get(target("docs"))
    app_state.prediction.model_cache.get(target("docs"))
    before = len(looked)
    app_state.prediction.model_cache.get(target("docs"))
    assert len(looked) == before + 1  # the change is too recent for the cache
    monkeypatch.setattr("xcray.model.registry.SETTLE_SECONDS", 0.0)
    for _ in range(3):
        assert app_state.prediction.model_cache.get(target("docs")).version == 2
    assert len(looked) == before + 2
    app_state.registry.aliases.set("docs", "prod", 1)
    assert app_state.prediction.model_cache.get(target("docs@prod")).version == 1
    assert app_state.prediction.model_cache.get(target("docs")).version == 2
    app_state.registry.delete("docs", 2)
    assert app_state.prediction.model_cache.get(target("docs")).version == 1
    app_state.prediction.model_cache.close()


def test_versions_deleted_by_another_process_are_unloaded(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    app_state: AppState = app.state.app_state
    publish(app_state.registry, "docs", tmp_path / "a", seed=1)
    publish(app_state.registry, "docs", tmp_path / "b", seed=2)
    cache = ModelCache(app_state.registry_of, app_state.metrics, 4)
    assert [cache.get(target(f"docs:{version}")).version for version in (1, 2)] == [1, 2]
    Registry(app_state.home.models).delete("docs", 1)
    cache.poll()
    assert cache.loaded_versions("default") == {("docs", 2)}
    cache.close()


def test_unusual_label_names_are_returned_unchanged(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    labels = ['say "hi"\\', "é\u2028\U0001f600", "<script>", "tab\there"]
    publish(app.state.app_state.registry, "docs", tmp_path / "staged", labels=labels)
    with client_of(app) as http:
        content = http.post(
            PREDICT, json={"instances": [{"text": "a csv file"}], "top_k": 4}
        ).content
    assert sorted(json.loads(content)["predictions"][0]["labels"]) == sorted(labels)
