"""The solver: LIBLINEAR's objective, certificates, decreasing objectives, one contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, load, svm_problem
from xcray.arrays import csr_from, frozen
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import transpose
from xcray.solvers.indexed_bcd.label import BLOCK_SWEEPS, LabelTraining, SweepProgress
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver
from xcray.solvers.solved_labels import SolvedLabels

NO_OUTLIERS = 1e30
FIRST = frozen([0], np.int32)
# queries matter only if the first rows and the rows per query are few
SMALL = {"C": 0.1, "first_rows": 60, "query_rows": 40, "max_sweeps": 3000}


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=3_000)


def new_training(
    solver: IndexedBCDSolver,
    local: HingeState,
    observe: Callable[[SweepProgress], None] = lambda progress: None,
) -> LabelTraining:
    """Return the training of the first class."""
    return LabelTraining(
        local.store,
        local.scratch,
        local.selection,
        local.positives(0),
        0,
        solver.label_settings(local, 0),
        observe=observe,
    )


def train(
    solver: IndexedBCDSolver, problem: SVMProblem, weights: np.ndarray | None = None
) -> SolvedLabels:
    """Return the only label, solved."""
    return solver.solve(load(solver, problem, weights), FIRST)


def v_of(solved: SolvedLabels) -> np.ndarray:
    """Return weights and bias (D + 1,)."""
    return np.append(solved.W.to_scipy().toarray()[0], solved.bias[0])


def liblinear(problem: SVMProblem, C: float, weights: np.ndarray | None = None) -> np.ndarray:
    """Return weights and bias of LIBLINEAR's l1-loss SVM."""
    model = LinearSVC(loss="hinge", C=C, tol=1e-8, max_iter=1_000_000, random_state=0)
    model.fit(problem.dense, problem.y, weights)
    return np.append(model.coef_, model.intercept_)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_without_outliers_it_has_the_objective_of_liblinear(
    noisy: SVMProblem, selection: str
) -> None:
    solver = IndexedBCDSolver(**SMALL, s=NO_OUTLIERS, eps=1e-5, selection=selection)
    solved = train(solver, noisy)
    costs = np.full(len(noisy.y), 0.1)
    ours = naive.primal(noisy.dense, noisy.y, costs, v_of(solved))
    theirs = naive.primal(noisy.dense, noisy.y, costs, liblinear(noisy, 0.1))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert solved.records["outliers"] == 0
    assert solver.certified(solved.records).all()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_certificate_is_that_of_all_rows(noisy: SVMProblem, selection: str) -> None:
    solver = IndexedBCDSolver(**SMALL, s=NO_OUTLIERS, eps=1e-3, selection=selection)
    solved = train(solver, noisy)
    record, v, costs = solved.records[0], v_of(solved), np.full(len(noisy.y), 0.1)
    assert record["primal"] == pytest.approx(naive.primal(noisy.dense, noisy.y, costs, v), rel=1e-6)
    optimum = naive.primal(noisy.dense, noisy.y, costs, liblinear(noisy, 0.1))
    assert record["dual"] <= optimum * (1 + 1e-6) <= record["primal"] * (1 + 2e-6)
    assert record["gap"] == record["primal"] - record["dual"] <= 1e-3 * record["null"]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_truncated_objective_is_that_of_the_weights(noisy: SVMProblem, selection: str) -> None:
    solver = IndexedBCDSolver(**SMALL, selection=selection)
    solved = train(solver, noisy)
    record, v, costs = solved.records[0], v_of(solved), np.full(len(noisy.y), 0.1)
    objective = naive.truncated_objective(noisy.dense, noisy.y, costs, v, 1.0)
    assert record["objective"] == pytest.approx(objective, rel=1e-6)
    margins = naive.margins(noisy.dense, noisy.y, v)
    assert abs(record["outliers"] - (margins < -1.0).sum()) <= 1
    assert 30 < record["outliers"] < 300


def test_all_selections_reach_the_same_objective(noisy: SVMProblem) -> None:
    records = {
        name: train(IndexedBCDSolver(**SMALL, eps=1e-4, selection=name), noisy).records[0]
        for name in SELECTIONS
    }
    objectives = [record["objective"] for record in records.values()]
    assert max(objectives) <= 1.005 * min(objectives)
    assert all(record["queries"] > 1 for record in records.values())


@pytest.mark.parametrize("selection", SELECTIONS)
def test_objectives_decrease_and_the_last_outliers_are_stable(
    noisy: SVMProblem, selection: str
) -> None:
    solver = IndexedBCDSolver(**SMALL, s=0.1, eps=1e-4, selection=selection)
    local = load(solver, noisy)
    training = new_training(solver, local)
    result, stationary = training.train()
    assert stationary
    assert len(training.objectives) >= 2
    assert (np.diff(training.objectives) < 0.0).all()
    assert result.objective == training.objectives[-1]


