"""A shadow answers along: after the reply, without delaying or failing one; what does not fit is dropped; figures add up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.support.live_service import TEXTS, client_of, plain_model, publish, settings_for
from xcray.jobs.store.job_store import JobStore
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.traffic_split import Route, point
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.service.app_state import Rooms
from xcray.service.http.edge import _Answer
from xcray.service.models.loading import Loaded
from xcray.service.observability.metrics import Gauges
from xcray.service.prediction.shadow import MOST, Copy, Shadows, figures

PREDICT = "/v1/models/docs@prod:predict"
BODY = {"instances": [{"text": text} for text in TEXTS], "top_k": 2}


class Place(NamedTuple):
    """A service with versions 1 and 2 of docs; prod is version 1 with a shadow of version 2."""

    http: httpx.Client
    rooms: Rooms


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    app = create_app(settings_for(tmp_path / "home"))
    rooms: Rooms = app.state.rooms
    for version in (1, 2):
        publish(rooms.registry, "docs", tmp_path / "staged", seed=version)
    rooms.registry.set_route("docs", "prod", Route.of([(1, 1.0)], (2, 1.0)))
    with client_of(app) as http:
        yield Place(http, rooms)


def shown(place: Place) -> Any:
    """What is told of the shadow, once all copies are computed."""
    place.rooms.shadows.settle()
    return place.http.get("/v1/models/docs/aliases/prod/shadow").json()


def test_agreement_is_what_both_would_say(place: Place) -> None:
    for _ in range(3):
        assert place.http.post(PREDICT, json=BODY).json()["model"]["version"] == 1
    told = shown(place)
    ours, theirs = (
        Predictor(Model.open(place.rooms.registry.resolve(f"docs:{version}"))) for version in (1, 2)
    )
    a, b = ours.predict(list(TEXTS), 2).labels, theirs.predict(list(TEXTS), 2).labels
    (pair,) = told["pairs"]
    assert (told["shadow"], pair["answered"], pair["shadow"]) == (
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
    metrics = place.http.get("/metrics").text
    assert "xcray_predict_shadowed_total" in metrics
    assert "docs" not in metrics


def test_figures_are_kept_for_every_process(place: Place) -> None:
    place.http.post(PREDICT, json=BODY)
    shown(place)
    again = JobStore(place.rooms.settings.store_url)
    assert [sums["rows"] for sums in figures(again, "default", "docs@prod").values()] == [4.0]
    assert figures(again, "other", "docs@prod") == {}
    again.close()


def test_a_shadow_that_fails_fails_alone(place: Place, tmp_path: Path) -> None:
    """It does not read text: every copy is beyond it."""
    plain_model(tmp_path / "plain")
    place.rooms.registry.publish("docs", tmp_path / "plain")
    place.rooms.registry.set_route("docs", "prod", Route.of([(1, 1.0)], (3, 1.0)))
    place.rooms.predictors.moved("default", "docs")
    place.rooms.predictors._swapper.submit(lambda: None).result(300)
    assert place.http.post(PREDICT, json=BODY).status_code == 200
    (pair,) = shown(place)["pairs"]
    assert (pair["shadow"], pair["failed"], pair["requests"], pair["top1_agreement"]) == (
        3,
        1,
        0,
        None,
    )


def test_a_shadow_that_stands_still_delays_nobody_and_drops(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go = threading.Event(), threading.Event()
    compared = Shadows._compared

    def slow(self: Shadows, copy: Copy) -> Any:
        reached.set()
        assert go.wait(300)
        return compared(self, copy)

    monkeypatch.setattr(Shadows, "_compared", slow)
    try:
        assert place.http.post(PREDICT, json=BODY).status_code == 200
        assert reached.wait(300)  # the reply was here before the shadow had answered
        for _ in range(MOST + 5):
            assert place.http.post(PREDICT, json=BODY).status_code == 200
    finally:
        go.set()
    (pair,) = shown(place)["pairs"]
    assert (pair["requests"], pair["dropped"]) == (MOST, 6)


def test_copies_are_given_after_the_reply(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last byte is handed to the server before the copy is handed to the shadow."""
    order: list[str] = []
    send = _Answer.__call__

    async def sent(self: _Answer, message: Any) -> None:
        await send(self, message)
        order.append(message["type"])

    monkeypatch.setattr(_Answer, "__call__", sent)
    monkeypatch.setattr(Shadows, "offer", lambda self, copy: order.append("copy"))
    assert place.http.post(PREDICT, json=BODY).status_code == 200
    assert place.http.get("/healthz").status_code == 200
    assert order[:3] == ["http.response.start", "http.response.body", "copy"]


def test_a_share_gets_copies_by_key(place: Place) -> None:
    """Another hash than the one that splits: a tenth of the shadow is not a tenth of the canary's clients."""
    route = Route.of([(1, 1.0)], (2, 0.25))
    place.rooms.registry.set_route("docs", "prod", route)
    place.rooms.predictors.moved("default", "docs")
    keys = [f"k{i}" for i in range(60)]
    for key in keys:
        assert (
            place.http.post(PREDICT, json=BODY, headers={"X-Routing-Key": key}).status_code == 200
        )
    expected = sum(point("shadow docs@prod", key) < 0.25 for key in keys)
    assert 0 < expected < 60
    assert shown(place)["pairs"][0]["requests"] == expected


def test_what_the_store_does_not_take_is_not_lost(tmp_path: Path) -> None:
    plain_model(tmp_path / "staged")
    registry = Registry(tmp_path / "models")
    registry.publish("rows", tmp_path / "staged")
    loaded = Loaded("default", "rows", 1, Predictor(Model.open(registry.resolve("rows"))))
    shadows = Shadows(lambda tenant: registry, Gauges())
    rows = np.eye(6, dtype=np.float32)
    shadows.offer(
        Copy(
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
    shadows.settle()

    class Broken:
        """A store that does not answer."""

        def count_all(self, counted: Any) -> None:
            raise OSError("gone")

    store = JobStore(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(OSError, match="gone"):
        shadows.flush(Broken())  # type: ignore[arg-type]
    shadows.flush(store)
    (sums,) = figures(store, "default", "rows@a").values()
    assert (sums["top1"], sums["overlap"], sums["rows"], sums["answer_seconds"]) == (
        6.0,
        6.0,
        6.0,
        0.5,
    )
    shadows.close()
    shadows.offer(
        Copy(
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
