"""The inverted index: weights by feature, searched exactly."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xcray.arrays import CSR, Float32, TopK, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.validate_rows import check_place, check_rows
from xcray.kernels.search.postings import Biases, Scratch, rank_of, score_of, top_k
from xcray.kernels.sparse import transpose

ROWS_A_CALL = 256  # a kernel call takes milliseconds, so that a batch can be interrupted


class InvertedIndex:
    """Exact search over a linear model: the labels and scores of the full product, ties by lower label number.

    A score is summed in float64 over ascending features, then + bias: bit for bit what a loop over all labels gives.
    Safe for any number of threads at once; each uses working memory of its own, 13 bytes a label, kept for the next.
    """

    def __init__(self, W: CSR, postings: CSR, b: Float32) -> None:
        """W: (K, D) by label; postings: (D, K), the same by feature; b: (K,). Sound as `kernels.canonical` tells."""
        if postings.shape != (W.n_cols, W.n_rows) or len(b) != W.n_rows:
            raise ShapeMismatch(
                f"W is {W.shape}; postings must be its transpose, not {postings.shape}, and b as long, not {len(b)}"
            )
        self.W = W
        self.postings = postings
        order = np.argsort(
            -b.astype(np.float64), kind="stable"
        )  # stable: equal biases stay in the order of labels
        self._biases = Biases(frozen(b, np.float32), frozen(order, np.int32))
        self._free: deque[Scratch] = deque()

    @classmethod
    def build(cls, W: CSR, b: Float32) -> InvertedIndex:
        """The index of weights by label: one transposition."""
        return cls(W, transpose(W), b)

    @property
    def n_labels(self) -> int:
        """K, the number of labels."""
        return self.W.n_rows

    @property
    def n_features(self) -> int:
        """D, the number of features."""
        return int(self.W.n_cols)

    def query(self, X: CSR, k: int = 5, *, threads: int = 1) -> TopK:
        """The k best labels of each row; k is clipped to the number of labels.

        X: (n, D). threads: how many cores to use; the answer does not depend on it.
        Raises ShapeMismatch when X has other features, ParameterError for k or threads below 1, InputError for values
        that are not finite.
        """
        check_rows(X, self.n_features)
        if k < 1 or threads < 1:
            raise ParameterError(f"k is {k} and threads {threads}: both must be at least 1")
        shape = X.n_rows, min(k, self.n_labels)
        out = TopK(np.empty(shape, np.int32), np.empty(shape, np.float64))
        if out.labels.size:
            self._fill(X, out, threads)
        return TopK(frozen(out.labels, np.int32), frozen(out.scores, np.float64))

    def score(self, X: CSR, label: int, row: int = 0) -> float:
        """The score of one label for one row: the same bits as `query` gives. Raises NotFound, ShapeMismatch."""
        check_rows(X, self.n_features)
        check_place(X, row, label, self.n_labels)
        return float(score_of(X, row, label, self.W, float(self._biases.values[label])))

    def rank(self, X: CSR, label: int, row: int = 0) -> int:
        """The place of a label among all for one row, from 1. Raises NotFound, ShapeMismatch."""
        check_rows(X, self.n_features)
        check_place(X, row, label, self.n_labels)
        scratch = self._scratch()
        place = 1 + int(rank_of(X, row, label, self.postings, self._biases, scratch))
        self._free.append(scratch)
        return place

    def _fill(self, X: CSR, out: TopK, threads: int) -> None:
        """Answer all rows, in ranges that idle threads take one after the other."""
        step = max(1, min(ROWS_A_CALL, -(-X.n_rows // threads)))
        starts = range(0, X.n_rows, step)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                self._answer(X, out, start, step)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="xcray-search") as pool:
            for _ in pool.map(lambda start: self._answer(X, out, start, step), starts):
                continue  # map's results are None; asking for them raises what a thread raised

    def _answer(self, X: CSR, out: TopK, start: int, step: int) -> None:
        """Answer rows [start, start + step) with working memory of our own."""
        scratch = self._scratch()
        top_k(X, start, min(start + step, X.n_rows), self.postings, self._biases, scratch, out)
        self._free.append(scratch)  # clean again; after an exception it is not, and is dropped

    def _scratch(self) -> Scratch:
        """Working memory that nobody uses now."""
        try:
            return self._free.pop()
        except IndexError:
            n = self.n_labels
            return Scratch(
                np.zeros(n, np.float64), np.zeros(n, np.uint8), np.zeros(n + 1, np.int32)
            )
