"""Locality-sensitive hashing for maximum inner products: SimpleLSH with sign codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import CSR, TopK
from xcray.errors import ParameterError, missing_extra
from xcray.index.approximate.contract import check_width, rank_candidates
from xcray.kernels.search.candidates import nearest_codes

MIN_CANDIDATES = 10  # codes whose exact scores are computed, at least


class HashIndex:
    """Sign codes of rows that are scaled to length at most 1 and extended to length 1.

    The nearest codes of a query by Hamming distance are its candidates; the best of them by exact
    score are returned.

    Source: Neyshabur and Srebro, "On symmetric and asymmetric LSHs for inner product search", ICML
    2015; the truncated SVD before it: as the scripts of MEMOIR do.
    """

    def __init__(self, W: CSR, bits: int = 64, components: int = 0, seed: int = 0) -> None:
        """Build the codes of W (K, D).

        bits: of a code, a multiple of 64. components: singular vectors of W that rows and queries
        are projected on before; 0: none. seed: of the random directions. Raises ParameterError, and
        Unavailable if scipy is missing.
        """
        if bits < 64 or bits % 64:
            raise ParameterError(f"bits is {bits}: it must be 64, 128, 192 or another multiple")
        self._W, self._components = W, _components(W, components)
        rows = self._project(W)
        random = np.random.default_rng(seed)
        self._directions = random.standard_normal((rows.shape[1], bits), np.float32)
        norms = np.sqrt(np.asarray(_squares(rows), np.float64))
        largest = float(norms.max(initial=0.0)) or 1.0
        extension = np.sqrt(np.maximum(0.0, 1.0 - np.square(norms / largest)))
        products = rows @ self._directions / np.float32(largest)
        products += np.outer(extension, random.standard_normal(bits)).astype(np.float32)
        self._codes = _pack(products)

    def query(self, X: CSR, k: int) -> TopK:
        """See `InnerProductIndex`."""
        check_width(X, self._W)
        codes = _pack(self._project(X) @ self._directions)
        width = min(max(k, MIN_CANDIDATES), self._W.n_rows)
        candidates = np.empty((X.n_rows, width), np.int32)
        nearest_codes(codes, self._codes, candidates)
        return rank_candidates(X, self._W, candidates, k)

    def _project(self, rows: CSR) -> Any:
        """Return the rows as a scipy matrix, or their components as an array."""
        matrix = rows.to_scipy()
        return matrix if self._components is None else np.asarray(matrix @ self._components)


def _components(W: CSR, count: int) -> Any:
    """Return the first right singular vectors of W: (D, count) float32; None for 0.

    The starting vector is fixed, so that the result is too.
    """
    limit = min(W.shape) - 1
    if count <= 0 or limit < 1 or not W.nnz:
        return None
    try:
        from scipy.sparse.linalg import svds
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    matrix = W.to_scipy().astype(np.float64)
    start = np.random.default_rng(0).standard_normal(min(W.shape))
    return svds(matrix, k=min(count, limit), v0=start)[2].T.astype(np.float32)


def _squares(rows: Any) -> Any:
    """Return the squared lengths of dense or scipy rows: (n,)."""
    if isinstance(rows, np.ndarray):
        return np.square(rows, dtype=np.float64).sum(axis=1)
    return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()


def _pack(products: Any) -> Any:
    """Return the signs of (n, bits) as codes (n, bits / 64) uint64."""
    return np.packbits(np.asarray(products) >= 0.0, axis=1).view(np.uint64)
