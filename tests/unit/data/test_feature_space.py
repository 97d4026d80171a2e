"""`xcray data build --like`: new rows in the feature space of an existing model or data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, DataError, NotFound, ParameterError
from xcray.model.model import Model
from xcray.training import TrainSpec, train
from xcray.training.edit.labels import add_labels

OLD = [
    ("an apple or a pear", ["fruit"]),
    ("hammer and saw", ["tool"]),
    ("a saw for an apple tree", ["tool", "fruit"]),
]
NEW = [
    ("an owl, a robin and a saw", ["bird"]),
    ("pear pear apple", ["fruit"]),
    ("unseen words alone", ["tool"]),
]


def written(path: Path, documents: list[tuple[str, list[str]]]) -> Path:
    """Write a file of JSON lines."""
    path.write_text(
        "".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in documents)
    )
    return path


@pytest.fixture
def old(tmp_path: Path) -> Dataset:
    """Build a small data set of texts."""
    return build("jsonl", {"train": written(tmp_path / "old.jsonl", OLD)}, tmp_path / "old")


def options(like: Path, **more: Any) -> BuildOptions:
    """Return options with the features of `like`."""
    return replace(BuildOptions.from_dict(more), like=str(like))


def test_text_goes_through_the_pipeline_as_it_is(old: Dataset, tmp_path: Path) -> None:
    assert old.text is not None
    sources = {
        "train": written(tmp_path / "new.jsonl", NEW),
        "test": written(tmp_path / "test.jsonl", NEW[1:]),
    }
    new = build("jsonl", sources, tmp_path / "new", options(old.path))
    assert new.text is not None
    assert new.text.fingerprint == old.text.fingerprint
    assert new.feature_names == old.feature_names
    rows = old.text.transform([text for text, _ in NEW])
    for result, expected in zip(new.train.X[:3], rows[:3], strict=True):
        assert result.tobytes() == expected.tobytes()
    assert new.label_names.to_pylist() == ["bird", "fruit", "tool"]
    assert new.manifest["source"]["like"] == "old"
    assert new.manifest["source"]["parts"]["train"]["warnings"]["rows_without_features"] == 1
    assert new.test is not None
    assert new.test.X.n_cols == old.n_features


def test_a_model_gets_labels_of_a_data_set_with_its_features(old: Dataset, tmp_path: Path) -> None:
    model = train(
        TrainSpec(str(old.path), pool="serial"), run_dir=tmp_path / "run", out=tmp_path / "model"
    ).model_path
    source = written(tmp_path / "new.jsonl", NEW)
    command = f"data build jsonl {source} {tmp_path}/new --like {model} --json"
    assert main(command.split()) == 0
    new = Model.open(add_labels(model, tmp_path / "new", tmp_path / "more").model_path)
    assert new.label_names.to_pylist() == ["fruit", "tool", "bird"]
    assert new.text is not None
    other = build("jsonl", {"train": source}, tmp_path / "other")
    with pytest.raises(Exception, match=r"another text pipeline .* --like"):
        add_labels(model, other.path, tmp_path / "out")


def test_matrices_take_the_number_of_features(tmp_path: Path, tiny: Dataset) -> None:
    (tmp_path / "rows.svm").write_text("1 1:0.5 3:1\n2 2:1\n")
    new = build("svmlight", {"train": tmp_path / "rows.svm"}, tmp_path / "new", options(tiny.path))
    assert (new.n_features, new.feature_names == tiny.feature_names) == (200, True)
    (tmp_path / "wide.svm").write_text("1 201:0.5\n")
    with pytest.raises(DataError, match="201"):
        build("svmlight", {"train": tmp_path / "wide.svm"}, tmp_path / "wide", options(tiny.path))
    assert not (tmp_path / "wide").exists()


def test_what_does_not_fit_is_said(old: Dataset, tiny: Dataset, tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 1:0.5\n")
    sources, texts = (
        {"train": tmp_path / "rows.svm"},
        {"train": written(tmp_path / "new.jsonl", NEW)},
    )
    cases: list[tuple[str, Any, BuildOptions, type[Exception], str]] = [
        ("svmlight", sources, options(old.path), ParameterError, "built from text"),
        ("jsonl", texts, options(tiny.path), ParameterError, "not built from text"),
        (
            "jsonl",
            texts,
            options(old.path, text={"min_df": 2}),
            ParameterError,
            "leave out the text options",
        ),
        ("svmlight", sources, options(tiny.path, n_features=7), ParameterError, "give only one"),
        ("synthetic", {}, options(tiny.path), ParameterError, "synthetic.features=200"),
        (
            "jsonl",
            texts,
            options(tmp_path / "nothing"),
            NotFound,
            "like: there is no model or data set",
        ),
    ]
    for format, source, inputs, error, message in cases:
        with pytest.raises(error, match=message):
            build(format, source, tmp_path / "out", inputs)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.json").write_text("{}")
    with pytest.raises(Corrupt, match="not a model or data set"):
        build("jsonl", texts, tmp_path / "out", options(tmp_path / "odd"))
    assert not (tmp_path / "out").exists()


def test_json_can_not_name_a_path_of_the_machine() -> None:
    with pytest.raises(ParameterError, match="like"):
        BuildOptions.from_dict({"like": "somewhere"})
