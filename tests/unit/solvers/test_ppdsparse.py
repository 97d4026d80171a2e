"""PPDSparse: objective, optimality conditions, certificate, against naive code and LIBLINEAR."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from tests.naive import ppdsparse as naive
from tests.support.ppdsparse_problems import local_of, problem, signs, solved
from xcray.arrays import csr, csr_from, frozen, pattern, pattern_from
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import transpose
from xcray.kernels.training.ppdsparse import advance as kernel
from xcray.solvers import make_solver, parameter_table
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import merge


@pytest.mark.parametrize(
    ("lam", "tau", "C", "penalty"),
    [
        (0.01, 1.0, 1.0, 1.0),
        (0.5, 1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0, 1.0),
        (0.05, 0.1, 10.0, 1.0),
        (0.02, 3.0, 0.05, 1.0),
        (0.01, 1.0, 1.0, 0.1),
        (0.2, 0.5, 3.0, 0.01),
        (0.0, 1.0, 0.1, 0.001),
    ],
)
def test_objective_equals_the_naive_twins(lam, tau, C, penalty):
    X, Y = problem(1)
    solver = PPDSparseSolver(lam=lam, tau=tau, C=C, bias_penalty=penalty, eps=1e-7)
    block = solved(solver, X, Y)
    dense = X.to_scipy().toarray().astype(float)
    for label in range(Y.n_cols):
        y = signs(Y, label)
        w, b, best = naive.solve_squared_hinge(dense, y, lam, tau, C, penalty)
        record = block.records[label]
        scale = max(naive.null_objective(y, tau, C, penalty=penalty), 1e-9)
        assert record["primal"] >= best - 1e-7 * scale
        assert record["primal"] <= best + 1e-5 * scale
        assert record["dual"] <= best + 1e-7 * scale
        # tau/2 (|w - best|^2 + penalty (b - best)^2) <= gap: the primal is strongly convex.
        if record["positives"]:
            from_bias = np.sqrt(penalty) * (block.bias[label] - b)
            distance = np.linalg.norm(np.append(block.W.to_scipy().toarray()[label] - w, from_bias))
            assert distance <= np.sqrt(2.0 * record["gap"] / tau) + 5e-4


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("eps", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_certificate_is_true(loss, eps, penalty):
    """The primal is that of the exported weights over all rows, and the gap is at most eps."""
    X, Y = problem(2, n=300, k=12)
    solver = PPDSparseSolver(loss=loss, eps=eps, bias_penalty=penalty)
    block = solved(solver, X, Y)
    dense, W = X.to_scipy().toarray().astype(float), block.W.to_scipy().toarray().astype(float)
    for label in range(Y.n_cols):
        y, record = signs(Y, label), block.records[label]
        value = naive.primal(
            W[label], block.bias[label], dense, y, solver.lam, solver.tau, solver.C, loss, penalty
        )
        assert value == pytest.approx(record["primal"], rel=1e-5)
        assert record["null"] == pytest.approx(
            naive.null_objective(y, solver.tau, solver.C, loss, penalty), rel=1e-4
        )
        assert 0.0 <= record["gap"] + 1e-9 * record["null"]
        assert record["gap"] <= eps * record["null"]
        # So the criterion of the papers, eps times the primal at zero, holds too.
        assert record["null"] <= solver.C * X.n_rows + 1e-9


@pytest.mark.parametrize("largest", [1e8, 1e15, 1e20])
def test_certificate_is_true_beside_an_extreme_value(largest):
    """Scores pass values whose rounding exceeds the margin; the primal is that of the weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 12)).astype(np.float32)
    Y = pattern_from(X @ rng.normal(size=(12, 8)) > 1.0)
    X[:2, 0] = largest, -largest
    solver = PPDSparseSolver(positive_weight=2.0)
    block = solved(solver, csr_from(X), Y)
    for label, w in enumerate(block.W.to_scipy().toarray().astype(float)):
        y, record, b = signs(Y, label), block.records[label], float(np.float32(block.bias[label]))
        z = np.maximum(1.0 - y * (X.astype(float) @ w + b), 0.0)
        C = np.where(y > 0, 2.0, 1.0)
        value = 0.01 * abs(w).sum() + 0.5 * (w @ w + 0.1 * b * b) + C @ (z * z)
        assert record["primal"] == pytest.approx(value, rel=1e-9)
        assert record["gap"] == pytest.approx(max(0.0, value - record["dual"]), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("largest", [1.0, 1e8])
def test_the_kernels_that_a_problem_uses_are_compiled_before_it(largest, monkeypatch):
    """A measured label, or one that must stop, does not wait for the compiler."""
    used, advance = list[str](), kernel.advance

    def run(*args):
        used.append(args[4].scores.dtype.name)
        return advance(*args)

    monkeypatch.setattr(kernel, "advance", run)
    X, Y = problem(1)
    X = X._replace(data=frozen(np.append(X.data[:-1], largest), np.float32))
    solver = PPDSparseSolver(loss="hinge")
    local = local_of(solver, X, Y)
    solver.warm_up(local)
    assert used == ["float64" if largest > 1.0 else "float32"]
    solver.solve(local, np.arange(Y.n_cols, dtype=np.int32))
    assert len(set(used)) == 1


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
def test_records_have_the_norms_of_the_paper_and_these_keep_its_bounds(loss):
    """|w|_1 and |alpha|_1 are those of the solution, at most null / lam and 2 null."""
    X, Y = problem(3)
    solver = PPDSparseSolver(loss=loss, eps=1e-7, lam=0.05, prune=0.01)
    block = solver.solve(local_of(solver, X, Y), np.arange(Y.n_cols), keep_duals=True)
    exact = replace(solver, prune=0.0).solve(local_of(solver, X, Y), np.arange(Y.n_cols))
    records, W = block.records, exact.W.to_scipy()
    assert records["l1"] == pytest.approx(np.asarray(abs(W).sum(axis=1)).ravel(), rel=1e-6)
    alphas = np.asarray(block.duals.to_scipy().sum(axis=1)).ravel()
    assert records["dual_l1"] == pytest.approx(alphas, rel=1e-3, abs=1e-6)
    assert (records["l1"] <= records["null"] / solver.lam * 1.0001).all()
    assert (records["dual_l1"] <= 2.0001 * records["null"]).all()
    assert solver.summarize(records)["margin_violations"] == records["violating"].sum()


def test_optimality_conditions_hold_at_a_tight_gap():
    """The weights satisfy eq. 7 of the paper, for the squared hinge.

    tau w + lam sign(w) = sum alpha y x where w is not zero; elsewhere the sum is at most lam in
    size.
    """
    X, Y = problem(3)
    solver = PPDSparseSolver(lam=0.05, eps=1e-9, max_sweeps=200)
    block = solved(solver, X, Y)
    dense, W = X.to_scipy().toarray().astype(float), block.W.to_scipy().toarray().astype(float)
    for label in np.flatnonzero(block.records["positives"]):
        y = signs(Y, label)
        alpha = 2.0 * solver.C * np.maximum(1.0 - y * (dense @ W[label] + block.bias[label]), 0.0)
        v, w = dense.T @ (alpha * y), W[label]
        assert (
            np.abs(v[w != 0] - solver.tau * w[w != 0] - solver.lam * np.sign(w[w != 0])).max(
                initial=0.0
            )
            < 2e-3
        )
        assert np.abs(v[w == 0]).max(initial=0.0) < solver.lam + 2e-3
        pull = solver.tau * solver.bias_penalty * block.bias[label]
        assert (alpha * y).sum() == pytest.approx(pull, abs=2e-3)


@pytest.mark.parametrize(("scaling", "penalty"), [(1.0, 1.0), (10.0, 0.01)])
def test_objective_equals_liblinear_without_l1(scaling, penalty):
    """LIBLINEAR's squared hinge is this problem at lam = 0 and tau = 1.

    Its bias is `intercept_scaling` times a weight that is regularised like the others.
    """
    X, Y = problem(4, n=400, d=80)
    block = solved(PPDSparseSolver(lam=0.0, eps=1e-6, bias_penalty=penalty), X, Y)
    for label in range(Y.n_cols):
        y = signs(Y, label)
        peer = LinearSVC(
            C=1.0, tol=1e-8, max_iter=100_000, intercept_scaling=scaling, random_state=0
        ).fit(X.to_scipy(), y)
        theirs = naive.primal(
            peer.coef_[0],
            peer.intercept_[0],
            X.to_scipy().toarray(),
            y,
            0.0,
            1.0,
            1.0,
            penalty=penalty,
        )
        assert block.records[label]["primal"] == pytest.approx(theirs, rel=1e-4)


def test_rows_that_share_no_feature_with_w_are_not_forgotten():
    """5,000 negatives without any common feature must hold the bias down.

    A search through postings alone would miss them.
    """
    rng = np.random.default_rng(5)
    n, d = 5_000, 400
    columns = np.concatenate([[0, 1, 2], rng.integers(3, d, n)])
    X = csr_from(sp.csr_matrix((np.ones(n + 3), (np.arange(n + 3), columns)), shape=(n + 3, d)))
    Y = pattern_from(sp.csr_matrix((np.ones(3), ([0, 1, 2], [0, 0, 0])), shape=(n + 3, 1)))
    solver = PPDSparseSolver(lam=0.5, eps=0.001)
    block = solved(solver, X, Y)
    y = signs(Y, 0)
    _, _, best = naive.solve_squared_hinge(X.to_scipy().toarray().astype(float), y, 0.5, 1.0, 1.0)
    assert block.bias[0] < -0.99
    assert block.records["primal"][0] <= best * 1.002


@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_labels_without_positives_and_without_negatives(penalty):
    X, _ = problem(6)
    Y = pattern_from(np.stack([np.zeros(X.n_rows), np.ones(X.n_rows)], axis=1))
    block = solved(PPDSparseSolver(eps=1e-4, bias_penalty=penalty), X, Y)
    assert block.bias[0] == -1.0
    assert block.W.row(0)[0].size == 0
    assert block.records["gap"][0] == pytest.approx(0.5 * penalty - block.records["null"][0])
    _, _, best = naive.solve_squared_hinge(
        X.to_scipy().toarray().astype(float), np.ones(X.n_rows), 0.01, 1.0, 1.0, penalty
    )
    assert block.records["primal"][1] == pytest.approx(best, rel=1e-3)


def test_empty_rows_and_a_positive_without_features():
    X = csr_from(sp.csr_matrix(np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.float32)))
    Y = pattern_from(np.array([[1], [0], [1], [0]]))
    block = solved(PPDSparseSolver(eps=1e-6), X, Y)
    _, _, best = naive.solve_squared_hinge(
        X.to_scipy().toarray().astype(float), signs(Y, 0), 0.01, 1.0, 1.0
    )
    assert block.records["primal"][0] == pytest.approx(best, rel=1e-5)


