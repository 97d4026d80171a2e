"""PPDSparse's variants: weights of samples and positives, pruning and its loss, warm starts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.naive import ppdsparse as naive
from tests.support.ppdsparse_problems import local_of, problem, signs, solved
from xcray.arrays import CSR, Pattern
from xcray.errors import ParameterError
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.measures import inverse_propensities
from xcray.solvers import make_solver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels

ALL = np.arange(8, dtype=np.int32)


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("eps", [0.01, 1e-6])
def test_sample_weights_are_weights_of_losses(loss, eps):
    """The certificate holds for the weighted problem, and a tight gap gives its optimum."""
    X, Y = problem(1)
    weights = np.random.default_rng(0).uniform(0.1, 4.0, X.n_rows).astype(np.float32)
    solver = PPDSparseSolver(loss=loss, eps=eps, positive_weight=1.5, max_rounds=300)
    penalty = solver.bias_penalty
    local = solver.load(X, transpose(X), transpose_pattern(Y), weights)
    block = solver.solve(local, ALL)
    dense, W = X.to_scipy().toarray().astype(float), block.W.to_scipy().toarray().astype(float)
    for label in np.flatnonzero(block.records["positives"]):
        y, record = signs(Y, label), block.records[label]
        C = solver.C * weights * np.where(y > 0, 1.5, 1.0)
        value = naive.primal(
            W[label], block.bias[label], dense, y, solver.lam, solver.tau, C, loss, penalty
        )
        assert value == pytest.approx(record["primal"], rel=1e-5)
        assert record["null"] == pytest.approx(
            naive.null_objective(y, solver.tau, C, loss, penalty), rel=1e-4
        )
        assert record["gap"] <= eps * record["null"]
        if loss == "squared_hinge":
            best = naive.solve_squared_hinge(dense, y, solver.lam, solver.tau, C, penalty)[2]
            assert record["dual"] <= best + 1e-6 * record["null"]
            assert record["primal"] == pytest.approx(best, abs=(eps + 1e-5) * record["null"])


def test_a_sample_of_weight_two_is_a_sample_twice():
    X, Y = problem(2)
    rows = X.to_scipy(), Y.to_scipy()
    weights = np.ones(X.n_rows, np.float32)
    weights[:40] = 2.0
    solver = PPDSparseSolver(eps=1e-6)
    from scipy.sparse import vstack

    from xcray.arrays import csr_from, pattern_from

    twice = solved(
        solver,
        *(
            make(vstack([m, m[:40]], "csr"))
            for make, m in zip((csr_from, pattern_from), rows, strict=True)
        ),
    )
    once = solver.solve(solver.load(X, transpose(X), transpose_pattern(Y), weights), ALL)
    assert once.records["primal"] == pytest.approx(twice.records["primal"], rel=1e-5)
    assert once.W.to_scipy().toarray() == pytest.approx(twice.W.to_scipy().toarray(), abs=5e-3)


@pytest.mark.parametrize("weights", [[1.0], [0.0] * 120, [-1.0] * 120, [np.inf] * 120])
def test_bad_sample_weights_name_the_fix(weights):
    X, Y = problem(3)
    with pytest.raises(ParameterError, match="120 finite numbers above 0"):
        PPDSparseSolver().load(X, transpose(X), transpose_pattern(Y), np.array(weights, np.float32))


def test_positives_are_weighted_by_frequency_and_by_propensity():
    X, Y = problem(4)
    counts = Y.to_scipy().sum(axis=0).A1
    expected = {
        "balanced": np.maximum(120 - counts, 1) / np.maximum(counts, 1),
        "propensity": inverse_propensities(counts, 120),
    }
    for positives, factors in expected.items():
        local = local_of(PPDSparseSolver(positives=positives, positive_weight=2.0), X, Y)
        np.testing.assert_allclose(local.problem.factors, 2.0 * factors)
    plain, tail = (
        loss_of_positives(solved(PPDSparseSolver(eps=1e-6, positives=positives), X, Y), X, Y)
        for positives in ("equal", "propensity")
    )
    # More expensive positives have smaller losses at the optimum.
    assert (tail <= plain + 1e-3).all()
    assert (tail < plain - 1e-3).any()


def loss_of_positives(block: SolvedLabels, X: CSR, Y: Pattern) -> np.ndarray:
    """Return the sum of squared hinge losses of each label's positives."""
    scores = X.to_scipy() @ block.W.to_scipy().toarray().T + block.bias
    losses = np.maximum(0.0, 1.0 - scores) ** 2
    return np.asarray(Y.to_scipy().multiply(losses).sum(axis=0)).ravel()


def test_pruning_drops_small_weights_and_counts_them():
    X, Y = problem(11)
    plain, pruned = solved(PPDSparseSolver(), X, Y), solved(PPDSparseSolver(prune=0.1), X, Y)
    keep = np.abs(plain.W.data) > 0.1
    assert (pruned.W.data == plain.W.data[keep]).all()
    assert (pruned.records["pruned"] + pruned.records["nnz"] == plain.records["nnz"]).all()
    assert 0 < pruned.records["pruned"].sum() < len(plain.W.data)


