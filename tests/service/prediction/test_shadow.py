"""Shadow versions: computed after the reply without affecting it; excess copies are dropped."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.support.live_service import TEXTS, client_of, plain_model, publish, settings_for
from xcray.jobs.store.counters import make_counter
from xcray.jobs.store.job_store import JobStore
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit, hash_point
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.service.http.edge import _SendWithHeaders
from xcray.service.models.loading import LoadedModel
from xcray.service.observability.metrics import Metrics
from xcray.service.prediction.shadow import MAX_WAITING, ShadowCopy, ShadowRunner, shadow_statistics

PREDICT = "/v1/models/docs@prod:predict"
BODY = {"instances": [{"text": text} for text in TEXTS], "top_k": 2}


class Service(NamedTuple):
    """A service with versions 1 and 2 of docs; prod is version 1 with version 2 as its shadow."""

    http: httpx.Client
    app_state: AppState


@pytest.fixture
def model_service(tmp_path: Path) -> Iterator[Service]:
    app = create_app(settings_for(tmp_path / "home"))
    app_state: AppState = app.state.app_state
    for version in (1, 2):
        publish(app_state.registry, "docs", tmp_path / "staged", seed=version)
    app_state.registry.aliases.set_split(
        "docs", "prod", TrafficSplit.from_weights([(1, 1.0)], (2, 1.0))
    )
    with client_of(app) as http:
        yield Service(http, app_state)


def shadow_view(model_service: Service) -> Any:
    """Return the shadow view after all copies are computed.

    A copy is queued just after its reply was sent, so by the time a later request is answered.
    """
    model_service.http.get("/v1/models/docs")
    model_service.app_state.prediction.shadows._pool.submit(lambda: None).result()
    return model_service.http.get("/v1/models/docs/aliases/prod/shadow").json()


def n_dropped(model_service: Service) -> float:
    """Return the number of copies that were dropped."""
    metrics = model_service.http.get("/metrics").text
    (line,) = re.findall(r'^xcray_predict_shadowed_total\{outcome="dropped"\} (.+)$', metrics, re.M)
    return float(line)


def test_the_agreement_is_that_of_both_predictors(model_service: Service) -> None:
    for _ in range(3):
        assert model_service.http.post(PREDICT, json=BODY).json()["model"]["version"] == 1
    view = shadow_view(model_service)
    ours, theirs = (
        Predictor(Model.open(model_service.app_state.registry.resolve(f"docs:{version}")))
        for version in (1, 2)
    )
    a, b = ours.predict(list(TEXTS), 2).labels, theirs.predict(list(TEXTS), 2).labels
    (pair,) = view["pairs"]
    assert (view["shadow"], pair["answered"], pair["shadow"]) == (
        {"version": 2, "weight": 1.0},
        1,
        2,
    )
    assert (pair["requests"], pair["rows"], pair["failed"], pair["dropped"]) == (3, 12, 0, 0)
    assert pair["top1_agreement"] == np.mean(a[:, 0] == b[:, 0])
    assert pair["overlap"] == np.mean(
        [len({*x} & {*y}) / 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    )
    assert pair["answer_ms"] > 0
    assert pair["shadow_ms"] > 0
    metrics = model_service.http.get("/metrics").text
    assert "xcray_predict_shadowed_total" in metrics
    assert "docs" not in metrics


def test_statistics_are_stored_for_all_processes(model_service: Service) -> None:
    model_service.http.post(PREDICT, json=BODY)
    shadow_view(model_service)
    again = JobStore(model_service.app_state.settings.store_url)
    assert [
        sums["rows"] for sums in shadow_statistics(again.counters, "default", "docs@prod").values()
    ] == [4.0]
    assert shadow_statistics(again.counters, "other", "docs@prod") == {}
    again.close()


def test_a_failing_shadow_does_not_affect_the_reply(model_service: Service, tmp_path: Path) -> None:
    """The shadow does not read text, so every copy fails."""
    plain_model(tmp_path / "plain")
    model_service.app_state.registry.publish("docs", tmp_path / "plain")
    model_service.app_state.registry.aliases.set_split(
        "docs", "prod", TrafficSplit.from_weights([(1, 1.0)], (3, 1.0))
    )
    model_service.app_state.prediction.model_cache.refresh_name("default", "docs")
    model_service.app_state.prediction.model_cache._switch._pool.submit(lambda: None).result(300)
    assert model_service.http.post(PREDICT, json=BODY).status_code == 200
    (pair,) = shadow_view(model_service)["pairs"]
    assert (pair["shadow"], pair["failed"], pair["requests"], pair["top1_agreement"]) == (
        3,
        1,
        0,
        None,
    )


def test_a_hanging_shadow_delays_no_reply_and_drops_copies(
    model_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go = threading.Event(), threading.Event()
    compared = ShadowRunner._compare

    def slow(self: ShadowRunner, copy: ShadowCopy) -> Any:
        reached.set()
        assert go.wait(300)
        return compared(self, copy)

    monkeypatch.setattr(ShadowRunner, "_compare", slow)
    try:
        assert model_service.http.post(PREDICT, json=BODY).status_code == 200
        assert reached.wait(300)  # the reply came before the shadow was computed
        for _ in range(MAX_WAITING + 5):
            assert model_service.http.post(PREDICT, json=BODY).status_code == 200
        # The last copy is submitted after its reply.
        deadline = time.monotonic() + 300
        while n_dropped(model_service) < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        go.set()
    (pair,) = shadow_view(model_service)["pairs"]
    assert (pair["requests"], pair["dropped"]) == (MAX_WAITING, 6)


def test_copies_are_submitted_after_the_reply(
    model_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last byte is passed to the server before the copy is submitted."""
    order: list[str] = []
    send = _SendWithHeaders.__call__

    async def record_send(self: _SendWithHeaders, message: Any) -> None:
        await send(self, message)
        order.append(message["type"])

    monkeypatch.setattr(_SendWithHeaders, "__call__", record_send)
    monkeypatch.setattr(ShadowRunner, "submit", lambda self, copy: order.append("copy"))
    assert model_service.http.post(PREDICT, json=BODY).status_code == 200
    assert model_service.http.get("/healthz").status_code == 200
    assert order[:3] == ["http.response.start", "http.response.body", "copy"]


