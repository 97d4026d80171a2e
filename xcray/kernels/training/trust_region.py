"""Row passes of a trust-region Newton method for the squared hinge loss.

    f(v) = 1/2 |v|^2 + sum_i cost_i max(0, 1 - y_i v.x_i)^2

Every row has an additional feature of value 1. The functions process some rows and add to sums, so
that callers can visit rows in parts.

Source: Lin, Weng, Keerthi, "Trust region Newton method for large-scale logistic regression", JMLR
2008; Hsieh et al., ICML 2008, for the generalised Hessian of this loss.
"""

import numba

from xcray.arrays import Float64, Int64
from xcray.kernels.training.dual_hinge import DualState, HingeRows, add_row, dot, slot


@numba.njit(nogil=True, cache=True)
def add_gradient(
    rows: HingeRows, state: DualState, order: Int64, gradient: Float64, loss: float
) -> float:
    """Add the gradient of the losses of some rows; return `loss` plus the losses.

    Writes alpha_i = 2 cost_i max(0, 1 - y_i v.x_i), the dual variables that belong to v.
    """
    for i in order:
        at, y = slot(rows, i), state.y[i]
        z = max(0.0, 1.0 - y * dot(rows.X, at, state.v))
        state.alpha[i] = 2.0 * rows.costs[i] * z
        loss += rows.costs[i] * z * z
        if z > 0.0:
            add_row(rows.X, at, -y * state.alpha[i], gradient)
    return float(loss)


@numba.njit(nogil=True, cache=True)
def add_hessian_product(
    rows: HingeRows, state: DualState, order: Int64, direction: Float64, product: Float64
) -> None:
    """Add the product of the generalised Hessian of the losses and a direction (D + 1,)."""
    for i in order:
        if state.alpha[i] > 0.0:
            at = slot(rows, i)
            add_row(rows.X, at, 2.0 * rows.costs[i] * dot(rows.X, at, direction), product)
