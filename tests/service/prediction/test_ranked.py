"""A model with label texts and a ranker over HTTP, in batches and at the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from tests.support.batch_inputs import run
from tests.support.live_service import client_of, settings_for
from tests.support.ranked_model import ASKED, NAMES, UNSEEN, named_data, ranked_model
from xcray.api.model_replies import ExplainReply, PredictReply
from xcray.batch import BatchPredictSpec, predict_batch
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.ranking import origin_views
from xcray.service.app import create_app

K = 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Train a model with a ranker."""
    folder = tmp_path_factory.mktemp("ranked")
    return ranked_model(named_data(folder), folder)


@pytest.fixture(scope="module")
def http(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Serve the model as `animals`."""
    home = tmp_path_factory.mktemp("home")
    app = create_app(settings_for(home / "home"))
    staged = shutil.copytree(model.path, home / "staged")  # publishing moves it
    app.state.app_state.registry.publish("animals", staged)
    with client_of(app) as client:
        yield client


def test_replies_have_names_and_origins(http: httpx.Client, model: Model) -> None:
    """They conform to their description, and are what the predictor answers."""
    body = {"instances": [{"text": ASKED}, {"text": ""}], "top_k": K, "probabilities": True}
    answer = http.post("/v1/models/animals:predict", json=body)
    reply = TypeAdapter(PredictReply).validate_python(answer.json(), strict=True, extra="forbid")
    predictor = Predictor(model)
    expected = predictor.search([ASKED, ""], K)
    for i, one in enumerate(reply["predictions"]):
        assert one["scores"] == expected.scores[i].tolist()
        assert one["origins"] == origin_views(expected)[i]
        assert one["probabilities"] == predictor.probabilities(expected)[i].tolist()
    first = reply["predictions"][0]
    assert (first["labels"][0], first["names"][0]) == ("id0", NAMES[0])
    assert UNSEEN in list(zip(first["labels"], first["names"], strict=True))


def test_rows_of_features_have_names_only(http: httpx.Client) -> None:
    """They are not ranked, so they have no probabilities either."""
    body: dict[str, object] = {"instances": [{"indices": [0], "values": [1.0]}]}
    (one,) = http.post("/v1/models/animals:predict", json=body).json()["predictions"]
    assert "names" in one
    assert "origins" not in one
    refused = http.post("/v1/models/animals:predict", json={**body, "probabilities": True})
    assert refused.status_code == 422
    assert "needs texts" in refused.json()["detail"]


def test_an_explanation_names_search_and_ranker(http: httpx.Client) -> None:
    """Of a label of the search, and of one that only has a name."""
    for label, name in (("id0", NAMES[0]), UNSEEN):
        body = {"instance": {"text": ASKED}, "label": label}
        answer = http.post("/v1/models/animals:explain", json=body)
        reply = TypeAdapter(ExplainReply).validate_python(answer.json(), extra="forbid")
        assert (reply["label"], reply["name"]) == (label, name)
        assert reply["ranking"]["features"]["matches of a name"] == 1.0


def test_batches_and_tensors_have_the_same_labels(
    http: httpx.Client, model: Model, tmp_path: Path
) -> None:
    """As the predictor, also those without training rows."""
    (expected,) = Predictor(model).scored_labels(Predictor(model).search(ASKED, K))
    labels = [each.label for each in expected]
    assert UNSEEN[0] in labels
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"text": ASKED}))
    spec = BatchPredictSpec(str(model.path), str(source), format="jsonl", top_k=K, workers=1)
    predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "answers")
    (row,) = pq.read_table(tmp_path / "answers").to_pylist()
    assert row["labels"] == labels
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [ASKED]}
    body = {"inputs": [tensor], "parameters": {"top_k": K}}
    outputs = http.post("/v2/models/animals/infer", json=body).json()["outputs"]
    assert next(each["data"] for each in outputs if each["name"] == "labels") == labels


FIELDS = {
    "text_fields": "title:2,abstract",
    "text": {"language": "lang", "ngram_max": 2, "sublinear_tf": True, "char_ngrams": [4, 6]},
}
ROWS = [
    {"title": "White sharks", "abstract": ASKED, "lang": "en"},
    {"title": "Häuser, Bär", "abstract": "polar bears and two quokkas", "lang": "de"},
    {"title": "", "abstract": "", "lang": ""},
] * 3


@pytest.fixture(scope="module")
def of_fields(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Model]:
    """Train a model with a ranker of documents with fields, in this thread."""
    folder = tmp_path_factory.mktemp("fields")
    data = named_data(folder, reading=FIELDS)
    return data, ranked_model(data, folder)


@pytest.mark.parametrize("pool", ["threads", pytest.param("ray", marks=pytest.mark.drill)])
def test_ranked_documents_have_the_same_bits_everywhere(
    of_fields: tuple[Dataset, Model],
    pool: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """The model of another pool; answers of the predictor, batches on that pool, requests."""
    data, model = of_fields
    workers = {"pool": pool, "workers": 2}
    if pool == "ray":
        workers["ray_address"] = request.getfixturevalue("ray")
    assert ranked_model(data, tmp_path / pool, **workers).sha256 == model.sha256
    expected = Predictor(model).search(ROWS, K)
    assert len({row["rank"] is None for row in origin_views(expected)[0]}) == 2
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    _, table = run(tmp_path, model, source, top_k=K, part_rows=2, **workers)
    assert table.column("scores").to_pylist() == expected.scores.tolist()
    app = create_app(settings_for(tmp_path / "home"))
    app.state.app_state.registry.publish(
        "animals", shutil.copytree(model.path, tmp_path / "staged")
    )
    with client_of(app) as client:
        body = {"instances": [{"fields": row} for row in ROWS], "top_k": K}
        replies = client.post("/v1/models/animals:predict", json=body).json()["predictions"]
    assert [each["scores"] for each in replies] == expected.scores.tolist()
    assert [each["origins"] for each in replies] == origin_views(expected)
    (alone,) = Predictor(model).search(ROWS[0], K).scores.tolist()
    assert alone == expected.scores[0].tolist()


def test_the_command_line_prints_names(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """With what was retrieved, and what only a name has found."""
    main(["predict", str(model.path), ASKED, "-k", str(K)])
    printed = capsys.readouterr().out
    assert "id0  White shark  (search 1, name at word 8)" in printed
    assert "quokka  Quokka  (name at word 5)" in printed
    main(["explain", str(model.path), ASKED, "--label", "quokka"])
    assert "ranker: place" in capsys.readouterr().out
