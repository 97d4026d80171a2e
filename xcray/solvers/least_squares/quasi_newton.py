"""Directions of L-BFGS that start from a preconditioner.

Source: Nocedal and Wright, "Numerical optimization", algorithm 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcray.arrays import Float64


class Pairs(NamedTuple):
    """The last steps and the changes of the gradient along them, both (m, D', K)."""

    steps: Float64
    changes: Float64

    def add(self, step: Float64, change: Float64, most: int) -> Pairs:
        """Return the last `most` pairs with a new one; without it if it has no curvature."""
        if not most or float(np.vdot(step, change)) <= 0.0:
            return self
        pairs = ((self.steps, step), (self.changes, change))
        steps, changes = (np.concatenate((old[-most + 1 :], [new])) for old, new in pairs)
        return Pairs(steps, changes) if most > 1 else Pairs(step[None], change[None])


def no_pairs(shape: tuple[int, int]) -> Pairs:
    """Return no pairs for weights of this shape."""
    return Pairs(np.zeros((0, *shape)), np.zeros((0, *shape)))


def descent_direction(G: Float64, pairs: Pairs, solve: Callable[[Float64], Float64]) -> Float64:
    """Return a direction to subtract at the gradient G (D', K).

    solve: the preconditioner, which is scaled by the curvature of the last pair.
    """
    if not len(pairs.steps):
        return solve(G)
    q, factors = G.copy(), list[float]()
    curvatures = [float(np.vdot(s, y)) for s, y in zip(*pairs, strict=True)]
    for s, y, curvature in zip(
        pairs.steps[::-1], pairs.changes[::-1], curvatures[::-1], strict=True
    ):
        factors.append(float(np.vdot(s, q)) / curvature)
        q -= factors[-1] * y
    last = pairs.changes[-1]
    out = solve(q) * (curvatures[-1] / float(np.vdot(last, solve(last))))
    for s, y, curvature, factor in zip(*pairs, curvatures, factors[::-1], strict=True):
        out += s * (factor - float(np.vdot(y, out)) / curvature)
    return out
