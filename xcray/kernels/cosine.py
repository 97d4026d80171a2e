"""Cosine of float32 arrays by a polynomial: several times faster than `np.cos`, error about 1e-6.

The argument is reduced to u in [-1/4, 1/4] turns, where the cosine is sin(2 pi u). The odd
polynomial of degree 9 is the least-squares fit of sin(2 pi u) at Chebyshev nodes. Its error is
4e-9; the rest is rounding.
"""

import numba
import numpy as np

TURN = np.float32(1.0 / (2.0 * np.pi))
HALF, QUARTER = np.float32(0.5), np.float32(0.25)
C1 = np.float32(6.28318516)
C3 = np.float32(-41.34165493)
C5 = np.float32(81.60099819)
C7 = np.float32(-76.54965682)
C9 = np.float32(39.53581371)


@numba.njit(nogil=True, cache=True)
def add_phase_and_cosine(Z: np.ndarray, phase: np.ndarray) -> None:
    """Replace Z (n, m) by cos(Z + phase) in place; phase: (m,); all float32."""
    for i in range(Z.shape[0]):
        for j in range(Z.shape[1]):
            turns = (Z[i, j] + phase[j]) * TURN
            turns -= np.floor(turns + HALF)
            u = QUARTER - abs(turns)
            s = u * u
            Z[i, j] = u * (C1 + s * (C3 + s * (C5 + s * (C7 + s * C9))))
