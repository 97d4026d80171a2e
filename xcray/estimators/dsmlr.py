"""DS-MLR as a scikit-learn estimator: multinomial logistic regression over many labels.

It runs on threads of this process.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Pattern
from xcray.estimators.linear import LinearEstimator, unmet
from xcray.solvers.dsmlr.solver import DSMLRSolver
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.solved_labels import concatenate
from xcray.training.group_training import train_in_process

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
        rows = TrainingRows(X, Y, weights)
        layout = solver.layout(GRID_WORKERS, False, rows)
        layout = layout._replace(workers=min(self._workers(), layout.workers))
        _, outcome, _, labels = train_in_process(solver, rows, layout.workers, layout)
        self._set_model(concatenate(labels))
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
