"""L-BFGS for weights that are split into blocks; only inner products are combined.

In each iteration every block of weights has its part G of the exact gradient of L1. The L-BFGS
direction is a linear combination of gradients and steps whose coefficients depend on inner products
only, and these add up over blocks. So each block returns a matrix of (2 m + 1) (3 m + 2) inner
products and receives coefficients. The history of a block holds 2 m + 3 arrays of its size.

The initial inverse Hessian is not a multiple of the identity but of M = (C + ridge)^-1 with C =
sum_i c_i x_i x_i', if there are few features. The Hessian is at most C / 2 (Boehning 1992) plus
lam, so M rescales and decorrelates features. For many features, M is the diagonal of C + ridge to
the power -1/2. Measured iterations to 1 % above the optimum: with all of C 17 (mnist) and 51
(CLEF). For 20 newsgroups with the powers -1, -3/4 and -1/2 of the diagonal: 8, 9 and 13 (rows of
length 1); more than 130, about 115 and 69 (counts). The last power is never far from the best.

Source: Nocedal, Wright, "Numerical Optimization", 2006, algorithm 7.4. By inner products: Chen,
Wang, Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014. Boehning, "Multinomial logistic
regression algorithm", 1992.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float32, Float64
from xcray.solvers.rotation_contract import WeightBlock

DIAGONAL_POWER: Final = 0.5  # exponent of the diagonal
RIDGE_FACTOR: Final = 100.0  # ridge = this times lam
# up to this number of features all of C is stored: 4 MB
MAX_FULL_FEATURES: Final = 1024


class LbfgsHistory(NamedTuple):
    """L-BFGS state of a block.

    lo, hi: its labels; W, G: (D', k) the last accepted weights and the gradient there, including
    the norm; direction: (D', k) from there; M: (D', D') or (D',), see the module; S, Y: steps and
    changes of the gradient, oldest first.
    """

    lo: int
    hi: int
    W: Float32
    G: Float32
    direction: Float32
    M: Float32
    S: tuple[Float32, ...]
    Y: tuple[Float32, ...]


def start_history(lo: int, hi: int, W: Float32, G: Float32, C: Float32, lam: float) -> LbfgsHistory:
    """Return the history of a block at its first gradient.

    G: (D', k) gradient without the norm; C: (D', D') or its diagonal (D',).
    """
    if C.ndim == 2:
        M = np.linalg.inv(C.astype(np.float64) + RIDGE_FACTOR * lam * np.eye(len(C))).astype(
            np.float32
        )
    else:
        M = ((C.astype(np.float64) + RIDGE_FACTOR * lam) ** -DIAGONAL_POWER).astype(np.float32)
    return LbfgsHistory(lo, hi, W, _add_norm_gradient(G, W, lam), np.zeros_like(W), M, (), ())


def update_history(
    memory: LbfgsHistory, W: Float32, G: Float32, lam: float, size: int
) -> LbfgsHistory:
    """Return the history after a step to W; it keeps the last `size` pairs of S and Y.

    G: the gradient at W without the norm.
    """
    G = _add_norm_gradient(G, W, lam)
    S, Y = (*memory.S, W - memory.W), (*memory.Y, G - memory.G)
    return memory._replace(W=W, G=G, S=S[-size:], Y=Y[-size:])


def products(memory: LbfgsHistory) -> Float64:
    """Return the inner products of S, Y, G (rows) with S, Y, G, M Y, M G (columns).

    (2 m + 1, 3 m + 2) float64; they add up over blocks.
    """
    rows = [*memory.S, *memory.Y, memory.G]
    columns = [*rows, *(_precondition(memory.M, vector) for vector in (*memory.Y, memory.G))]
    return np.array([[_dot(a, b) for b in columns] for a in rows])


def coefficients(inner: Float64) -> tuple[Float64, float]:
    """Return the direction -H G as coefficients (2 m + 1,) of S, M Y and M G, and its slope.

    The slope of the objective along the direction is negative. inner: the sum of all blocks'
    `products`. Pairs without positive curvature, which rounding can produce, are skipped.
    """
    m = (len(inner) - 1) // 2
    s, y, g = np.arange(m), m + np.arange(m), 2 * m
    My, Mg = g + 1 + np.arange(m), g + 1 + m
    good = [
        i
        for i in range(m)
        if inner[s[i], y[i]] > 1e-12 * np.sqrt(inner[s[i], s[i]] * inner[y[i], y[i]])
    ]
    # the vector is G + sum of q_i Y_i
    q, alpha = np.zeros(m), np.zeros(m)
    for i in reversed(good):
        alpha[i] = (inner[s[i], g] + inner[s[i], y] @ q) / inner[s[i], y[i]]
        q[i] -= alpha[i]
    scale = inner[s[good[-1]], y[good[-1]]] / inner[y[good[-1]], My[good[-1]]] if good else 1.0
    # now the vector is scale (M G + sum of q_i M Y_i) + sum of p_i S_i
    p = np.zeros(m)
    for i in good:
        beta = (scale * (inner[y[i], Mg] + inner[y[i], My] @ q) + inner[s, y[i]] @ p) / inner[
            s[i], y[i]
        ]
        p[i] += alpha[i] - beta
    slope = -(scale * (inner[g, Mg] + inner[g, My] @ q) + inner[g, s] @ p)
    return -np.concatenate([p, scale * q, [scale]]), float(slope)


def with_direction(memory: LbfgsHistory, coefs: Float64) -> LbfgsHistory:
    """Return the history with the direction given by `coefficients`."""
    m, c = len(memory.S), coefs.astype(np.float32)
    gradient = c[-1] * memory.G
    for weight, vector in zip(c[m : 2 * m], memory.Y, strict=True):
        gradient += weight * vector
    direction = _precondition(memory.M, gradient)
    for weight, vector in zip(c[:m], memory.S, strict=True):
        direction += weight * vector
    return memory._replace(direction=direction)


def weights_at_step(memory: LbfgsHistory, length: float) -> Float32:
    """Return the weights (D', k) at this step length along the direction."""
    return np.asarray(memory.W + np.float32(length) * memory.direction, np.float32)


def sum_products(parts: Sequence[Float64]) -> Float64:
    """Return the sum of all blocks' products, in their order."""
    return np.asarray(sum(parts[1:], parts[0]))


def _add_norm_gradient(G: Float32, W: Float32, lam: float) -> Float32:
    """Return the gradient including that of the norm."""
    return np.asarray(G + np.float32(lam) * W, np.float32)


def _precondition(M: Float32, vector: Float32) -> Float32:
    """Return M times a vector (D', k)."""
    return np.asarray(M @ vector if M.ndim == 2 else M[:, None] * vector, np.float32)


def _dot(a: Float32, b: Float32) -> float:
    """Return the inner product of two (D', k): each row in float32, the sum in double precision."""
    return float(np.einsum("jc,jc->j", a, b).sum(dtype=np.float64))


class LbfgsPhase(NamedTuple):
    """L-BFGS as the exact phase of a rotation training, see `rotation_contract.ExactPhase`.

    lam: weight of the squared norm; size: number of steps that are kept. Blocks with gradients have
    the state (G, C), see `start_history`.
    """

    lam: float
    size: int

    def start(self, block: WeightBlock) -> WeightBlock:
        """Return the history of a block that has its first exact gradient, with C."""
        G, C = block.state
        return pack(start_history(block.lo, block.hi, block.W, G, C, self.lam))

    def update(self, history: WeightBlock, block: WeightBlock) -> WeightBlock:
        """Return the history after the step to the block's point, which has its gradient."""
        return pack(update_history(unpack(history), block.W, block.state[0], self.lam, self.size))

    def products(self, history: WeightBlock) -> Float64:
        """Return the inner products of a history."""
        return products(unpack(history))

    def coefficients(self, parts: Sequence[Float64]) -> tuple[Float64, float]:
        """Return the coefficients of the direction and its slope, from all blocks' products."""
        return coefficients(sum_products(parts))

    def direct(self, history: WeightBlock, coefs: Float64) -> WeightBlock:
        """Return the history with its direction."""
        return pack(with_direction(unpack(history), coefs))

    def move(self, history: WeightBlock, length: float) -> WeightBlock:
        """Return the block at `length` times the direction."""
        return WeightBlock(history.lo, history.hi, weights_at_step(unpack(history), length), ())


def pack(memory: LbfgsHistory) -> WeightBlock:
    """Return a history as a WeightBlock, so that it is stored and saved like one. Shares memory."""
    return WeightBlock(
        memory.lo, memory.hi, memory.W, (memory.G, memory.direction, memory.M, *memory.S, *memory.Y)
    )


def unpack(weights: WeightBlock) -> LbfgsHistory:
    """Return the history that `pack` converted. Shares memory."""
    G, aim, M, *pairs = weights.state
    m = len(pairs) // 2
    return LbfgsHistory(
        weights.lo, weights.hi, weights.W, G, aim, M, tuple(pairs[:m]), tuple(pairs[m:])
    )
