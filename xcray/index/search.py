"""Exact search with a certificate, filters and deadlines."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, TopK, frozen
from xcray.index.answer import Answer
from xcray.index.filters import LabelFilter
from xcray.index.inverted import InvertedIndex


class SearchIndex:
    """The k best labels of each row, proven. Safe for any number of threads at once."""

    def __init__(self, scan: InvertedIndex) -> None:
        """scan: the plain scan over the same model, the judge of every faster search."""
        self.scan = scan

    def query(
        self, X: CSR, k: int = 5, *, threads: int = 1, deadline_ms: float | None = None, among: LabelFilter | None = None
    ) -> Answer:
        """The k best labels of each row among those allowed; k is clipped to their number.

        X: (n, D). threads: cores to use; answers do not depend on it. deadline_ms: time for the whole call.
        Raises ShapeMismatch, ParameterError, InputError as `InvertedIndex.query`.
        """
        if among is None:
            top = self.scan.query(X, k, threads=threads)
        else:
            every = self.scan.query(X, self.scan.n_labels, threads=threads)
            keep = among.allowed[every.labels].astype(bool)
            shape = X.n_rows, len(among.labels)
            wide = min(k, len(among.labels))
            top = TopK(every.labels[keep].reshape(shape)[:, :wide], every.scores[keep].reshape(shape)[:, :wide])
        scored, zeros = np.full(X.n_rows, self.scan.n_labels), np.zeros(X.n_rows)
        return Answer(
            *top, frozen(zeros == 0, np.bool_), frozen(scored, np.int64), frozen(zeros, np.int64), frozen(zeros, np.float64)
        )
