"""Staged least squares, against textbook formulas in float64 and optimality conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.naive import multinomial as naive
from xcray.arrays import Float32, csr_from
from xcray.errors import ParameterError, Stopped
from xcray.features.fourier import RandomFourier, random_fourier
from xcray.index.simplex import project_on_simplex
from xcray.solvers.least_squares.shard_sums import preconditioner
from xcray.solvers.least_squares.stage_worker import Block, StageWorker, curvature
from xcray.solvers.least_squares.stages import FittedStage, model_stages, predict_stages
from xcray.solvers.least_squares.stagewise import StageFitter
from xcray.solvers.row_shards import Shard
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.parts import ShareWorker

N, D, K, LAM, SHARDS = 90, 6, 4, 0.01, 5
BLOCKS = [random_fourier(D, 12, 2.0, seed=3, block=number) for number in range(3)]


def problem(several: bool = False) -> tuple[Float32, Any, Any]:
    """Return X (N, D), 0/1 labels Y (N, K) with one or more per row, and weights c (N,)."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(N, D)).astype(np.float32)
    scores = np.sin(X) @ rng.normal(size=(D, K))
    Y = np.eye(K)[scores.argmax(axis=1)]
    if several:
        Y = np.maximum(Y, scores > 1.0)
    c = rng.uniform(0.5, 2.0, N)
    return X, Y, c / c.sum()


class Work:
    """Creates workers with every P-th shard."""

    def __init__(self, method: StageFitter, workers: int, sparse: bool, kept_bytes: int) -> None:
        self._method, self._workers, self._kept = method, workers, kept_bytes
        X, Y, c = problem(not method.simplex)
        T = Y / Y.sum(axis=1, keepdims=True)
        parts = np.array_split(np.arange(N), method.shards)
        self._shards: list[Shard] = [naive.shard_of(X, T, c, rows, sparse) for rows in parts]

    def create_worker(self, worker: str, stopped: Callable[[], bool]) -> ShareWorker:
        return ShareWorker(lambda share: self.create_share(share, stopped))

    def create_share(self, share: int, stopped: Callable[[], bool]) -> StageWorker:
        own = self._shards[share :: self._workers]
        return StageWorker(own, self._method.link, stopped, self._kept)

    def warm_up(self) -> None:
        """Do nothing."""


def fit(
    method: StageFitter,
    blocks: Sequence[RandomFourier | None],
    *,
    workers: int = 1,
    sparse: bool = False,
    kept_bytes: int = 1 << 20,
) -> list[FittedStage]:
    """Return the stages of a training."""
    group = SerialGroup(Work(method, workers, sparse, kept_bytes), workers)
    group.open()
    return list(method.fit(GroupCalls(group), blocks))