def test_truncation_gives_fewer_support_vectors(noisy: SVMProblem) -> None:
    supports = [
        int(train(IndexedBCDSolver(**SMALL, s=s), noisy).records["support"][0])
        for s in (0.2, 1.0, NO_OUTLIERS)
    ]
    assert supports[0] < supports[1] < supports[2]


def test_an_outlier_does_not_move_the_weights(noisy: SVMProblem) -> None:
    far = noisy.X.to_scipy().toarray()
    far[np.flatnonzero(noisy.y > 0)[0]] = -100.0 * v_of(train(IndexedBCDSolver(), noisy))[:-1]
    moved = noisy._replace(X=csr_from(far))
    ours = v_of(train(IndexedBCDSolver(**SMALL, eps=1e-4), moved))
    without = v_of(train(IndexedBCDSolver(**SMALL, eps=1e-4), noisy))
    theirs = liblinear(moved, 0.1)
    assert np.linalg.norm(ours - without) < 0.2 * np.linalg.norm(theirs - without)


def test_weights_of_rows_are_factors_of_their_losses(noisy: SVMProblem) -> None:
    weights = np.random.default_rng(0).integers(1, 4, len(noisy.y)).astype(np.float32)
    solved = train(IndexedBCDSolver(**SMALL, s=NO_OUTLIERS, eps=1e-5), noisy, weights)
    costs = 0.1 * weights.astype(np.float64)
    ours = naive.primal(noisy.dense, noisy.y, costs, v_of(solved))
    theirs = naive.primal(noisy.dense, noisy.y, costs, liblinear(noisy, 0.1, weights))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_label_has_the_same_bits_in_any_batch(noisy: SVMProblem, selection: str) -> None:
    solver = IndexedBCDSolver(**SMALL, selection=selection)
    both = noisy.YT._replace(
        indptr=frozen([0, len(noisy.YT.indices), len(noisy.YT.indices) + 700], np.int64),
        indices=frozen([*noisy.YT.indices, *range(700)], np.int32),
    )
    local = solver.load(noisy.X, transpose(noisy.X), both)
    first, then = (solver.solve(local, frozen([k], np.int32)) for k in (1, 0))
    again = solver.solve(local.clone_for_thread(), frozen([0, 1], np.int32))
    for k, alone in ((0, then), (1, first)):
        assert alone.W.to_scipy().toarray().tobytes() == again.W.to_scipy()[k].toarray().tobytes()
        assert alone.bias[0] == again.bias[k]
        assert alone.records[0] == again.records[k]


def test_weights_are_observed_only_after_blocks_and_sweeps(noisy: SVMProblem) -> None:
    solver = IndexedBCDSolver(**SMALL)
    local, points = load(solver, noisy), list[SweepProgress]()
    training = new_training(solver, local, points.append)
    training.train()
    blocks = (training.sweeps - len(points)) // (BLOCK_SWEEPS - 1)
    assert training.queries < blocks < len(points)
    assert [point.reads for point in points] == sorted(point.reads for point in points)


def test_a_convex_problem_keeps_its_active_rows_from_its_first_pass_on(noisy: SVMProblem) -> None:
    solver = IndexedBCDSolver(**SMALL, s=0.5, eps=1e-4)
    local, sizes = load(solver, noisy), dict[int, list[int]]()
    training = new_training(
        solver,
        local,
        lambda _: sizes.setdefault(training.rounds, []).append(training.n_active),
    )
    training.train()
    del sizes[0]  # queries remove idle rows
    assert len(sizes) >= 2
    assert all(each == sorted(each) for each in sizes.values())


def test_it_stops_between_slices(noisy: SVMProblem) -> None:
    calls = iter([False] * 5)
    solver = IndexedBCDSolver(**SMALL)
    local = load(solver, noisy)
    with pytest.raises(Stopped):
        solver.solve(local, FIRST, lambda: next(calls, True))
    assert solver.solve(local, FIRST).digest() == train(solver, noisy).digest()


def test_too_few_sweeps_are_not_certified(noisy: SVMProblem) -> None:
    solver = replace(IndexedBCDSolver(**SMALL, eps=1e-6), max_sweeps=1)
    records = train(solver, noisy).records
    assert not solver.certified(records).any()
    assert "1 are not certified" in solver.summarize(records)["stopped"]


def test_bad_input_names_the_fix(noisy: SVMProblem) -> None:
    solver = IndexedBCDSolver()
    with pytest.raises(ParameterError, match="labels 0 to 0"):
        solver.solve(load(solver, noisy), frozen([1], np.int32))
    with pytest.raises(ParameterError, match="3000 finite numbers above 0"):
        load(solver, noisy, np.zeros(3_000, np.float32))
    with pytest.raises(ParameterError, match="exact, pages, forest, auto"):
        IndexedBCDSolver(selection="tree")
