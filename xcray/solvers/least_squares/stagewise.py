"""Calibrated least squares and stagewise regression: stages fitted one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xcray.arrays import Float32, Float64, Int64, frozen
from xcray.features.pipeline import FeaturePipeline
from xcray.index.staged import StageCalibration
from xcray.model.stages import not_finite
from xcray.schedule.calls import ObjectHandle, at_worker
from xcray.solvers.declarations import Link
from xcray.solvers.group_contract import WorkerCalls
from xcray.solvers.least_squares.acceleration import Momentum, accelerated_step
from xcray.solvers.least_squares.shard_sums import preconditioner, sum_over_shards
from xcray.solvers.least_squares.stage_worker import Block, StageWorker
from xcray.solvers.least_squares.stages import FittedStage

# ridge of the calibration, relative to the mean of the diagonal of its second moments
CALIBRATION_RIDGE: Final = 1e-4
LABEL_RIDGE: Final = 1e-3  # the same per power, for calibrations of each label on its own score
LABELS_AT_A_TIME: Final = 2048  # labels whose gradients the driver computes at a time


@dataclass(frozen=True)
class StageFitter:
    """How stages are fitted; `fit` yields them.

    rule: "linear" fits the residual of the predictions by least squares; "previous" does so with
    the predictions as further features. "logistic" takes `inner_steps` accelerated steps of
    logistic regression, with predictions as logits. "calibrated" fits as "linear", and then the
    targets to powers of the scores. lam: ridge of each least-squares step,
    above 0, relative to the mean loss: a step is -(S + lam I)^-1 G with the second moments S and
    the gradient G. In one step from 0 it is the weight of half the squared l2 norm; with more steps
    it shortens them and is not part of the objective. shards: number of row shards, part of the
    bits of the result. simplex: fit calibrations to the powers of all scores and project on the
    probability simplex, for one label per row; otherwise to those of the label's own score, and
    clip to [0, 1]. by_moments: for rule "linear" and columns of the input: compute gradients from
    moments of columns, without the predictions (N, K), for many labels. chain: stages after which
    another chain begins, without predictions; 0: never.

    Calibrated least squares are the rule "calibrated" with the same features in each block: their
    second moments are computed once.

    Source: Agarwal et al., "Least squares revisited", ICML 2014, algorithms 2 and 3, section 3.1
    for "previous", section 4 for several labels per row. Differs: a constant is part of the
    calibration; for several labels per row, each label has its own cubic map, since 3K + 1 inputs
    fit the training rows too closely; the preconditioner of "logistic" weights rows by the
    curvature of their predictions before the block, so that it bounds the Hessian only there.
    """

    rule: str
    lam: float
    shards: int = 8
    inner_steps: int = 8
    simplex: bool = True
    by_moments: bool = False
    chain: int = 0

    @property
    def link(self) -> Link:
        """Return the link of the workers of a training."""
        return "softmax" if self.rule == "logistic" else "identity"

    def fit(
        self,
        workers: WorkerCalls,
        blocks: Iterable[FeaturePipeline | None],
        stages: tuple[FittedStage, ...] = (),
    ) -> Iterator[FittedStage]:
        """Yield one stage for each block of features, None for the input, after `stages`.

        workers: of class `StageWorker` with this link, worker w of P with shards w, w + P, ...
        Raises Stopped, errors of workers, ParameterError if lam is too small or if weights or
        predictions are not finite, and Unavailable if scipy is missing.
        """
        solve: Callable[[Float64], Float64] | None = None
        before: FeaturePipeline | None = None
        for features in blocks:
            previous = self.rule == "previous"
            own = stages[len(stages) // self.chain * self.chain :] if self.chain else stages
            block = workers.put(Block(own, features, previous))
            if solve is None or previous or self.link == "softmax" or features is not before:
                solve = self._preconditioner(workers, block)
            if self.by_moments:
                W = self._weights_by_moments(workers, block, own, features, solve)
            else:
                W = self._weights(workers, block, solve)
            calibration = (
                self._calibration(workers, block, W) if self.rule == "calibrated" else None
            )
            stage = FittedStage(W, features, calibration)
            if previous:
                n = len(W) - W.shape[1]
                stage = stage._replace(W=frozen(W[:n], np.float32), P=frozen(W[n:], np.float32))
            _check_finite(stage, len(stages) + 1)
            stages, before = (*stages, stage), features
            yield stage

    def held_out_error(self, workers: WorkerCalls, stages: tuple[FittedStage, ...]) -> float:
        """Return the squared error of the predictions of held-out rows, summed."""
        at = at_worker(workers.put(stages))
        return float(self._sum(workers, StageWorker.held_out_error, at)[0][0])

    def order_by_gradient(
        self, workers: WorkerCalls, stages: tuple[FittedStage, ...] = ()
    ) -> Int64:
        """Return the numbers of the inputs (D',), the largest gradient after `stages` first.

        The size of a gradient is its Euclidean norm over the labels; ties are in ascending order.
        Inputs with a gradient of 0 are left out. Memory of the driver: O(D' K), or that of the
        non-zero gradients with `by_moments`, which needs `stages` to be empty.
        """
        if self.by_moments:
            assert not stages
            G = self._sum(workers, StageWorker.target_moments, None)[0]
            size = np.asarray(G.multiply(G).sum(axis=1)).ravel()
        else:
            block = workers.put(Block(stages, None))
            G, _ = self._sum(workers, StageWorker.gradient, at_worker(block), None)
            size = np.square(G).sum(axis=1)
        order = np.argsort(-size, kind="stable")
        return frozen(order[size[order] > 0.0], np.int64)

    def _preconditioner(
        self, workers: WorkerCalls, block: ObjectHandle[Block]
    ) -> Callable[[Float64], Float64]:
        """Return G -> H^-1 G of a block."""

        def gram(double: bool) -> Float64:
            lower: Float64 = self._sum(workers, StageWorker.gram, at_worker(block), double)[0]
            return lower

        return preconditioner(gram, self.lam, double=False)[0]

    def _weights(
        self,
        workers: WorkerCalls,
        block: ObjectHandle[Block],
        solve: Callable[[Float64], Float64],
    ) -> Float32:
        """Return the weights (n_outputs, K) of a block."""
        G, _ = self._sum(workers, StageWorker.gradient, at_worker(block), None)
        W = np.zeros(G.shape)
        if self.rule != "logistic":
            return frozen(W - solve(G), np.float32)
        momentum = Momentum(W)
        for _ in range(self.inner_steps - 1):
            W, momentum = accelerated_step(W, G, momentum, solve)
            at = at_worker(workers.put(frozen(W, np.float32)))
            G = self._sum(workers, StageWorker.gradient, at_worker(block), at)[0]
        return frozen(W - solve(G), np.float32)

    def _weights_by_moments(
        self,
        workers: WorkerCalls,
        block: ObjectHandle[Block],
        stages: tuple[FittedStage, ...],
        features: FeaturePipeline | None,
        solve: Callable[[Float64], Float64],
    ) -> Float32:
        """Return the weights (n_outputs, K) of a block of columns for the rule "linear".

        The gradient is X_B' C (X_1 W_1 + ... + X_t W_t - Y), X_s: columns of stage s, C: weights of
        the rows; X_B' C X_s and X_B' C Y are summed over the shards.
        """
        targets = self._sum(workers, StageWorker.target_moments, features)[0]
        moments = self._moments_before(workers, block, stages)
        W = np.empty(targets.shape, np.float32)
        for lo in range(0, W.shape[1], LABELS_AT_A_TIME):
            labels = slice(lo, lo + LABELS_AT_A_TIME)
            G = -targets[:, labels].toarray()
            for stage, part in zip(stages, moments, strict=True):
                G += part @ stage.W[:, labels]
            W[:, labels] = -solve(G)
        return frozen(W, np.float32)

    def _moments_before(
        self, workers: WorkerCalls, block: ObjectHandle[Block], stages: tuple[FittedStage, ...]
    ) -> list[Float64]:
        """Return X_B' C X_s of a block B for each stage s before it."""
        if not stages:
            return []
        moments = self._sum(workers, StageWorker.column_moments, at_worker(block))[0]
        ends = np.cumsum([len(stage.W) for stage in stages])
        return np.split(moments, ends[:-1], axis=1)

    def _calibration(
        self, workers: WorkerCalls, block: ObjectHandle[Block], W: Float32
    ) -> StageCalibration:
        """Return the least-squares fit of the targets on powers of the scores under W."""
        at = at_worker(workers.put(W))
        if not self.simplex:
            sums, _ = self._sum(workers, StageWorker.label_moments, at_worker(block), at)
            C = fit_powers(sums)
            return StageCalibration(frozen(C[1:], np.float32), frozen(C[0], np.float32), False)
        moments, _ = self._sum(workers, StageWorker.calibration_moments, at_worker(block), at)
        m = len(moments)
        matrix = moments[:, :m].copy()
        matrix.flat[m + 1 :: m + 1] += CALIBRATION_RIDGE * max(np.trace(matrix) / m, math.ulp(0.0))
        C = np.linalg.solve(matrix, moments[:, m:])
        return StageCalibration(frozen(C[1:], np.float32), frozen(C[0], np.float32), self.simplex)

    def _sum(
        self, workers: WorkerCalls, method: Callable[..., Any], *args: Any
    ) -> tuple[Any, float]:
        """Return the sums of a method over all shards."""
        return sum_over_shards(workers, self.shards, method, *args)


def fit_powers(sums: Float64) -> Float64:
    """Return the coefficients (4, K) of 1, z, z^2, z^3 per label.

    sums: (11, K), as `StageWorker.label_moments` returns.
    """
    powers = np.arange(4)
    matrices = np.moveaxis(sums[powers[:, None] + powers], -1, 0).copy()
    ridge = LABEL_RIDGE * matrices[:, powers, powers]
    ridge[:, 0] = 0.0
    # a label without scores has a singular matrix
    smallest = np.maximum(ridge, np.finfo(np.float64).eps * matrices[:, :1, 0])
    matrices[:, powers, powers] += smallest
    return np.asarray(np.linalg.solve(matrices, sums[7:].T[:, :, None])[:, :, 0].T)


def _check_finite(stage: FittedStage, number: int) -> None:
    """Raise ParameterError if stage `number` has an array that is not finite."""
    calibration = () if stage.calibration is None else stage.calibration[:2]
    for array in (stage.W, *calibration, *(() if stage.P is None else (stage.P,))):
        if not np.isfinite(array).all():
            raise not_finite(f"a weight of stage {number}")
