"""A number for each row of a sparse matrix, from its features and values to the bit: equal rows have equal numbers."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR
from xcray.kernels.random import GAMMA, mix

BUILT_ON = {"random": "bd4614dc"}


@numba.njit(nogil=True, cache=True)
def fingerprints(matrix: CSR, bits: np.ndarray, seed: int) -> np.ndarray:
    """(n_rows,) uint64 of the rows of a CSR; bits: its data viewed as uint32; seed: another one, other numbers.

    Different rows have different numbers but for a chance of 2^-64 a pair.
    """
    out = np.empty(len(matrix.indptr) - 1, np.uint64)
    for i in range(len(out)):
        state = mix(np.uint64(seed) + GAMMA)
        for p in range(matrix.indptr[i], matrix.indptr[i + 1]):
            state = mix(
                (state + GAMMA)
                ^ ((np.uint64(matrix.indices[p]) << np.uint64(32)) | np.uint64(bits[p]))
            )
        out[i] = state
    return out
