"""The exact log-normaliser of softmax models: log of the sum of exp(score) over all labels, a row each."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from xcray.arrays import CSR, Float64, frozen
from xcray.errors import ParameterError
from xcray.index.search import ROWS_A_CALL, SearchIndex
from xcray.index.validate_rows import check_rows
from xcray.kernels.search.lists import NARROW
from xcray.kernels.search.logsumexp import Whole, by_lists, by_postings, by_rows, largest, sum_exp
from xcray.kernels.search.postings import Scratch
from xcray.kernels.sparse import transpose


class Normaliser:
    """log sum over all labels of exp(x . w + bias), with scores of the same bits as the search's; safe for many threads at once.

    A row costs the reading of all weights of its features, and an exponential, about a nanosecond, for each label that these touch
    (for every label once they have a quarter as many weights as there are labels). Each thread uses working memory of its
    own, 13 bytes a label, kept for the next. The weights are those of the search's plain rows where it has any, else up to 65,536
    labels those in its lists; beyond, lists hold bounds only, so weights are turned in memory when first asked for: 8 bytes each.
    """

    def __init__(self, search: SearchIndex) -> None:
        """search: of the model whose scores are meant."""
        biases = search.b.astype(np.float64)
        top = float(largest(biases))
        self._whole = Whole(search.b, top, float(sum_exp(biases, top)))
        self._search = search
        self._postings: CSR | None = None
        self._turning = threading.Lock()
        self._free: deque[Scratch] = deque()

    def of(self, X: CSR, *, threads: int = 1) -> Float64:
        """The log-normaliser of each row: (n,) float64, -inf of a model without labels.

        X: (n, D). threads: cores to use; the values do not depend on it. The relative error of the sum is below 1e-11 up to a
        billion labels. Raises ShapeMismatch when X has other features, ParameterError for threads below 1, InputError for values
        that are not finite.
        """
        check_rows(X, self._search.n_features)
        if threads < 1:
            raise ParameterError(f"threads is {threads}: it must be at least 1")
        out = np.empty(X.n_rows, np.float64)
        step = max(1, min(ROWS_A_CALL, -(-X.n_rows // threads)))
        starts = range(0, X.n_rows, step)
        if threads == 1 or len(starts) == 1:
            for start in starts:
                self._rows(X, start, step, out)
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="xcray-softmax") as pool:
                for _ in pool.map(lambda start: self._rows(X, start, step, out), starts):
                    continue  # map's results are None; asking for them raises what a thread raised
        return frozen(out, np.float64)

    def _rows(self, X: CSR, start: int, step: int, out: Float64) -> None:
        """Rows [start, start + step) with working memory of our own."""
        stop = min(start + step, X.n_rows)
        if self._search.dense is not None:
            by_rows(X, start, stop, self._search.dense, self._whole, out)
            return
        scratch = self._scratch()
        if self._search.lists.width == NARROW:
            by_lists(X, start, stop, self._search.lists, self._whole, scratch, out)
        else:
            by_postings(X, start, stop, self._by_feature(), self._whole, scratch, out)
        self._free.append(scratch)  # clean again; after an exception it is not, and is dropped

    def _by_feature(self) -> CSR:
        """The weights by feature, (D, K), made once."""
        with self._turning:
            if self._postings is None:
                self._postings = transpose(self._search.W)
            return self._postings

    def _scratch(self) -> Scratch:
        """Working memory that nobody uses now."""
        try:
            return self._free.pop()
        except IndexError:
            n = self._search.n_labels
            return Scratch(
                np.zeros(n, np.float64), np.zeros(n, np.uint8), np.zeros(n + 1, np.int32)
            )


def softmax(scores: Float64, log_normaliser: Float64) -> Float64:
    """exp(score - log-normaliser) of answers: scores (n, k), log_normaliser (n,); (n, k) float64 in 0 to 1."""
    told = np.exp(scores - log_normaliser[:, None])
    return frozen(
        np.minimum(told, 1.0, out=told), np.float64
    )  # a label that has it all may be above 1 by its last bit
