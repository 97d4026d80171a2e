"""Row hashes of a sparse matrix: bit-identical rows have equal hashes."""

from __future__ import annotations

import numba
import numpy as np

from xcray.arrays import CSR
from xcray.kernels.random import GAMMA, mix


@numba.njit(nogil=True, cache=True)
def fingerprints(matrix: CSR, bits: np.ndarray, seed: int) -> np.ndarray:
    """Return the hash of each row of a CSR: (n_rows,) uint64.

    bits: the data of the CSR viewed as uint32; seed: selects the hash function. Different rows have
    different hashes, except with a probability of 2^-64 per pair.
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
