"""DS-MLR: steps against the paper's formulas, decisions, and L-BFGS on split vectors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

from tests.naive import dsmlr as naive
from tests.naive import multinomial
from xcray.arrays import csr_from, frozen, pattern
from xcray.errors import ParameterError, Stopped
from xcray.kernels.training import softmax as kernel
from xcray.solvers.dsmlr import quasi_newton
from xcray.solvers.dsmlr.decisions import MAX_ROLLBACKS, SyncState, decide
from xcray.solvers.dsmlr.shard_state import SLICE_MULTIPLICATIONS, ShardState, Step
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.dsmlr.worker import export_block, initial_block, run_step
from xcray.solvers.group_contract import Grid
from xcray.solvers.row_shards import (
    Shard,
    append_constant,
    label_targets,
    make_shard,
    shard_rows,
    total_weight,
)

N, D, K = 40, 7, 6


def problem(seed: int = 0, dense: bool = False):
    """Return X, Y and c as float64, exact in float32; some rows have two labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)).astype(np.float32).astype(np.float64)
    if not dense:
        X *= rng.random((N, D)) < 0.3
    Y = np.eye(K)[rng.integers(0, K, N)]
    Y[:5] = 0.5 * Y[:5] + 0.5 * np.eye(K)[(Y[:5].argmax(axis=1) + 1) % K]
    c = rng.uniform(0.5, 2.0, N).astype(np.float32).astype(np.float64)
    return X, Y, c / c.sum()


def shard(X, Y, c, rows=None, dense: bool = False) -> Shard:
    """Return rows in the form that the solver takes."""
    return multinomial.shard_of(
        X, Y, c, np.arange(len(X)) if rows is None else rows, sparse=not dense
    )


def passed(solver, local, block, verb, epoch=1, rate=1.0):
    """Run one block pass."""
    return run_step(solver, local, block, Step(verb, epoch, rate), owned=False)


