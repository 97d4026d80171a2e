"""The primal inner solver: a trust-region Newton method on the active rows, for the L2 loss."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.kernels.training import trust_region as kernel
from xcray.solvers.indexed_bcd.active_set import GAP_SHARE, ActiveSet

CG_TOLERANCE: Final = 0.1  # of the residual of a Newton step, relative to the gradient
CG_STEPS: Final = 50
ACCEPTED, POOR, GOOD = 1e-4, 0.25, 0.75  # actual decrease, relative to that of the model
SHRINK, GROW = 0.25, 4.0  # factors of the radius


class PrimalActiveSet(ActiveSet):
    """Active rows, solved in the primal; a sweep is one step of the method.

    Blocks are all active rows: then the linear term of eq. 16 is zero. The weights do not depend on
    the dual variables; these are 2 cost_i max(0, 1 - y_i v.x_i). The duality gap of the active rows
    is half of the squared norm of the gradient.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._gradient = np.zeros_like(self._state.v)  # at the present weights and rows
        self._value, self._radius = 0.0, 0.0

    def remove(self, rows: Int64) -> None:
        """Remove rows (ascending) from the problem; the weights stay."""
        self._state.alpha[rows] = 0.0
        self._deactivate(rows)

    def dual(self) -> float:
        """Return the dual objective of the dual variables."""
        combination = self._state.v - self._gradient  # sum of alpha_i y_i x_i
        return self._dual_sum() - 0.5 * float(combination @ combination)

    def solve_block(self, chosen: Int64, sweeps: int) -> None:
        """Take some steps on all active rows; the result is observed once, at the end."""
        self._begin()
        for _ in range(sweeps):
            self._step()
        self._observe()

    def polish(self, gap: float, last: int) -> None:
        """Take steps until the gap of the active rows is a share of `gap`; see `ActiveSet`."""
        self._begin()
        while self.sweeps < last and 0.5 * self._gradient @ self._gradient > GAP_SHARE * gap:
            self._step()
            self._observe()

    def _begin(self) -> None:
        """Compute value and gradient for the present rows; choose the first radius."""
        self._value, self._gradient = self._evaluate()
        self._radius = float(np.linalg.norm(self._gradient))

    def _evaluate(self) -> tuple[float, Float64]:
        """Return value and gradient at the present weights; write the dual variables."""
        v, loss = self._state.v, 0.0
        gradient = v.copy()
        for part, views in self._store.active_parts(self.rows):
            self._check()
            loss = kernel.add_gradient(views, self._state, part, gradient, loss)
        return 0.5 * float(v @ v) + loss, gradient

    def _step(self) -> None:
        """Take one step of the trust-region method; the weights stay if it does not decrease f."""
        step, model = self._conjugate_gradients()
        before = self._state.v.copy()
        self._state.v[:] += step
        value, gradient = self._evaluate()
        ratio = (self._value - value) / model if model > 0.0 else 0.0
        length = float(np.linalg.norm(step))
        if ratio < POOR:
            self._radius = SHRINK * length
        elif ratio > GOOD and length > 0.99 * self._radius:
            self._radius *= GROW
        if ratio > ACCEPTED:
            self._value, self._gradient = value, gradient
        else:
            self._state.v[:] = before
            self._value, self._gradient = self._evaluate()
        self.sweeps += 1

    def _conjugate_gradients(self) -> tuple[Float64, float]:
        """Return a step within the radius, and the decrease of the quadratic model."""
        step, residual = np.zeros_like(self._gradient), -self._gradient
        direction, square = residual.copy(), float(residual @ residual)
        enough = CG_TOLERANCE**2 * square
        for _ in range(CG_STEPS):
            if square <= enough:
                break
            product = self._hessian_product(direction)
            length = square / float(direction @ product)
            if np.linalg.norm(step + length * direction) > self._radius:
                length = _distance_to_boundary(step, direction, self._radius)
                step, residual = step + length * direction, residual - length * product
                break
            step, residual = step + length * direction, residual - length * product
            before, square = square, float(residual @ residual)
            direction = residual + square / before * direction
        # f(v) - model(step), with H step = - gradient - residual
        return step, 0.5 * float(step @ (residual - self._gradient))

    def _hessian_product(self, direction: Float64) -> Float64:
        """Return the product of the generalised Hessian and a direction."""
        product = direction.copy()
        for part, views in self._store.active_parts(self.rows):
            self._check()
            kernel.add_hessian_product(views, self._state, part, direction, product)
        return product


def _distance_to_boundary(step: Float64, direction: Float64, radius: float) -> float:
    """Return t >= 0 with |step + t direction| = radius; |step| is at most the radius."""
    a, b = float(direction @ direction), float(step @ direction)
    c = radius * radius - float(step @ step)
    return (float(np.sqrt(b * b + a * max(c, 0.0))) - b) / a
