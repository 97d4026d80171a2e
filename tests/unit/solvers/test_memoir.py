"""MEMOIR: the kernel against naive code, invariants of W, draws, labels, stops and parameters."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import accuracy_score, f1_score

from tests.naive import memoir as naive
from tests.support.group_programs import train_rows
from xcray.arrays import csr_from, frozen, pattern_from
from xcray.errors import ParameterError, Stopped
from xcray.kernels.row_norm import normalize_rows
from xcray.solvers import make_solver
from xcray.solvers.group_contract import StateLost, TrainingRows
from xcray.solvers.held_out import split_rows
from xcray.solvers.memoir import graph_rounds
from xcray.solvers.memoir import rounds as memoir
from xcray.solvers.memoir.held_out import best_of_rows, count_hits, take_held_out
from xcray.solvers.memoir.share import Share
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.solvers.memoir.worker import MemoirWorker

N, D, K = 40, 12, 7


def problem(seed: int = 0, labels_per_row: int = 2):
    """Return sparse X (N, D) in float32 and Y (N, K) bool; class K - 1 has no rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.4)
    Y = np.zeros((N, K), bool)
    for row in Y:
        row[rng.choice(K - 1, rng.integers(1, labels_per_row + 1), replace=False)] = True
    return X.astype(np.float32), Y


def rows_of(X, Y):
    """Return X and Y as rows of a training."""
    return TrainingRows(csr_from(X), pattern_from(Y))


def local_of(solver, X, Y):
    """Return the state of a worker."""
    return solver.load(rows_of(X, Y))


