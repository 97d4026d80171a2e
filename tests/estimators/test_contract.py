"""One contract for all estimators: scikit-learn's checks, parameters, threads, weights, saving."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from xcray import DSMLR, MEMOIR, CalibratedLeastSquares, IndexedSVM, PPDSparse, StagewiseRegression
from xcray.errors import ParameterError
from xcray.estimators import LeastSquares
from xcray.solvers import SOLVERS

WEIGHTS = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
ROWS = "the default of lam depends on the number of rows (see the test of sample weights)"
EXACT = "requires equality within 1e-7, more than a certificate gives (see the test of weights)"
BLAS = {"check_methods_subset_invariance": "BLAS adds float32 products by the number of rows"}
# each estimator with the checks of scikit-learn that it fails, and why
ESTIMATORS: list[tuple[Any, dict[str, str]]] = [
    (PPDSparse(eps=1e-4), dict.fromkeys(WEIGHTS, EXACT)),
    (DSMLR(tolerance=0.01), dict.fromkeys(WEIGHTS, EXACT)),
    (IndexedSVM(), dict.fromkeys(WEIGHTS, EXACT)),
    (LeastSquares(bias=1.0), dict.fromkeys(WEIGHTS, ROWS)),
    (MEMOIR(), {}),
    (StagewiseRegression(stages=2, block_size=40), BLAS | dict.fromkeys(WEIGHTS, ROWS)),
    (CalibratedLeastSquares(rounds=2), dict.fromkeys(WEIGHTS, ROWS)),
]
FAILED = {type(estimator): failed for estimator, failed in ESTIMATORS}
each_estimator = pytest.mark.parametrize(
    "estimator", [estimator for estimator, _ in ESTIMATORS], ids=lambda each: type(each).__name__
)


# some checks have features around 100 and random classes, too ill-conditioned for max_sweeps
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [estimator for estimator, _ in ESTIMATORS],
    expected_failed_checks=lambda estimator: FAILED[type(estimator)],
    xfail_strict=False,
)
def test_scikit_learns_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [PPDSparse, DSMLR, IndexedSVM, MEMOIR, LeastSquares])
def test_each_parameter_of_the_solver_is_one_of_the_estimator(kind: Any) -> None:
    arguments = inspect.signature(kind).parameters
    solver = SOLVERS[kind.SOLVER]()
    for field in fields(solver):
        # estimators have no held-out rows to evaluate
        if field.name != "eval_every":
            assert arguments[field.name].default == getattr(solver, field.name), field.name
            assert f"\n{field.name}: {field.metadata['help']}." in kind.__doc__
    assert clone(kind(seed=3) if "seed" in arguments else kind()).get_params()


@pytest.fixture(scope="module")
def many() -> tuple[Any, Any]:
    """Return rows with two to three labels each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 9)).astype(np.float32)
    scores = X @ rng.normal(size=(9, 6))
    return X, (scores > np.sort(scores, axis=1)[:, [3]]).astype(int)


@each_estimator
def test_threads_give_one_model_and_a_saved_one_predicts_the_same(
    many: tuple[Any, Any], tmp_path: Path, estimator: Any
) -> None:
    X, Y = many
    if isinstance(estimator, CalibratedLeastSquares) or (
        isinstance(estimator, StagewiseRegression) and estimator.rule != "linear"
    ):
        Y = Y.argmax(axis=1)
    one, three = (clone(estimator).set_params(n_jobs=n).fit(X, Y) for n in (None, 3))
    np.testing.assert_array_equal(one.decision_function(X), three.decision_function(X))
    loaded = type(one).load(one.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(X), one.predict(X))
    np.testing.assert_allclose(
        loaded.decision_function(X), one.decision_function(X), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("estimator", "atol"),
    [
        (PPDSparse(eps=1e-7), 5e-3),
        (DSMLR(lam=1e-2, tolerance=1e-6, epochs=300), 0.03),
        (IndexedSVM(C=0.1, s=1e30, eps=1e-6, max_sweeps=10_000), 1e-2),
        (LeastSquares(lam=0.01, bias=1.0, tolerance=1e-9), 1e-6),
    ],
    ids=lambda each: type(each).__name__,
)
def test_sample_weights_count_rows(many: tuple[Any, Any], estimator: Any, atol: float) -> None:
    """A weight equals that number of repeated rows, and weight 0 a removed row."""
    X, Y = many
    weights = np.random.default_rng(1).integers(0, 4, len(X))
    repeated = np.repeat(np.arange(len(X)), weights)
    theirs = clone(estimator).fit(X[repeated], Y[repeated])
    ours = clone(estimator).fit(X, Y, weights)
    assert ours.coef_.toarray() == pytest.approx(theirs.coef_.toarray(), abs=atol)
    with pytest.raises(ValueError, match="at least one non-zero"):
        clone(estimator).fit(X, Y, np.zeros(len(X)))


@pytest.mark.parametrize(
    ("estimator", "says"),
    [
        (PPDSparse(C=-1), "C must be greater than"),
        (DSMLR(lam=-1.0), "lam must be greater than"),
        (IndexedSVM(s=-1.0), "s must be greater than 0"),
        (LeastSquares(lam=-1.0), "lam"),
        (MEMOIR(margin=0.0), "margin must be greater than 0"),
        (StagewiseRegression(rule="cubic"), "rule must be one of"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_bad_parameters_are_named(many: tuple[Any, Any], estimator: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        estimator.fit(*many)


@each_estimator
def test_bad_rows_are_named(many: tuple[Any, Any], estimator: Any) -> None:
    X, Y = many
    y = Y.argmax(axis=1)
    with pytest.raises(ValueError, match=r"120 rows|inconsistent numbers of samples"):
        clone(estimator).fit(X, y[:100])
    with pytest.raises(ValueError, match="9 features"):
        clone(estimator).fit(X, y).predict(np.ones((2, 7)))
