"""Terms of the dual objective of a class: see `advance` for the problem."""

from typing import Any

import numpy as np

from xcray.arrays import Float64
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem


@inner(allocates=False)
def cost(problem: PPDSparseProblem, o: Objective, factor: float, i: int, positive: bool) -> float:
    """Return c_i: C times the weight of sample i in this class."""
    c = o.C * problem.weights[i] if len(problem.weights) > 0 else o.C
    return c * factor if positive else c


@inner(allocates=False)
def dual_terms(o: Objective, c: float) -> tuple[float, float]:
    """Return inv_i and upper_i of a sample with cost c."""
    return (0.5 / c, np.inf) if o.loss == SQUARED_HINGE else (0.0, c)


@inner(allocates=False)
def bias_of(o: Objective, at: Any) -> float:
    """Return the bias that sweeps use: that of alpha if the bias is as strong as a weight.

    A weaker penalty would make coordinate descent slow. Then tau/2 |b - center|^2 takes the place
    of what is missing to tau, and the center follows after each sweep: the method of multipliers.
    """
    bias: float = (at.vb + (o.tau - o.tau_bias) * at.center) / o.tau
    return bias


@inner(allocates=False, fastmath={"reassoc", "nsz"})
def soft_square(v: Float64, lam: float) -> float:
    """Return the sum of soft(v_t, lam)^2; SIMD."""
    square = 0.0
    for t in range(len(v)):
        u = v[t] - max(-lam, min(lam, v[t]))
        square += u * u
    return square