def test_a_share_gets_copies_by_key(model_service: Service) -> None:
    """The hash differs from that of the split: a tenth of the copies is not the canary's tenth."""
    route = TrafficSplit.from_weights([(1, 1.0)], (2, 0.25))
    model_service.app_state.registry.aliases.set_split("docs", "prod", route)
    model_service.app_state.prediction.model_cache.refresh_name("default", "docs")
    keys = [f"k{i}" for i in range(60)]
    for key in keys:
        assert (
            model_service.http.post(PREDICT, json=BODY, headers={"X-Routing-Key": key}).status_code
            == 200
        )
    expected = sum(hash_point("shadow docs@prod", key) < 0.25 for key in keys)
    assert 0 < expected < 60
    assert shadow_view(model_service)["pairs"][0]["requests"] == expected


def test_statistics_are_complete_after_a_flush_during_another() -> None:
    """A reader that flushes must not miss the sums that a background flush is writing."""
    writing, go, order = threading.Event(), threading.Event(), list[str]()

    class SlowCounters:
        """Counters that are stored when `go` is set."""

        def increment_all(self, sums: Any) -> None:
            writing.set()
            assert go.wait(300)
            order.append("stored")

    shadows, counters = ShadowRunner(lambda tenant: None, Metrics()), SlowCounters()
    shadows._sums[make_counter("shadow_rows")] = 1.0

    def read() -> None:
        shadows.flush(counters)
        order.append("read")

    background = threading.Thread(target=shadows.flush, args=(counters,))
    reader = threading.Thread(target=read)
    background.start()
    assert writing.wait(300)
    reader.start()
    reader.join(0.2)
    go.set()
    background.join()
    reader.join()
    assert order == ["stored", "read"]


def test_statistics_are_kept_while_the_store_is_unavailable(tmp_path: Path) -> None:
    plain_model(tmp_path / "staged")
    registry = Registry(tmp_path / "models")
    registry.publish("rows", tmp_path / "staged")
    loaded = LoadedModel("default", "rows", 1, Predictor(Model.open(registry.resolve("rows"))))
    shadows = ShadowRunner(lambda tenant: registry, Metrics())
    rows = np.eye(6, dtype=np.float32)
    shadows.submit(
        ShadowCopy(
            "rows@a",
            loaded,
            loaded,
            lambda model: rows,
            6,
            3,
            None,
            None,
            loaded.predictor.predict(rows, 3).labels,
            0.5,
        )
    )
    shadows._pool.submit(lambda: None).result()

    class Broken:
        """A store that is unavailable."""

        def increment_all(self, counted: Any) -> None:
            raise OSError("gone")

    store = JobStore(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(OSError, match="gone"):
        shadows.flush(Broken())  # type: ignore[arg-type]
    shadows.flush(store.counters)
    (sums,) = shadow_statistics(store.counters, "default", "rows@a").values()
    assert (sums["top1"], sums["overlap"], sums["rows"], sums["answer_seconds"]) == (
        6.0,
        6.0,
        6.0,
        0.5,
    )
    shadows.close()
    shadows.submit(
        ShadowCopy(
            "rows@a",
            loaded,
            loaded,
            lambda model: rows,
            6,
            3,
            None,
            None,
            np.zeros((6, 3), np.int32),
            0.5,
        )
    )
    store.close()
