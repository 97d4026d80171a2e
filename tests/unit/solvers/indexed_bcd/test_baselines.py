"""Block minimisation, selective block minimisation and Pegasos: the objective of LIBLINEAR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from tests.naive import indexed_bcd as naive
from tests.support.svm_problems import SVMProblem, load, svm_problem
from xcray.arrays import frozen
from xcray.data.metric_forest import row_spill
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import transpose
from xcray.solvers.indexed_bcd.baselines import (
    BlockMinimisationSolver,
    PegasosSolver,
    SelectiveBlockMinimisationSolver,
)
from xcray.solvers.indexed_bcd.one_vs_rest import HingeOneVsRest
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.positional import read_array

FIRST = frozen([0], np.int32)
BLOCKS = (BlockMinimisationSolver, SelectiveBlockMinimisationSolver)
ALL: tuple[type[HingeOneVsRest], ...] = (*BLOCKS, PegasosSolver)


@pytest.fixture(scope="module")
def noisy() -> SVMProblem:
    """Return a problem with 5 % label noise."""
    return svm_problem(3, n=2_000)


def v_of(solved: SolvedLabels) -> np.ndarray:
    """Return weights and bias (D + 1,)."""
    return np.append(solved.W.to_scipy().toarray()[0], solved.bias[0])


OBJECTIVES = {"hinge": naive.primal, "squared_hinge": naive.squared_primal}


def optimum(problem: SVMProblem, costs: np.ndarray, loss: str = "hinge") -> float:
    """Return the objective of LIBLINEAR's l1-loss or l2-loss SVM."""
    model = LinearSVC(loss=loss, dual=True, C=1.0, tol=1e-8, max_iter=1_000_000, random_state=0)
    model.fit(problem.dense, problem.y, costs)
    v = np.append(model.coef_, model.intercept_)
    return OBJECTIVES[loss](problem.dense, problem.y, costs, v)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_blocks_reach_the_objective_of_liblinear(
    noisy: SVMProblem, kind: type[BlockMinimisationSolver], is_weighted: bool, loss: str
) -> None:
    weights = np.random.default_rng(0).integers(1, 4, len(noisy.y)).astype(np.float32)
    costs = 0.1 * (weights if is_weighted else np.ones(len(noisy.y))).astype(np.float64)
    solver = kind(C=0.1, eps=1e-4, loss=loss)
    solved = solver.solve(load(solver, noisy, weights if is_weighted else None), FIRST)
    record, best = solved.records[0], optimum(noisy, costs, loss)
    assert solver.certified(solved.records).all()
    assert record["dual"] <= best * (1 + 1e-6) <= record["primal"] * (1 + 2e-6)
    assert record["primal"] == pytest.approx(
        OBJECTIVES[loss](noisy.dense, noisy.y, costs, v_of(solved)), rel=1e-6
    )
    assert record["gap"] == record["primal"] - record["dual"] <= 1e-4 * record["null"]
    assert record["rows_read"] == record["rounds"] * len(noisy.y)
    assert record["bytes_read"] == record["rounds"] * 8 * noisy.X.nnz


