"""Linear SVM by indexed block coordinate descent, as a scikit-learn estimator."""

from __future__ import annotations

from typing import ClassVar

from xcray.estimators.labels import LabelByLabelEstimator


class IndexedSVM(LabelByLabelEstimator):
    """One-vs-rest linear SVM with truncated loss; see `xcray.solvers.indexed_bcd.solver`.

    With several labels per row, the labels with a score above 0 are predicted.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (objective, outliers, support, gap and more of every label), n_features_in_.

        Example:
            >>> import numpy as np
            >>> X, Y = np.eye(3), np.array([[1, 0], [0, 1], [0, 1]])
            >>> IndexedSVM().fit(X, Y).predict_top_k(X, k=1).labels.ravel().tolist()
            [0, 1, 1]
    """

    SOLVER: ClassVar[str] = "indexed-bcd"
