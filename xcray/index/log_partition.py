"""Exact log-partition function of softmax models: log of the sum of exp(score) over all labels."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np

from xcray.arrays import CSR, Float64, frozen
from xcray.errors import ParameterError
from xcray.index.search import ROWS_PER_CALL, SearchIndex, run_ranges
from xcray.kernels.search.lists import NARROW_BYTES
from xcray.kernels.search.logsumexp import bias_powers, by_lists, by_postings, by_rows
from xcray.kernels.sparse import transpose


class LogPartition:
    """Log of the sum over all labels of exp(x . w + bias). Thread-safe.

    The scores are bit-identical to those of the search. A row costs reading all weights of its
    features, plus an exponential (about a nanosecond) per label that these touch, or per label of
    the model with dense rows. The weights are read from the dense rows of the search if there are
    any, else for up to 65,536 labels from its lists. Beyond that, lists contain only bounds, so the
    weights are transposed in memory on first use: 8 bytes each.
    """

    def __init__(self, search: SearchIndex) -> None:
        """Create the function. search: index of the model."""
        self._bias = bias_powers(search.b)
        self._search = search
        self._postings: CSR | None = None
        self._transpose_lock = threading.Lock()

    def compute(self, X: CSR, *, threads: int = 1) -> Float64:
        """Return the log-partition of each row: (n,) float64, -inf for a model without labels.

        X: (n, D). threads: number of cores; the values do not depend on it. The relative error of
        the sum is below 1e-11 up to a billion labels. Raises ShapeMismatch if X has a different
        number of features, ParameterError for threads below 1, InputError for values that are not
        finite.
        """
        X = self._search.input_rows(X)
        if threads < 1:
            raise ParameterError(f"threads is {threads}: it must be at least 1")
        out = np.empty(X.n_rows, np.float64)
        step = max(1, min(ROWS_PER_CALL, -(-X.n_rows // threads)))
        run_ranges(X.n_rows, step, threads, partial(self._compute_rows, X, out))
        return frozen(out, np.float64)

    def _compute_rows(self, X: CSR, out: Float64, start: int, stop: int) -> None:
        """Compute rows [start, stop)."""
        search = self._search
        if search.dense is not None:
            by_rows(X, start, stop, search.dense.weights, search.b, out)
        elif search.lists.width == NARROW_BYTES:
            by_lists(X, start, stop, search.lists, self._bias, out)
        else:
            by_postings(X, start, stop, self._postings_by_feature(), self._bias, out)

    def _postings_by_feature(self) -> CSR:
        """Return the weights by feature, (D, K), computed once."""
        with self._transpose_lock:
            if self._postings is None:
                self._postings = transpose(self._search.W)
            return self._postings


def softmax(scores: Float64, log_normaliser: Float64) -> Float64:
    """Return exp(score - log-partition): (n, k) float64 in 0 to 1.

    scores: (n, k). log_normaliser: (n,), see `LogPartition.compute`.
    """
    probabilities = np.exp(scores - log_normaliser[:, None])
    # rounding can lift the probability of a dominant label above 1
    return frozen(np.minimum(probabilities, 1.0, out=probabilities), np.float64)