def test_pruning_keeps_the_largest_weights_of_each_label():
    X, Y = problem(11)
    plain, pruned = solved(PPDSparseSolver(), X, Y), solved(PPDSparseSolver(prune_keep=5), X, Y)
    for label in ALL:
        whole, left = np.abs(plain.W.row(label)[1]), np.abs(pruned.W.row(label)[1])
        assert sorted(left) == sorted(np.sort(whole)[max(0, len(whole) - 5) :])


@pytest.mark.parametrize("rise", [0.01, 0.1])
def test_pruning_within_a_rise_of_the_loss(rise):
    """The reported loss is that of the kept weights with their best bias, within the bound.

    Dropping one more weight exceeds the bound.
    """
    X, Y = problem(12, n=300)
    plain, pruned = (
        solved(PPDSparseSolver(eps=1e-4, prune_loss=limit), X, Y) for limit in (0.0, rise)
    )
    dense = X.to_scipy().toarray().astype(float)
    assert 0 < pruned.W.nnz < plain.W.nnz

    def loss(W, label, b):
        return naive.loss(1.0 - signs(Y, label) * (dense @ W + b), 1.0, "squared_hinge")

    for label in np.flatnonzero(plain.records["positives"]):
        record, before = pruned.records[label], pruned.records[label]["loss"]
        W, W_plain = (
            block.W.to_scipy().toarray()[label].astype(float) for block in (pruned, plain)
        )
        assert before == pytest.approx(loss(W_plain, label, plain.bias[label]), rel=1e-3)
        assert before + record["loss_added"] == pytest.approx(
            loss(W, label, pruned.bias[label]), rel=1e-4
        )
        assert record["loss_added"] <= rise * before * 1.0001
        if record["nnz"]:
            W[np.flatnonzero(W)[np.argmin(np.abs(W[W != 0]))]] = 0.0
            least = min(loss(W, label, b) for b in pruned.bias[label] + np.linspace(-0.1, 0.1, 401))
            assert least > (1.0 + rise) * before * (1.0 - 1e-3)


def test_dismec_and_the_plain_machine_are_settings():
    X, Y = problem(13)
    assert make_solver("dismec", {}).lam == 0.0
    assert make_solver("dismec", {}).prune == 0.01
    plain = PPDSparseSolver(lam=0.0, bias_penalty=1.0)
    assert make_solver("l2svm", {}).as_dict() == plain.as_dict()
    assert solved(make_solver("l2svm", {}), X, Y).digest() == solved(plain, X, Y).digest()


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_duals_determine_the_weights(loss):
    """At a tight gap, the exported weights are soft(sum of alpha y x, lam) / tau."""
    X, Y = problem(5)
    solver = PPDSparseSolver(loss=loss, eps=1e-7, max_rounds=500)
    block = solver.solve(local_of(solver, X, Y), ALL, keep_duals=True)
    assert block.duals.shape == (8, 120)
    alpha, W = block.duals.to_scipy().toarray().astype(float), block.W.to_scipy().toarray()
    assert (alpha >= 0.0).all()
    assert (
        np.count_nonzero(alpha, axis=1)[block.records["positives"] > 0]
        == block.records["support"][block.records["positives"] > 0]
    ).all()
    for label in np.flatnonzero(block.records["positives"]):
        v = X.to_scipy().toarray().astype(float).T @ (alpha[label] * signs(Y, label))
        assert np.sign(v) * np.maximum(np.abs(v) - solver.lam, 0.0) == pytest.approx(
            W[label], abs=3e-3
        )


def test_a_warm_start_saves_rounds_and_keeps_the_certificate():
    X, Y = problem(6, n=400)
    cold = PPDSparseSolver(C=1.0, eps=0.001)
    near = PPDSparseSolver(C=1.1, eps=0.001)
    local = local_of(cold, X, Y)
    duals = cold.solve(local, ALL, keep_duals=True).duals
    warm, fresh = near.solve(local, ALL, start=duals), near.solve(local, ALL)
    assert (warm.records["gap"] <= 0.001 * warm.records["null"]).all()
    assert warm.records["primal"] == pytest.approx(
        fresh.records["primal"], abs=0.002 * warm.records["null"].max()
    )
    assert warm.records["work"].sum() < 0.8 * fresh.records["work"].sum()
    assert near.solve(local, ALL, start=duals).digest() == warm.digest()


def test_a_warm_start_of_another_shape_is_refused():
    X, Y = problem(7)
    local = local_of(PPDSparseSolver(), X, Y)
    duals = PPDSparseSolver().solve(local, ALL, keep_duals=True).duals
    with pytest.raises(ParameterError, match="one row of dual variables per label"):
        PPDSparseSolver().solve(local, ALL[:3], start=duals)


def test_room_for_duals_grows(monkeypatch):
    X, Y = problem(8)
    whole = PPDSparseSolver().solve(local_of(PPDSparseSolver(), X, Y), ALL, keep_duals=True)
    monkeypatch.setattr("xcray.solvers.ppdsparse.INITIAL_CAPACITY", 1)
    tight = PPDSparseSolver().solve(local_of(PPDSparseSolver(), X, Y), ALL, keep_duals=True)
    assert (tight.duals.data == whole.duals.data).all()
    assert (tight.duals.indices == whole.duals.indices).all()
    assert tight.digest() == whole.digest()
