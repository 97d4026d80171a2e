"""Linear SVM by indexed block coordinate descent, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, ClassVar, Self
from warnings import warn

from sklearn.exceptions import ConvergenceWarning

from xcray.estimators.labels import solve_labels
from xcray.estimators.linear import LinearEstimator, drop_unweighted
from xcray.solvers.contract import summarize_records
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.solvers.parameters import make_parameters


class IndexedSVM(LinearEstimator):
    """One-vs-rest linear SVM with truncated loss; see `xcray.solvers.indexed_bcd.solver`.

    C, s, eps, selection, leaf_rows, query_rows, first_rows, max_rounds, max_sweeps, inner,
    shrinking, seed: as in the solver. n_jobs: number of threads; None for one, -1 for all cores.
    The bits of the model do not depend on it. With several labels per row, the labels with a score
    above 0 are predicted.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (objective, outliers, support, gap and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> IndexedSVM().fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "indexed-bcd"

    def __init__(
        self,
        C: float = 1.0,
        s: float = 1.0,
        eps: float = 0.001,
        selection: str = "auto",
        leaf_rows: int = 256,
        query_rows: int = 1000,
        first_rows: int = 10_000,
        max_rounds: int = 20,
        max_sweeps: int = 300,
        inner: str = "l1-dual",
        shrinking: str = "on",
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        """Store the parameters; `fit` checks them."""
        self.C = C
        self.s = s
        self.eps = eps
        self.selection = selection
        self.leaf_rows = leaf_rows
        self.query_rows = query_rows
        self.first_rows = first_rows
        self.max_rounds = max_rounds
        self.max_sweeps = max_sweeps
        self.inner = inner
        self.shrinking = shrinking
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one linear classifier per label.

        X: (N, D) sparse or dense, numbers. y: (N, K) 0/1 label indicator, sparse or dense, (N,)
        one class per row, or a list of N lists of label names. sample_weight: (N,) numbers, factors
        of the row losses; rows of weight 0 are left out. Raises ParameterError for a parameter out
        of range, ValueError if scikit-learn's checks reject X or y.
        """
        params = {name: value for name, value in self.get_params().items() if name != "n_jobs"}
        solver = make_parameters(IndexedBCDSolver, params)
        rows, labels, weights = drop_unweighted(*self._validate(X, y), sample_weight)
        block = solve_labels(solver, rows, labels, weights, self._workers())
        self._set_model(block)
        summary = summarize_records(solver, block.records)
        if not summary["converged"]:
            warn(solver.stopping.warning(summary["stopped"]), ConvergenceWarning, stacklevel=2)
        return self
