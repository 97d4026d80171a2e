"""Exact log-partition function of softmax models: log of the sum of exp(score) over all labels."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xcray.arrays import CSR, Float64, frozen
from xcray.errors import ParameterError
from xcray.index.search import ROWS_PER_CALL, SearchIndex
from xcray.kernels.search.lists import NARROW_BYTES
from xcray.kernels.search.logsumexp import (
    BiasPartition,
    by_lists,
    by_postings,
    by_rows,
    largest,
    sum_exp,
)
from xcray.kernels.search.postings import PostingScratch
from xcray.kernels.sparse import transpose


class LogPartition:
    """Log of the sum over all labels of exp(x . w + bias). Thread-safe.

    The scores are bit-identical to those of the search. A row costs reading all weights of its
    features, plus an exponential (about a nanosecond) per label that these weights touch, or per
    label of the model once they are at least a quarter as many as the labels. Each thread uses its
    own working memory of 13 bytes per label, which is reused. The weights are read from the dense
    rows of the search if there are any, else for up to 65,536 labels from its lists. Beyond that,
    lists contain only bounds, so the weights are transposed in memory on first use: 8 bytes each.
    """

    def __init__(self, search: SearchIndex) -> None:
        """Create the function. search: index of the model."""
        biases = search.b.astype(np.float64)
        max_bias = float(largest(biases))
        self._totals = BiasPartition(search.b, max_bias, float(sum_exp(biases, max_bias)))
        self._search = search
        self._postings: CSR | None = None
        self._transpose_lock = threading.Lock()
        self._free_scratch: deque[PostingScratch] = deque()

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
        starts = range(0, X.n_rows, step)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                self._compute_rows(X, start, step, out)
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="xcray-softmax") as pool:
                for _ in pool.map(lambda start: self._compute_rows(X, start, step, out), starts):
                    continue  # the results are None; iterating raises errors of the threads
        return frozen(out, np.float64)

    def _compute_rows(self, X: CSR, start: int, step: int, out: Float64) -> None:
        """Compute rows [start, start + step) with exclusive working memory."""
        stop = min(start + step, X.n_rows)
        if self._search.dense is not None:
            by_rows(X, start, stop, self._search.dense.weights, self._totals, out)
            return
        scratch = self._take_scratch()
        if self._search.lists.width == NARROW_BYTES:
            by_lists(X, start, stop, self._search.lists, self._totals, scratch, out)
        else:
            by_postings(X, start, stop, self._postings_by_feature(), self._totals, scratch, out)
        # clean again; after an exception it is not, and is discarded
        self._free_scratch.append(scratch)

    def _postings_by_feature(self) -> CSR:
        """Return the weights by feature, (D, K), computed once."""
        with self._transpose_lock:
            if self._postings is None:
                self._postings = transpose(self._search.W)
            return self._postings

    def _take_scratch(self) -> PostingScratch:
        """Return working memory that is not in use."""
        try:
            return self._free_scratch.pop()
        except IndexError:
            n = self._search.n_labels
            return PostingScratch(
                np.zeros(n, np.float64), np.zeros(n, np.uint8), np.zeros(n + 1, np.int32)
            )


def softmax(scores: Float64, log_normaliser: Float64) -> Float64:
    """Return exp(score - log-partition): (n, k) float64 in 0 to 1.

    scores: (n, k). log_normaliser: (n,), see `LogPartition.compute`.
    """
    probabilities = np.exp(scores - log_normaliser[:, None])
    # rounding can lift the probability of a dominant label above 1
    return frozen(np.minimum(probabilities, 1.0, out=probabilities), np.float64)
