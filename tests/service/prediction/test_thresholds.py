"""Thresholds of scores and probabilities over HTTP, in both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.live_service import (
    LABELS,
    TEXTS,
    client_of,
    publish,
    settings_for,
    text_model,
)
from xcray.model.calibration import Calibration
from xcray.model.linked_copy import with_calibration, with_label_thresholds
from xcray.service.app import create_app

# One curve for all labels and ranks: probability 0.1 at score -1, 0.9 at score 1.
CURVE = [np.array(each) for each in ([1], [0, 2, 4], [-1.0, 1, -1, 1], [0.1, 0.9, 0.1, 0.9])]
REPORT = {
    "rows": {"fitted": 1, "measured": 1, "left_out": 0},
    "bins": [],
    "places": [1],
    "report": {},
    "measures": {},
}
FITTED = {
    "objective": "micro-F1",
    "precision": None,
    "rows": {"fitted": 1, "left_out": 0},
    "measures": {},
    "labels_per_row": 1.0,
}
BY_LABEL = np.linspace(-0.5, 0.5, len(LABELS), dtype=np.float32)
ROWS = [{"text": text} for text in TEXTS]
NAMES = ("labels", "scores", "probabilities")


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yield a client of a service with the calibrated model `docs` and the model `plain`."""
    folder = tmp_path_factory.mktemp("thresholds")
    app = create_app(settings_for(folder / "home"))
    registry = app.state.app_state.registry
    curves = Calibration(np.zeros(len(LABELS), np.int32), *CURVE)
    curved = with_calibration(text_model(folder / "bare"), folder / "curves", curves, REPORT)
    with_label_thresholds(curved, folder / "both", BY_LABEL, FITTED)
    registry.publish("docs", folder / "both")
    publish(registry, "plain", folder / "plain")
    with client_of(app) as client:
        yield client


def predict(http: httpx.Client, **options: Any) -> list[dict[str, Any]]:
    """Return the predictions of all texts."""
    answer = http.post("/v1/models/docs:predict", json={"instances": ROWS, **options})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["predictions"])


@pytest.mark.parametrize("more", [{}, {"deny": ["io"]}, {"deadline_ms": 600_000.0}])
@pytest.mark.parametrize(
    "thresholds",
    [
        {"min_score": 0.3},
        {"min_probability": 0.5},
        {"min_score": 0.3, "min_probability": 0.7},
        {"min_score": -1e300, "min_probability": 0},
        {"min_score": 1e300},
        {"label_thresholds": True},
        {"label_thresholds": True, "min_score": 0.1, "min_probability": 0.5},
    ],
)
def test_labels_below_a_threshold_are_left_out(
    http: httpx.Client, thresholds: dict[str, Any], more: dict[str, Any]
) -> None:
    expected = []
    for whole in predict(http, probabilities=True, **more):
        columns = zip(*(whole[name] for name in NAMES), strict=True)
        kept = [
            (label, score, probability)
            for label, score, probability in columns
            if score >= thresholds.get("min_score", score)
            and probability >= thresholds.get("min_probability", 0)
            and (not thresholds.get("label_thresholds") or score >= BY_LABEL[LABELS.index(label)])
        ]
        expected.append({name: [each[i] for each in kept] for i, name in enumerate(NAMES)})
    assert predict(http, probabilities=True, **more, **thresholds) == expected
    # The probabilities are used, but not sent unless they were requested.
    bare = [{name: row[name] for name in ("labels", "scores")} for row in expected]
    assert predict(http, **more, **thresholds) == bare
    certified = predict(http, certificate=True, **more, **thresholds)
    assert [row["labels"] for row in certified] == [row["labels"] for row in bare]
    assert all(row["certificate"]["exact"] for row in certified)


@pytest.mark.parametrize(
    ("as_bytes", "limit"), [(False, {"min_score": 0.3}), (True, {"label_thresholds": True})]
)
def test_tensors_have_the_length_of_the_longest_row(
    http: httpx.Client, as_bytes: bool, limit: dict[str, Any]
) -> None:
    expected = predict(http, **limit, probabilities=True)
    longest = max(len(row["labels"]) for row in expected)
    assert len({len(row["labels"]) for row in expected}) > 1
    body = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "data": [*TEXTS]}],
        "parameters": {**limit, "binary_data_output": as_bytes},
        "outputs": [
            {"name": name, **({"parameters": {"binary_data": False}} if name != "scores" else {})}
            for name in (*NAMES, "label_ids", "exact")
        ],
    }
    answer = http.post("/v2/models/docs/infer", json=body)
    assert answer.status_code == 200, answer.text
    size = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    tensors = {
        each["name"]: each
        for each in httpx.Response(200, content=answer.content[:size]).json()["outputs"]
    }
    assert {tuple(each["shape"]) for name, each in tensors.items() if name != "exact"} == {
        (len(TEXTS), longest)
    }
    scores = (
        np.frombuffer(answer.content[size:])
        if as_bytes
        else np.array(tensors["scores"]["data"], float)
    ).reshape(-1, longest)
    columns = {
        name: np.array(tensors[name]["data"], object).reshape(-1, longest)
        for name in ("labels", "probabilities", "label_ids")
    }
    for i, row in enumerate(expected):
        n = len(row["labels"])
        assert columns["labels"][i].tolist() == row["labels"] + [""] * (longest - n)
        assert scores[i, :n].tolist() == row["scores"]
        assert (scores[i, n:] == np.finfo(float).min).all()
        assert columns["probabilities"][i].tolist() == row["probabilities"] + [0.0] * (longest - n)
        assert [LABELS[j] for j in columns["label_ids"][i, :n]] == row["labels"]
        assert (columns["label_ids"][i, n:] == -1).all()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"min_probability": 0.5}, "NOT_CALIBRATED"),
        ({"label_thresholds": True}, "NO_THRESHOLDS"),
        ({"min_probability": 1.5}, "RANGE"),
        ({"min_probability": -0.1}, "RANGE"),
        ({"min_score": "0"}, "TYPE"),
        ({"min_score": True}, "TYPE"),
    ],
)
def test_impossible_thresholds_are_refused(
    http: httpx.Client, options: dict[str, Any], code: str
) -> None:
    answer = http.post("/v1/models/plain:predict", json={"instances": ROWS, **options})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    body = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
        "parameters": options,
    }
    answer = http.post("/v2/models/plain/infer", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