def test_bits_do_not_depend_on_order_batches_or_neighbours():
    X, Y = problem(7, k=12)
    solver = PPDSparseSolver()
    whole = solved(solver, X, Y)
    local = local_of(solver, X, Y)
    order = np.random.default_rng(0).permutation(12).astype(np.int32)
    pieces = [
        solver.solve(local, order[:1]),
        solver.solve(local, order[1:7]),
        solver.solve(local.clone_for_thread(), order[7:]),
    ]
    assert merge(pieces, 12, X.n_cols).digest() == whole.digest()


def test_bits_do_not_depend_on_the_slices(monkeypatch):
    """A class that is interrupted in sweeps and scoring passes ends with the same bits."""
    X, Y = problem(8)
    solver = PPDSparseSolver(eps=1e-4)
    whole = solved(solver, X, Y)
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 37)
    monkeypatch.setattr("xcray.solvers.ppdsparse.INITIAL_CAPACITY", 1)
    looks = []
    sliced = solver.solve(
        local_of(solver, X, Y), np.arange(Y.n_cols, dtype=np.int32), lambda: bool(looks.append(1))
    )
    assert len(looks) > 100
    assert sliced.digest() == whole.digest()


def test_another_seed_gives_other_bits_and_the_same_objective():
    X, Y = problem(9)
    a, b = (solved(PPDSparseSolver(seed=seed, eps=1e-4), X, Y) for seed in (0, 1))
    assert a.digest() != b.digest()
    assert a.records["primal"] == pytest.approx(b.records["primal"], rel=1e-3)


