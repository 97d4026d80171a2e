"""DS-MLR as a scikit-learn estimator: multinomial logistic regression over many labels.

It runs on threads of this process.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Pattern, frozen
from xcray.estimators.linear import LinearEstimator, unmet
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.shard_contract import grid_of
from xcray.solvers.solved_labels import SolvedLabels, concatenate
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.program_loop import ProgramOutcome
from xcray.training.shards.shard_worker import ShardWorkerSpec
from xcray.training.shards.source import make_shard_source
from xcray.training.shards.task import ShardTask
from xcray.training.shards.training import train_shards
from xcray.workers.local_group import ThreadGroup
from xcray.workers.observer import CollectResults
from xcray.workers.pool import StopFlag

# the grid does not depend on the number of threads, so neither do the bits of the model
GRID_WORKERS: Final = 4


class DSMLR(LinearEstimator):
    """Multinomial logistic regression with split rows and labels; see `xcray.solvers.dsmlr.solver`.

    With the orders "ring" and "sync" the bits of the model do not depend on n_jobs.

    Probabilities are the softmax over all labels. A row with m labels is treated as a row whose m
    labels are drawn with equal probability. With several labels per row, the predicted labels are
    those whose equal shares are closest to the probabilities in the squared norm.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured, objective_, n_iter_ (epochs), history_ (metrics after each epoch, a list of dicts),
    n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> DSMLR().fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "dsmlr"
    LINK: ClassVar[str] = "softmax"
    NEEDS_POSITIVES: ClassVar[bool] = True

    def _train(
        self, solver: DSMLRSolver, X: CSR, Y: Pattern, weights: Float32 | None
    ) -> str | None:
        """Train on threads of this process, and set the fitted attributes."""
        outcome, block = _train(solver, X, Y, weights, self._workers())
        self._set_model(block)
        self.objective_, self.n_iter_ = outcome.objective, outcome.epochs
        self.history_ = outcome.history
        return unmet(solver.stopping, outcome.reason)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of all labels: (N, K) dense, each row adds up to 1.

        Needs 8 N K bytes, so it is meant for few labels.
        """
        parts = [softmax(scores) for scores in self._scores(self._rows(X))]
        return np.vstack([np.empty((0, len(self.classes_))), *parts])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return the m best labels of each row, where m shares of 1/m are closest to p."""
        p = softmax(scores)
        best = np.argsort(-p, axis=1, kind="stable")
        m = np.arange(1, p.shape[1] + 1)
        # for u = 1/m on the m best labels, |p - u|^2 = |p|^2 - (2 S_m - 1) / m,
        # where S_m is the sum of these m probabilities
        counts = 1 + np.argmax(
            (2.0 * np.cumsum(np.take_along_axis(p, best, axis=1), axis=1) - 1.0) / m, axis=1
        )
        out = np.zeros(p.shape, bool)
        np.put_along_axis(out, best, m <= counts[:, None], axis=1)
        return out


def softmax(scores: Float64) -> Float64:
    """Return the softmax of scores (n, K) in each row."""
    out: Float64 = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    out /= out.sum(axis=1, keepdims=True)
    return out


def _train(
    solver: DSMLRSolver, X: CSR, Y: Pattern, weights: Float32 | None, workers: int
) -> tuple[ProgramOutcome, SolvedLabels]:
    """Train on threads of this process; return the outcome and all labels."""
    data = TrainingRows(X, Y, weights)
    layout = solver.layout(GRID_WORKERS, False, data)
    grid = grid_of(layout)
    layout = layout._replace(workers=min(workers, grid.shards))
    rows = make_shard_source(X, Y, weights, None, grid=grid, seed=solver.seed, bias=solver.bias)
    work = ShardWorkerSpec(solver, layout, rows.split, X.n_cols, Y.n_cols)
    positives = np.bincount(Y.indices, minlength=Y.n_cols)
    task = ShardTask(grid, data, frozen(positives, np.int64))
    blocks = CollectResults[SolvedLabels]()
    group = ThreadGroup(work, layout.workers)
    with limit_blas_threads():
        outcome = train_shards(solver, group, rows, task, blocks, folder=None, stop=StopFlag())
    return outcome, concatenate(blocks.results)
