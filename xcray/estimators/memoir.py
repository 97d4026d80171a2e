"""MEMOIR as a scikit-learn estimator: one class per row, of many."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from xcray.arrays import Float64, frozen
from xcray.estimators.linear import LinearEstimator
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.solvers.parameters import make_parameters


class MEMOIR(LinearEstimator):
    """Multi-class SVM by stochastic gradient; see `xcray.solvers.memoir.solver`.

    All parameters except n_jobs are those of the solver. n_jobs: threads of predictions; None for
    one, -1 for all cores. The training uses one core. With several labels per row, the label with
    the highest score is predicted. row_norm_ is the normalisation of rows.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (rounds, nnz, held-out counts and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> MEMOIR().fit(np.eye(3), ["a", "b", "c"]).predict(np.eye(3)).tolist()
            ['a', 'b', 'c']
    """

    SOLVER: ClassVar[str] = "memoir"

    def __init__(
        self,
        penalty: str = "l2",
        lam: float = 1e-5,
        rounds: int = 100,
        batch: int = 0,
        eta0: float = 0.1,
        eta_step: float = 0.02,
        step: str = "sample",
        margin: float = 1.0,
        oracle: str = "exact",
        bits: int = 64,
        components: int = 0,
        max_margin_error: float = 0.0,
        group: int = 1,
        draws: str = "rows",
        labels: str = "all",
        early_stopping_rounds: int = 0,
        held_out: float = 0.1,
        eval_every: int = 1,
        average_from: int = 0,
        row_norm: str = "none",
        prune: float = 0.0,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        """Store the parameters; `fit` checks them."""
        self.penalty = penalty
        self.lam = lam
        self.rounds = rounds
        self.batch = batch
        self.eta0 = eta0
        self.eta_step = eta_step
        self.step = step
        self.margin = margin
        self.oracle = oracle
        self.bits = bits
        self.components = components
        self.max_margin_error = max_margin_error
        self.group = group
        self.draws = draws
        self.labels = labels
        self.early_stopping_rounds = early_stopping_rounds
        self.held_out = held_out
        self.eval_every = eval_every
        self.average_from = average_from
        self.row_norm = row_norm
        self.prune = prune
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> Self:
        """Train all classes.

        X: (N, D) sparse or dense, numbers. y: (N,) one class per row, (N, K) 0/1 label indicator,
        sparse or dense, or a list of N lists of label names. Raises ParameterError for a parameter
        out of range, ValueError if scikit-learn's checks reject X or y.
        """
        params = {name: value for name, value in self.get_params().items() if name != "n_jobs"}
        solver = make_parameters(MemoirSolver, params)
        rows, labels = self._validate(X, y)
        self.row_norm_ = solver.row_norm
        local = solver.load(rows, transpose(rows), transpose_pattern(labels))
        self._set_model(solver.solve(local, frozen(np.arange(labels.n_cols), np.int32)))
        return self

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: the one with the highest score."""
        assigned = np.zeros(scores.shape, bool)
        assigned[np.arange(len(scores)), scores.argmax(axis=1)] = True
        return assigned
