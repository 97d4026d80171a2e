"""PPDSparse as a scikit-learn estimator: one linear classifier per label, sparse X and Y."""

from __future__ import annotations

from typing import Any, ClassVar, Self
from warnings import warn

from sklearn.exceptions import ConvergenceWarning

from xcray.estimators.labels import solve_labels
from xcray.estimators.linear import LinearEstimator, drop_unweighted
from xcray.solvers.contract import summarize_records
from xcray.solvers.parameters import make_parameters
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training.selection.coordinate_search import Selector
from xcray.training.selection.held_out import selection_data
from xcray.training.selection.measure import DEFAULT, parse_measure


class PPDSparse(LinearEstimator):
    """One-vs-rest sparse linear classification over many labels; see `xcray.solvers.ppdsparse`.

    lam, tau, C, bias_penalty, loss, eps, positives, positive_weight, prune, prune_keep, prune_loss,
    max_rounds, max_sweeps, growth, seed, row_norm: as in the solver. auto: choose row_norm, C,
    positives, positive_weight and lam on held-out rows for the measure `select`; those that differ
    from their defaults are kept, and selection_ is what was tried. row_norm_ is the normalisation
    that was used. n_jobs: number of threads; None for one, -1 for all cores. The bits of the model
    do not depend on it. With several labels per row, the labels with a score above 0 are predicted.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (rounds, primal, dual, gap and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> PPDSparse(eps=1e-6).fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "ppdsparse"

    def __init__(
        self,
        lam: float = 0.01,
        tau: float = 1.0,
        C: float = 1.0,
        bias_penalty: float = 0.1,
        loss: str = "squared_hinge",
        eps: float = 0.01,
        positives: str = "equal",
        positive_weight: float = 1.0,
        prune: float = 0.0,
        prune_keep: int = 0,
        prune_loss: float = 0.0,
        max_rounds: int = 100,
        max_sweeps: int = 20,
        growth: int = 2,
        seed: int = 0,
        row_norm: str = "none",
        auto: bool = False,
        select: str = DEFAULT,
        n_jobs: int | None = None,
    ) -> None:
        """Store the parameters; `fit` checks them."""
        self.lam = lam
        self.tau = tau
        self.C = C
        self.bias_penalty = bias_penalty
        self.loss = loss
        self.eps = eps
        self.positives = positives
        self.positive_weight = positive_weight
        self.prune = prune
        self.prune_keep = prune_keep
        self.prune_loss = prune_loss
        self.max_rounds = max_rounds
        self.max_sweeps = max_sweeps
        self.growth = growth
        self.seed = seed
        self.row_norm = row_norm
        self.auto = auto
        self.select = select
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one linear classifier per label.

        X: (N, D) sparse or dense, numbers. y: (N, K) 0/1 label indicator, sparse or dense, (N,)
        one class per row, or a list of N lists of label names. sample_weight: (N,) numbers, factors
        of the row losses; rows of weight 0 are left out. Raises ParameterError for a parameter out
        of range, ValueError if scikit-learn's checks reject X or y.
        """
        params = {
            name: value
            for name, value in self.get_params().items()
            if name not in ("auto", "select", "n_jobs")
        }
        solver = make_parameters(PPDSparseSolver, params)
        parse_measure(self.select)
        rows, labels = self._validate(X, y)
        rows, labels, weights = drop_unweighted(rows, labels, sample_weight)
        if self.auto:
            defaults = PPDSparseSolver()
            changed = {n: value for n, value in params.items() if value != getattr(defaults, n)}
            data = selection_data(rows, labels, weights)
            chosen, self.selection_ = Selector(data, changed, self.select, self._workers()).run()
            solver = make_parameters(PPDSparseSolver, {**params, **chosen})
        self.row_norm_ = solver.row_norm
        block = solve_labels(solver, rows, labels, weights, self._workers())
        self._set_model(block)
        summary = summarize_records(solver, block.records)
        if not summary["converged"]:
            warn(solver.stopping.warning(summary["stopped"]), ConvergenceWarning, stacklevel=2)
        return self
