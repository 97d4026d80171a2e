"""Stagewise regression over blocks of columns of sparse rows, against float64 formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.naive import multinomial as naive
from tests.unit.solvers.least_squares.test_stagewise import LAM, SHARDS, K, N, Work, ridge
from xcray.arrays import CSR, Int64, csr_from
from xcray.features.columns import Columns, column_blocks
from xcray.solvers.least_squares import stage_worker
from xcray.solvers.least_squares.row_readers import CopiedRows, MappedRows
from xcray.solvers.least_squares.stages import FittedStage, predict_stages
from xcray.solvers.least_squares.stagewise import StageFitter
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import SerialGroup

D = 40


def problem() -> tuple[Any, Any, Any]:
    """Return X (N, D) with few entries, 0/1 labels Y (N, K), and weights c (N,)."""
    rng = np.random.default_rng(4)
    X = (rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.04)).astype(np.float32)
    X[:, 0] = 1.0
    Y = np.eye(K)[(X @ rng.normal(size=(D, K))).argmax(axis=1)]
    c = rng.uniform(0.5, 2.0, N)
    return X, Y, c / c.sum()


class ColumnWork(Work):
    """Creates workers of the sparse problem."""

    def __init__(self, method: StageFitter, workers: int, sparse: bool) -> None:
        super().__init__(method, workers, sparse, 0)
        X, Y, c = problem()
        parts = np.array_split(np.arange(N), method.shards)
        self._shards = [naive.shard_of(X, Y, c, rows, sparse) for rows in parts]


def calls(method: StageFitter, workers: int = 1, sparse: bool = True) -> GroupCalls:
    """Return the calls on new workers."""
    group = SerialGroup(ColumnWork(method, workers, sparse), workers)
    group.open()
    return GroupCalls(group)


def blocks(seed: int = 0) -> list[Columns]:
    """Return all columns in blocks of 15, in a random order."""
    order: Int64 = np.random.default_rng(seed).permutation(D)
    return column_blocks(D, order, 15)


@pytest.mark.parametrize("by_moments", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_two_passes_over_columns_are_block_gauss_seidel_on_the_residual(
    by_moments: bool, sparse: bool
) -> None:
    X, Y, c = problem()
    method = StageFitter("linear", LAM, SHARDS, by_moments=by_moments)
    both = [*blocks(), *blocks(1)]
    stages = list(method.fit(calls(method, sparse=sparse), both))
    W = np.zeros((D, K))
    for stage, block in zip(stages, both, strict=True):
        Z = X[:, block.numbers].astype(np.float64)
        update = ridge(Z, Y - X @ W, c)
        assert stage.W == pytest.approx(update, abs=1e-4)
        W[block.numbers] += update
    assert predict_stages(stages, X) == pytest.approx(X @ W, abs=1e-4)


@pytest.mark.parametrize("rule", ["linear", "calibrated", "logistic"])
def test_sparse_columns_give_the_stages_of_dense_ones(rule: Any) -> None:
    method = StageFitter(rule, LAM, SHARDS)
    ours, theirs = (list(method.fit(calls(method, sparse=s), blocks())) for s in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert one.W == pytest.approx(other.W, abs=1e-3)


@pytest.mark.parametrize("rule", ["linear", "previous", "calibrated", "logistic"])
def test_bits_do_not_depend_on_the_number_of_workers(rule: Any) -> None:
    method = StageFitter(rule, LAM, SHARDS)
    one, two, seven = (list(method.fit(calls(method, n), blocks())) for n in (1, 2, 7))
    for stages in (two, seven):
        assert [stage.W.tobytes() for stage in stages] == [stage.W.tobytes() for stage in one]


def test_chunks_of_few_rows_give_the_same_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    method = StageFitter("linear", LAM, SHARDS)
    expected = list(method.fit(calls(method), blocks()))
    monkeypatch.setattr(stage_worker, "SCORE_CELLS", 3 * K)
    for stage, other in zip(method.fit(calls(method), blocks()), expected, strict=True):
        assert stage.W == pytest.approx(other.W, abs=1e-5)


def test_a_training_continues_after_given_stages_with_the_same_bits() -> None:
    method = StageFitter("calibrated", LAM, SHARDS)
    whole = list(method.fit(calls(method), blocks()))
    rest = list(method.fit(calls(method), blocks()[1:], tuple(whole[:1])))
    assert [stage.W.tobytes() for stage in rest] == [stage.W.tobytes() for stage in whole[1:]]


@pytest.mark.parametrize("sparse", [True, False])
def test_columns_are_ordered_by_the_gradient_after_the_stages(sparse: bool) -> None:
    X, Y, c = problem()
    method = StageFitter("linear", LAM, SHARDS)
    workers = calls(method, 2, sparse)
    stages: tuple[FittedStage, ...] = ()
    for _ in range(2):
        residual = predict_stages(stages, X) - Y if stages else -Y
        size = np.square(X.T.astype(np.float64) @ (c[:, None] * residual)).sum(axis=1)
        order = method.order_by_gradient(workers, stages)
        assert sorted(order) == np.flatnonzero(size).tolist()
        assert size[order] == pytest.approx(-np.sort(-size)[: len(order)], rel=1e-3)
        stages = tuple(method.fit(workers, blocks(), stages))


def test_moments_give_the_order_of_gradients() -> None:
    orders = []
    for by_moments in (False, True):
        method = StageFitter("linear", LAM, SHARDS, by_moments=by_moments)
        orders.append(method.order_by_gradient(calls(method)).tolist())
    assert orders[0] == orders[1]


def test_moments_keep_no_predictions_and_give_the_same_bits_with_any_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("predictions of rows were computed")

    monkeypatch.setattr(stage_worker.StageWorker, "_advance", refuse)
    method = StageFitter("linear", LAM, SHARDS, by_moments=True)
    one, three = (list(method.fit(calls(method, workers=w), blocks())) for w in (1, 3))
    for first, other in zip(one, three, strict=True):
        assert first.W.tobytes() == other.W.tobytes()


@pytest.mark.parametrize("columns", [None, np.array([0, 3, 7])])
def test_mapped_rows_are_the_copied_ones(columns: Any) -> None:
    X, Y, c = problem()
    numbers: Int64 = np.arange(5, N, 3)
    features = None if columns is None else Columns(D, columns)
    for density in (0.04, 0.6):
        dense = np.where(np.random.default_rng(1).random(X.shape) < density, X + 1, 0)
        shard = naive.shard_of(dense, Y, c, numbers, density < 0.05)
        copied, mapped = CopiedRows(shard), MappedRows(csr_from(dense), numbers)
        assert (copied.shape, copied.width, copied.sparse) == (
            mapped.shape,
            mapped.width,
            mapped.sparse,
        )
        for lo, hi in ((0, 7), (7, len(numbers))):
            ours, theirs = mapped.take(lo, hi), copied.take(lo, hi)
            assert dense_of(ours).tobytes() == dense_of(theirs).tobytes()
        assert (mapped.columns(features) != copied.columns(features)).nnz == 0


def dense_of(rows: Any) -> Any:
    """Return rows as a dense array."""
    return rows.to_scipy().toarray() if isinstance(rows, CSR) else rows
