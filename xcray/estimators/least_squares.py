"""Least squares as a scikit-learn estimator; it runs on threads of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern, frozen
from xcray.estimators.linear import LinearEstimator, unmet
from xcray.solvers.least_squares.solver import LeastSquaresSolver
from xcray.solvers.least_squares.staged_solvers import StagesSolver
from xcray.solvers.solved_labels import SolvedLabels, concatenate
from xcray.solvers.synchronous_contract import SynchronousOutcome, TrainingRows
from xcray.system.blas_threads import limit_blas_threads
from xcray.workers.local_group import ThreadGroup
from xcray.workers.synchronous_calls import SynchronousCalls


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
        outcome, block = _train(solver, X, Y, weights, self._workers())
        self._set_model(block)
        self.objective_, self.n_iter_ = outcome.last.objective, outcome.last.number
        return unmet(solver.stopping, outcome.reason)

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: those closer to 1 than to 0."""
        return scores > 0.5


@dataclass(frozen=True)
class RowWorkerFactory:
    """Creates the workers of a training from rows in this process."""

    solver: LeastSquaresSolver | StagesSolver
    data: TrainingRows
    workers: int

    def create_worker(self, worker: str, stopped: Any, /) -> Any:
        """Return the worker with its shards."""
        number = int(worker.rpartition("-")[2])
        return self.solver.create_worker(self.data, number, self.workers, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


def _train(
    solver: LeastSquaresSolver, X: CSR, Y: Pattern, weights: Float32 | None, workers: int
) -> tuple[SynchronousOutcome, SolvedLabels]:
    """Train on threads of this process; return the outcome and all labels."""
    workers = min(workers, solver.shards)
    group = ThreadGroup(RowWorkerFactory(solver, TrainingRows(X, Y, weights), workers), workers)
    positives: Int64 = frozen(np.bincount(Y.indices, minlength=Y.n_cols), np.int64)
    try:
        with limit_blas_threads():
            group.open()
            n_weights = solver.n_weights(X.n_cols)
            outcome = solver.train(SynchronousCalls(group), n_weights, Y.n_cols)
            return outcome, concatenate(list(solver.blocks(outcome, positives)))
    finally:
        group.close()
