"""IndexedSVM: the predictions of LIBLINEAR, and warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from tests.support.svm_problems import svm_problem
from xcray.estimators import IndexedSVM


@pytest.fixture(scope="module")
def many() -> tuple[Any, Any]:
    """Return rows with two to three labels each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 9)).astype(np.float32)
    scores = X @ rng.normal(size=(9, 6))
    return X, (scores > np.sort(scores, axis=1)[:, [3]]).astype(int)


def test_without_outliers_it_predicts_as_liblinear() -> None:
    problem = svm_problem(5, n=1_000)
    ours = IndexedSVM(C=0.1, s=1e30, eps=1e-5, max_sweeps=3_000).fit(problem.dense, problem.y)
    theirs = LinearSVC(loss="hinge", C=0.1, tol=1e-8, max_iter=1_000_000, random_state=0)
    theirs.fit(problem.dense, problem.y)
    agree = ours.predict(problem.dense) == theirs.predict(problem.dense)
    assert agree.mean() >= 0.998


def test_too_few_sweeps_warn(many: tuple[Any, Any]) -> None:
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or eps"):
        IndexedSVM(eps=1e-9, max_sweeps=1).fit(*many)
