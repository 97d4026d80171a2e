"""Nesterov's acceleration with restarts.

Source: O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcray.arrays import Float64


class Momentum(NamedTuple):
    """State of the accelerated method: the last point W (D', K), and the step weight t >= 1."""

    W: Float64
    t: float = 1.0


def accelerated_step(
    W: Float64, G: Float64, momentum: Momentum, solve: Callable[[Float64], Float64]
) -> tuple[Float64, Momentum]:
    """Return the point of the next gradient, and the momentum, after a step from W.

    G: gradient (D', K) at W; solve: the preconditioner. The momentum restarts if the step points
    uphill.
    """
    new = W - solve(G)
    moved = new - momentum.W
    if float(np.vdot(G, moved)) > 0.0:
        return new, Momentum(new)
    t = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum.t**2))
    return new + (momentum.t - 1.0) / t * moved, Momentum(new, t)
