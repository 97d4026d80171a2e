"""Momentum of PPDSparse's sweeps against NumPy: the best point of the plane, bounds, v of alpha."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from xcray.arrays import csr_from, frozen, pattern
from xcray.kernels.training.ppdsparse import momentum, rows, sweeps
from xcray.kernels.training.ppdsparse.advance import reset_class
from xcray.kernels.training.ppdsparse.state import STATE, PPDSparseSettings
from xcray.solvers import make_solver

reset = reset_class
add_rows = rows.add_rows
start_sweeps, sweep = sweeps.start_sweeps, sweeps.sweep
save_start, add_momentum = momentum.save_start, momentum.add_momentum
N, D = 60, 12


@numba.njit
def begin(problem, s, scratch, state):
    """Make all samples active."""
    at = state[0]
    reset(problem, s, np.int32(0), scratch, at)  # a compiled signature
    for i in range(len(scratch.is_active)):
        if scratch.is_active[i] == 0:
            scratch.entering[at.n_entering] = i
            at.n_entering += 1
    add_rows(problem, s.objective, -1.0, scratch, at)
    start_sweeps(s, at)


@numba.njit
def one_sweep(s, scratch, state):
    """Run a sweep, without what follows it."""
    sweep(s, scratch, state[0], np.int64(1 << 40))


@numba.njit
def save(scratch, state):
    """Call the kernel, which has no entry point for Python."""
    save_start(scratch, state[0])


@numba.njit
def add(s, scratch, state):
    """Call the kernel, which has no entry point for Python."""
    add_momentum(s.objective, scratch, state[0])


class Case:
    """A label whose rows are all active, after some sweeps."""

    def __init__(self, loss: str, lam: float, C: float, n_sweeps: int) -> None:
        rng = np.random.default_rng(7)
        X = (1.0 + 0.3 * rng.normal(size=(N, D))).astype(np.float32)
        self.X = X.astype(np.float64)
        self.y = np.where(np.arange(N) % 3 == 0, 1.0, -1.0)
        samples = np.flatnonzero(self.y > 0).astype(np.int32)
        Y = pattern(np.array([0, len(samples)]), samples, N)
        solver = make_solver("ppdsparse", {"loss": loss, "lam": lam, "C": C, "bias_penalty": 0.5})
        local = solver.load(csr_from(X), csr_from(X.T.copy()), Y)
        self.o = solver._objective()
        self.settings = PPDSparseSettings(self.o, 1e-6, 100, 100, 4, 0, False)
        self.problem, self.scratch = local.problem, local.scratch
        self.state = np.zeros(1, STATE)
        begin(self.problem, self.settings, self.scratch, self.state)
        for _ in range(n_sweeps):
            self.sweep()

    def sweep(self) -> None:
        """Run one sweep."""
        one_sweep(self.settings, self.scratch, self.state)

    def add(self) -> None:
        """Add momentum."""
        add(self.settings, self.scratch, self.state)

    def alpha(self) -> np.ndarray:
        """Return alpha by sample."""
        return self.by_sample(self.scratch.rows["alpha"])

    def by_sample(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all rows by sample: all samples have one."""
        return values[self.scratch.row_of - 1]

    def v(self, values: np.ndarray) -> np.ndarray:
        """Return a vector over numbered features by feature."""
        out = np.zeros(D)
        n = self.state["n_touched"][0]
        out[self.scratch.touched[:n]] = values[:n]
        return out

    def dual(self, alpha: np.ndarray) -> float:
        """Return what sweeps maximise, up to a constant: the bias is held near its center."""
        o, center = self.o, self.state["center"][0]
        v, vb = (alpha * self.y) @ self.X, (alpha * self.y).sum()
        w = np.sign(v) * np.maximum(np.abs(v) - o.lam, 0.0)
        b = vb + (o.tau - o.tau_bias) * center
        inv = 0.5 / o.C if o.loss == 0 else 0.0
        return float(alpha.sum() - 0.5 * inv * alpha @ alpha - 0.5 * (w @ w + b * b) / o.tau)


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("C", [0.01, 0.5, 20.0])
def test_no_move_lowers_the_dual_or_leaves_the_bounds(loss, C):
    """Also in the first sweeps, in which many samples leave the active set."""
    case = Case(loss, 0.05, C, 1)
    save(case.scratch, case.state)
    for _ in range(12):
        start = case.by_sample(case.scratch.alpha_start)
        case.sweep()
        swept = case.alpha()
        case.add()
        alpha = case.alpha()
        assert case.dual(alpha) >= case.dual(swept) - 1e-12  # rounding
        assert alpha.min() >= 0.0
        assert loss == "squared_hinge" or alpha.max() <= C
        np.testing.assert_allclose(
            case.v(case.scratch.v), (alpha * case.y) @ case.X, rtol=1e-9, atol=1e-9
        )
        assert case.state["vb"][0] == pytest.approx((alpha * case.y).sum(), abs=1e-9)
        active = case.scratch.is_active > 0
        new_start = case.by_sample(case.scratch.alpha_start)
        np.testing.assert_array_equal(new_start[active], alpha[active])
        change = case.by_sample(case.scratch.alpha_change)
        np.testing.assert_allclose(change[active], (alpha - start)[active], atol=1e-12)
        np.testing.assert_allclose(
            case.v(case.scratch.v_change), ((alpha - start) * case.y) @ case.X, atol=1e-9
        )


