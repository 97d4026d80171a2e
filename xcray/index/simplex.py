"""Euclidean projection on the probability simplex."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from xcray.arrays import Float32, Float64

F = TypeVar("F", Float32, Float64)


def project_on_simplex(V: F) -> F:
    """Return the closest point to each row of V (n, K) in {p >= 0, sum(p) = 1}.

    The arithmetic is that of the type of V, float32 or float64. Source: Duchi et al., "Efficient
    projections onto the l1-ball for learning in high dimensions", ICML 2008, Figure 1.
    """
    descending = -np.sort(-V, axis=1)
    counts = np.arange(1, V.shape[1] + 1, dtype=V.dtype)
    shifts = (np.cumsum(descending, axis=1) - V.dtype.type(1.0)) / counts
    support = np.count_nonzero(descending > shifts, axis=1)
    out: F = np.maximum(V - shifts[np.arange(len(V)), support - 1][:, None], V.dtype.type(0.0))
    return out
