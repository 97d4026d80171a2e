"""Crammer-Singer SVM: LIBLINEAR's problem, its optimum within the gap, and its predictions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.svm import LinearSVC

from tests.support.group_programs import train_rows
from xcray.arrays import csr_from, pattern
from xcray.solvers import make_solver
from xcray.solvers.group_contract import TrainingRows

K = 6


@pytest.fixture(scope="module")
def rows():
    """Return overlapping classes: X (300, 8) of length 1 in float32, y (300,)."""
    X, y = make_blobs(300, 8, centers=K, cluster_std=6.0, random_state=0)
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y


def objective(W, X, y, C):
    """Return the primal objective of W (K, D)."""
    z = X.astype(float) @ W.T
    own = z[np.arange(len(y)), y]
    loss = (z + 1.0 - own[:, None] - (np.arange(K) == y[:, None])).max(axis=1)
    return 0.5 * (W**2).sum() + C * np.maximum(loss, 0.0).sum()


@pytest.mark.parametrize("C", [0.1, 1.0])
def test_it_reaches_the_optimum_of_liblinear(rows, C):
    X, y = rows
    solver = make_solver("crammer-singer", {"C": C, "eps": 1e-6, "max_passes": 2_000})
    data = TrainingRows(csr_from(X), pattern(np.arange(len(y) + 1), y, K))
    [block] = train_rows(solver, data).labels
    assert solver.certified(block.records).all()
    W = block.W.to_scipy().toarray().astype(float)
    model = LinearSVC(
        multi_class="crammer_singer",
        C=C,
        fit_intercept=False,
        tol=1e-8,
        max_iter=100_000,
        random_state=0,
    ).fit(X, y)
    ours, theirs = (objective(each, X, y, C) for each in (W, model.coef_))
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours <= theirs + solver.largest_gap(block.records) * C * len(y) + 1e-6 * theirs
    np.testing.assert_allclose(W, model.coef_, atol=0.02)
    assert ((X @ W.T).argmax(axis=1) == model.predict(X)).mean() >= 0.99
