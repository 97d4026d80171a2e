"""PPDSparse: the bits of the solver, forms of input, pipelines and searches."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from tests.support.ppdsparse_problems import problem
from xcray.errors import InputError
from xcray.estimators import PPDSparse
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers.ppdsparse import PPDSparseSolver


@pytest.fixture(scope="module")
def sparse_problem():
    """Return (X, Y), both scipy CSR."""
    X, Y = problem(31, n=240, d=60, k=10)
    return X.to_scipy(), Y.to_scipy()


def test_same_bits_as_the_solver_for_any_number_of_threads(sparse_problem):
    X, Y = problem(31, n=240, d=60, k=10)
    block = PPDSparseSolver().solve(
        PPDSparseSolver().load(X, transpose(X), transpose_pattern(Y)), np.arange(10, dtype=np.int32)
    )
    for n_jobs in (None, 2, -1):
        model = PPDSparse(n_jobs=n_jobs).fit(*sparse_problem)
        assert (model.coef_.data == block.W.data).all()
        assert (model.intercept_ == block.bias.astype(np.float32)).all()


def test_sparse_and_dense_inputs_give_one_model(sparse_problem):
    X, Y = sparse_problem
    models = [
        PPDSparse().fit(x, y)
        for x in (X, X.toarray(), X.tocsc())
        for y in (Y, Y.toarray(), Y.tocoo())
    ]
    assert len({model.coef_.data.tobytes() for model in models}) == 1


def test_predictions_agree_with_each_other_and_with_the_product(sparse_problem):
    X, Y = sparse_problem
    model = PPDSparse().fit(X, Y)
    scores = model.decision_function(X)
    assert np.allclose(
        scores,
        X.toarray().astype(float) @ model.coef_.toarray().T.astype(float) + model.intercept_,
        atol=1e-9,
    )
    assert ((scores > 0) == (model.predict(X).toarray() == 1)).all()
    top = model.predict_top_k(X, 3)
    assert np.sort(scores, axis=1)[:, ::-1][:, :3] == pytest.approx(top.scores, abs=1e-9)
    assert model.score(X, Y) == pytest.approx(
        np.mean([Y[i, top.labels[i, 0]] for i in range(X.shape[0])])
    )


def test_clone_pipeline_and_search(sparse_problem):
    X, Y = sparse_problem
    assert clone(PPDSparse(lam=0.3)).get_params()["lam"] == 0.3
    search = GridSearchCV(
        make_pipeline(Normalizer(), PPDSparse()),
        {"ppdsparse__lam": [0.01, 10.0], "ppdsparse__C": [1.0]},
        cv=3,
    )
    search.fit(X, Y)
    assert search.best_params_["ppdsparse__lam"] == 0.01
    assert search.predict(X).shape == Y.shape
    assert cross_val_score(PPDSparse(), X, Y.toarray(), cv=3).min() > 0.3


def test_text_pipeline_predicts_names():
    texts = [
        "rows of a csv file",
        "read csv rows",
        "send mail over smtp",
        "smtp mail server",
        "zip archive",
        "write a zip file",
    ]
    names = np.array(["csv", "csv", "smtp", "smtp", "zip", "zip"])
    model = make_pipeline(TfidfVectorizer(), PPDSparse()).fit(texts, names)
    assert model.predict(["a csv file", "mail", "zip"]).tolist() == ["csv", "smtp", "zip"]


def test_two_classes_follow_the_sign_of_the_decision():
    X, Y = make_multilabel_classification(200, 20, n_classes=2, random_state=0)
    y = Y[:, 0]
    model = PPDSparse(eps=1e-3).fit(X / 20, y)
    decision = model.decision_function(X / 20)
    assert decision.shape == (200,)
    assert ((decision > 0).astype(int) == model.predict(X / 20)).all()


def test_negative_labels_of_a_dense_matrix_are_negatives(sparse_problem):
    X, Y = sparse_problem
    reference = PPDSparse().fit(X, Y.toarray())
    signed = PPDSparse().fit(X, 2 * Y.toarray() - 1)
    assert (signed.coef_ != reference.coef_).nnz == 0
    assert signed.records_["positives"].tolist() == reference.records_["positives"].tolist()


@pytest.mark.parametrize("change", [lambda Y: 0.3 * Y, lambda Y: -1 * Y, lambda Y: 2 * Y])
@pytest.mark.parametrize("dense", [False, True])
def test_labels_of_other_values_are_refused_with_the_fix(sparse_problem, change, dense):
    X, Y = sparse_problem
    Y = change(Y.astype(float))
    with pytest.raises(InputError, match="Y > 0"):
        PPDSparse().fit(X, Y.toarray() if dense else Y)


@pytest.mark.parametrize("column", [False, True])
def test_lists_of_label_numbers(column):
    X = np.eye(6, dtype=np.float32)
    lists = [[0, 7], [3], [7], [0], [], [3, 7]]
    Y = np.array([*lists, None], object)[:-1] if column else lists
    model = PPDSparse().fit(X, Y)
    assert model.classes_.tolist() == [0, 3, 7]
    expected = PPDSparse().fit(X, [[str(label) for label in row] for row in lists])
    assert model.coef_.toarray().tolist() == expected.coef_.toarray().tolist()
    with pytest.raises(ValueError, match="names and numbers"):
        PPDSparse().fit(X, [["a", 1]] * 6)
