"""LeastSquares: the solution of ridge regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from xcray.errors import ParameterError
from xcray.estimators import LeastSquares


@pytest.fixture(scope="module")
def many() -> tuple[Any, Any]:
    """Return rows with two to three labels each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 9)).astype(np.float32)
    scores = X @ rng.normal(size=(9, 6))
    return X, (scores > np.sort(scores, axis=1)[:, [3]]).astype(int)


def test_it_agrees_with_ridge_regression_of_scikit_learn(many: tuple[Any, Any]) -> None:
    X, Y = many
    model = LeastSquares(lam=0.01, tolerance=1e-9).fit(X, Y)
    theirs = Ridge(alpha=0.01 * len(X), fit_intercept=False).fit(X.astype(np.float64), Y)
    assert model.coef_.toarray() == pytest.approx(theirs.coef_, abs=1e-6)
    assert np.array_equal(model.predict(X), theirs.predict(X) > 0.5)


def test_bad_input_names_the_fix(many: tuple[Any, Any]) -> None:
    X, Y = many
    with pytest.raises(ParameterError, match="lam"):
        LeastSquares(lam=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match="nothing to learn"):
        LeastSquares().fit(X, np.zeros_like(Y))
