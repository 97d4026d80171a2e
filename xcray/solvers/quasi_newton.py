"""L-BFGS for weights that nobody holds in one piece: blocks keep their own history, and only inner products come together.

In each iteration every block of weights has its part G of the exact gradient of L1. What L-BFGS makes of gradients and steps is a
sum of these vectors whose coefficients depend on inner products alone, and these add up over blocks: so blocks tell theirs, a
matrix of (2 m + 1) (3 m + 2) numbers, and get coefficients back. A block's memory holds 2 m + 3 arrays of its size.

The first guess of the inverse Hessian is not a multiple of 1 but of M = (C + ridge)^-1, C = sum_i c_i x_i x_i', where features are
few: the Hessian is at most C / 2 (Boehning 1992) plus lam, so M makes features that are large, or alike, as easy as others. Where
features are many, M is the diagonal of C + ridge to the power -1/2. By measurement, iterations to 1 % above the optimum: with C
whole 17 (mnist) and 51 (CLEF); for 20 newsgroups with the powers -1, -3/4 and -1/2 of the diagonal 8, 9 and 13 (rows of length 1)
and more than 130, about 115 and 69 (counts): the last is never far from the best.

Source: Nocedal, Wright, "Numerical Optimization", 2006, algorithm 7.4; by inner products: Chen, Wang, Zhou, "Large-scale L-BFGS
using MapReduce", NIPS 2014; Boehning, "Multinomial logistic regression algorithm", 1992.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from xcray.arrays import Float32, Float64
from xcray.solvers.rotation_contract import Weights

POWER: Final = 0.5  # of the diagonal
RIDGE: Final = 100.0  # times lam
WHOLE: Final = 1024  # features, at most, for which C is kept whole: 4 MB


class Memory(NamedTuple):
    """What a block remembers. lo, hi: its labels; W, G: (D', k) the weights that were accepted last, and the gradient there, with
    the norm's; aim: (D', k) the direction from there; M: (D', D') or (D',), see the module; S, Y: steps and changes of the
    gradient, oldest first."""

    lo: int
    hi: int
    W: Float32
    G: Float32
    aim: Float32
    M: Float32
    S: tuple[Float32, ...]
    Y: tuple[Float32, ...]


def begin(lo: int, hi: int, W: Float32, G: Float32, C: Float32, lam: float) -> Memory:
    """The memory of a block at its first gradient. G: (D', k) without the norm's; C: (D', D') or its diagonal (D',)."""
    if C.ndim == 2:
        M = np.linalg.inv(C.astype(np.float64) + RIDGE * lam * np.eye(len(C))).astype(np.float32)
    else:
        M = ((C.astype(np.float64) + RIDGE * lam) ** -POWER).astype(np.float32)
    return Memory(lo, hi, W, _whole(G, W, lam), np.zeros_like(W), M, (), ())


def remember(memory: Memory, W: Float32, G: Float32, lam: float, pairs: int) -> Memory:
    """The memory after a step to W, where the gradient is G without the norm's; of the pairs, the last `pairs` stay."""
    G = _whole(G, W, lam)
    S, Y = (*memory.S, W - memory.W), (*memory.Y, G - memory.G)
    return memory._replace(W=W, G=G, S=S[-pairs:], Y=Y[-pairs:])


def products(memory: Memory) -> Float64:
    """Inner products of S, Y, G (rows) with S, Y, G, M Y, M G (columns): (2 m + 1, 3 m + 2) float64; they add up over blocks."""
    rows = [*memory.S, *memory.Y, memory.G]
    columns = [*rows, *(_times(memory.M, vector) for vector in (*memory.Y, memory.G))]
    return np.array([[_dot(a, b) for b in columns] for a in rows])


def coefficients(inner: Float64) -> tuple[Float64, float]:
    """The direction -H G as a sum of S, M Y and M G: its coefficients (2 m + 1,), and the slope along it, which is negative.

    inner: the sum of all blocks' `products`. Pairs without positive curvature, which rounding can make, are passed over.
    """
    m = (len(inner) - 1) // 2
    s, y, g = np.arange(m), m + np.arange(m), 2 * m
    My, Mg = g + 1 + np.arange(m), g + 1 + m
    good = [
        i
        for i in range(m)
        if inner[s[i], y[i]] > 1e-12 * np.sqrt(inner[s[i], s[i]] * inner[y[i], y[i]])
    ]
    q, alpha = np.zeros(m), np.zeros(m)  # the vector is G + sum of q_i Y_i
    for i in reversed(good):
        alpha[i] = (inner[s[i], g] + inner[s[i], y] @ q) / inner[s[i], y[i]]
        q[i] -= alpha[i]
    scale = inner[s[good[-1]], y[good[-1]]] / inner[y[good[-1]], My[good[-1]]] if good else 1.0
    p = np.zeros(m)  # now it is scale (M G + sum of q_i M Y_i) + sum of p_i S_i
    for i in good:
        beta = (scale * (inner[y[i], Mg] + inner[y[i], My] @ q) + inner[s, y[i]] @ p) / inner[
            s[i], y[i]
        ]
        p[i] += alpha[i] - beta
    slope = -(scale * (inner[g, Mg] + inner[g, My] @ q) + inner[g, s] @ p)
    return -np.concatenate([p, scale * q, [scale]]), float(slope)


def aimed(memory: Memory, coefs: Float64) -> Memory:
    """The memory with the direction that `coefficients` told."""
    m, c = len(memory.S), coefs.astype(np.float32)
    gradient = c[-1] * memory.G
    for weight, vector in zip(c[m : 2 * m], memory.Y, strict=True):
        gradient += weight * vector
    aim = _times(memory.M, gradient)
    for weight, vector in zip(c[:m], memory.S, strict=True):
        aim += weight * vector
    return memory._replace(aim=aim)


def moved(memory: Memory, length: float) -> Float32:
    """The weights (D', k) at so much of the direction."""
    return np.asarray(memory.W + np.float32(length) * memory.aim, np.float32)


def total(parts: Sequence[Float64]) -> Float64:
    """The sum of all blocks' products, in their order."""
    return np.asarray(sum(parts[1:], parts[0]))


def _whole(G: Float32, W: Float32, lam: float) -> Float32:
    """The gradient with the norm's."""
    return np.asarray(G + np.float32(lam) * W, np.float32)


def _times(M: Float32, vector: Float32) -> Float32:
    """M times a vector (D', k)."""
    return np.asarray(M @ vector if M.ndim == 2 else M[:, None] * vector, np.float32)


def _dot(a: Float32, b: Float32) -> float:
    """The inner product of two (D', k), a row in float32 and the sum in double precision."""
    return float(np.einsum("jc,jc->j", a, b).sum(dtype=np.float64))


def as_weights(memory: Memory) -> Weights:
    """A memory in the form of a block, so that it is kept, saved and found again like one. Shares memory."""
    return Weights(
        memory.lo, memory.hi, memory.W, (memory.G, memory.aim, memory.M, *memory.S, *memory.Y)
    )


def memory_of(weights: Weights) -> Memory:
    """The memory that `as_weights` made a block of. Shares memory."""
    G, aim, M, *pairs = weights.state
    m = len(pairs) // 2
    return Memory(weights.lo, weights.hi, weights.W, G, aim, M, tuple(pairs[:m]), tuple(pairs[m:]))
