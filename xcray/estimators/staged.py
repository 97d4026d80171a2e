"""Calibrated least squares and stagewise regression as scikit-learn estimators, on threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from xcray.arrays import CSR, Float32, Float64, Pattern, TopK, frozen
from xcray.errors import InputError
from xcray.estimators.dsmlr import softmax
from xcray.estimators.linear import CHUNK_ROWS, LinearEstimator
from xcray.index.staged import Stage, link_of
from xcray.kernels.sparse import row_range
from xcray.model.model import Model
from xcray.model.write import ModelContent
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.held_out import top_k
from xcray.solvers.least_squares.stages import FittedStage, predict_stages
from xcray.solvers.least_squares.stages_solver import StagesSolver
from xcray.training.group_training import train_in_process


class StagedEstimator(LinearEstimator):
    """Scores of a chain of stages, computed for all labels in float32.

    After `fit`: classes_ (K,), stages_ (`xcray.index.staged.Stage` of each stage), n_features_in_.
    """

    FITTED: ClassVar[str] = "stages_"
    NEEDS_POSITIVES: ClassVar[bool] = True

    def _train(self, solver: StagesSolver, X: CSR, Y: Pattern, weights: Float32 | None) -> None:
        """Fit the stages on threads of this process."""
        workers = min(self._workers(), solver.shards)
        result = train_in_process(solver, TrainingRows(X, Y, weights), workers)
        assert result.last is not None  # what these solvers train
        assert result.last.staged is not None
        self.stages_ = result.last.staged.stages

    @available_if(lambda self: self.get_params().get("rule") not in ("linear", "previous"))
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of all labels: (N, K) dense.

        Rows add up to 1 with the rule "logistic", and with one label per training row. Otherwise
        they are the predictions of each label, cut off next to 0 and 1.
        """
        rows, least = self._rows(X), np.finfo(np.float64).eps
        link = self._link()
        parts = [
            softmax(scores) if link == "softmax" else np.clip(scores, least, 1.0 - least)
            for scores in self._scores(rows)
        ]
        return np.vstack([np.empty((0, len(self.classes_))), *parts])

    def _link(self) -> str:
        """Return how the scores of the fitted stages become probabilities."""
        logistic = self.get_params().get("rule") == "logistic"
        return link_of(self.stages_, "softmax" if logistic else "identity")

    def _restore(self, model: Model) -> None:
        """Take the stages of a model."""
        self.stages_ = model.stages

    def _content(self, labels: list[str], features: list[str]) -> ModelContent:
        """Return the stages with these names."""
        return ModelContent(None, None, labels, features, stages=self.stages_, link=self._link())

    def _top_k(self, rows: CSR, k: int) -> TopK:
        """Return the k best labels of rows (n, D)."""
        parts = [top_k(scores, 0, k) for scores in self._scores(rows)]
        empty = np.empty((0, min(k, len(self.classes_))))
        labels = np.concatenate([empty, *(part.labels for part in parts)])
        scores = np.concatenate([empty, *(part.scores for part in parts)])
        return TopK(frozen(labels, np.int32), frozen(scores, np.float64))

    def _scores(self, rows: CSR) -> Iterator[Float64]:
        """Yield the scores of all labels, chunk by chunk."""
        stages = [FittedStage(_dense(s), s.features, s.calibration) for s in self.stages_]
        for lo in range(0, rows.n_rows, CHUNK_ROWS):
            chunk = row_range(rows, lo, min(lo + CHUNK_ROWS, rows.n_rows))
            yield predict_stages(stages, chunk).astype(np.float64)

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: those closer to 1 than to 0."""
        return scores > 0.5


class StagewiseRegression(StagedEstimator):
    """Stagewise regression; see `xcray.solvers.least_squares.staged_solvers.StagewiseSolver`.

    With several labels per row, those with a score above 1/2 are predicted, which suits the rules
    "linear" and "previous".

        Example:
            >>> import numpy as np
            >>> X, y = np.repeat(np.eye(3), 20, axis=0), np.repeat([0, 1, 1], 20)
            >>> StagewiseRegression(stages=2, block_size=20).fit(X, y).predict(np.eye(3)).tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "stagewise"


class CalibratedLeastSquares(StagedEstimator):
    """Calibrated least squares; see the solver `calibrated-least-squares`.

    With several labels per row, those with a score above 1/2 are predicted.

        Example:
            >>> import numpy as np
            >>> X, y = np.repeat(np.eye(3), 20, axis=0), np.repeat([0, 1, 1], 20)
            >>> CalibratedLeastSquares(rounds=2).fit(X, y).predict(np.eye(3)).tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "calibrated-least-squares"


def _dense(stage: Stage) -> Any:
    """Return the dense weights of a stage. Raises InputError for sparse ones."""
    if isinstance(stage.W, CSR):
        raise InputError("the model has sparse stages: use Predictor(Model.open(path))")
    return stage.W