def test_stop_between_slices_leaves_a_usable_worker(monkeypatch):
    monkeypatch.setattr("xcray.solvers.ppdsparse.SLICE_ENTRIES", 50)
    X, Y = problem(10)
    solver = PPDSparseSolver()
    local = local_of(solver, X, Y)
    answers = iter([False, False, True])
    with pytest.raises(Stopped):
        solver.solve(local, np.arange(Y.n_cols, dtype=np.int32), lambda: next(answers))
    again = solver.solve(local, np.arange(Y.n_cols, dtype=np.int32))
    assert again.digest() == solved(solver, X, Y).digest()


def test_a_class_that_runs_out_of_rounds_reports_its_gap():
    X, Y = problem(12)
    block = solved(PPDSparseSolver(eps=1e-6, max_rounds=1), X, Y)
    assert (block.records["gap"] > 1e-6 * block.records["null"]).any()


def test_l1_makes_weights_sparse():
    X, Y = problem(13)
    counts = [solved(PPDSparseSolver(lam=lam), X, Y).W.nnz for lam in (0.0, 0.1, 1.0)]
    assert counts[0] > counts[1] > counts[2]


def test_costs_rank_classes_by_work():
    X, Y = problem(14, n=600, d=300, k=30)
    solver = PPDSparseSolver()
    local = local_of(solver, X, Y)
    terms = solver.cost_terms(local.problem.X, local.problem.XT, local.problem.YT)
    costs = terms @ solver.cost_rates
    work = solved(solver, X, Y).records["work"].astype(float)
    assert terms.shape == (30, len(solver.cost_rates))
    assert (terms >= 0.0).all()
    assert np.corrcoef(np.argsort(np.argsort(costs)), np.argsort(np.argsort(work)))[0, 1] > 0.5


