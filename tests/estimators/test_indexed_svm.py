"""IndexedSVM: scikit-learn's checks, its parameters, threads, and LIBLINEAR's predictions."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.support.svm_problems import svm_problem
from xcray.errors import ParameterError
from xcray.estimators import IndexedSVM
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver

ORDER = "the random order of rows differs, within the certified gap (see the test of weights)"
EXPECTED = {
    f"check_sample_weight_equivalence_on_{kind}_data": ORDER for kind in ("dense", "sparse")
}


# some checks have features around 100 and random classes, too ill-conditioned for max_sweeps
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [IndexedSVM()], expected_failed_checks=lambda estimator: EXPECTED, xfail_strict=False
)
def test_scikit_learns_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def many() -> tuple[Any, Any]:
    """Return rows with two to three labels each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 9)).astype(np.float32)
    scores = X @ rng.normal(size=(9, 6))
    return X, (scores > np.sort(scores, axis=1)[:, [3]]).astype(int)


def test_its_parameters_are_those_of_the_solver() -> None:
    solver = {field.name: field.default for field in dataclasses.fields(IndexedBCDSolver)}
    ours = {
        name: each.default
        for name, each in inspect.signature(IndexedSVM.__init__).parameters.items()
        if name not in ("self", "n_jobs")
    }
    assert ours == solver


def test_without_outliers_it_predicts_as_liblinear() -> None:
    problem = svm_problem(5, n=1_000)
    ours = IndexedSVM(C=0.1, s=1e30, eps=1e-5, max_sweeps=3_000).fit(problem.dense, problem.y)
    theirs = LinearSVC(loss="hinge", C=0.1, tol=1e-8, max_iter=1_000_000, random_state=0)
    theirs.fit(problem.dense, problem.y)
    agree = ours.predict(problem.dense) == theirs.predict(problem.dense)
    assert agree.mean() >= 0.998


def test_one_model_for_any_number_of_threads(many: tuple[Any, Any]) -> None:
    one, *more = (IndexedSVM(selection="forest", n_jobs=n).fit(*many) for n in (None, 2, 3))
    for model in more:
        assert model.coef_.data.tobytes() == one.coef_.data.tobytes()
        assert model.intercept_.tobytes() == one.intercept_.tobytes()


def test_sample_weights_count_rows(many: tuple[Any, Any]) -> None:
    X, Y = many
    weights = np.random.default_rng(1).integers(0, 4, len(X))
    repeated = np.repeat(np.arange(len(X)), weights)
    model = IndexedSVM(C=0.1, s=1e30, eps=1e-6, max_sweeps=10_000)
    ours = model.fit(X, Y, weights).records_["objective"]
    theirs = IndexedSVM(**model.get_params()).fit(X[repeated], Y[repeated]).records_["objective"]
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_too_few_sweeps_warn(many: tuple[Any, Any]) -> None:
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or eps"):
        IndexedSVM(eps=1e-9, max_sweeps=1).fit(*many)


def test_a_saved_estimator_predicts_the_same(many: tuple[Any, Any], tmp_path: Path) -> None:
    X, Y = many
    model = IndexedSVM().fit(X, Y)
    loaded = IndexedSVM.load(model.save(tmp_path / "model"))
    assert np.array_equal(loaded.predict(X), model.predict(X))


def test_bad_input_names_the_fix(many: tuple[Any, Any]) -> None:
    X, Y = many
    with pytest.raises(ParameterError, match="s must be greater than 0"):
        IndexedSVM(s=-1.0).fit(X, Y)
