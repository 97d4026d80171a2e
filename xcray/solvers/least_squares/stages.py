"""Models that are chains of stages: a stage adds a linear map of features, then recalibrates.

    z_t = yhat_{t-1} (I + P_t) + F_t(x)' W_t,   yhat_t = calibration of z_t   or   z_t

yhat_0 = 0; F_t: features of stage t, or the input; P_t: weights of the previous predictions, 0 for
most rules. Calibrations: see `StageCalibration`. Source: Agarwal et al., "Least squares
revisited", algorithms 2 and 3, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float32, frozen
from xcray.features.pipeline import MIN_DENSE_SHARE, FeaturePipeline, Rows
from xcray.index.simplex import project_on_simplex
from xcray.index.staged import Stage, StageCalibration
from xcray.kernels.sparse import row_range

# dense features of some rows, or a scipy matrix of sparse ones
Features: TypeAlias = Any
CHUNK_CELLS: Final = 1 << 21  # features in memory at a time: 8 MB


class FittedStage(NamedTuple):
    """A stage; features, calibration, P: None if it has none.

    W: (n_outputs, K) float32; P: (K, K) float32, what the previous predictions add.
    """

    W: Float32
    features: FeaturePipeline | None = None
    calibration: StageCalibration | None = None
    P: Float32 | None = None


class StageScores:
    """Predictions `scores` (n, K) float32 of rows (n, n_inputs), stage after stage."""

    def __init__(self, rows: Rows, n_labels: int) -> None:
        self._rows = rows
        self.scores = np.zeros((rows.shape[0], n_labels), np.float32)

    def add(self, stage: FittedStage) -> None:
        """Add a stage."""
        if stage.P is not None:
            self.scores = self.scores + self.scores @ stage.P
        for lo, Z in feature_chunks(self._rows, stage.features, self.scores.shape[1]):
            self.scores[lo : lo + Z.shape[0]] += Z @ stage.W
        self.scores = calibrate(self.scores, stage.calibration)


def predict_stages(stages: Sequence[FittedStage], rows: Rows) -> Float32:
    """Return the predictions (n, K) float32 of rows (n, n_inputs); at least one stage."""
    yhat = StageScores(rows, stages[0].W.shape[1])
    for stage in stages:
        yhat.add(stage)
    return yhat.scores


def model_stages(fitted: Sequence[FittedStage], chain: int = 0) -> tuple[Stage, ...]:
    """Return fitted stages as stages of a model, without constants.

    Scores with weights of previous predictions are linear in the features of all stages:
    W_t (I + P_{t+1}) ... (I + P_T) takes the place of W_t. chain: stages of each of several chains,
    whose scores are averaged; 0: one chain.
    """
    size = chain or max(len(fitted), 1)
    starts = range(0, len(fitted), size)
    chains = (_chain_stages(fitted[lo : lo + size], len(starts)) for lo in starts)
    return tuple(stage for each in chains for stage in each)


def _chain_stages(fitted: Sequence[FittedStage], chains: int) -> list[Stage]:
    """Return the stages of one of several chains, see `model_stages`."""
    stages, later = list[Stage](), None
    for s in reversed(fitted):
        W = s.W if later is None else frozen(s.W @ later, np.float32)
        W = W if chains == 1 else frozen(W / chains, np.float32)
        b = frozen(np.zeros(W.shape[1]), np.float32)
        stages.append(Stage(W, b, s.features, s.calibration))
        if s.P is not None:
            own = np.eye(len(s.P)) + s.P
            later = own if later is None else own @ later
    return stages[::-1]


def calibrate(z: Float32, calibration: StageCalibration | None) -> Float32:
    """Return the predictions (n, K) of a stage for its scores z (n, K)."""
    if calibration is None:
        return z
    C, c = calibration.C, calibration.c
    if calibration.simplex:
        return project_on_simplex(powers(z) @ C + c)
    out: Float32 = np.clip(c + z * (C[0] + z * (C[1] + z * C[2])), np.float32(0), np.float32(1))
    return out


def powers(z: Float32) -> Float32:
    """Return [z, z^2, z^3] of z (n, K): (n, 3K)."""
    square = z * z
    return np.concatenate((z, square, square * z), axis=1)


def feature_chunks(
    rows: Rows, features: FeaturePipeline | None, n_labels: int = 0
) -> Iterator[tuple[int, Features]]:
    """Yield (lo, features of the rows from `lo` on): dense float32, or scipy CSR if most are 0.

    At most CHUNK_CELLS features, and as many scores of `n_labels` labels, belong to a chunk.
    """
    n, width = rows.shape[0], rows.shape[1] if features is None else features.n_outputs
    size = chunk_rows(max(width, n_labels))
    for lo in range(0, n, size):
        hi = min(lo + size, n)
        chunk = row_range(rows, lo, hi) if isinstance(rows, CSR) else rows[lo:hi]
        chunk = chunk if features is None else features.transform(chunk)
        if isinstance(chunk, CSR):
            sparse = chunk.nnz < MIN_DENSE_SHARE * chunk.n_rows * chunk.n_cols
            yield lo, chunk.to_scipy() if sparse else chunk.to_scipy().toarray()
        else:
            yield lo, chunk


def chunk_rows(width: int) -> int:
    """Return the number of rows of a chunk of `feature_chunks`; width: features or labels."""
    return max(1, CHUNK_CELLS // max(width, 1))
