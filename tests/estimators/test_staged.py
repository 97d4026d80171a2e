"""CalibratedLeastSquares and StagewiseRegression: accuracy, probabilities, saving."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

from xcray import CalibratedLeastSquares, StagewiseRegression
from xcray.errors import ParameterError
from xcray.model.model import Model
from xcray.predict import Predictor

SMALL: dict[type[Any], dict[str, Any]] = {
    StagewiseRegression: {"stages": 2, "block_size": 100},
    CalibratedLeastSquares: {"rounds": 3},
}
each = pytest.mark.parametrize("kind", SMALL)
ROWS = "the default of lam depends on the number of rows"
EXPECTED = {f"check_sample_weight_equivalence_on_{kind}_data": ROWS for kind in ("dense", "sparse")}

EXPECTED["check_methods_subset_invariance"] = "BLAS adds float32 products by the number of rows"


@pytest.fixture(scope="module")
def digits() -> Any:
    """Return training and test rows and classes of scikit-learn's digits."""
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1200], order[1200:]
    return X[train], y[train], X[test], y[test]


@each
def test_it_is_better_than_ridge_regression(digits: Any, kind: type[Any]) -> None:
    X, y, X_test, y_test = digits
    ridge = RidgeClassifier().fit(X, y).score(X_test, y_test)
    assert kind(**SMALL[kind]).fit(X, y).score(X_test, y_test) > ridge + 0.01


@each
def test_it_is_saved_loaded_and_pickled(digits: Any, tmp_path: Path, kind: type[Any]) -> None:
    X, y, X_test, _ = digits
    fitted = kind(**SMALL[kind]).fit(X, y)
    path = fitted.save(tmp_path / "m")
    for other in (kind.load(path), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict(X_test), fitted.predict(X_test))
    scores = Predictor(Model.open(path)).search(X_test[:20], 10).scores
    mine = -np.sort(-fitted.decision_function(X_test[:20]), axis=1)
    assert mine == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    "estimator",
    [
        StagewiseRegression(stages=2, block_size=100),
        StagewiseRegression(rule="logistic", stages=1, block_size=200, bandwidth=1.0),
        CalibratedLeastSquares(rounds=3),
    ],
)
def test_probabilities_add_up_to_one_and_fit_held_out_rows(digits: Any, estimator: Any) -> None:
    X, y, X_test, y_test = digits
    p = estimator.fit(X, y).predict_proba(X_test)
    assert p.sum(axis=1) == pytest.approx(1.0, abs=1e-6)
    assert p.min() >= 0.0
    assert brier(p, y_test) < 0.2 < brier(np.full(p.shape, 0.1), y_test)


def brier(p: Any, y: Any) -> float:
    """Return the mean squared distance of probabilities and classes."""
    return float(np.square(p - np.eye(p.shape[1])[y]).sum(axis=1).mean())


def test_a_linear_rule_has_no_probabilities() -> None:
    assert not hasattr(StagewiseRegression(rule="linear"), "predict_proba")


def test_several_labels_per_row() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 8)).astype(np.float32)
    Y = (X[:, :3] > 0).astype(int)
    model = StagewiseRegression(rule="linear", stages=2, block_size=200).fit(X, Y)
    assert (model.predict(X) == Y).mean() > 0.9


def test_components_and_bad_parameters(digits: Any) -> None:
    X, y, X_test, y_test = digits
    model = StagewiseRegression(stages=2, block_size=100, components=20).fit(X, y)
    assert model.score(X_test, y_test) > 0.95
    with pytest.raises(ParameterError, match="components=65"):
        StagewiseRegression(components=65).fit(X, y)
    with pytest.raises(ParameterError, match="rule must be one of"):
        StagewiseRegression(rule="cubic").fit(X, y)
