"""Estimators as model directories, and labels as lists of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray import DSMLR, PPDSparse
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
