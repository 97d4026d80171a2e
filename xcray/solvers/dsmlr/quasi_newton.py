"""L-BFGS for weights that are split into blocks; only inner products are combined.

In each iteration every block of weights has its part G of the exact gradient of L1. The L-BFGS
direction is a linear combination of gradients and steps whose coefficients depend on inner products
only, and these add up over blocks. So each block returns (m + 1) (2 m + 2) inner products and
receives coefficients. Those between older pairs are kept: an iteration computes 4 m + 3 new ones.
The history of a block holds 2 m + 3 arrays of its size.

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
from typing import Final, NamedTuple, TypeVar

import numpy as np

from xcray.arrays import Float32, Float64
from xcray.solvers.group_contract import WeightBlock

Numbers = TypeVar("Numbers", Float32, Float64)
DIAGONAL_POWER: Final = 0.5  # exponent of the diagonal
RIDGE_FACTOR: Final = 100.0  # ridge = this times lam
# up to this number of features all of C is stored: 4 MB
MAX_FULL_FEATURES: Final = 1024

CACHED_CELLS: Final = 1 << 15  # numbers of a sum of vectors that are computed at a time: 128 kB


class LbfgsHistory(NamedTuple):
    """L-BFGS state of a block.

    lo, hi: its labels; W, G: (D', k) the last accepted weights and the gradient there, including
    the norm; direction: (D', k) from there; M: (D', D') or (D',), see the module; S, Y: steps and
    changes of the gradient, oldest first; pairs: (m, 2 m + 2), row i holds the inner products
    of S_i with Y_j for j >= i, of Y_i with M Y_j for all j, of S_i and of Y_i with itself.
    """

    lo: int
    hi: int
    W: Float32
    G: Float32
    direction: Float32
    M: Float32
    S: tuple[Float32, ...]
    Y: tuple[Float32, ...]
    pairs: Float32


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
    G = _add_norm_gradient(G, W, lam)
    return LbfgsHistory(lo, hi, W, G, np.zeros_like(W), M, (), (), np.empty((0, 2), np.float32))


def update_history(
    memory: LbfgsHistory, W: Float32, G: Float32, lam: float, size: int
) -> LbfgsHistory:
    """Return the history after a step to W; it keeps the last `size` pairs of S and Y.

    G: the gradient at W without the norm.
    """
    G = _add_norm_gradient(G, W, lam)
    return add_pair(memory, W - memory.W, G - memory.G, size)._replace(W=W, G=G)


def add_pair(memory: LbfgsHistory, s: Float32, y: Float32, size: int) -> LbfgsHistory:
    """Return the history with one more step and change of the gradient (D', k), of the last `size`.

    The inner products between older pairs are not computed again.
    """
    kept = min(len(memory.S), size - 1)
    oldest, m = len(memory.S) - kept, kept + 1
    S, Y = (*memory.S[oldest:], s), (*memory.Y[oldest:], y)
    s_y, y_My, norms = _split(memory.pairs)
    pairs = np.zeros((m, 2 * m + 2), np.float32)
    new_s_y, new_y_My, new_norms = _split(pairs)
    new_s_y[:kept, :kept] = s_y[oldest:, oldest:]
    new_y_My[:kept, :kept] = y_My[oldest:, oldest:]
    new_norms[:kept] = norms[oldest:]
    My = _precondition(memory.M, y)
    new_s_y[:, kept] = [_dot(each, y) for each in S]
    new_y_My[:, kept] = new_y_My[kept] = [_dot(each, My) for each in Y]
    new_norms[kept] = _dot(s, s), _dot(y, y)
    return memory._replace(S=S, Y=Y, pairs=pairs)


def products(memory: LbfgsHistory) -> Float64:
    """Return the inner products of a history: (m + 1, 2 m + 2) float64; they add up over blocks.

    Rows 0 to m - 1 are its `pairs`. The last row holds the inner products of G with each S, of M G
    with each Y and with G, and a zero.
    """
    MG = _precondition(memory.M, memory.G)
    last = [_dot(s, memory.G) for s in memory.S] + [_dot(y, MG) for y in memory.Y]
    return np.vstack((memory.pairs, [*last, _dot(memory.G, MG), 0.0]))


def coefficients(inner: Float64) -> tuple[Float64, float]:
    """Return the direction -H G as coefficients (2 m + 1,) of S, M Y and M G, and its slope.

    The slope of the objective along the direction is negative. inner: the sum of all blocks'
    `products`. Pairs without positive curvature, which rounding can produce, are skipped.
    """
    m = len(inner) - 1
    s_y, y_My, norms = _split(inner[:m])
    s_g, y_Mg, g_Mg = inner[m, :m], inner[m, m : 2 * m], inner[m, 2 * m]
    good = [i for i in range(m) if s_y[i, i] > 1e-12 * np.sqrt(norms[i].prod())]
    # the vector is G + sum of q_i Y_i
    q, alpha = np.zeros(m), np.zeros(m)
    for i in reversed(good):
        alpha[i] = (s_g[i] + s_y[i, i:] @ q[i:]) / s_y[i, i]
        q[i] -= alpha[i]
    scale = s_y[good[-1], good[-1]] / y_My[good[-1], good[-1]] if good else 1.0
    # now the vector is scale (M G + sum of q_i M Y_i) + sum of p_i S_i
    p = np.zeros(m)
    for i in good:
        beta = (scale * (y_Mg[i] + y_My[i] @ q) + s_y[:i, i] @ p[:i]) / s_y[i, i]
        p[i] += alpha[i] - beta
    slope = -(scale * (g_Mg + y_Mg @ q) + s_g @ p)
    return -np.concatenate([p, scale * q, [scale]]), float(slope)


def with_direction(memory: LbfgsHistory, coefs: Float64) -> LbfgsHistory:
    """Return the history with the direction given by `coefficients`."""
    m, c = len(memory.S), coefs.astype(np.float32)
    direction = _combine([c[-1], *c[m : 2 * m]], [memory.G, *memory.Y])
    direction = _precondition(memory.M, direction)
    direction = _combine([np.float32(1.0), *c[:m]], [direction, *memory.S])
    return memory._replace(direction=direction)


def weights_at_step(memory: LbfgsHistory, length: float) -> Float32:
    """Return the weights (D', k) at this step length along the direction."""
    return np.asarray(memory.W + np.float32(length) * memory.direction, np.float32)


def sum_products(parts: Sequence[Float64]) -> Float64:
    """Return the sum of all blocks' products, in their order."""
    return np.asarray(sum(parts[1:], parts[0]))


def _split(pairs: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return views of `LbfgsHistory.pairs`: S_i Y_j (m, m), Y_i M Y_j (m, m) and squares (m, 2)."""
    m = len(pairs)
    return pairs[:, :m], pairs[:, m : 2 * m], pairs[:, 2 * m :]


def _add_norm_gradient(G: Float32, W: Float32, lam: float) -> Float32:
    """Return the gradient including that of the norm."""
    return np.asarray(G + np.float32(lam) * W, np.float32)


def _precondition(M: Float32, vector: Float32) -> Float32:
    """Return M times a vector (D', k)."""
    return np.asarray(M @ vector if M.ndim == 2 else M[:, None] * vector, np.float32)


def _combine(weights: Sequence[np.float32], vectors: Sequence[Float32]) -> Float32:
    """Return the sum of weighted vectors (D', k), computed in parts that fit the cache."""
    out = np.empty_like(vectors[0])
    size = max(1, CACHED_CELLS // max(out.shape[1], 1))
    for lo in range(0, len(out), size):
        part = weights[0] * vectors[0][lo : lo + size]
        for weight, vector in zip(weights[1:], vectors[1:], strict=True):
            part += weight * vector[lo : lo + size]
        out[lo : lo + size] = part
    return out


def _dot(a: Float32, b: Float32) -> float:
    """Return the inner product of two (D', k): each row in float32, the sum in double precision."""
    return float(np.einsum("jc,jc->j", a, b).sum(dtype=np.float64))


def pack(memory: LbfgsHistory) -> WeightBlock:
    """Return a history as a WeightBlock, so that it is stored and saved like one. Shares memory."""
    arrays = memory.G, memory.direction, memory.M, memory.pairs, *memory.S, *memory.Y
    return WeightBlock(memory.lo, memory.hi, memory.W, arrays)


def unpack(weights: WeightBlock) -> LbfgsHistory:
    """Return the history that `pack` converted. Shares memory."""
    G, direction, M, pairs, *vectors = weights.state
    m = len(pairs)
    S, Y = tuple(vectors[:m]), tuple(vectors[m:])
    return LbfgsHistory(weights.lo, weights.hi, weights.W, G, direction, M, S, Y, pairs)
