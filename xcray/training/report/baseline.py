"""Comparison of a model with label centroids: a warning if it is far worse."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from xcray.arrays import CSR, Pattern, frozen
from xcray.data.dataset import Dataset
from xcray.kernels.sparse import take_pattern_rows, take_rows

MAX_TRAINING, MAX_TESTED = 20_000, 500  # rows that are drawn
MAX_DRAWN: Final = 1 << 18  # their expected entries: 3 MB, within any memory limit
MAX_ENTRIES: Final = 1 << 20  # of a product at a time
SHARE: Final = 0.75  # of the baseline's P@1, below which a model is far worse
STANDARD_ERRORS: Final = 3.0


def baseline_warnings(data: Dataset, measures: Mapping[str, float]) -> list[dict[str, str]]:
    """Return a warning if a model is far worse than the means of the rows of each label.

    measures: of the model on the test part. Without "P@1" or scipy there is no comparison.
    """
    p_at_1 = measures.get("P@1")
    compares = data.test is not None and data.n_labels > 1 and find_spec("scipy") is not None
    if p_at_1 is None or not compares:
        return []
    ours, n = centroid_precision(data)
    error = (ours * (1.0 - ours) / max(n, 1)) ** 0.5
    if p_at_1 >= SHARE * ours or p_at_1 >= ours - STANDARD_ERRORS * error:
        return []
    return [
        {
            "code": "BELOW_BASELINE",
            "message": f"P@1 is {100 * p_at_1:.1f} %, that of the mean of each label's rows "
            f"{100 * ours:.1f} %: the parameters or the solver do not suit this data set; try "
            "ppdsparse, or xcray tune",
        }
    ]


def centroid_precision(data: Dataset) -> tuple[float, int]:
    """Return P@1 of centroids on at most 500 test rows, and the number of these rows.

    Rows have length 1; a centroid is the mean of those with the label among at most 20,000 drawn
    rows, fewer if they have many entries, scaled to length 1.
    """
    assert data.test is not None
    X, Y = _draw(data.train.X, data.train.Y, MAX_TRAINING)
    X_test, Y_test = _draw(data.test.X, data.test.Y, MAX_TESTED)
    centroids = _unit(Y.T @ _unit(X)).T.tocsc()
    hits, step = 0, max(1, MAX_ENTRIES // max(data.n_labels, 1))
    for lo in range(0, X_test.shape[0], step):
        best = (_unit(X_test[lo : lo + step]) @ centroids).toarray().argmax(axis=1)
        hits += int(Y_test[np.arange(lo, lo + len(best)), best].sum())
    return hits / max(X_test.shape[0], 1), X_test.shape[0]


def _draw(X: CSR, Y: Pattern, most: int) -> tuple[Any, Any]:
    """Return at most that many rows with labels as scipy matrices in float64."""
    labelled = np.flatnonzero(np.diff(Y.indptr))
    most = min(most, MAX_DRAWN * X.n_rows // max(X.nnz, 1) + 1)
    chosen = np.sort(np.random.default_rng(0).permutation(labelled)[:most])
    rows = frozen(chosen, np.int64)
    return take_rows(X, rows).to_scipy().astype(np.float64), take_pattern_rows(Y, rows).to_scipy()


def _unit(X: Any) -> Any:
    """Return rows of length 1; rows without entries stay so."""
    from scipy.sparse import diags

    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return (diags(1.0 / np.where(norms > 0.0, norms, 1.0)) @ X).tocsr()
