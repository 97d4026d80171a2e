"""Documents of several fields in batches, requests and explanations give the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.batch_inputs import run
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.errors import ParameterError
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.service.prediction.fast_decode import decode_fast
from xcray.service.prediction.instances import to_rows
from xcray.training import TrainSpec, train

ROWS = [
    {"title": "Häuser", "year": 1990, "emb": [1, 0.5], "lang": "de", "labels": ["homes"]},
    {
        "title": "Dächer der Häuser",
        "year": 1991,
        "emb": [1, 0.25],
        "lang": "de",
        "labels": ["homes", "roofs"],
    },
    {"title": "Books", "year": 2020, "emb": [0.0, 3], "lang": "en", "labels": ["books"]},
    {"title": "Reading a book", "year": None, "emb": [0.5, 0.5], "lang": None, "labels": ["books"]},
]
FIELDS = ("title", "year", "emb", "lang")
OPTIONS = {
    "text_fields": "title:2",
    "number_fields": "year",
    "vector_fields": "emb:0.5",
    "text": {"language": "lang"},
    "name": "documents",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model of documents."""
    folder = tmp_path_factory.mktemp("fields")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = {"train": folder / "rows.jsonl"}
    data = build("jsonl", source, folder / "data", BuildOptions.from_dict(OPTIONS))
    spec = TrainSpec(str(data.path), pool="serial")
    return Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)


def values_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that have a value."""
    return {name: row[name] for name in FIELDS if row[name] is not None}


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_a_batch_reads_fields(model: Model, tmp_path: Path, format: str) -> None:
    path = tmp_path / f"rows.{format}"
    if format == "parquet":
        columns = {name: [row[name] for row in ROWS] for name in FIELDS}
        pq.write_table(pa.table(columns), path)
    elif format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        cells = (["" if row[name] is None else str(row[name]) for name in FIELDS] for row in ROWS)
        cells = ([cell.replace(",", "") for cell in line] for line in cells)
        path.write_text("\n".join([",".join(FIELDS), *map(",".join, cells)]) + "\n")
    _, table = run(tmp_path, model, path, format=format, top_k=2)
    expected = Predictor(model).predict([values_of(row) for row in ROWS], 2)
    names = [model.label_names.take(labels).to_pylist() for labels in expected.labels]
    assert table.column("labels").to_pylist() == names
    assert table.column("scores").to_pylist() == expected.scores.tolist()


def test_requests_with_fields_are_the_same_rows(model: Model) -> None:
    body = json.dumps({"instances": [{"fields": values_of(row)} for row in ROWS]}).encode()
    query = decode_fast(body, 10)
    assert query is not None
    rows = to_rows(model, query.instances)
    ours, theirs = Predictor(model).predict(rows), Predictor(model).predict([*map(values_of, ROWS)])
    assert ours.scores.tolist() == theirs.scores.tolist()
    with pytest.raises(ParameterError, match="field 'title' is \\['a'\\]; give a text"):
        Predictor(model).predict([{"title": ["a"]}])


def test_explanations_name_words_as_written(model: Model) -> None:
    predictor = Predictor(model)
    found = predictor.explain({"title": "Häusern", "lang": "de"}, "homes")
    assert {part.feature for part in found.contributions} == {"häusern", "title:häusern"}
    stored = predictor.explain(predictor.features({"title": "Häusern", "lang": "de"}), "homes")
    assert {part.feature for part in stored.contributions} == {"haus", "title:haus"}
    assert found.score == stored.score


def test_commands_take_fields(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--field", "title=Häusern", "--field", "lang=de"]
    assert main(["predict", str(model.path), *given, "--json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["predictions"]
    assert answer["labels"][0]["label"] == "homes"
    assert answer["input"] == {"title": "Häusern", "lang": "de"}
    assert main(["predict", str(model.path), *given]) == 0
    assert capsys.readouterr().out.startswith("title: Häusern, lang: de\n")
    assert main(["predict", str(model.path), "Häusern"]) == 0
    assert "warning NO_LANGUAGE: 1 of 1 texts leave" in capsys.readouterr().err
    assert main(["explain", str(model.path), *given]) == 0
    assert "title:häusern" in capsys.readouterr().out
    assert main(["explain", str(model.path)]) == 2
    assert main(["predict", str(model.path), "text", *given]) == 2
