"""CSV and TSV as input of batch prediction."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.live_service import TEXTS, text_model
from xcray.cli.main import main
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
    options = ["--text-columns", "body", "--id-column", "key", "-k", "2", "--pool", "serial"]
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
    assert main([*(str(word) for word in words), "--text-columns", "body"]) == 2
    assert "rows.csv:4: the row has 3 fields, 2 are expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
