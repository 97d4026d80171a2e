"""MEMOIR with approximate indexes: rivals, margin errors, the switch to exact search, resuming."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.group_programs import train_rows
from tests.unit.solvers.test_memoir import D, K, N, local_of, problem, rows_of, solved
from xcray.arrays import CSR, TopK, csr_from, frozen
from xcray.errors import ParameterError
from xcray.index.approximate import ExactIndex
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.kernels.training.memoir import MemoirBatch, MemoirProblem
from xcray.solvers.memoir import oracle
from xcray.solvers.memoir.margin_errors import Capacity, OracleErrors
from xcray.solvers.memoir.oracle import IndexOracle
from xcray.solvers.memoir.solver import MemoirSolver

SETTINGS: dict[str, Any] = {"rounds": 6, "batch": 30, "group": 0, "oracle": "lsh", "seed": 3}
USED = K - 1  # classes with rows
CAPACITY = Capacity(classes=USED, rows=N, radius=2.0, margin=0.5)


class LastRows:
    """An index that finds the last rows, whatever the query is."""

    def __init__(self, W: CSR) -> None:
        self._exact = ExactIndex(W)

    def query(self, X: CSR, k: int) -> TopK:
        """Return the last k rows with their exact scores."""
        top = self._exact.query(X, USED)
        chosen = top.labels >= top.labels.shape[1] - k
        shape = (X.n_rows, k)
        return TopK(
            frozen(top.labels[chosen].reshape(shape), np.int32),
            frozen(top.scores[chosen].reshape(shape), np.float64),
        )


def weights() -> tuple[Any, CSR]:
    """Return weights of the classes with rows, dense and sparse."""
    W = np.random.default_rng(4).normal(size=(USED, D)).astype(np.float32)
    return W.astype(np.float64), csr_from(W)


def batch_of(problem: MemoirProblem, samples: Any) -> MemoirBatch:
    """Return samples as a batch."""
    rows = problem.rows[samples].astype(np.int64)
    X, Y = take_rows(problem.X, rows), take_pattern_rows(problem.Y, rows)
    return MemoirBatch(X, Y, problem.classes[samples], np.arange(len(samples), dtype=np.uint64))


@pytest.mark.parametrize("index", [ExactIndex, LastRows])
def test_rivals_and_margin_errors_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch, index: Any
) -> None:
    monkeypatch.setattr(oracle, "build_index", lambda name, W, **_: index(W))
    X, Y = problem()
    solver = MemoirSolver(**SETTINGS, margin=0.5)
    samples_of = local_of(solver, X, Y).problem
    dense, W = weights()
    samples = np.arange(len(samples_of.rows))
    search = IndexOracle(solver, CAPACITY)
    found = search.rivals(W, batch_of(samples_of, samples), 0, len(samples))
    errors, leads = [], []
    for sample, rival in zip(samples, found, strict=True):
        i, y = samples_of.rows[sample], samples_of.classes[sample]
        scores = np.where(Y[i, :USED], -np.inf, X[i].astype(np.float64) @ dense.T)
        best = int(scores.argmax())
        expected = best if index is ExactIndex else USED - 3 + int(scores[-3:].argmax())
        errors.append(scores[best] - scores[expected])
        own = X[i].astype(np.float64) @ dense[y]
        leads.append(own - scores[expected])
        assert rival == (expected if leads[-1] < 0.5 else -2 - expected)
    figures = search.finish(7, norm=3.0)
    assert figures.round == 7
    assert figures.mean == pytest.approx(np.mean(errors), abs=1e-6)
    assert figures.p95 == pytest.approx(np.quantile(errors, 0.95), abs=1e-6)
    assert figures.largest == pytest.approx(max(errors), abs=1e-6)
    assert figures.agreement == pytest.approx(np.mean(np.array(errors) == 0.0))
    assert figures.queries_per_second > 0.0
    assert figures.samples == len(errors)
    assert figures.above_10 == pytest.approx(np.mean(np.array(errors) > 0.05))
    eps = max(errors) / 0.5
    assert figures.risk == pytest.approx(np.maximum(0.0, 1.0 + eps - np.array(leads) / 0.5).mean())
    assert figures.complexity == pytest.approx(4 * USED / 0.5 * 2.0 * 3.0 / np.sqrt(N))


def test_rows_with_all_classes_have_no_rival() -> None:
    X, _ = problem()
    solver = MemoirSolver(**SETTINGS)
    local = local_of(solver, X, np.ones((N, K), bool))
    W = csr_from(np.ones((K, D), np.float32))
    batch = batch_of(local.problem, np.arange(20))
    found = IndexOracle(solver, CAPACITY).rivals(W, batch, 0, 20)
    assert (found == -1).all()


def test_many_bits_train_nearly_as_the_exact_search() -> None:
    X, Y = problem(labels_per_row=1)
    settings = {**SETTINGS, "rounds": 40, "group": 30}
    exact = solved(MemoirSolver(**{**settings, "oracle": "exact"}), X, Y)
    hashed = solved(MemoirSolver(**settings, bits=4096), X, Y)
    hits = [
        (X @ block.W.to_scipy().toarray().T).argmax(axis=1) == Y.argmax(axis=1)
        for block in (exact, hashed)
    ]
    assert abs(hits[0].mean() - hits[1].mean()) < 0.1


def test_figures_are_in_the_history_and_a_training_resumes_with_the_same_bits() -> None:
    X, Y = problem()
    solver = MemoirSolver(**SETTINGS)
    whole = train_rows(solver, rows_of(X, Y))
    resumed = train_rows(solver, rows_of(X, Y), state=whole.rounds[2].state)
    assert resumed.labels[0].digest() == whole.labels[0].digest()
    figures = solver.report([{"epoch": each.number, **each.entry} for each in whole.rounds])
    assert [each["round"] for each in figures["oracle"]] == [1, 2, 3, 4, 5, 6]
    assert set(figures["oracle"][0]) == set(OracleErrors._fields)
    assert solver.report([{"epoch": 1}]) == {}


def test_bits_are_a_multiple_of_64() -> None:
    with pytest.raises(ParameterError, match="multiple of 64, not 100"):
        MemoirSolver(bits=100)