@pytest.mark.parametrize("rule", ["linear", "previous", "logistic"])
def test_features_of_each_block_are_computed_once(
    rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dict.fromkeys((block.fingerprint for block in BLOCKS), 0)
    transform = RandomFourier.transform

    def count(block: RandomFourier, X: Any) -> Float32:
        rows[block.fingerprint] += X.shape[0]
        return transform(block, X)

    monkeypatch.setattr(RandomFourier, "transform", count)
    fit(StageFitter(rule, LAM, SHARDS), BLOCKS, workers=2)
    assert set(rows.values()) == {N}


def features_of(X: Any, block: RandomFourier | None) -> Any:
    """Return cos(x' frequencies + phase) in float64, or X."""
    X = X.astype(np.float64)
    return X if block is None else np.cos(X @ block.frequencies + block.phase)


def ridge(Z: Any, T: Any, c: Any) -> Any:
    """Return the solution of the normal equations: (D, K)."""
    H = Z.T @ (c[:, None] * Z) + LAM * np.eye(Z.shape[1])
    return np.linalg.solve(H, Z.T @ (c[:, None] * T))


def closest_on_simplex(v: Any) -> Any:
    """Return the projection of one row: the shift is found by bisection."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1.0 else (low, middle)
    return np.maximum(v - high, 0)


def calibrated(z: Any, Y: Any, c: Any, simplex: bool) -> Any:
    """Return the ridge regression of Y on powers of all z, or of each label on its own z.

    The first is projected on the simplex, the other on the hypercube.
    """
    if simplex:
        A = np.column_stack([np.ones(len(z)), z, z**2, z**3])
        H = A.T @ (c[:, None] * A)
        H += 1e-4 * np.trace(H) / len(H) * np.diag([0.0] + [1.0] * (len(H) - 1))
        ours = A @ np.linalg.solve(H, A.T @ (c[:, None] * Y))
        return np.array([closest_on_simplex(row) for row in ours])
    ours = np.empty_like(z)
    for k in range(z.shape[1]):
        A = np.column_stack([z[:, k] ** power for power in range(4)])
        H = A.T @ (c[:, None] * A)
        H += 1e-3 * np.diag(np.diag(H)) * np.diag([0, 1, 1, 1])
        ours[:, k] = A @ np.linalg.solve(H, A.T @ (c * Y[:, k]))
    return ours.clip(0.0, 1.0)


@pytest.mark.parametrize("n_labels", [1, 2, 7])
def test_projection_is_the_closest_point_of_the_simplex(n_labels: int) -> None:
    rng = np.random.default_rng(0)
    V = (rng.normal(size=(50, n_labels)) * rng.choice([0.1, 1.0, 10.0], (50, 1))).astype(np.float32)
    V[:5] = V[:5, :1]  # ties
    expected = np.array([closest_on_simplex(row) for row in V.astype(np.float64)])
    assert project_on_simplex(V) == pytest.approx(expected, abs=1e-5)


def test_linear_stages_fit_the_residual_of_the_stages_before() -> None:
    X, Y, c = problem()
    stages = fit(StageFitter("linear", LAM, SHARDS), [None, *BLOCKS])
    yhat = np.zeros((N, K))
    for stage, block in zip(stages, [None, *BLOCKS], strict=True):
        Z = features_of(X, block)
        W = ridge(Z, Y - yhat, c)
        assert stage.W == pytest.approx(W, abs=2e-5)
        yhat += Z @ W
    assert predict_stages(stages, X) == pytest.approx(yhat, abs=1e-4)


@pytest.mark.parametrize("simplex", [True, False])
@pytest.mark.parametrize("blocks", [[BLOCKS[0]] * 4, BLOCKS], ids=["the same", "others"])
def test_calibrated_stages_alternate_two_least_squares_fits(
    simplex: bool, blocks: list[RandomFourier]
) -> None:
    X, Y, c = problem(not simplex)
    method = StageFitter("calibrated", LAM, SHARDS, simplex=simplex)
    stages = fit(method, blocks)
    yhat, errors = np.zeros((N, K)), []
    for block in blocks:
        Z = features_of(X, block)
        yhat = calibrated(yhat + Z @ ridge(Z, Y - yhat, c), Y, c, simplex)
        errors.append(float(c @ np.square(yhat - Y).sum(axis=1)))
    assert errors == sorted(errors, reverse=True)
    assert predict_stages(stages, X) == pytest.approx(yhat, abs=2e-3)


def test_previous_predictions_are_features_of_the_next_block() -> None:
    X, Y, c = problem(True)
    stages = fit(StageFitter("previous", LAM, SHARDS, simplex=False), BLOCKS)
    yhat = np.zeros((N, K))
    for stage, block in zip(stages, BLOCKS, strict=True):
        Z = np.hstack([features_of(X, block), yhat])
        W = ridge(Z, Y - yhat, c)
        assert stage.P is not None
        assert np.vstack([stage.W, stage.P]) == pytest.approx(W, abs=2e-4)
        yhat = yhat + Z @ W
    assert predict_stages(stages, X) == pytest.approx(yhat, abs=1e-3)


def test_the_model_of_previous_predictions_is_linear_in_all_features() -> None:
    X = problem()[0]
    fitted = fit(StageFitter("previous", LAM, SHARDS), BLOCKS)
    linear = [FittedStage(stage.W, stage.features) for stage in model_stages(fitted)]
    assert predict_stages(linear, X) == pytest.approx(predict_stages(fitted, X), abs=1e-5)


def test_chains_are_fitted_apart_and_averaged() -> None:
    X = problem()[0]
    blocks = [random_fourier(D, 12, 2.0, seed=4, block=number) for number in range(5)]
    method = StageFitter("previous", LAM, SHARDS)
    apart = [fit(method, blocks[lo : lo + 2]) for lo in (0, 2, 4)]
    together = fit(replace(method, chain=2), blocks)
    for mine, other in zip(together, [stage for each in apart for stage in each], strict=True):
        assert mine.W == pytest.approx(other.W, abs=1e-6)
    mean = sum(predict_stages(each, X) for each in apart) / 3
    linear = [FittedStage(stage.W, stage.features) for stage in model_stages(together, 2)]
    assert predict_stages(linear, X) == pytest.approx(mean, abs=1e-5)


def test_results_that_are_not_finite_are_refused() -> None:
    X, Y, c = problem()
    shard = naive.shard_of(X, Y, c, np.arange(N))
    huge = FittedStage(np.full((D, K), 3e38, np.float32))
    with pytest.raises(ParameterError, match="prediction of a training row") as refused:
        StageWorker([shard], "identity").gradient(0, Block((huge,), None), None)
    assert refused.value.code == "NOT_FINITE"


def test_a_logistic_stage_reaches_the_optimum_of_its_block() -> None:
    X, Y, c = problem()
    stages = fit(StageFitter("logistic", LAM, SHARDS, inner_steps=400), BLOCKS[:2])
    logits = np.zeros((N, K))
    for stage, block in zip(stages, BLOCKS, strict=False):
        Z = features_of(X, block)
        logits += Z @ stage.W
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        gradient = Z.T @ (c[:, None] * (p - Y))
        assert np.abs(gradient).max() < 1e-4


def test_few_inner_steps_reduce_the_logistic_loss_with_each_block() -> None:
    X, Y, c = problem()
    stages = fit(StageFitter("logistic", LAM, SHARDS), BLOCKS)
    losses = [np.log(K)]
    for count in range(1, len(stages) + 1):
        logits = predict_stages(stages[:count], X).astype(np.float64)
        losses.append(float(c @ (np.log(np.exp(logits).sum(axis=1)) - (logits * Y).sum(axis=1))))
    assert losses == sorted(losses, reverse=True)


def test_the_preconditioner_bounds_the_hessian_of_the_softmax() -> None:
    yhat = np.random.default_rng(0).normal(size=(500, K)).astype(np.float32) * 4
    p = np.exp(yhat) / np.exp(yhat).sum(axis=1, keepdims=True)
    largest = [np.linalg.eigvalsh(np.diag(row) - np.outer(row, row)).max() for row in p]
    assert (curvature(yhat) >= largest).all()
    assert curvature(np.zeros((1, 2), np.float32)) == pytest.approx([0.5])


@pytest.mark.parametrize("rule", ["linear", "previous", "calibrated", "logistic"])
def test_bits_do_not_depend_on_workers_sparsity_or_kept_features(rule: Any) -> None:
    method, X = StageFitter(rule, LAM, SHARDS), problem()[0]
    one = predict_stages(fit(method, BLOCKS), X).tobytes()
    for workers, sparse, kept_bytes in ((2, False, 1 << 20), (3, False, 0), (7, True, 1 << 20)):
        stages = fit(method, BLOCKS, workers=workers, sparse=sparse, kept_bytes=kept_bytes)
        assert predict_stages(stages, X).tobytes() == one


def test_threads_give_the_same_bits() -> None:
    method = StageFitter("calibrated", LAM, SHARDS)
    group = ThreadGroup(Work(method, 2, False, 1 << 20), 2)
    group.open()
    try:
        stages = list(method.fit(GroupCalls(group), BLOCKS))
    finally:
        group.close()
    X = problem()[0]
    assert np.array_equal(predict_stages(stages, X), predict_stages(fit(method, BLOCKS), X))


@pytest.mark.parametrize("rule", ["linear", "previous", "calibrated", "logistic"])
def test_a_replaced_worker_computes_its_predictions_again(rule: Any) -> None:
    method = StageFitter(rule, LAM, SHARDS)
    stages = tuple(fit(method, BLOCKS[:2]))
    work = Work(method, 1, False, 1 << 20)
    old, new = (work.create_share(0, lambda: False) for _ in range(2))
    for before in ((), stages, stages[1:]):  # the last: of another training
        old.gradient(0, Block(before, BLOCKS[len(before)]), None)
    block = Block(stages[:1], BLOCKS[1])
    (ours, loss), (theirs, other) = (each.gradient(0, block, None) for each in (old, new))
    assert ours is not None
    assert theirs is not None
    assert (ours.tobytes(), loss) == (theirs.tobytes(), other)


def test_a_stop_ends_a_pass() -> None:
    X, Y, c = problem()
    shard = naive.shard_of(X, Y, c, np.arange(N))
    worker = StageWorker([shard], "identity", lambda: True)
    with pytest.raises(Stopped):
        worker.gradient(0, Block((), None), None)


def test_double_precision_is_the_second_choice_and_a_singular_matrix_is_refused() -> None:
    solve, double = preconditioner(
        lambda double: np.eye(2) * (1 if double else -1), 1.0, double=False
    )
    assert double
    assert solve(np.ones((2, 1))) == pytest.approx(0.5)
    with pytest.raises(ParameterError, match="lam 0 is too small"):
        preconditioner(lambda double: np.zeros((2, 2)), 0.0, double=False)


def test_a_chain_predicts_sparse_rows_like_dense_ones() -> None:
    X = problem()[0]
    stages = fit(StageFitter("calibrated", LAM, SHARDS), [None, BLOCKS[0]])
    assert np.array_equal(predict_stages(stages, csr_from(X)), predict_stages(stages, X))
