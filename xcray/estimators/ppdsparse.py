"""PPDSparse as a scikit-learn estimator: one linear classifier per label, sparse X and Y."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from xcray.arrays import CSR, Float32, Pattern
from xcray.estimators.labels import LabelByLabelEstimator
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training.selection.coordinate_search import Selector
from xcray.training.selection.held_out import selection_data
from xcray.training.selection.measure import parse_measure


class PPDSparse(LabelByLabelEstimator):
    """One-vs-rest sparse linear classification over many labels; see `xcray.solvers.ppdsparse`.

    auto: choose row_norm, C, positives, positive_weight and lam on held-out rows for this measure,
    such as "P@1+nDCG@5"; those that differ from their defaults are kept, and selection_ is what was
    tried. row_norm_ is the normalisation that was used. groups: let similar labels share evidence:
    "none", "auto", or numbers of groups such as "100,400"; groups_ is what was trained, None if it
    gains nothing on held-out rows. With several labels per row, the labels
    with a score above 0 are predicted.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (rounds, primal, dual, gap and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> PPDSparse(eps=1e-6).fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "ppdsparse"
    OPTIONS: ClassVar[Mapping[str, Any]] = {"auto": None, **LabelByLabelEstimator.OPTIONS}
    auto: str | None

    def _train(
        self, solver: PPDSparseSolver, X: CSR, Y: Pattern, weights: Float32 | None
    ) -> str | None:
        """Choose parameters if `auto` is set, and train."""
        if self.auto is not None:
            parse_measure(self.auto)
            defaults, params = PPDSparseSolver().as_dict(), solver.as_dict()
            changed = {name: value for name, value in params.items() if value != defaults[name]}
            data = selection_data(X, Y, weights)
            selector = Selector("ppdsparse", data, changed, self.auto, self._workers())
            chosen, self.selection_ = selector.run()
            solver = replace(solver, **chosen)
        self.row_norm_ = solver.row_norm
        return super()._train(solver, X, Y, weights)