def test_cost_terms_count_what_they_say():
    """The terms of four samples, two of them empty, equal those by hand, in any chunks."""
    X = csr([0, 2, 3, 3, 3], [0, 1, 1], [1.0, 1.0, 1.0], 2)
    XT, YT = transpose(X), pattern([0, 1, 3, 3], [0, 1, 2], 4)
    solver = PPDSparseSolver(max_sweeps=3, growth=5)
    terms = solver.cost_terms(X, XT, YT)
    scored = 3.0 * (1.0 - np.exp([-(1 + 2) / 3.0, -2 / 3.0, 0.0]))
    np.testing.assert_allclose(terms, np.stack([[4.0] * 3, scored, [30.0, 15.0, 0.0]], axis=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xcray.solvers.ppdsparse.CHUNK_ROWS", 1)
        np.testing.assert_array_equal(solver.cost_terms(X, XT, YT), terms)


@pytest.mark.parametrize(
    ("inputs", "fix"),
    [
        ({"lam": -1}, "lam must be at least 0.0"),
        ({"C": 0}, "C must be greater than 0.0"),
        ({"loss": "logistic"}, "loss must be one of squared_hinge, hinge"),
        ({"max_rounds": 1.5}, "max_rounds must be a whole number"),
        ({"eps": float("nan")}, "eps must be finite"),
        ({"C": 1e38}, "C must be at most 1000000000000.0, not 1e+38"),
        ({"tau": 5e-324}, "tau must be at least 1e-20, not 5e-324"),
        ({"max_rounds": 2**31}, "max_rounds must be at most 2147483647"),
        ({"C": 1e12, "positive_weight": 1e9}, "must be at most 1e+20, not 1e+22: lower C"),
        ({"lamda": 0.1}, "did you mean 'lam'"),
        ({"C": "ten"}, "C must be a number"),
        ({"lam": True}, "lam must be a number"),
    ],
)
def test_bad_parameters_name_the_fix(inputs, fix):
    with pytest.raises(ParameterError) as caught:
        make_solver("ppdsparse", inputs)
    assert fix in str(caught.value)


def test_parameters_from_strings_and_their_table():
    assert make_solver("ppdsparse", {"lam": "0.1", "max_rounds": "7"}).max_rounds == 7
    assert {row["name"] for row in parameter_table("ppdsparse")} >= {"lam", "tau", "C", "eps"}
    with pytest.raises(ParameterError):
        make_solver("svm", {})


def test_arrays_given_as_writable_compile_nothing_new():
    """A second call with other data adds no signature to the kernel: arrays are read-only.

    There is one signature for scores in single precision, and one for a tight eps.
    """
    from xcray.kernels.training.ppdsparse import advance as kernel

    X, Y = problem(15)
    for eps in (0.01, 1e-5):
        solved(PPDSparseSolver(eps=eps), X, Y)
    before = len(kernel.advance.signatures)
    solved(PPDSparseSolver(loss="hinge", positives="propensity", prune_keep=3), *problem(16))
    local = local_of(PPDSparseSolver(), X, Y)
    block = PPDSparseSolver().solve(local, np.array([1], np.int64), keep_duals=True)
    PPDSparseSolver(C=2.0).solve(local, np.array([1], np.int64), start=block.duals)
    assert len(kernel.advance.signatures) == before == 2
    assert frozen(np.zeros(3), np.float64).flags.writeable is False