def test_blocks_are_read_from_disk(noisy: SVMProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()

    def counting(handle: int, dtype: Any, n: int, position: int) -> Any:
        sizes.append(np.dtype(dtype).itemsize * n)
        return read_array(handle, dtype, n, position)

    monkeypatch.setattr(row_spill, "read_array", counting)
    solver = BlockMinimisationSolver(C=0.1, blocks=7, max_epochs=3)
    local = load(solver, noisy)
    assert local.store.rows.X.nnz == 0  # no row is in memory
    now = list(solver.progress(local, 0, lambda: None))[-1]
    assert sum(sizes) == local.store.bytes_read == 3 * 8 * noisy.X.nnz
    assert now.reads == 3 * len(noisy.y)
    assert max(sizes) < 4 * noisy.X.nnz / 6  # a block, never all rows


def test_the_cache_saves_epochs() -> None:
    problem = svm_problem(7, n=4_000, d=20, flipped=0.0)
    epochs = []
    for kind in BLOCKS:
        solver = kind(C=1.0, eps=1e-3, sweeps=5)
        epochs.append(int(solver.solve(load(solver, problem), FIRST).records["rounds"][0]))
    assert epochs[1] < epochs[0]


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("loss", OBJECTIVES)
def test_pegasos_takes_the_steps_of_the_reference(
    noisy: SVMProblem, is_weighted: bool, loss: str
) -> None:
    weights = np.random.default_rng(0).integers(1, 4, len(noisy.y)).astype(np.float32)
    costs = 0.1 * (weights if is_weighted else np.ones(len(noisy.y))).astype(np.float64)
    solver = PegasosSolver(C=0.1, epochs=2, loss=loss)
    solved = solver.solve(load(solver, noisy, weights if is_weighted else None), FIRST)
    rng, order = np.random.default_rng([0, 0]), np.arange(len(noisy.y))
    steps = list[int]()
    for _ in range(2):
        rng.shuffle(order)
        steps += order.tolist()
    is_squared = loss == "squared_hinge"
    expected = naive.pegasos(noisy.dense, noisy.y, costs, np.array(steps), is_squared)
    assert v_of(solved) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_pegasos_comes_near_the_optimum(noisy: SVMProblem, loss: str) -> None:
    solver = PegasosSolver(C=0.1, epochs=100, loss=loss)
    record = solver.solve(load(solver, noisy), FIRST).records[0]
    best = optimum(noisy, np.full(len(noisy.y), 0.1), loss)
    assert best * (1 - 1e-6) <= record["primal"] <= 1.02 * best
    assert record["rows_read"] == 100 * len(noisy.y)
    assert solver.certified(np.array([record])) is None


@pytest.mark.parametrize("kind", ALL)
def test_a_label_has_the_same_bits_in_any_batch(
    noisy: SVMProblem, kind: type[HingeOneVsRest]
) -> None:
    solver = kind()
    n = len(noisy.YT.indices)
    three = noisy.YT._replace(
        indptr=frozen([0, n, n + 700, n + 700], np.int64),
        indices=frozen([*noisy.YT.indices, *range(700)], np.int32),
    )
    local = solver.load(noisy.X, transpose(noisy.X), three)
    alone = [solver.solve(local, frozen([k], np.int32)) for k in (2, 1, 0)][::-1]
    batch = solver.solve(local.clone_for_thread(), frozen([0, 1, 2], np.int32))
    for k, solved in enumerate(alone):
        assert solved.W.to_scipy().toarray().tobytes() == batch.W.to_scipy()[k].toarray().tobytes()
        assert solved.bias[0] == batch.bias[k]
        assert solved.records[0] == batch.records[k]
    assert batch.bias[2] == -1.0  # a label without rows


@pytest.mark.parametrize("kind", ALL)
def test_it_stops_between_slices(noisy: SVMProblem, kind: type[HingeOneVsRest]) -> None:
    calls, solver = iter([False] * 3), kind()
    local = load(solver, noisy)
    with pytest.raises(Stopped):
        solver.solve(local, FIRST, lambda: next(calls, True))


def test_too_few_epochs_are_not_certified(noisy: SVMProblem) -> None:
    solver = replace(BlockMinimisationSolver(eps=1e-6), max_epochs=1)
    records = solver.solve(load(solver, noisy), FIRST).records
    assert not solver.certified(records).any()
    assert "1 are not certified" in solver.summarize(records)["stopped"]


def test_bad_parameters_name_the_range() -> None:
    with pytest.raises(ParameterError, match="cache must be greater than 0"):
        SelectiveBlockMinimisationSolver(cache=0.0)
    with pytest.raises(ParameterError, match="epochs must be at least 1"):
        PegasosSolver(epochs=0)