def test_the_point_is_the_best_of_the_plane():
    """Without l1 and with all alphas inside their bounds the model is the dual itself."""
    case = Case("squared_hinge", 0.0, 0.001, 2)
    save(case.scratch, case.state)
    case.sweep()
    case.add()  # nothing is known but the change of this sweep
    before, change = case.alpha(), case.by_sample(case.scratch.alpha_change)
    case.sweep()
    swept = case.alpha()
    case.add()
    after = case.alpha()
    assert swept.min() > 0.0
    assert after.min() > 0.0
    assert case.dual(after) > case.dual(swept)
    best = case.dual(after)
    for x, y in [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3), (0.1, -0.1), (1.0, 1.0)]:
        assert case.dual(after + x * (swept - before) + y * change) < best


def test_a_move_that_does_not_raise_the_dual_is_undone():
    """A change that leads away from the maximum, with a model that does not see the bounds."""
    case = Case("hinge", 0.0, 0.001, 2)  # nearly all alphas are at their upper bounds
    save(case.scratch, case.state)
    case.sweep()
    case.add()
    change = np.where(case.scratch.is_active > 0, case.y * np.arange(N), 0.0)
    case.scratch.alpha_change[case.scratch.row_of - 1] = change
    numbered = case.scratch.touched[: case.state["n_touched"][0]]
    case.scratch.v_change[: len(numbered)] = ((change * case.y) @ case.X)[numbered]
    case.state["vb_change"] = (change * case.y).sum()
    case.sweep()
    swept, v = case.alpha(), case.v(case.scratch.v)
    case.add()
    np.testing.assert_array_equal(case.alpha(), swept)
    np.testing.assert_array_equal(case.v(case.scratch.v), v)


def test_many_samples_at_their_bounds_take_few_sweeps():
    """Coordinate descent alone took 45 sweeps, moves that were never undone 155, now 31."""
    rng = np.random.default_rng(2)
    X = (rng.random((20000, 12)) < 0.5).astype(np.float32)
    samples = np.flatnonzero(X[:, 0] + 0.5 * rng.normal(size=20000) > 0.3).astype(np.int32)
    solver = make_solver("ppdsparse", {"C": 1.0})
    Y = pattern(np.array([0, len(samples)]), samples, 20000)
    local = solver.load(csr_from(X), csr_from(X.T.copy()), Y)
    record = solver.solve(local, frozen(np.zeros(1), np.int32)).records[0]
    assert record["gap"] <= 0.01 * record["null"]
    assert record["sweeps"] < 40


def test_similar_rows_take_few_sweeps():
    """Coordinate descent without momentum took 90 sweeps here (revision 8), with it 24."""
    rng = np.random.default_rng(3)
    X = (1.0 + 0.1 * rng.normal(size=(300, 100))).astype(np.float32)
    samples = np.arange(0, 300, 4, dtype=np.int32)
    solver = make_solver("ppdsparse", {"C": 0.09, "eps": 0.001, "max_sweeps": 1000})
    local = solver.load(csr_from(X), csr_from(X.T.copy()), pattern([0, 75], samples, 300))
    record = solver.solve(local, frozen(np.zeros(1), np.int32)).records[0]
    assert record["gap"] <= 0.001 * record["null"]
    assert record["sweeps"] < 45
