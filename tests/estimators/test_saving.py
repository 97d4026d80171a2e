"""Estimators as model directories, and labels as lists of names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray import DSMLR, PPDSparse
from xcray.cli.main import main
from xcray.errors import Conflict, InputError
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor

X = np.repeat(np.eye(4, 6, dtype=np.float32), 5, axis=0)
NAMES = [["csv", "files"], ["mail"], ["zip", "files"], ["mail", "smtp"]]
LISTS = [NAMES[i // 5] for i in range(20)]
INDICATOR = np.array([[name in own for name in ("csv", "files", "mail")] for own in LISTS], int)
CLASSES = np.arange(20) // 5


def test_lists_of_label_names_are_labels() -> None:
    model = PPDSparse(eps=1e-4).fit(X, LISTS)
    assert model.classes_.tolist() == ["csv", "files", "mail", "smtp", "zip"]
    assert model.predict(X[::5]) == [sorted(own) for own in NAMES]
    assert model.score(X, LISTS) == 1.0
    same = PPDSparse(eps=1e-4).fit(X, [set(own) for own in LISTS])
    assert (same.coef_ != model.coef_).nnz == 0
    with pytest.raises(ValueError, match="one list of labels for each row"):
        PPDSparse().fit(X, LISTS[:3])
    with pytest.raises(ValueError, match=r"Y\[1\] is 3: give a list of label names for each row"):
        PPDSparse().fit(X, [["csv"], 3, *LISTS[2:]])


def test_columns_of_a_data_frame_are_labels(tmp_path: Path) -> None:
    column = np.empty(20, object)
    column[:] = [np.array(own) for own in LISTS]  # as pandas reads lists of Parquet
    assert PPDSparse(eps=1e-4).fit(X, column).predict(X[::5]) == [sorted(own) for own in NAMES]

    class Frame(np.ndarray):
        columns = ("csv", "files", "mail")

    model = PPDSparse().fit(X, INDICATOR.view(Frame))
    table = pa.table(dict(zip(Frame.columns, INDICATOR.T, strict=True)))
    assert PPDSparse().fit(X, table).classes_.tolist() == ["csv", "files", "mail"]
    assert Model.open(model.save(tmp_path / "model")).labels == ["csv", "files", "mail"]
    assert np.array_equal(model.predict(X), INDICATOR)
    assert model.score(X, INDICATOR.view(Frame)) == 1.0


def test_a_parameter_without_its_name_is_refused_by_the_name_of_the_estimator() -> None:
    with pytest.raises(TypeError, match=r"^PPDSparse\.__init__\(\)"):
        PPDSparse(0.1)  # type: ignore[misc]


@pytest.mark.parametrize("y", [LISTS, INDICATOR, CLASSES, CLASSES.astype(str)])
@pytest.mark.parametrize("kind", [PPDSparse, DSMLR])
def test_a_saved_estimator_predicts_the_same(kind: Any, y: Any, tmp_path: Path) -> None:
    fitted = kind().fit(X, y)
    loaded = kind.load(fitted.save(tmp_path / "model"))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.classes_.dtype == fitted.classes_.dtype
    for own, other in zip(fitted.predict_top_k(X, 2), loaded.predict_top_k(X, 2), strict=True):
        assert np.array_equal(own, other)
    assert np.array_equal(np.array(fitted.predict(X), object), np.array(loaded.predict(X), object))
    with pytest.raises(Conflict):
        fitted.save(tmp_path / "model")


def test_a_saved_model_has_the_gaps_and_counts_of_its_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = PPDSparse().fit(X, LISTS)
    fitted.save(tmp_path / "model")
    assert main(["labels", "list", str(tmp_path / "model"), "--json"]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert [each["positives"] for each in labels] == [5, 10, 10, 5, 5]
    assert [each["gap"] for each in labels] == pytest.approx(
        (fitted.records_["gap"] / fitted.records_["null"]).tolist()
    )
    again = PPDSparse.load(tmp_path / "model").save(tmp_path / "again")
    assert Model.open(again).label_table is None
    assert Model.open(again).sha256 == Model.open(tmp_path / "model").sha256


def test_scored_labels_have_names() -> None:
    fitted = PPDSparse(eps=1e-4).fit(X, LISTS)
    [best, *_] = fitted.scored_labels(fitted.predict_top_k(X, 2))
    assert {each.label for each in best} == {"csv", "files"}
    assert best[0].score >= best[1].score


def test_a_published_estimator_is_a_model_of_the_registry(tmp_path: Path) -> None:
    fitted = PPDSparse().fit(X, LISTS)
    assert [fitted.publish(tmp_path / "models", "texts") for _ in range(2)] == [1, 2]
    model = Model.open(Registry(tmp_path / "models").resolve("texts:1"))
    assert model.labels == ["csv", "files", "mail", "smtp", "zip"]
    assert model.features == ["0", "1", "2", "3", "4", "5"]
    top = Predictor(model).predict(X, 3)
    assert np.array_equal(top.scores, fitted.predict_top_k(X, 3).scores)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["texts"]
    with pytest.raises(InputError, match=r"not written by DSMLR\.save"):
        DSMLR.load(model.path)
