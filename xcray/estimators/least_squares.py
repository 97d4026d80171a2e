"""Least squares as a scikit-learn estimator; it runs on threads of this process."""

from __future__ import annotations

from typing import Any, ClassVar

from xcray.arrays import CSR, Float32, Float64, Pattern
from xcray.estimators.linear import LinearEstimator, unmet
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.least_squares.solver import LeastSquaresSolver
from xcray.solvers.solved_labels import concatenate
from xcray.training.group_training import train_in_process


class LeastSquares(LinearEstimator):
    """Least squares on the label indicator; see `xcray.solvers.least_squares.solver`.

    The predicted labels of a row are those with a score above 1/2; with one class per row, the one
    with the highest score.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured, objective_, n_iter_ (steps), n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> LeastSquares().fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "least-squares"
    UNUSED: ClassVar[frozenset[str]] = frozenset({"eval_every"})  # there are no held-out rows
    NEEDS_POSITIVES: ClassVar[bool] = True

    def _train(
        self, solver: LeastSquaresSolver, X: CSR, Y: Pattern, weights: Float32 | None
    ) -> str | None:
        """Train on threads of this process, and set the fitted attributes."""
        workers = min(self._workers(), solver.shards)
        result = train_in_process(solver, TrainingRows(X, Y, weights), workers)
        self._set_model(concatenate(result.labels))
        self.objective_, self.n_iter_ = result.outcome.objective, result.outcome.epochs
        return unmet(solver.stopping, result.outcome.reason)

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: those closer to 1 than to 0."""
        return scores > 0.5
