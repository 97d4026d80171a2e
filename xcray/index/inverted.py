"""Inverted index: weights by feature, searched exactly without pruning."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xcray.arrays import CSR, Float32, TopK, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.validate_rows import check_position, check_rows
from xcray.kernels.search.postings import Biases, PostingScratch, rank_of, score_of, top_k
from xcray.kernels.sparse import transpose

ROWS_PER_CALL = 256  # keeps a kernel call to milliseconds, so that a batch can be interrupted


class InvertedIndex:
    """Exact search over a linear model: labels and scores of the full product.

    Ties are broken by lower label number. A score is summed in float64 over ascending features,
    then + bias: bit-identical to a loop over all labels. Thread-safe; each thread uses its own
    working memory of 13 bytes per label, which is reused.
    """

    def __init__(self, W: CSR, postings: CSR, b: Float32) -> None:
        """Create an index.

        W: (K, D), weights by label. postings: (D, K), the same weights by feature. b: (K,), biases.
        The matrices must be valid as defined by `kernels.canonical`.
        """
        if postings.shape != (W.n_cols, W.n_rows) or len(b) != W.n_rows:
            raise ShapeMismatch(
                f"W is {W.shape}; postings must be its transpose, not {postings.shape}, and b must "
                f"have {W.n_rows} entries, not {len(b)}"
            )
        self.W = W
        self.postings = postings
        # stable: labels of equal bias stay in order
        order = np.argsort(-b.astype(np.float64), kind="stable")
        self._biases = Biases(frozen(b, np.float32), frozen(order, np.int32))
        self._free_scratch: deque[PostingScratch] = deque()

    @classmethod
    def build(cls, W: CSR, b: Float32) -> InvertedIndex:
        """Return the index of weights by label; transposes them once."""
        return cls(W, transpose(W), b)

    @property
    def n_labels(self) -> int:
        """Return K, the number of labels."""
        return self.W.n_rows

    @property
    def n_features(self) -> int:
        """Return D, the number of features."""
        return int(self.W.n_cols)

    def query(self, X: CSR, k: int = 5, *, threads: int = 1) -> TopK:
        """Return the k best labels of each row; k is clipped to the number of labels.

        X: (n, D). threads: number of cores; the result does not depend on it. Raises ShapeMismatch
        if X has a different number of features, ParameterError for k or threads below 1, InputError
        for values that are not finite.
        """
        check_rows(X, self.n_features)
        if k < 1 or threads < 1:
            raise ParameterError(f"k is {k} and threads {threads}: both must be at least 1")
        shape = X.n_rows, min(k, self.n_labels)
        out = TopK(np.empty(shape, np.int32), np.empty(shape, np.float64))
        if out.labels.size:
            self._search_all(X, out, threads)
        return TopK(frozen(out.labels, np.int32), frozen(out.scores, np.float64))

    def score(self, X: CSR, label: int, row: int = 0) -> float:
        """Return the score of one label for one row, bit-identical to `query`.

        Raises NotFound or ShapeMismatch.
        """
        check_rows(X, self.n_features)
        check_position(X, row, label, self.n_labels)
        return float(score_of(X, row, label, self.W, float(self._biases.values[label])))

    def rank(self, X: CSR, label: int, row: int = 0) -> int:
        """Return the rank of a label among all labels for one row, from 1.

        Raises NotFound or ShapeMismatch.
        """
        check_rows(X, self.n_features)
        check_position(X, row, label, self.n_labels)
        scratch = self._take_scratch()
        rank = 1 + int(rank_of(X, row, label, self.postings, self._biases, scratch))
        self._free_scratch.append(scratch)
        return rank

    def _search_all(self, X: CSR, out: TopK, threads: int) -> None:
        """Search all rows, in ranges that idle threads process one after the other."""
        step = max(1, min(ROWS_PER_CALL, -(-X.n_rows // threads)))
        starts = range(0, X.n_rows, step)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                self._search_rows(X, out, start, step)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="xcray-search") as pool:
            for _ in pool.map(lambda start: self._search_rows(X, out, start, step), starts):
                continue  # the results are None; iterating raises errors of the threads

    def _search_rows(self, X: CSR, out: TopK, start: int, step: int) -> None:
        """Search rows [start, start + step) with exclusive working memory."""
        scratch = self._take_scratch()
        top_k(X, start, min(start + step, X.n_rows), self.postings, self._biases, scratch, out)
        # clean again; after an exception it is not, and is discarded
        self._free_scratch.append(scratch)

    def _take_scratch(self) -> PostingScratch:
        """Return working memory that is not in use."""
        try:
            return self._free_scratch.pop()
        except IndexError:
            n = self.n_labels
            return PostingScratch(
                np.zeros(n, np.float64), np.zeros(n, np.uint8), np.zeros(n + 1, np.int32)
            )
