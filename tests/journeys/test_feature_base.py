"""Files whose feature indices start at 0: whatever is read for a model is read like its data."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from xcray.cli.main import main

TRAIN = "0 0:1 4:1\n1 1:1\n2 2:1 6:1\n" * 30
ROWS = "1 1:1\n2 2:1 6:1\n"  # index 0 does not occur, so it could be read as 1-based


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a data set D0 of zero-based indices, its model, and further rows."""
    (tmp_path / "train.svm").write_text(TRAIN)
    (tmp_path / "rows.svm").write_text(ROWS)
    data, model = str(tmp_path / "D0"), str(tmp_path / "model")
    source = str(tmp_path / "train.svm")
    assert main(["data", "build", "svmlight", source, data, "--zero-based"]) == 0
    assert main(["train", data, "--out", model, "--pool", "serial"]) == 0
    return tmp_path


@pytest.mark.parametrize("like", ["D0", "model"])
def test_a_data_set_like_another_has_its_features(
    folder: Path, like: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, built = str(folder / "rows.svm"), str(folder / "D1")
    assert main(["data", "build", "svmlight", rows, built, "--like", str(folder / like)]) == 0
    capsys.readouterr()
    command = ["evaluate", str(folder / "model"), built, "--part", "train", "--json"]
    assert main(command) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["measures"]["P@1"] == 1.0


def test_predictions_read_a_file_like_the_data_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = str(folder / "model"), str(folder / "rows.svm")
    capsys.readouterr()
    assert main(["predict", model, "--file", rows, "-k", "1", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["predictions"]
    assert [answer["labels"][0]["label"] for answer in answers] == ["1", "2"]
    out = folder / "answers"
    assert main(["predict-batch", model, rows, str(out), "-k", "1", "--pool", "serial"]) == 0
    assert pq.read_table(out).column("labels").to_pylist() == [["1"], ["2"]]


def test_the_other_base_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder / "one.svm"
    source.write_text(TRAIN.replace("0:1 ", "3:1 "))
    assert main(["data", "build", "svmlight", str(source), str(folder / "D2")]) == 0
    rows, like = str(folder / "rows.svm"), ["--like", str(folder / "D2"), "--zero-based"]
    assert main(["data", "build", "svmlight", rows, str(folder / "D3"), *like]) == 2
    assert "each feature would be its neighbour" in capsys.readouterr().err