def solved(solver, X, Y):
    """Return the trained labels in order."""
    [labels] = train_rows(solver, rows_of(X, Y)).labels
    return labels


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"lam": 0.5},
        {"penalty": "l1", "lam": 0.5},
        {"penalty": "l1", "lam": 0.02, "group": 5},
        {"group": 7},
        {"group": 1000, "oracle": "random"},
        {"group": 30, "step": "batch", "margin": 1e9, "lam": 1.0, "row_norm": "l2"},
        {"oracle": "random"},
        {"step": "batch", "margin": 1e9, "lam": 1.0},
        {"draws": "labels", "margin": 0.5},
        {"labels": "first"},
        {"eta0": 2.0, "eta_step": 0.5, "lam": 0.05},
        {"group": 0, "margin_at": "step"},
        {"group": 7, "margin_at": "step", "oracle": "random", "penalty": "l1"},
        {"penalty": "l1", "lam": 0.02, "truncate": "touched"},
        {"penalty": "l1", "lam": 0.02, "truncate": "touched", "group": 7, "margin_at": "step"},
        {"oracle": "sw-graph"},
        {"oracle": "sw-graph", "group": 7, "penalty": "l1", "lam": 0.02},
        {"oracle": "sw-graph", "group": 0, "margin_at": "step", "labels": "first"},
        {"preset": "memoir-paper"},
        {"preset": "memoir-paper", "penalty": "l1", "lam": 0.02},
        {"preset": "memoir-paper-frozen"},
    ],
    ids=str,
)
def test_the_kernel_equals_naive_code(monkeypatch, params):
    monkeypatch.setattr(memoir, "INITIAL_CAPACITY", 1)  # pools grow
    for module in (memoir, graph_rounds):
        monkeypatch.setattr(module, "SLICE_ENTRIES", 37)  # rounds are interrupted
    X, Y = problem()
    name, params = (
        params.get("preset", "memoir"),
        {k: v for k, v in params.items() if k != "preset"},
    )
    solver = make_solver(name, {"rounds": 8, "batch": 30, "seed": 3, **params})
    local = local_of(solver, X, Y)
    rounds = memoir.Rounds(local.problem, solver, 30)
    draws = [rounds.draw(number) for number in range(1, 9)]
    own = Y if solver.labels == "all" else Y & (np.cumsum(Y, axis=1) == 1)
    own = own[:, local.label_ids]
    rows = normalize_rows(csr_from(X), solver.row_norm).to_scipy().toarray()
    W = naive.train(
        rows.astype(float), own, local.problem.rows, local.problem.classes, draws, solver
    )
    block = solved(solver, X, Y)
    assert np.abs(W).max() > 0.0
    trained = block.W.to_scipy().toarray()[local.label_ids]
    np.testing.assert_allclose(trained, W, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(block.records["nnz"], np.diff(block.W.indptr))


@pytest.mark.parametrize("lam", [0.001, 0.3])
def test_the_squared_norm_is_kept_and_bounded(lam):
    X, Y = problem()
    solver = MemoirSolver(lam=lam, batch=50)
    rounds = memoir.Rounds(local_of(solver, X, Y).problem, solver, 50)
    for number in range(1, 30):
        memoir.run_alone(rounds.run(number, 0.1, lambda: False))
        values = rounds.weights().data.astype(float)
        norm = float(rounds.state["norm_sq"][0])
        assert norm == pytest.approx((values**2).sum(), rel=1e-6)
        assert norm <= 1.0 / lam * (1.0 + 1e-12)


def test_a_multiplier_that_becomes_small_is_folded_into_the_values(monkeypatch):
    X, Y = problem()
    solver = MemoirSolver(lam=1.0, rounds=20, batch=30)
    plain = solved(solver, X, Y)
    monkeypatch.setattr(memoir, "MIN_SCALE", 0.5)
    folded = solved(solver, X, Y)
    np.testing.assert_allclose(
        folded.W.to_scipy().toarray(), plain.W.to_scipy().toarray(), rtol=1e-5, atol=1e-7
    )


def test_l1_drops_weights():
    X, Y = problem()
    weights = [
        solved(MemoirSolver(penalty="l1", lam=lam, rounds=20, batch=50), X, Y).W.nnz
        for lam in (1e-6, 1.0, 100.0)
    ]
    assert weights[0] > weights[1] > weights[2] == 0


def test_separated_classes_are_learned():
    X, y = make_blobs(300, 6, centers=5, cluster_std=0.5, random_state=0)
    X = np.hstack([X, np.ones((300, 1))]).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    block = solved(MemoirSolver(), X, np.eye(5, dtype=bool)[y])
    assert ((X @ block.W.to_scipy().T).argmax(axis=1) == y).mean() > 0.98


def test_draws_by_class_are_balanced_and_have_the_class():
    Y = np.zeros((100, 3), bool)
    Y[:97, 0], Y[97:, 2] = True, True
    solver = MemoirSolver(draws="labels", batch=4000)
    rounds = memoir.Rounds(local_of(solver, np.ones((100, 2), np.float32), Y).problem, solver, 4000)
    classes = rounds.problem.classes[rounds.draw(1)[0]]
    assert set(classes) == {0, 1}  # label 1 has no rows, and is not in the problem
    assert (classes == 1).mean() == pytest.approx(0.5, abs=0.05)


def test_the_seed_decides_and_labels_without_rows_have_bias_minus_one():
    X, Y = problem()
    a, b, c = (solved(MemoirSolver(rounds=5, seed=seed), X, Y) for seed in (0, 0, 1))
    assert a.digest() == b.digest() != c.digest()
    np.testing.assert_array_equal(a.bias, [0.0] * (K - 1) + [-1.0])
    assert a.records["rounds"].tolist() == [5] * (K - 1) + [-1]
    assert np.diff(a.W.indptr)[-1] == 0
    np.testing.assert_array_equal(a.records["positives"], Y.sum(axis=0))


def test_one_label_has_no_rivals():
    X, _ = problem()
    block = solved(MemoirSolver(), X, np.ones((N, 1), bool))
    assert block.W.nnz == 0
    assert block.bias.tolist() == [0.0]


def test_a_stop_is_noticed_within_a_round(monkeypatch):
    monkeypatch.setattr(memoir, "SLICE_ENTRIES", 100)
    X, Y = problem()
    answers = iter([False, False, True])
    solver = MemoirSolver()
    worker = MemoirWorker(solver, local_of(solver, X, Y), Share(), lambda: next(answers))
    worker.begin(None)
    with pytest.raises(Stopped):
        worker.advance(0, None)


def test_wrong_parameters_and_inputs_are_refused():
    X, Y = problem()
    with pytest.raises(ParameterError, match="eta0 \\* lam"):
        MemoirSolver(eta0=10.0, lam=1.0)
    solver = MemoirSolver()
    with pytest.raises(ParameterError, match="sample weights"):
        solver.load(rows_of(X, Y)._replace(weights=frozen(np.ones(N), np.float32)))


def test_the_mean_of_rounds_is_that_of_naive_code():
    X, Y = problem()
    solver = MemoirSolver(rounds=6, batch=30, average_from=4)
    local = local_of(solver, X, Y)
    rounds = memoir.Rounds(local.problem, solver, 30)
    draws = [rounds.draw(number) for number in range(1, 7)]
    each = [
        naive.train(
            X.astype(float),
            Y[:, : K - 1],
            local.problem.rows,
            local.problem.classes,
            draws[:count],
            solver,
        )
        for count in (4, 5, 6)
    ]
    trained = solved(solver, X, Y).W.to_scipy().toarray()[: K - 1]
    np.testing.assert_allclose(trained, np.mean(each, axis=0), rtol=1e-5, atol=1e-6)


def test_held_out_rows_leave_the_first_row_of_each_class():
    _, Y = problem()
    rows = split_rows(pattern_from(Y), 0.5, 3)
    assert len(rows) == N // 2
    rest = np.setdiff1d(np.arange(N), rows)
    np.testing.assert_array_equal(Y[rest].any(axis=0), Y.any(axis=0))
    assert not np.array_equal(rows, split_rows(pattern_from(Y), 0.5, 4))
    assert len(split_rows(pattern_from(np.eye(4, dtype=bool)), 0.5, 0)) == 0


def test_held_out_figures_equal_those_of_scikit_learn(monkeypatch):
    monkeypatch.setattr("xcray.solvers.memoir.held_out.SLICE_ROWS", 7)
    X, Y = problem(labels_per_row=1)
    y, W = Y.argmax(axis=1), csr_from(np.random.default_rng(1).normal(size=(K, D)))
    rows = take_held_out(csr_from(X), pattern_from(Y), np.arange(N))
    best = [best_of_rows(W, rows, lo, hi, lambda: False) for lo, hi in ((0, 11), (11, N))]
    counts = count_hits(np.concatenate(best), rows.Y)
    predicted = (X.astype(float) @ W.to_scipy().toarray().T).argmax(axis=1)
    assert counts.accuracy == pytest.approx(accuracy_score(y, predicted))
    assert counts.macro_f1 == pytest.approx(
        f1_score(y, predicted, average="macro", labels=np.unique(y), zero_division=0)
    )
    with pytest.raises(Stopped):
        best_of_rows(W, rows, 0, N, lambda: True)


def test_early_stopping_keeps_the_best_weights():
    X, y = make_blobs(300, 6, centers=5, cluster_std=4.0, random_state=0)
    X, Y = X.astype(np.float32), np.eye(5, dtype=bool)[y]
    solver = MemoirSolver(early_stopping_rounds=3, held_out=0.3, batch=20, row_norm="l2")
    block = solved(solver, X, Y)
    best, last = (int(block.records[name][0]) for name in ("best_round", "rounds"))
    assert last == best + 3 < solver.rounds
    summary = solver.summarize(block.records)
    assert summary["stopped"] == "macro-F1 of the held-out rows has not risen for 3 rounds"
    assert summary["held_out_rows"] == 90
    assert summary["best_round"] == best
    other = MemoirSolver(
        early_stopping_rounds=best, rounds=best, held_out=0.3, batch=20, row_norm="l2"
    )
    assert solved(other, X, Y).W.to_scipy().data.tolist() == block.W.to_scipy().data.tolist()
    rows = split_rows(pattern_from(Y), 0.3, 0)
    length = np.linalg.norm(X[rows], axis=1, keepdims=True)
    predicted = (X[rows] / length @ block.W.to_scipy().T).argmax(axis=1)
    assert summary["held_out_accuracy"] == pytest.approx((predicted == y[rows]).mean())
    assert summary["held_out_macro_f1"] == pytest.approx(
        f1_score(y[rows], predicted, average="macro")
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"penalty": "l1", "lam": 0.05},
        {"average_from": 3},
        {"early_stopping_rounds": 5, "held_out": 0.3},
        {"oracle": "sw-graph", "penalty": "l1", "lam": 0.05, "average_from": 3},
    ],
    ids=str,
)
def test_a_training_resumes_from_each_round_with_the_same_bits(monkeypatch, params):
    monkeypatch.setattr(memoir, "INITIAL_CAPACITY", 1)
    X, Y = problem()
    solver = MemoirSolver(rounds=6, batch=30, seed=1, **params)
    whole = train_rows(solver, rows_of(X, Y))
    assert [done.number for done in whole.rounds] == [1, 2, 3, 4, 5, 6]
    for done in whole.rounds:
        rest = train_rows(solver, rows_of(X, Y), state=done.state)
        assert [each.number for each in rest.rounds] == list(range(done.number + 1, 7))
        assert rest.labels[0].digest() == whole.labels[0].digest()


def test_a_new_worker_has_lost_the_state():
    X, Y = problem()
    solver = MemoirSolver(rounds=4, batch=30)
    worker = MemoirWorker(solver, local_of(solver, X, Y), Share(), lambda: False)
    with pytest.raises(StateLost):
        worker.advance(0, None)
    worker.begin(None)
    with pytest.raises(StateLost):
        worker.advance(1, None)  # it was replaced after the last step


WITHOUT_SCIPY = """
import sys
sys.modules["scipy"] = None
import numpy as np
from xcray.arrays import csr, pattern
from xcray.solvers import SOLVERS, make_solver
from xcray.solvers.group_contract import TrainingRows
assert all(SOLVERS[name].records for name in SOLVERS)
solver = make_solver("memoir", {"rounds": 3, "average_from": 2, "early_stopping_rounds": 2})
X, Y = csr(range(9), [0, 1] * 4, np.ones(8), 2), pattern(range(9), [0, 1] * 4, 2)
from xcray.training.group_training import train_in_process
print(train_in_process(solver, TrainingRows(X, Y), 1).labels[0].W.nnz)
"""


def test_it_trains_without_scipy():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SCIPY], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr
