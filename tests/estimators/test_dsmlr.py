"""DSMLR: probabilities, labels, and agreement with scikit-learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import softmax as scipy_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from tests.naive import multinomial
from tests.naive.dsmlr import plain_epochs
from tests.support.ppdsparse_problems import problem
from xcray.errors import ParameterError
from xcray.estimators import DSMLR


@pytest.fixture(scope="module")
def many():
    """Return (X, Y) with several labels per row, both scipy CSR."""
    X, Y = problem(31, n=240, d=60, k=10)
    return X.to_scipy(), Y.to_scipy()


@pytest.fixture(scope="module")
def classes():
    """Return (X, y) with four noisy classes."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 12)).astype(np.float32)
    return X, (X @ rng.normal(size=(12, 4)) + 0.5 * rng.normal(size=(300, 4))).argmax(axis=1)


def test_one_model_for_any_number_of_threads_and_any_form_of_input(many):
    X, Y = many
    models = [DSMLR(n_jobs=n).fit(X, Y) for n in (None, 2, 3)] + [
        DSMLR().fit(X.toarray(), Y.toarray())
    ]
    assert len({(model.coef_.data.tobytes(), model.intercept_.tobytes()) for model in models}) == 1
    assert models[0].history_[-1]["epoch"] == models[0].n_iter_
    assert models[0].history_[-1]["objective"] == models[0].objective_


def test_probabilities_are_the_softmax_of_the_product(many):
    X, Y = many
    model = DSMLR(bias=1.0).fit(X, Y)
    scores = X.toarray().astype(float) @ model.coef_.toarray().T.astype(float) + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, atol=1e-9)
    answer = model.predict_proba(X)
    np.testing.assert_allclose(answer, scipy_softmax(scores, axis=1), atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(answer))
    top = model.predict_top_k(X, 3)
    np.testing.assert_allclose(top.scores, np.sort(scores, axis=1)[:, ::-1][:, :3], atol=1e-9)


def test_predicted_labels_have_the_nearest_equal_shares(many):
    X, Y = many
    model = DSMLR().fit(X, Y)
    answer = model.predict(X)
    assert sp.issparse(answer)
    for p, row in zip(model.predict_proba(X), answer.toarray(), strict=True):
        best = np.argsort(-p, kind="stable")
        shares = [
            np.where(np.isin(np.arange(len(p)), best[:m]), 1.0 / m, 0.0)
            for m in range(1, len(p) + 1)
        ]
        nearest = min(shares, key=lambda share: np.sum((p - share) ** 2))
        assert np.sum((p - row / row.sum()) ** 2) == pytest.approx(np.sum((p - nearest) ** 2))
    counts = np.asarray(Y.sum(axis=1)).ravel()
    right = np.asarray(answer.multiply(Y).sum(axis=1)).ravel()
    assert (right / np.maximum(counts, 1)).mean() > 0.6
    assert model.score(X, Y) == pytest.approx(
        np.mean([Y[i, j] for i, j in enumerate(model.predict_top_k(X, 1).labels[:, 0])])
    )


def test_it_agrees_with_logistic_regression_of_scikit_learn(classes):
    X, y = classes
    lam = 1e-3
    model = DSMLR(lam=lam, tolerance=1e-6, epochs=300).fit(X, y)
    other = LogisticRegression(
        C=1.0 / (lam * len(y)), fit_intercept=False, tol=1e-10, max_iter=2000
    ).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), other.predict_proba(X), atol=0.03)
    assert model.score(X, y) == pytest.approx(other.score(X, y), abs=0.01)


@pytest.fixture(scope="module")
def uneven():
    """Return (X, Y) with dense features of very different sizes, which are hard for plain steps."""
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, size=(200, 12)) * np.linspace(0.2, 6.0, 12)
    scores = 0.5 * X @ rng.normal(size=(12, 10)) + rng.normal(size=(200, 10))
    _, y = np.unique(scores.argmax(axis=1), return_inverse=True)
    return X.astype(np.float32).astype(np.float64), np.eye(y.max() + 1)[y]


@pytest.mark.parametrize("steps", ["sqrt", "adaptive"])
@pytest.mark.parametrize("shards", [1, 4])
def test_plain_steps_are_at_least_as_good_as_naive_ones(uneven, steps, shards):
    """Without tuning they reach the objective of eq. (13) with the best of four rates.

    5 % is the noise of the order of rows: at one rate, seeds differ by that.
    """
    (X, Y), lam, epochs = uneven, 1e-4, 15
    mean = np.full(len(X), 1.0 / len(X))

    def objective(W):
        return multinomial.objective(W, X, Y, mean, lam)

    base = 1.0 / (X**2).sum(axis=1).mean()
    rates = (1.0, 2.0, 4.0, 8.0)
    naive = min(objective(plain_epochs(X, Y, lam, rate * base, epochs)) for rate in rates)
    model = DSMLR(
        lam=lam,
        history=0,
        steps=steps,
        passes=2,
        order="sync",
        shards=shards,
        epochs=epochs,
        tolerance=0.0,
    ).fit(X, Y.argmax(axis=1))
    W = model.coef_.toarray().T.astype(np.float64)
    assert model.objective_ == pytest.approx(objective(W), rel=1e-5)
    assert model.objective_ <= 1.05 * naive


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("never", [{"history": 0}, {"lbfgs_switch_tol": 0.0}], ids=str)
def test_without_lbfgs_the_best_epoch_is_the_result_and_a_rise_is_no_end(uneven, never):
    X, Y = uneven
    model = DSMLR(
        lam=1e-4, steps="sqrt", rate=8.0, epochs=12, tolerance=1e-3, sync_every=1, **never
    ).fit(X, Y.argmax(axis=1))
    objectives = [entry["objective"] for entry in model.history_]
    rises = [after > before for before, after in itertools.pairwise(objectives)]
    assert sum(rises) >= 3
    assert len(objectives) == model.n_iter_ == 12
    assert not any("length" in entry for entry in model.history_)
    assert model.objective_ == min(objectives) < objectives[-1]
    W, mean = model.coef_.toarray().T.astype(np.float64), np.full(len(X), 1.0 / len(X))
    assert multinomial.objective(W, X, Y, mean, 1e-4) == pytest.approx(min(objectives), rel=1e-5)


def test_searches_and_pipelines(classes):
    X, y = classes
    names = np.array(["a", "b", "c", "d"])[y]
    search = GridSearchCV(
        make_pipeline(Normalizer(), DSMLR()),
        {"dsmlr__lam": [1e-4, 10.0]},
        cv=3,
        scoring="neg_log_loss",
    )
    search.fit(X, names)
    assert search.best_params_["dsmlr__lam"] == 1e-4
    assert set(search.predict(X)) <= {"a", "b", "c", "d"}


def test_bad_input_names_the_fix(many):
    X, Y = many
    with pytest.raises(ParameterError, match="lam must be greater than"):
        DSMLR(lam=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match="no row has a label"):
        DSMLR().fit(X, sp.csr_matrix(Y.shape))
    with pytest.raises(ValueError, match="60 features"):
        DSMLR().fit(X, Y).predict_proba(np.ones((2, 7)))
