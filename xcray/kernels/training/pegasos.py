"""Pegasos: stochastic subgradient steps for hinge losses with l2 regularisation.

Source: Shalev-Shwartz, Singer, Srebro, "Pegasos: primal estimated sub-gradient solver for SVM",
ICML 2007, Figure 1 with one row per step.
"""

from typing import NamedTuple

import numba
import numpy as np

from xcray.arrays import Float64, Int64
from xcray.kernels.training.dual_hinge import HingeRows, add_row, dot, slot


class Steps(NamedTuple):
    """State of the steps: v is `scale` times the stored vector.

    taken: steps so far; scale: above 0; norm_sq: |v|^2.
    """

    taken: int
    scale: float
    norm_sq: float


@numba.njit(nogil=True, cache=True)
def take_steps(
    rows: HingeRows, y: np.ndarray, order: Int64, radius: float, v: Float64, steps: Steps
) -> Steps:
    """Take one step for each row of `order`, and project v on the ball of `radius`.

    y: (N,) int8, 1 or -1. v: (D + 1,) stored vector, changed in place. Step t of a row has the size
    N cost / t: that is 1 / (lambda t), with lambda = 1 / (C N); it is multiplied by the derivative
    of the loss. Returns the new state.
    """
    taken, scale, norm_sq = steps.taken, steps.scale, steps.norm_sq
    n = len(rows.costs)
    for i in order:
        taken += 1
        at = slot(rows, i)
        score = scale * dot(rows.X, at, v)
        shrinkage = 1.0 - 1.0 / taken
        if taken > 1:  # v is 0 before the first step
            scale *= shrinkage
            norm_sq *= shrinkage * shrinkage
        if y[i] * score < 1.0:
            step = y[i] * n * rows.costs[i] / taken
            if rows.is_squared:
                step *= 2.0 * (1.0 - y[i] * score)
            add_row(rows.X, at, step / scale, v)
            norm = rows.norms[i]
            norm_sq += 2.0 * step * shrinkage * score + step * step * norm * norm
        if norm_sq > radius * radius:
            scale *= radius / np.sqrt(norm_sq)
            norm_sq = radius * radius
        if scale < 1e-100:
            v *= scale
            scale = 1.0
    return Steps(taken, scale, norm_sq)
