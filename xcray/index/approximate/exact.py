"""The exact search as an index for maximum inner products."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, TopK, frozen
from xcray.index.approximate.contract import check_width
from xcray.index.search import SearchIndex


class ExactIndex:
    """Packed lists of W by feature, see `xcray.index.search`."""

    def __init__(self, W: CSR) -> None:
        """Build the lists of W (K, D)."""
        self._W = W
        self._search = SearchIndex.build(W, frozen(np.zeros(W.n_rows), np.float32))

    def query(self, X: CSR, k: int) -> TopK:
        """See `InnerProductIndex`."""
        check_width(X, self._W)
        return self._search.query(X, k).top
