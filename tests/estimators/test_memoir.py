"""MEMOIR: normalised rows, several labels per row, early stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from xcray.estimators import MEMOIR
from xcray.solvers.memoir.solver import MemoirSolver


@pytest.fixture(scope="module")
def blobs() -> tuple[Any, Any]:
    """Return rows around five centres, and the names of the centres."""
    X, y = make_blobs(200, 6, centers=5, cluster_std=0.5, random_state=0)
    return X, np.array(["a", "b", "c", "d", "e"])[y]


def test_rows_are_normalised_in_training_and_prediction(
    blobs: tuple[Any, Any], tmp_path: Path
) -> None:
    X, y = blobs
    model = MEMOIR(row_norm="l2").fit(X, y)
    assert model.score(X, y) > 0.95
    assert np.array_equal(model.predict(3.0 * X), model.predict(X))
    loaded = MEMOIR.load(model.save(tmp_path / "model"))
    assert np.array_equal(loaded.predict(X), model.predict(X))


def test_the_label_with_the_highest_score_is_predicted() -> None:
    X, Y = np.eye(3), np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    model = MEMOIR().fit(X, Y)
    best = model.predict_top_k(X, 1).labels[:, 0]
    assert np.array_equal(model.predict(X), np.eye(3, dtype=int)[best])
    assert model.score(X, Y) == 1.0


def test_early_stopping_is_recorded(blobs: tuple[Any, Any]) -> None:
    model = MEMOIR(early_stopping_rounds=2, row_norm="l2").fit(*blobs)
    assert MemoirSolver().summarize(model.records_)["held_out_rows"] == 20
