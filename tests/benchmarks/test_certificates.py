"""The independent check of certificates: its reference, and that it finds a false certificate."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.training.certificates import check_label
from benchmarks.training.reference import Bounds, LabelProblem, ascend_dual, solve
from tests.naive.ppdsparse import null_objective, primal, solve_squared_hinge
from tests.support.ppdsparse_problems import local_of, problem, signs
from xcray.solvers.ppdsparse import PPDSparseSolver


def label_problem(squared: bool, penalty: float = 1.0) -> LabelProblem:
    X, Y = problem(3)
    X64 = X.to_scipy().astype(np.float64)
    return LabelProblem(X64, signs(Y, 2), squared, 0.05, 1.0, penalty, 2.0)


@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_bounds_of_the_squared_hinge_enclose_the_naive_optimum(penalty: float) -> None:
    one = label_problem(squared=True, penalty=penalty)
    dense = one.X.toarray()
    *_, optimum = solve_squared_hinge(dense, one.y, one.lam, one.tau, one.C, penalty)
    null = null_objective(one.y, one.tau, one.C, penalty=penalty)
    assert one.null_objective() == pytest.approx(null, rel=1e-6)
    bounds = solve(one, 1e-9)
    assert bounds.dual <= optimum + 1e-9 * null
    assert bounds.primal == pytest.approx(optimum, abs=1e-8 * null)
    assert bounds.primal - bounds.dual <= 1e-9 * null
    naive = primal(bounds.u[:-1], bounds.u[-1], dense, one.y, 0.05, 1.0, 2.0, penalty=penalty)
    assert naive == pytest.approx(bounds.primal, rel=1e-12)


@pytest.mark.parametrize("squared", [True, False])
def test_the_dual_alone_reaches_the_optimum(squared: bool) -> None:
    one = label_problem(squared)
    bounds = Bounds(1e-8 * one.null_objective())
    assert ascend_dual(one, bounds)
    assert 0.0 < bounds.dual <= bounds.primal + 1e-12
    kind = "squared_hinge" if squared else "hinge"
    dense, u = one.X.toarray(), bounds.u
    naive = primal(u[:-1], u[-1], dense, one.y, one.lam, one.tau, one.C, kind)
    assert naive == pytest.approx(bounds.primal, rel=1e-12)


def test_a_gap_that_is_too_small_is_found() -> None:
    X, Y = problem(3)
    solver = PPDSparseSolver()
    local = local_of(solver, X, Y)
    block = solver.solve(local, np.array([2], np.int32), keep_duals=True)
    y = signs(Y, 2)
    one = LabelProblem(
        X.to_scipy().astype(np.float64), y, True, 0.01, 1.0, solver.bias_penalty, 1.0
    )
    weights, duals = block.W.to_scipy().toarray()[0], block.duals.to_scipy().toarray()[0]
    true = check_label(one, weights, duals, block.records[0], 1e-9)
    assert true["excess"] <= 0.0 < true["distance"]
    false = block.records[0].copy()
    false["gap"] = 0.5 * true["distance"] * one.null_objective()
    assert check_label(one, weights, duals, false, 1e-9)["excess"] > 0.0
