"""Worker of staged trainings: some shards of the rows, with their predictions so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, csr
from xcray.errors import Stopped
from xcray.features.columns import Columns
from xcray.features.pipeline import FeaturePipeline
from xcray.model.stages import not_finite
from xcray.solvers.declarations import Link
from xcray.solvers.least_squares.gram import Moments, gram_of_chunks, weighted_gram
from xcray.solvers.least_squares.row_readers import CopiedRows, MappedRows, RowReader
from xcray.solvers.least_squares.shard_sums import of_shard
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
# A row with the probabilities p counts 0.05 + 1.8 m in the preconditioner, m = max p (1 - p). By
# Gershgorin's theorem, 2 m bounds the largest eigenvalue of diag(p) - pp'; as m <= 1/4, the sum is
# at least 2 m. The constant is for rows that are certain now, and not after a step.
MIN_CURVATURE, CURVATURE_SCALE = 0.05, 1.8


class Block(NamedTuple):
    """What a stage is fitted to: the stages before it, and its features (None: the input).

    previous: whether the predictions of the stages before are features, too, the last K of them.
    """

    stages: tuple[FittedStage, ...]
    features: FeaturePipeline | None
    previous: bool = False


class _ShardPredictions(NamedTuple):
    """Predictions yhat (n, K) after some stages; last: weights W and their scores z (n, K)."""

    stages: tuple[FittedStage, ...]
    yhat: Float32
    last: tuple[Float32, Float32] | None = None


class StageWorker:
    """State of a worker: every P-th shard of the rows, and what can be computed again.

    shards: in ascending order. link: as in `LeastSquaresWorker`. Methods are functions of their
    arguments and the rows. Predictions are kept until a method is called with other stages, and
    features of a shard until it has others, if they take at most `kept_bytes`. mapped: the rows of
    all shards (N, D), if shards do not hold their rows; they are then read again in each pass.
    held_out: numbers of rows of the data set that have the weight 0, see `held_out_error`.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        link: Link,
        stopped: Callable[[], bool] = lambda: False,
        kept_bytes: int = KEPT_BYTES,
        mapped: CSR | None = None,
        held_out: Int64 | None = None,
    ) -> None:
        self._link, self._stopped, self._kept_bytes = link, stopped, kept_bytes
        self.shards = [with_targets(shard, link) for shard in shards]
        self._held_out = held_out
        self._rows: list[RowReader] = [
            CopiedRows(shard) if mapped is None else MappedRows(mapped, shard.rows)
            for shard in shards
        ]
        self._predictions: dict[int, _ShardPredictions] = {}
        # by shard: the fingerprint of features, and their chunks
        self._kept: dict[int, tuple[str, list[tuple[int, Float32]]]] = {}

    @of_shard
    def gram(self, step: int, block: Block, double: bool) -> tuple[Moments, float]:
        """Return the lower triangle of the preconditioner of a block without ridge, and 0.

        These are the second moments of the features of this worker's shard number `step`, and for
        the softmax those of rows with their curvature.
        """
        shard, weights = self.shards[step], self.shards[step].weights
        if self._link == "softmax":
            weights = weights * curvature(self._advance(step, block.stages).yhat)
        Z = self._sparse_block(step, block.features)
        if Z is not None:
            X = csr(Z.indptr, Z.indices, Z.data, Z.shape[1])
            part = shard._replace(X=X, dense=None, weights=weights)
            gram = weighted_gram(part, double=double, stopped=self._stopped)
        else:
            self._advance(step, block.stages)  # while the features of the last stage are kept
            width, chunks = width_of(self._rows[step], block.features), self._chunks
            gram = gram_of_chunks(
                lambda: chunks(step, block.features), weights, width, double=double
            )
        return self._with_predictions(step, block, gram) if block.previous else gram, 0.0

    def _with_predictions(self, step: int, block: Block, gram: Moments) -> Moments:
        """Return a lower triangle with the moments of the predictions as its last K rows."""
        yhat, n = self._advance(step, block.stages).yhat, len(gram)
        weighted = (yhat * self.shards[step].weights[:, None]).astype(np.float32)
        out = np.zeros((n + yhat.shape[1],) * 2, gram.dtype)
        out[:n, :n], out[n:, n:] = gram, np.tril(weighted.T @ yhat)
        for lo, Z in self._chunks(step, block.features):
            out[n:, :n] += (Z.T @ weighted[lo : lo + Z.shape[0]]).T
        return out

    @of_shard
    def gradient(self, step: int, block: Block, W: Float32 | None) -> tuple[Float64, float]:
        """Return the gradient (n_outputs, K) in the weights W of a block, and the loss.

        W: (n_outputs, K), or None for 0, as it must be with `previous`; then the last K rows are
        those of the predictions.
        """
        shard, at = self.shards[step], self._advance(step, block.stages)
        residuals = RESIDUALS[self._link]
        width = width_of(self._rows[step], block.features)
        K = shard.targets.n_cols
        G, loss = np.zeros((width + K * block.previous, K)), 0.0
        for lo, Z in self._chunks(step, block.features):
            hi = lo + Z.shape[0]
            scores = at.yhat[lo:hi] if W is None else at.yhat[lo:hi] + Z @ W
            R = scores.astype(np.float64)
            loss += residuals(R, shard, lo, hi)
            R = R.astype(np.float32)
            G[:width] += Z.T @ R
            if block.previous:
                G[width:] += at.yhat[lo:hi].T @ R
        return G, loss

    @of_shard
    def held_out_error(self, step: int, stages: tuple[FittedStage, ...]) -> tuple[Float64, float]:
        """Return the squared error of the predictions of held-out rows, summed: (1,), and 0."""
        shard, yhat = self.shards[step], self._advance(step, stages).yhat
        rows = np.flatnonzero(np.isin(shard.rows, [] if self._held_out is None else self._held_out))
        targets = shard.targets.to_scipy()[rows].tocoo()
        own = yhat[rows]
        error = np.einsum("ik,ik->", own, own, dtype=np.float64) + targets.nnz
        error -= 2.0 * own[targets.row, targets.col].sum(dtype=np.float64)
        return np.array([error]), 0.0

    @of_shard
    def column_moments(self, step: int, block: Block) -> tuple[Float64, float]:
        """Return the second moments of a block with the columns of the stages before it, and 0.

        Shape (n_outputs, columns of all stages), in the order of the stages, which have no
        calibrations.
        """
        Z = self._columns(step, block.features)
        before = [self._columns(step, stage.features) for stage in block.stages]
        weighted = Z.multiply(self.shards[step].weights[:, None]).T.tocsr()
        return np.concatenate([(weighted @ each).toarray() for each in before], axis=1), 0.0

    @of_shard
    def target_moments(self, step: int, features: FeaturePipeline | None) -> tuple[Features, float]:
        """Return the sums of columns times targets, a scipy CSR matrix (n_outputs, K), and 0."""
        shard = self.shards[step]
        targets = shard.targets.to_scipy().multiply(shard.weights[:, None])
        return (self._columns(step, features).T @ targets).tocsr(), 0.0

    @of_shard
    def calibration_moments(self, step: int, block: Block, W: Float32) -> tuple[Float64, float]:
        """Return A'[A, Y] with A = [1, z, z^2, z^3] of the scores z under W, and 0.

        Shape (1 + 3K, 1 + 4K), for calibrations on all scores.
        """
        shard, z = self.shards[step], self._last_scores(step, block, W)
        A = np.concatenate((np.ones((len(z), 1)), powers(z)), axis=1, dtype=np.float64)
        weighted = A * shard.weights[:, None]
        return np.concatenate(
            (weighted.T @ A, _transposed_product(shard.targets, weighted)), 1
        ), 0.0

    @of_shard
    def label_moments(self, step: int, block: Block, W: Float32) -> tuple[Float64, float]:
        """Return the sums of z^0 .. z^6, and of y z^0 .. y z^3, per label: (11, K), and 0.

        The scores z are those under W. For calibrations of each label on its own score.
        """
        shard, z = self.shards[step], self._last_scores(step, block, W)
        K = shard.targets.n_cols
        out = np.zeros((11, K))
        targets = shard.targets.to_scipy().tocoo()
        at_label = z[targets.row, targets.col].astype(np.float64)
        c = shard.weights[targets.row] * targets.data
        for power in range(4):
            out[7 + power] = np.bincount(targets.col, c * at_label**power, minlength=K)
        size = max(1, SCORE_CELLS // max(K, 1))
        for lo in range(0, len(z), size):
            chunk, power_of = z[lo : lo + size].astype(np.float64), shard.weights[lo : lo + size]
            term = np.repeat(power_of[:, None], K, axis=1)
            for power in range(7):
                out[power] += term.sum(axis=0)
                term *= chunk
        return out, 0.0

    def _last_scores(self, step: int, block: Block, W: Float32) -> Float32:
        """Return the scores (n, K) of the next stage with weights W; they are kept."""
        at = self._advance(step, block.stages)
        z = self._scores(step, at.yhat, FittedStage(W, block.features))
        self._predictions[step] = at._replace(last=(W, z))
        return z

    def _advance(self, step: int, stages: tuple[FittedStage, ...]) -> _ShardPredictions:
        """Return the predictions of a shard after these stages, from those kept if possible."""
        shard = self.shards[step]
        at = self._predictions.get(step)
        if at is None or not _is_prefix(at.stages, stages):
            zeros = np.zeros((len(shard.rows), shard.targets.n_cols), np.float32)
            at = _ShardPredictions((), zeros)
        for stage in stages[len(at.stages) :]:
            if at.last is not None and np.array_equal(stage.W, at.last[0]):
                z = at.last[1]
            else:
                z = self._scores(step, at.yhat, stage)
            at = _ShardPredictions((*at.stages, stage), calibrate(z, stage.calibration))
        self._predictions[step] = at
        return at

    def _scores(self, step: int, yhat: Float32, stage: FittedStage) -> Float32:
        """Return the scores (n, K) of a stage from the predictions before it.

        Raises ParameterError if one is not finite.
        """
        z = yhat.copy() if stage.P is None else yhat + yhat @ stage.P
        for lo, Z in self._chunks(step, stage.features):
            z[lo : lo + Z.shape[0]] += Z @ stage.W
        if not np.isfinite(z).all():
            raise not_finite("a prediction of a training row")
        return z

    def _chunks(
        self, step: int, features: FeaturePipeline | None
    ) -> Iterator[tuple[int, Features]]:
        """Yield the features of a shard in chunks; keep dense ones if there is memory."""
        if (block := self._sparse_block(step, features)) is not None:
            yield from self._sparse_chunks(step, block)
            return
        name = "" if features is None else features.fingerprint
        if self._kept.get(step, (name,))[0] != name:
            del self._kept[step]
        kept = self._kept[step][1] if step in self._kept else None
        keep = kept is None and features is not None and self._fits(features.n_outputs)
        chunks: list[tuple[int, Float32]] = []
        for chunk in self._new_chunks(step, features) if kept is None else kept:
            if self._stopped():
                raise Stopped("stopped between two chunks of rows; finished stages are kept")
            if keep:
                chunks.append(chunk)
            yield chunk
        if keep:
            self._kept[step] = name, chunks

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
        size = max(1, SCORE_CELLS // max(self.shards[step].targets.n_cols, 1))
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
        return 4 * n_outputs * sum(len(shard.rows) for shard in self.shards) <= self._kept_bytes


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
