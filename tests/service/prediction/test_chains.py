"""A model that is a chain of stages, served like any other one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.chain_models import FEATURES, LABELS, ROWS, K, replay, staged_content
from tests.support.live_service import client_of, settings_for
from xcray.model.write import TrainingRecord, write_model
from xcray.service.app import create_app

INSTANCES = [
    {"indices": indices.tolist(), "values": values.tolist()}
    for indices, values in (ROWS.row(i) for i in range(ROWS.n_rows))
]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home: Path = tmp_path_factory.mktemp("chains") / "home"
    app = create_app(settings_for(home))
    registry = app.state.app_state.registry
    write_model(home / "staged", staged_content(), TrainingRecord("stagewise", {}, "0" * 64))
    registry.publish("chain", home / "staged")
    with client_of(app) as client:
        yield client


def predict(http: httpx.Client, instances: Any = INSTANCES, **more: Any) -> list[dict[str, Any]]:
    """Return predictions of the chain."""
    reply = http.post("/v1/models/chain:predict", json={"instances": instances, **more})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["predictions"])


def test_scores_are_those_of_the_stages(http: httpx.Client) -> None:
    for one, want in zip(predict(http, top_k=K), replay(ROWS), strict=True):
        order = np.argsort(-want, kind="stable")
        assert one["labels"] == [LABELS[j] for j in order]
        assert one["scores"] == pytest.approx(want[order], rel=1e-12, abs=1e-12)


def test_dense_rows_filters_and_certificates(http: httpx.Client) -> None:
    dense = [{"values": row.tolist()} for row in ROWS.to_scipy().toarray()]
    assert predict(http, dense) == predict(http)
    for one in predict(http, allow=["red", "grey"], certificate=True):
        assert sorted(one["labels"]) == ["grey", "red"]
        assert one["certificate"]["exact"] is True


def test_the_standard_protocol_gives_the_same_answers(http: httpx.Client) -> None:
    rows = ROWS.to_scipy().toarray()
    tensor = {"name": "dense", "datatype": "FP32", "shape": list(rows.shape)}
    body = {"inputs": [{**tensor, "data": rows.tolist()}], "parameters": {"top_k": K}}
    reply = http.post("/v2/models/chain/infer", json=body)
    assert reply.status_code == 200, reply.text
    outputs = {each["name"]: each["data"] for each in reply.json()["outputs"]}
    predictions = predict(http, top_k=K)
    assert outputs["labels"] == [name for one in predictions for name in one["labels"]]
    assert outputs["scores"] == [score for one in predictions for score in one["scores"]]


def test_views_name_the_chain_and_its_sizes(http: httpx.Client) -> None:
    view = http.get("/v1/models/chain").json()["latest"]
    assert (view["n_labels"], view["n_features"]) == (K, len(FEATURES))
    metadata = http.get("/v2/models/chain").json()
    assert metadata["platform"] == "xcray_stages"
    assert metadata["inputs"][-1]["shape"] == [-1, len(FEATURES)]
    assert "A chain of 2 stages" in http.get("/v1/models/chain/versions/1/card").text
    labels = http.get("/v1/models/chain/labels").json()["labels"]
    assert [each["label"] for each in labels] == LABELS


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("POST", ":explain", {"instance": INSTANCES[0]}, "stage 1 has features of its own"),
        ("GET", "/labels/red", None, "chain of 2 stages"),
    ],
)
def test_what_needs_a_linear_model_is_refused(
    http: httpx.Client, method: str, path: str, body: Any, reason: str
) -> None:
    reply = http.request(method, f"/v1/models/chain{path}", json=body)
    assert 400 <= reply.status_code < 500
    assert reason in reply.text


def test_an_alias_can_point_to_it(http: httpx.Client) -> None:
    assert http.put("/v1/models/chain/aliases/live", json={"version": 1}).status_code == 200
    reply = http.post("/v1/models/chain@live:predict", json={"instances": INSTANCES[:1]})
    assert reply.json()["predictions"] == predict(http, INSTANCES[:1])
