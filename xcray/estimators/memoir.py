"""MEMOIR as a scikit-learn estimator: one class per row, of many."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Pattern
from xcray.estimators.linear import LinearEstimator
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.solvers.solved_labels import concatenate
from xcray.training.group_training import train_in_process


class MEMOIR(LinearEstimator):
    """Multi-class SVM by stochastic gradient; see `xcray.solvers.memoir.solver`.

    n_jobs is the number of threads of predictions; the training uses one core. With several labels
    per row, the label with the highest score is predicted. row_norm_ is the normalisation of rows.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (rounds, nnz, held-out counts and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> MEMOIR().fit(np.eye(3), ["a", "b", "c"]).predict(np.eye(3)).tolist()
            ['a', 'b', 'c']
    """

    SOLVER: ClassVar[str] = "memoir"

    def fit(self, X: Any, y: Any) -> Self:  # type: ignore[override]
        """Train all classes: as the other estimators, without weights of rows."""
        return super().fit(X, y)

    def _train(self, solver: MemoirSolver, X: CSR, Y: Pattern, weights: Float32 | None) -> None:
        """Train on one thread, and set the fitted attributes."""
        self.row_norm_ = solver.row_norm
        result = train_in_process(solver, TrainingRows(X, Y, weights), 1)
        self._set_model(concatenate(result.labels))

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: the one with the highest score."""
        assigned = np.zeros(scores.shape, bool)
        assigned[np.arange(len(scores)), scores.argmax(axis=1)] = True
        return assigned
