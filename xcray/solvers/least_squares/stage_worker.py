"""Worker of staged trainings: some shards of the rows, with their predictions so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, csr
from xcray.errors import Stopped
from xcray.features.columns import Columns
from xcray.features.pipeline import FeaturePipeline
from xcray.solvers.declarations import Link
from xcray.solvers.least_squares.gram import Moments, gram_of_chunks, weighted_gram
from xcray.solvers.least_squares.row_readers import CopiedRows, MappedRows, RowReader
from xcray.solvers.least_squares.stages import (
    Features,
    FittedStage,
    calibrate,
    chunk_rows,
    feature_chunks,
    powers,
)
from xcray.solvers.least_squares.worker import with_targets
from xcray.solvers.row_losses import RESIDUALS
from xcray.solvers.row_shards import Shard

SCORE_CELLS: Final = 1 << 19  # scores of sparse rows in float64 at a time: 4 MB
KEPT_BYTES: Final = 1 << 30  # features of a block that a worker keeps between two passes
# A row whose probabilities p are certain counts 0.05 in the preconditioner, any other one
# 1.8 max p (1 - p), which is close to 1/2 for the least certain.
MIN_CURVATURE, CURVATURE_SCALE = 0.05, 1.8


class Block(NamedTuple):
    """What a stage is fitted to: the stages before it, and its features (None: the input)."""

    stages: tuple[FittedStage, ...]
    features: FeaturePipeline | None


class _ShardPredictions(NamedTuple):
    """Predictions yhat (n, K) after some stages; last: weights W and their scores z (n, K)."""

    stages: tuple[FittedStage, ...]
    yhat: Float32
    last: tuple[Float32, Float32] | None = None


class StageWorker:
    """State of a worker: every P-th shard of the rows, and what can be computed again.

    shards: in ascending order. link: as in `LeastSquaresWorker`. Methods are functions of their
    arguments and the rows. Predictions are kept until a method is called with other stages, and
    features of a block until it has others, if they take at most `kept_bytes`. mapped: the rows of
    all shards (N, D), if shards do not hold their rows; they are then read again in each pass.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        link: Link,
        stopped: Callable[[], bool] = lambda: False,
        kept_bytes: int = KEPT_BYTES,
        mapped: CSR | None = None,
    ) -> None:
        self._link, self._stopped, self._kept_bytes = link, stopped, kept_bytes
        self._shards = [with_targets(shard, link) for shard in shards]
        self._rows: list[RowReader] = [
            CopiedRows(shard) if mapped is None else MappedRows(mapped, shard.rows)
            for shard in shards
        ]
        self._predictions: dict[int, _ShardPredictions] = {}
        self._kept: dict[int, list[tuple[int, Float32]]] = {}
        self._kept_for = ""

    def gram(self, step: int, block: Block, double: bool) -> tuple[Moments | None, float | None]:
        """Return the lower triangle of the preconditioner of a block without ridge, and 0.

        These are the second moments of the features of this worker's shard number `step`, and for
        the softmax those of rows with their curvature. Returns (None, None) if there is no shard.
        """
        if step >= len(self._shards):
            return None, None
        shard, weights = self._shards[step], self._shards[step].weights
        if self._link == "softmax":
            weights = weights * curvature(self._advance(step, block.stages).yhat)
        Z = self._sparse_block(step, block.features)
        if Z is not None:
            X = csr(Z.indptr, Z.indices, Z.data, Z.shape[1])
            part = shard._replace(X=X, dense=None, weights=weights)
            return weighted_gram(part, double=double, stopped=self._stopped), 0.0
        width = width_of(self._rows[step], block.features)
        chunks = self._chunks
        return gram_of_chunks(
            lambda: chunks(step, block.features), weights, width, double=double
        ), 0.0

    def gradient(
        self, step: int, block: Block, W: Float32 | None
    ) -> tuple[Float64 | None, float | None]:
        """Return the gradient (n_outputs, K) in the weights W of a block, and the loss.

        W: (n_outputs, K), or None for 0. Returns (None, None) if there is no shard `step`.
        """
        if step >= len(self._shards):
            return None, None
        shard, at = self._shards[step], self._advance(step, block.stages)
        residuals = RESIDUALS[self._link]
        width = width_of(self._rows[step], block.features)
        G, loss = np.zeros((width, shard.targets.n_cols)), 0.0
        for lo, Z in self._chunks(step, block.features):
            hi = lo + Z.shape[0]
            scores = at.yhat[lo:hi] if W is None else at.yhat[lo:hi] + Z @ W
            R = scores.astype(np.float64)
            loss += residuals(R, shard, lo, hi)
            G += Z.T @ R.astype(np.float32)
        return G, loss

    def column_moments(self, step: int, block: Block) -> tuple[Float64 | None, float | None]:
        """Return the second moments of a block with the columns of the stages before it, and 0.

        Shape (n_outputs, columns of all stages), in the order of the stages, which have no
        calibrations. Returns (None, None) if there is no shard `step`.
        """
        if step >= len(self._shards):
            return None, None
        Z = self._columns(step, block.features)
        before = [self._columns(step, stage.features) for stage in block.stages]
        weighted = Z.multiply(self._shards[step].weights[:, None]).T.tocsr()
        return np.concatenate([(weighted @ each).toarray() for each in before], axis=1), 0.0

    def target_moments(
        self, step: int, features: FeaturePipeline | None
    ) -> tuple[Features | None, float | None]:
        """Return the sums of columns times targets, a scipy CSR matrix (n_outputs, K), and 0.

        Returns (None, None) if there is no shard `step`.
        """
        if step >= len(self._shards):
            return None, None
        shard = self._shards[step]
        targets = shard.targets.to_scipy().multiply(shard.weights[:, None])
        return (self._columns(step, features).T @ targets).tocsr(), 0.0

    def calibration_moments(
        self, step: int, block: Block, W: Float32
    ) -> tuple[Float64 | None, float | None]:
        """Return A'[A, Y] with A = [1, z, z^2, z^3] of the scores z under W, and 0.

        Shape (1 + 3K, 1 + 4K). Returns (None, None) if there is no shard `step`.
        """
        if step >= len(self._shards):
            return None, None
        shard, at = self._shards[step], self._advance(step, block.stages)
        z = self._scores(step, at.yhat, block.features, W)
        self._predictions[step] = at._replace(last=(W, z))
        A = np.concatenate((np.ones((len(z), 1)), powers(z)), axis=1, dtype=np.float64)
        weighted = A * shard.weights[:, None]
        return np.concatenate(
            (weighted.T @ A, _transposed_product(shard.targets, weighted)), 1
        ), 0.0

    def _advance(self, step: int, stages: tuple[FittedStage, ...]) -> _ShardPredictions:
        """Return the predictions of a shard after these stages, from those kept if possible."""
        shard = self._shards[step]
        at = self._predictions.get(step)
        if at is None or not _is_prefix(at.stages, stages):
            zeros = np.zeros((len(shard.rows), shard.targets.n_cols), np.float32)
            at = _ShardPredictions((), zeros)
        for stage in stages[len(at.stages) :]:
            if at.last is not None and np.array_equal(stage.W, at.last[0]):
                z = at.last[1]
            else:
                z = self._scores(step, at.yhat, stage.features, stage.W)
            at = _ShardPredictions((*at.stages, stage), calibrate(z, stage.calibration))
        self._predictions[step] = at
        return at

    def _scores(
        self, step: int, yhat: Float32, features: FeaturePipeline | None, W: Float32
    ) -> Float32:
        """Return the scores (n, K) of a stage from the predictions before it."""
        z = yhat.copy()
        for lo, Z in self._chunks(step, features):
            z[lo : lo + Z.shape[0]] += Z @ W
        return z

    def _chunks(
        self, step: int, features: FeaturePipeline | None
    ) -> Iterator[tuple[int, Features]]:
        """Yield the features of a shard in chunks; keep dense ones if there is memory."""
        if (block := self._sparse_block(step, features)) is not None:
            yield from self._sparse_chunks(step, block)
            return
        name = "" if features is None else features.fingerprint
        if name != self._kept_for:
            self._kept, self._kept_for = {}, name
        chunks: list[tuple[int, Float32]] = []
        keep = step not in self._kept and features is not None and self._fits(features.n_outputs)
        for chunk in self._kept.get(step) or self._new_chunks(step, features):
            if self._stopped():
                raise Stopped("stopped between two chunks of rows; finished stages are kept")
            if keep:
                chunks.append(chunk)
            yield chunk
        if keep:
            self._kept[step] = chunks

    def _new_chunks(
        self, step: int, features: FeaturePipeline | None
    ) -> Iterator[tuple[int, Float32]]:
        """Yield the dense features of a shard in chunks."""
        rows = self._rows[step]
        size = chunk_rows(max(rows.width, width_of(rows, features)))
        for first in range(0, rows.shape[0], size):
            taken = rows.take(first, min(first + size, rows.shape[0]))
            yield from ((first + lo, Z) for lo, Z in feature_chunks(taken, features))

    def _sparse_chunks(self, step: int, Z: Features) -> Iterator[tuple[int, Features]]:
        """Yield sparse features of a shard in chunks of rows."""
        size = max(1, SCORE_CELLS // max(self._shards[step].targets.n_cols, 1))
        for lo in range(0, Z.shape[0], size):
            if self._stopped():
                raise Stopped("stopped between two chunks of rows; finished stages are kept")
            yield lo, Z if size >= Z.shape[0] else Z[lo : lo + size]

    def _sparse_block(self, step: int, features: FeaturePipeline | None) -> Features | None:
        """Return the columns of a sparse shard as a scipy matrix (n, n_outputs), else None."""
        if self._rows[step].sparse and isinstance(features, Columns | None):
            return self._rows[step].columns(features)
        return None

    def _columns(self, step: int, features: FeaturePipeline | None) -> Features:
        """Return columns of a shard as a scipy CSR matrix (n, n_outputs)."""
        assert isinstance(features, Columns | None)
        return self._rows[step].columns(features)

    def _fits(self, n_outputs: int) -> bool:
        """Return whether that many features of all rows of this worker can be kept."""
        return 4 * n_outputs * sum(len(shard.rows) for shard in self._shards) <= self._kept_bytes


def _is_prefix(stages: Sequence[FittedStage], others: Sequence[FittedStage]) -> bool:
    """Return whether `others` begins with these stages, by their weights."""
    pairs = zip(stages, others, strict=False)
    return len(stages) <= len(others) and all(
        a.W is b.W or np.array_equal(a.W, b.W) for a, b in pairs
    )


def width_of(rows: RowReader, features: FeaturePipeline | None) -> int:
    """Return the number of features of the rows; None: of the input."""
    return rows.shape[1] if features is None else features.n_outputs


def curvature(yhat: Float32) -> Float64:
    """Return the factors (n,) of rows with the scores yhat (n, K) in the preconditioner."""
    p = np.exp(yhat - yhat.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    out: Float64 = MIN_CURVATURE + CURVATURE_SCALE * (p * (1.0 - p)).max(axis=1).astype(np.float64)
    return out


def _transposed_product(targets: CSR, A: Float64) -> Float64:
    """Return A'Y of targets Y (n, K) and A (n, m): (m, K)."""
    return np.asarray((targets.to_scipy().T @ A).T)
