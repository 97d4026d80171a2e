"""CSV and TSV as input of batch prediction."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.live_service import TEXTS, text_model
from xcray.batch import answer_file
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.predict import Predictor


@pytest.mark.parametrize(("name", "mark"), [("rows.csv", ","), ("rows.tsv", "\t")])
def test_tables_are_answered_like_texts(name: str, mark: str, tmp_path: Path) -> None:
    text_model(tmp_path / "model")
    texts = [text.replace("\t", " ") for text in TEXTS]
    if mark == ",":
        texts[1] += ',\n"quoted" and more'
        fields = ['"' + text.replace('"', '""') + '"' for text in texts]
    else:
        fields = texts
    rows = "".join(f"{i}{mark}{text}\n" for i, text in enumerate(fields))
    (tmp_path / name).write_text(f"key{mark}body\n{rows}")
    words = ["predict-batch", tmp_path / "model", tmp_path / name, tmp_path / "out"]
    options = ["--text-fields", "body", "--id-field", "key", "-k", "2", "--pool", "serial"]
    assert main([str(word) for word in [*words, *options]]) == 0
    table = ds.dataset(tmp_path / "out", format="parquet").to_table()
    predictor = Predictor(Model.open(tmp_path / "model"))
    scored = predictor.scored_labels(predictor.predict(texts, 2))
    assert table.column("labels").to_pylist() == [[one.label for one in row] for row in scored]
    assert table.column(0).to_pylist() == [str(i) for i in range(len(texts))]


def test_rows_of_another_width_are_refused_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("key,body\n1,one\n\n2,two,three\n")
    words = ["predict-batch", tmp_path / "model", tmp_path / "rows.csv", tmp_path / "out"]
    assert main([*(str(word) for word in words), "--text-fields", "body"]) == 2
    assert "rows.csv:4: the row has 3 fields, 2 are expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_column_that_is_there_twice_is_refused_if_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model(tmp_path / "model")
    (tmp_path / "rows.csv").write_text(",body,key,key\n0,one,two,three\n")
    words = [str(word) for word in ("predict-batch", tmp_path / "model", tmp_path / "rows.csv")]
    fields = ["--text-fields", "body", "--id-field", "key"]
    assert main([*words, str(tmp_path / "out"), *fields]) == 2
    assert "two columns are called 'key'" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out"), *fields[:2]]) == 0


def semicolon_model(folder: Path) -> None:
    """Train `folder/model` from a table whose fields are not the default ones."""
    words = ("sockets", "tables", "dates")
    rows = "".join(f"{i};about {words[i % 3]};text;l{i % 3}\n" for i in range(60))
    (folder / "rows.csv").write_text("key;title;body;tags\n" + rows)
    data = f"data build csv {folder}/rows.csv {folder}/data --text-fields title,body"
    assert main([*data.split(), "--label-field", "tags", "--option", "delimiter=;"]) == 0
    train = f"train {folder}/data --out {folder}/model --pool serial"
    assert main(train.split()) == 0


def test_a_table_is_read_as_the_data_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    semicolon_model(tmp_path)
    words = f"predict-batch {tmp_path}/model {tmp_path}/rows.csv -k 1 --pool serial"
    for out in ("answers", "answers.csv", "answers.jsonl"):
        assert main([*words.split(), str(tmp_path / out)]) == 0, capsys.readouterr().err
    table = ds.dataset(tmp_path / "answers", format="parquet").to_table()
    labels = table.column("labels").to_pylist()
    assert labels == [[f"l{i % 3}"] for i in range(60)]
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table.to_pylist()
    cells = list(csv.DictReader((tmp_path / "answers.csv").read_text().splitlines()))
    assert [row["labels"] for row in cells] == [label for (label,) in labels]
    assert [float(row["scores"]) for row in cells] == [
        score for (score,) in table.column("scores").to_pylist()
    ]
    assert not list(tmp_path.glob("answers*.run"))
    like = f"data build csv {tmp_path}/rows.csv {tmp_path}/more --like {tmp_path}/model"
    assert main([*like.split(), "--label-field", "tags"]) == 0
    assert (
        Dataset.open(tmp_path / "more").train.X.nnz == Dataset.open(tmp_path / "data").train.X.nnz
    )
    assert main([*words.split(), str(tmp_path / "answers.csv")]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_spreadsheet_computes_no_name_or_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"id": "=1+1", "labels": ["@sum", "b"], "scores": [-1.5, -2.0]},
        {"id": "-5", "labels": ["a", "=b"], "scores": [0.5, 0.25]},
    ]
    monkeypatch.setattr(answer_file, "_rows", lambda _: iter(rows))
    table = "".join(answer_file.answer_lines(tmp_path, "csv")).splitlines()
    assert table[1:] == ["'=1+1,'@sum|b,-1.5|-2.0", "-5,a|=b,0.5|0.25"]
    lines = [*answer_file.answer_lines(tmp_path, "jsonl")]
    assert [json.loads(line) for line in lines] == rows


def test_an_answer_file_that_can_not_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(_: Path) -> Iterator[dict[str, str]]:
        yield {"id": "a"}
        raise OSError("the disk is full")

    monkeypatch.setattr(answer_file, "_rows", rows)
    with pytest.raises(OSError, match="full"):
        answer_file.write_answer_file(tmp_path, tmp_path / "answers.csv")
    assert not list(tmp_path.iterdir())