def blocks_of(W, n_blocks):
    """Return weights in blocks, without state."""
    ends = [K * j // n_blocks for j in range(n_blocks + 1)]
    return [
        initial_block(lo, hi, D)._replace(W=np.ascontiguousarray(W[:, lo:hi], np.float32))
        for lo, hi in itertools.pairwise(ends)
    ]


def test_exponentials_are_accurate_and_bounded():
    values = np.linspace(-120.0, 30.0, 20_001).astype(np.float32)
    report, powers = values.copy(), np.empty(len(values), np.float32)
    total = kernel.exponentials(report, np.float32(0.5), powers.view(np.int32), powers)
    true = np.exp(np.clip(values + np.float32(0.5), -87.0, 0.0).astype(np.float64))
    assert np.max(np.abs(report - true) / true) < 5e-7
    assert report.max() == 1.0
    assert total == pytest.approx(true.sum(), rel=1e-5)


def test_the_split_objective_is_the_objective_where_b_is_exact():
    X, Y, c = problem()
    W = np.random.default_rng(1).normal(size=(D, K))
    b = naive.exact_b(W, X)
    assert naive.split_objective(W, b, X, Y, c, 0.1) == pytest.approx(
        multinomial.objective(W, X, Y, c, 0.1), rel=1e-12
    )
    worse = naive.split_objective(W, b + 0.1, X, Y, c, 0.1)
    assert worse > naive.split_objective(W, b, X, Y, c, 0.1)  # exact b is the best b


def test_the_terms_of_eq_13_are_the_gradients_of_those_of_eq_12():
    X, Y, c = problem()
    rng, lam, step = np.random.default_rng(2), 0.3, 1e-6
    W, b = rng.normal(size=(D, K)), rng.normal(size=N)
    for i, k in ((0, 0), (3, 2), (17, 5)):
        numeric = np.empty(D)
        for j in range(D):
            up, down = W.copy(), W.copy()
            up[j, k] += step
            down[j, k] -= step
            numeric[j] = (
                naive.term(up, b, X, Y, c, lam, i, k) - naive.term(down, b, X, Y, c, lam, i, k)
            ) / (2 * step)
        assert naive.term_gradient(W, b, X, Y, c, lam, i, k) == pytest.approx(numeric, abs=1e-8)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("n_blocks", [1, 4])
def test_a_sum_sweep_makes_b_and_the_loss_exact(dense, n_blocks):
    X, Y, c = problem(dense=dense)
    W = (
        np.random.default_rng(3)
        .normal(scale=5.0, size=(D, K))
        .astype(np.float32)
        .astype(np.float64)
    )
    solver = DSMLRSolver()
    local = ShardState(shard(X, Y, c, dense=dense), 3, n_blocks, None)
    reports = [passed(solver, local, block, "sum")[1] for block in blocks_of(W, n_blocks)]
    assert [each.sweep is None for each in reports] == [True] * (n_blocks - 1) + [False]
    assert local.rows.b == pytest.approx(-logsumexp(X @ W, axis=1), rel=2e-6)
    assert reports[-1].sweep.loss == pytest.approx(multinomial.objective(W, X, Y, c, 0.0), rel=1e-6)
    assert sum(each.squared for each in reports) == pytest.approx((W**2).sum(), rel=1e-12)


def test_sums_that_would_overflow_do_not():
    X, Y, c = problem()
    W = (
        np.random.default_rng(3)
        .normal(scale=3000.0, size=(D, K))
        .astype(np.float32)
        .astype(np.float64)
    )
    solver = DSMLRSolver()
    local = ShardState(shard(X, Y, c), 0, 3, None)
    for block in blocks_of(W, 3):
        passed(solver, local, block, "sum")
    assert local.rows.b == pytest.approx(-logsumexp(X @ W, axis=1), rel=1e-5)
    after, _ = passed(
        solver,
        local,
        initial_block(0, 2, D)._replace(W=np.full((D, 2), 3000.0, np.float32)),
        "update",
    )
    assert np.isfinite(after.W).all()


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_gathered_gradients_are_those_of_the_objective(dense):
    X, Y, c = problem(dense=dense)
    W = np.random.default_rng(4).normal(size=(D, K)).astype(np.float32).astype(np.float64)
    solver, halves = DSMLRSolver(), (np.arange(0, 25), np.arange(25, N))
    locals_ = [ShardState(shard(X, Y, c, rows, dense), s, 2, None) for s, rows in enumerate(halves)]
    for verb in ("sum", "curvature"):
        blocks = blocks_of(W, 2)
        for local in locals_:
            blocks = [passed(solver, local, block, verb)[0] for block in blocks]
    G = np.hstack([block.state[0] for block in blocks])
    assert np.abs(G - multinomial.gradient(W, X, Y, c, 0.0)).max() < 2e-6
    for block in blocks:
        assert block.state[1] == pytest.approx(X.T @ (c[:, None] * X), abs=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_steps_equal_the_naive_ones(adaptive, summed):
    X, Y, c = problem(5)
    rng, lo, hi = np.random.default_rng(5), 2, 5
    W, h, b = rng.normal(size=(D, hi - lo)), rng.uniform(0.5, 1.0, D), rng.normal(size=N)
    norm, order = rng.uniform(0.0, 0.2, D), rng.permutation(N)
    want, wanted_h = naive.steps(W, h, b, X, Y[:, lo:hi], c, order, 0.7, norm, 0.5, adaptive)
    local = ShardState(shard(X, Y, c), 0, 1, None)
    local.rows.b[:] = b
    rule = kernel.StepRule(np.float32(0.7), frozen(norm, np.float32), np.float32(0.5), adaptive)
    W, h = W.astype(np.float32), h.astype(np.float32)
    kernel.steps(local.rows, order, lo, W, h, rule, summed)
    assert pytest.approx(want, rel=1e-4, abs=1e-5) == W
    assert pytest.approx(wanted_h, rel=1e-5) == h
    assert (local.rows.total > 0.0).all() == summed


def test_an_epoch_applies_the_norm_once():
    """If targets equal probabilities, an epoch only applies each row's share of the norm."""
    X, _, c = problem(6)
    solver = DSMLRSolver(lam=0.01, steps="sqrt", history=0)
    Y = np.full((N, K), 1.0 / K)
    local = ShardState(shard(X, Y, c), 0, 1, None)
    tiny = 1e-5  # so that scores and probabilities hardly change
    block = initial_block(0, K, D)._replace(W=np.full((D, K), tiny, np.float32))
    local.rows.b[:] = naive.exact_b(block.W.astype(np.float64), X)
    after, _ = passed(solver, local, block, "update", rate=0.01)
    rate = 0.01 * N / ((X**2).sum() / N)
    assert after.W == pytest.approx(np.full((D, K), tiny * np.exp(-rate * 0.01)), rel=1e-3)


def test_batches_of_dense_rows_step_against_their_gradient():
    X, Y, c = problem(7, dense=True)
    W = np.random.default_rng(7).normal(size=(D, K)).astype(np.float32)
    h, G = (
        np.ones(D, np.float32),
        multinomial.gradient(W.astype(np.float64), X, Y, c, 0.0).astype(np.float32),
    )
    norm = frozen(np.full(D, 0.01), np.float32)
    after = W.copy()
    kernel.batch_step(G, N, after, h, kernel.StepRule(np.float32(0.5), norm, np.float32(1.0), True))
    size = 0.5 / np.sqrt(1.0 + (G.astype(np.float64) ** 2).sum(axis=1))
    assert h == pytest.approx(1.0 + (G.astype(np.float64) ** 2).sum(axis=1), rel=1e-6)
    assert after == pytest.approx(
        (W - size[:, None] * G) / (1 + size[:, None] * 0.01 * N), rel=1e-5
    )


def test_the_best_labels_of_held_out_rows_are_merged_across_blocks():
    X, Y, c = problem(8)
    W = np.round(np.random.default_rng(8).normal(size=(D, K)), 1)  # so that scores tie
    solver = DSMLRSolver()
    local = ShardState(shard(X, Y, c), 0, 3, shard(X, Y, c))
    for _ in range(2):  # a sweep leaves no state behind
        reports = [passed(solver, local, block, "observe")[1] for block in blocks_of(W, 3)]
    result, S = reports[-1].sweep.held_out, (X @ W).astype(np.float32)
    assert result.labels.shape == (N, 5)
    assert result.loss == pytest.approx(multinomial.objective(W, X, Y, c, 0.0), rel=1e-5)
    for i in range(N):
        assert result.scores[i] == pytest.approx(np.sort(S[i])[::-1][:5], abs=1e-5)
        assert (np.diff(result.labels[i])[np.diff(result.scores[i]) == 0.0] > 0).all()
        assert S[i, result.labels[i]] == pytest.approx(result.scores[i], abs=1e-5)


def test_a_block_of_another_owner_is_not_modified():
    X, Y, c = problem(9)
    solver = DSMLRSolver()
    local = ShardState(shard(X, Y, c), 0, 1, None)
    block = initial_block(0, K, D)
    arrays = (block.W, *block.state)
    for array in arrays:
        array.flags.writeable = False
    for verb in ("both", "update", "sum", "gradient"):
        passed(solver, local, block, verb)
    assert all(not array.any() for array in arrays)
    after, _ = passed(solver, local, block, "both")
    again, _ = run_step(solver, local, after, Step("both", 2, 1.0), owned=True)
    assert again.W is after.W


def test_a_pass_stops_between_slices():
    X, Y, c = problem()
    solver = DSMLRSolver()
    local = ShardState(shard(X, Y, c), 0, 1, None)
    for verb in ("both", "sum", "gradient"):
        with pytest.raises(Stopped):
            run_step(
                solver,
                local,
                initial_block(0, K, D),
                Step(verb, 1, 1.0),
                owned=False,
                stopped=lambda: True,
            )
    assert SLICE_MULTIPLICATIONS < 1e9  # a slice takes a fraction of a second


def test_shards_split_the_rows():
    for n, shards in ((17, 4), (100_000, 3), (5, 5)):
        parts = [shard_rows(n, shards, 7, s) for s in range(shards)]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
        assert max(map(len, parts)) - min(map(len, parts)) <= max(1, n // (shards * 4096)) + 1
        assert all((np.diff(part) > 0).all() for part in parts)
    assert not np.array_equal(shard_rows(100, 2, 0, 0), shard_rows(100, 2, 1, 0))


def test_rows_without_labels_are_left_out_and_targets_add_up():
    X = csr_from(np.arange(12.0).reshape(4, 3))
    Y = pattern([0, 2, 2, 3, 6], [0, 4, 2, 0, 1, 3], 5)
    weights = np.array([1.0, 9.0, 2.0, 3.0], np.float32)
    total = total_weight(Y, weights)
    result = make_shard(X, Y, np.arange(4), total=total, weights=weights, bias=0.5)
    assert total == 6.0
    assert result.rows.tolist() == [0, 2, 3]
    assert result.weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert np.asarray(result.targets.to_scipy().sum(axis=1)).ravel().tolist() == pytest.approx(
        [1.0] * 3
    )
    assert result.X.to_scipy().toarray().tolist() == [
        [0, 1, 2, 0.5],
        [6, 7, 8, 0.5],
        [9, 10, 11, 0.5],
    ]
    assert label_targets(Y).data.tolist() == pytest.approx([0.5, 0.5, 1.0, 1 / 3, 1 / 3, 1 / 3])
    assert append_constant(X, 0.0) is X


def test_rows_with_few_zeros_are_kept_dense():
    X, Y, _ = problem(dense=True)
    full = make_shard(csr_from(X), _labels(Y), np.arange(N), total=float(N))
    thin = make_shard(csr_from(problem()[0]), _labels(Y), np.arange(N), total=float(N))
    assert full.dense is not None
    assert full.dense == pytest.approx(X)
    assert thin.dense is None


def _labels(Y):
    """Return the labels of targets."""
    rows, columns = np.nonzero(Y)
    return pattern(np.searchsorted(rows, np.arange(len(Y) + 1)), columns, Y.shape[1])


def test_the_grid_gives_every_worker_two_shards_and_blocks_that_travel():
    solver = DSMLRSolver()
    assert solver.grid(10_000, 500, 1_000, 4) == Grid(8, 8)
    assert solver.grid(3, 2, 1_000, 4) == Grid(3, 2)
    # Blocks are not narrower than a SIMD register.
    assert solver.grid(10_000, 20, 1_000, 4) == Grid(8, 4)
    assert solver.grid(10**6, 33_225, 1_348_182, 4).blocks == 2670  # blocks of 64 MB
    assert DSMLRSolver(shards=5, blocks=3).grid(10_000, 500, 1_000, 4) == Grid(5, 3)


def rest(epoch, objective, **more):
    """Return the state of a sync point at the first rate."""
    return SyncState(epoch, more.pop("rate", 1.0), objective, **more)


def test_decide_rolls_back_when_the_objective_rose():
    solver = DSMLRSolver()
    assert decide(solver, [rest(1, 2.0)])[:3] == (1.0, None, False)
    assert decide(solver, [rest(1, 2.0), rest(2, 2.5)])[:3] == (0.5, None, True)
    assert decide(solver, [rest(1, float("inf"))])[:3] == (0.5, None, True)
    after = decide(solver, [rest(1, 2.0), rest(2, 2.5, discarded=True), rest(2, 1.5, rate=0.5)])
    assert after[:4] == (0.5, None, False, None)
    assert decide(solver, [rest(1, 2.0), rest(2, 2.5, rate=0.01)]).lbfgs_action == "enter"


PLAIN = [{"history": 0}, {"lbfgs_switch_tol": 0.0}]


@pytest.mark.parametrize("never", PLAIN, ids=str)
def test_without_lbfgs_a_rise_does_not_count_and_ends_nothing(never):
    solver, start = DSMLRSolver(tolerance=1e-3, **never), [rest(1, 2.0)]
    rise = decide(solver, [*start, rest(2, 2.01)])
    assert (rise.roll_back, rise.counts, rise.stop, rise.lbfgs_action) == (False, False, None, None)
    assert decide(solver, [*start, rest(2, 4.5)])[:3] == (0.5, None, True)
    # a fall below the best counts again, after any number of rises
    risen = [rest(2, 2.01, discarded=True), rest(3, 2.02, discarded=True)]
    assert decide(solver, [*start, *risen, rest(4, 1.9)]).counts
    # five points that gained nothing: halve the rate if one of them rose, else end
    noisy = [*risen, rest(4, 2.01, discarded=True), rest(5, 1.9999), rest(6, 2.01)]
    assert decide(solver, [*start, *noisy])[:3] == (0.5, None, False)
    slow = [rest(2 + i, 2.0 - 1e-4 * i) for i in range(5)]
    assert "less than 0.001" in decide(solver, [*start, *slow]).stop
    assert decide(solver, [*start, *slow[:3]]).stop is None
    assert decide(solver, [*start, *slow[:4], rest(6, 1.9)]).stop is None
    # steps that were halved before have not reached the tolerance
    halved = [each._replace(rate=0.5) for each in slow]
    assert "ever smaller steps" in decide(solver, [*start, *halved]).stop


def test_decide_ends_when_no_rate_is_small_enough():
    back = [rest(2, 5.0, rate=0.5**n, discarded=True) for n in range(MAX_ROLLBACKS - 1)]
    history = [rest(1, 2.0), *back, rest(2, 5.0, rate=0.5**MAX_ROLLBACKS)]
    assert decide(DSMLRSolver(history=0), history[1:-1]).stop is None
    ended = decide(DSMLRSolver(history=0), history)
    assert ended.roll_back
    assert ended.stop.startswith("it went back 25 times")


def test_decide_switches_to_exact_gradients_and_ends():
    solver = DSMLRSolver(lbfgs_switch_tol=0.05, tolerance=1e-3)
    assert decide(solver, [rest(1, 1.0), rest(2, 0.9)]).lbfgs_action is None
    assert decide(solver, [rest(1, 1.0), rest(2, 0.97)]).lbfgs_action == "enter"
    assert decide(solver, [rest(1, 1.0), rest(500, 0.9)]).stop == "all 500 epochs are done"
    base = [rest(1, 1.0), rest(2, 0.97)]
    trial = {"length": 1.0, "slope": -0.1}
    assert decide(solver, [*base, rest(3, 0.9, **trial)])[:4] == (1.0, None, False, "accept")
    # Less than the Armijo condition requires.
    assert decide(solver, [*base, rest(3, 0.9699999, **trial)])[2:5] == (True, "retry", 0.5)
    assert decide(solver, [*base, rest(3, float("nan"), **trial)])[2:5] == (True, "retry", 0.5)
    stuck = decide(solver, [*base, rest(3, 1.0, length=1e-4, slope=-0.1)])
    assert stuck.roll_back
    assert "single precision" in stuck.stop
    slow = [rest(3 + i, 0.9 - 1e-5 * i, length=1.0, slope=-1e-9) for i in range(6)]
    assert "less than 0.001" in decide(solver, [*base, *slow]).stop


def test_decide_uses_held_out_rows():
    solver = DSMLRSolver(early_stopping_rounds=2)
    falling = [
        rest(i + 1, 1.0 / (i + 1), held_out=loss) for i, loss in enumerate((3.0, 2.0, 2.1, 2.2))
    ]
    assert "held-out" in decide(solver, falling).stop
    assert decide(solver, falling[:3]).stop is None
    assert decide(DSMLRSolver(), falling).stop is None


def test_parameters_are_checked():
    for wrong in ({"lam": 0.0}, {"passes": 3}, {"order": "star"}, {"epochs": 0}, {"history": -1}):
        with pytest.raises(ParameterError):
            DSMLRSolver(**wrong)


def test_exported_labels_lose_small_weights_and_keep_their_bias():
    solver = DSMLRSolver(bias=2.0, prune=0.1)
    W = np.array([[0.5, 0.05], [-0.2, 0.0], [0.25, -0.5]], np.float32)
    block = export_block(solver, initial_block(4, 6, 3)._replace(W=W), np.array([7, 8]))
    assert block.labels.tolist() == [4, 5]
    assert block.W.to_scipy().toarray().tolist() == [[0.5, pytest.approx(-0.2)], [0.0, 0.0]]
    assert block.bias.tolist() == [0.5, -1.0]
    assert block.records["pruned"].tolist() == [0, 1]
    assert block.records["positives"].tolist() == [7, 8]


@pytest.mark.parametrize("whole", [True, False], ids=["matrix", "diagonal"])
@pytest.mark.parametrize("m", [0, 1, 4])
def test_split_vectors_take_the_direction_of_the_two_loops(m, whole):
    rng, ends = np.random.default_rng(10 + m), [0, 1, 4, 6]
    root = rng.normal(size=(D, D))
    C = root @ root.T if whole else rng.uniform(0.5, 2.0, D)
    curve = rng.uniform(0.5, 2.0, (D, K))
    g, S = rng.normal(size=(D, K)), rng.normal(size=(m, D, K))
    Y = S * curve
    M = (
        np.linalg.inv(C + 100 * 0.01 * np.eye(D))
        if whole
        else np.diag((C + 100 * 0.01) ** -quasi_newton.DIAGONAL_POWER)
    )
    memories = []
    for lo, hi in itertools.pairwise(ends):
        part = quasi_newton.start_history(
            lo, hi, np.zeros((D, hi - lo), np.float32), np.float32(g[:, lo:hi]), np.float32(C), 0.01
        )
        for step, change in zip(S, Y, strict=True):
            part = quasi_newton.add_pair(
                part, np.float32(step[:, lo:hi]), np.float32(change[:, lo:hi]), m
            )
        memories.append(part)
    coefs, slope = quasi_newton.coefficients(
        quasi_newton.sum_products([quasi_newton.products(each) for each in memories])
    )
    aims = [quasi_newton.with_direction(each, coefs) for each in memories]
    want = naive.two_loops(g, S, Y, M)
    assert np.hstack([each.direction for each in aims]) == pytest.approx(want, rel=2e-4, abs=2e-4)
    assert slope == pytest.approx((g * want).sum(), rel=1e-4)
    assert slope < 0.0
    assert np.hstack([quasi_newton.weights_at_step(each, 0.5) for each in aims]) == pytest.approx(
        0.5 * want, rel=1e-3, abs=2e-4
    )


def test_the_history_keeps_the_last_pairs_and_packs_as_a_block():
    rng = np.random.default_rng(20)
    points = [rng.normal(size=(D, 2)).astype(np.float32) for _ in range(5)]
    memory = quasi_newton.start_history(2, 4, points[0], points[0], np.ones(D, np.float32), 0.5)
    for point in points[1:]:
        memory = quasi_newton.update_history(memory, point, point, 0.5, 3)
    assert len(memory.S) == len(memory.Y) == 3
    assert memory.S[-1] == pytest.approx(points[4] - points[3])
    assert memory.Y[-1] == pytest.approx(1.5 * (points[4] - points[3]), rel=1e-5)
    again = quasi_newton.unpack(quasi_newton.pack(memory))
    for one, other in zip(
        again[2:6] + again.S + again.Y, memory[2:6] + memory.S + memory.Y, strict=True
    ):
        assert one is other


def test_products_that_are_kept_are_those_of_the_kept_pairs():
    rng = np.random.default_rng(22)
    root = rng.normal(size=(D, D)).astype(np.float32)
    memory = quasi_newton.start_history(
        0, 2, np.zeros((D, 2), np.float32), np.ones((D, 2), np.float32), root @ root.T, 0.5
    )
    for _ in range(6):
        s, y = rng.normal(size=(2, D, 2)).astype(np.float32)
        memory = quasi_newton.add_pair(memory, s, y, 4)
    S, Y = (np.array(each, np.float64).reshape(4, -1) for each in (memory.S, memory.Y))
    MY = np.array([memory.M.astype(np.float64) @ each for each in memory.Y]).reshape(4, -1)
    want = np.hstack((np.triu(S @ Y.T), Y @ MY.T, (S * S).sum(1)[:, None], (Y * Y).sum(1)[:, None]))
    assert memory.pairs == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_pairs_without_curvature_are_passed_over():
    rng = np.random.default_rng(21)
    g, s = rng.normal(size=(D, 2)).astype(np.float32), rng.normal(size=(D, 2)).astype(np.float32)
    memory = quasi_newton.start_history(0, 2, np.zeros_like(g), g, np.ones(D, np.float32), 1e-9)
    memory = quasi_newton.add_pair(memory, s, -s, 5)
    coefs, slope = quasi_newton.coefficients(quasi_newton.products(memory))
    assert quasi_newton.with_direction(memory, coefs).direction == pytest.approx(-g, rel=1e-4)
    assert slope == pytest.approx(-float((g.astype(np.float64) ** 2).sum()), rel=1e-5)


@pytest.mark.parametrize("steps", ["adaptive", "sqrt"])
@pytest.mark.parametrize("passes", [1, 2])
def test_steps_alone_come_near_the_optimum_without_tuning(steps, passes):
    """Plain nested loops over a grid of 3 x 2 come within 5 % of the optimum."""
    X, Y, c = problem(30)
    solver = DSMLRSolver(lam=0.01, history=0, steps=steps, passes=passes)
    parts = [shard(X, Y, c, rows) for rows in np.array_split(np.arange(N), 3)]
    locals_ = [ShardState(part, s, 2, None) for s, part in enumerate(parts)]
    blocks = [initial_block(lo, hi, D) for lo, hi in ((0, 3), (3, K))]
    for epoch in range(1, 41):
        for verb in solver.sweep_kinds(1):
            for s, local in enumerate(locals_):
                for j in range(2):
                    blocks[j] = run_step(
                        solver, local, blocks[j], Step(verb, epoch, 1.0), owned=s > 0
                    )[0]
    W = np.hstack([block.W for block in blocks]).astype(np.float64)
    best = multinomial.objective(multinomial.solve(X, Y, c, 0.01), X, Y, c, 0.01)
    assert best < multinomial.objective(W, X, Y, c, 0.01) < 1.05 * best
