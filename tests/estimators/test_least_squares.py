"""LeastSquares: scikit-learn's checks, its parameters, threads, and the normal equations."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from xcray.errors import ParameterError
from xcray.estimators import LeastSquares
from xcray.solvers.least_squares.solver import LeastSquaresSolver

ROWS = "the default of lam depends on the number of rows (see the test of sample weights)"
EXPECTED = {f"check_sample_weight_equivalence_on_{kind}_data": ROWS for kind in ("dense", "sparse")}


@parametrize_with_checks(
    [LeastSquares(bias=1.0)],
    expected_failed_checks=lambda estimator: EXPECTED,
    xfail_strict=False,
)
def test_scikit_learns_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def many() -> tuple[Any, Any]:
    """Return rows with two to three labels each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 9)).astype(np.float32)
    scores = X @ rng.normal(size=(9, 6))
    return X, (scores > np.sort(scores, axis=1)[:, [3]]).astype(int)


def test_its_parameters_are_those_of_the_solver() -> None:
    solver = {field.name: field.default for field in dataclasses.fields(LeastSquaresSolver)}
    del solver["eval_every"]  # of held-out rows, which an estimator does not have
    ours = {
        name: each.default
        for name, each in inspect.signature(LeastSquares.__init__).parameters.items()
        if name not in ("self", "n_jobs")
    }
    assert ours == solver


def test_it_agrees_with_ridge_regression_of_scikit_learn(many: tuple[Any, Any]) -> None:
    X, Y = many
    model = LeastSquares(lam=0.01, tolerance=1e-9).fit(X, Y)
    theirs = Ridge(alpha=0.01 * len(X), fit_intercept=False).fit(X.astype(np.float64), Y)
    assert model.coef_.toarray() == pytest.approx(theirs.coef_, abs=1e-6)
    assert np.array_equal(model.predict(X), theirs.predict(X) > 0.5)


def test_one_model_for_any_number_of_threads(many: tuple[Any, Any]) -> None:
    one, *more = (LeastSquares(bias=1.0, n_jobs=n).fit(*many) for n in (None, 2, 3))
    for model in more:
        assert model.coef_.data.tobytes() == one.coef_.data.tobytes()
        assert model.intercept_.tobytes() == one.intercept_.tobytes()


def test_sample_weights_count_rows(many: tuple[Any, Any]) -> None:
    X, Y = many
    weights = np.random.default_rng(1).integers(0, 4, len(X))
    repeated = np.repeat(np.arange(len(X)), weights)
    solver = LeastSquares(lam=0.01, bias=1.0, tolerance=1e-9)
    theirs = clone(solver).fit(X[repeated], Y[repeated])
    ours = solver.fit(X, Y, weights)
    assert ours.coef_.toarray() == pytest.approx(theirs.coef_.toarray(), abs=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-6)


def test_a_saved_estimator_predicts_the_same(many: tuple[Any, Any], tmp_path: Path) -> None:
    X, Y = many
    model = LeastSquares().fit(X, Y)
    loaded = LeastSquares.load(model.save(tmp_path / "model"))
    assert np.array_equal(loaded.predict(X), model.predict(X))


def test_bad_input_names_the_fix(many: tuple[Any, Any]) -> None:
    X, Y = many
    with pytest.raises(ParameterError, match="lam"):
        LeastSquares(lam=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match="nothing to learn"):
        LeastSquares().fit(X, np.zeros_like(Y))
