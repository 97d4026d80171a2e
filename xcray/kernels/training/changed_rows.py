"""Certificates of solved labels after a change of the rows: new terms of primal and dual.

For one label with weights w and bias b, whose objective is that of
`xcray.kernels.training.ppdsparse.advance`: added rows add their losses at (w, b) to the primal, and
any dual point with alpha = 0 for them is feasible. The loops follow posting lists of the added rows
only, so that a label costs a small part of a pass over all rows.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Pattern
from xcray.kernels.inner import inner
from xcray.kernels.training.hinge import SQUARED_HINGE, Objective, null_objective
from xcray.kernels.training.ppdsparse.dual import cost, dual_terms, soft_square
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem


@inner(allocates=False)
def sample_loss(o: Objective, c: float, z: float) -> float:
    """Return the loss of a sample with cost c at margin violation z."""
    if z <= 0.0:
        return 0.0
    return c * z * z if o.loss == SQUARED_HINGE else c * z


@numba.njit(nogil=True, cache=True)
def added_losses(
    problem: PPDSparseProblem,
    o: Objective,
    W: CSR,
    b: Float32,
    added: CSR,
    begin: int,
    labels: tuple[int, int],
    out: Float64,
) -> None:
    """Write the losses of added rows at given weights to out[label].

    W: (K', D), b: (K',), of the first labels. added: (D, n), the last n rows of the problem by
    column, whose first is row `begin`. labels: first and end of those to compute.
    """
    n = added.n_cols
    scores, YT = np.zeros(n), problem.YT
    for k in range(labels[0], labels[1]):
        for t in range(W.indptr[k], W.indptr[k + 1]):
            j, w = W.indices[t], np.float64(W.data[t])
            for p in range(added.indptr[j], added.indptr[j + 1]):
                scores[added.indices[p]] += w * added.data[p]
        factor = problem.factors[k] if len(problem.factors) > 0 else 1.0
        bias, total, end = np.float64(b[k]), 0.0, YT.indptr[k + 1]
        p = end
        while p > YT.indptr[k] and YT.indices[p - 1] >= begin:
            p -= 1
        for i in range(n):
            is_positive = p < end and YT.indices[p] == begin + i
            p += is_positive
            score = scores[i] + bias
            scores[i] = 0.0
            c = cost(problem, o, factor, begin + i, is_positive)
            total += sample_loss(o, c, 1.0 - score if is_positive else 1.0 + score)
        out[k] = total


@numba.njit(nogil=True, cache=True)
def positive_losses(
    problem: PPDSparseProblem, o: Objective, W: CSR, b: Float32, end: int, out: Float64
) -> None:
    """Write the losses of the positives before row `end`, with factor 1, to out[label]."""
    X, YT = problem.X, problem.YT
    w = np.zeros(X.n_cols)
    for k in range(len(out)):
        for t in range(W.indptr[k], W.indptr[k + 1]):
            w[W.indices[t]] = W.data[t]
        total = 0.0
        for i in YT.indices[YT.indptr[k] : YT.indptr[k + 1]]:
            if i < end:
                score = np.float64(b[k])
                for p in range(X.indptr[i], X.indptr[i + 1]):
                    score += w[X.indices[p]] * X.data[p]
                total += sample_loss(o, cost(problem, o, 1.0, i, True), 1.0 - score)
        for t in range(W.indptr[k], W.indptr[k + 1]):
            w[W.indices[t]] = 0.0
        out[k] = total


@numba.njit(nogil=True, cache=True)
def dual_values(
    problem: PPDSparseProblem,
    o: Objective,
    duals: CSR,
    labels: tuple[int, int],
    skip: NDArray[np.bool_],
    out: Float64,
) -> None:
    """Write the dual objective of the given dual variables to out[label].

    duals: (K', N), of the first labels; values above the upper bound of their sample are clipped.
    skip: (K',) bool, labels to leave out.
    """
    X, YT = problem.X, problem.YT
    number, touched = np.zeros(X.n_cols, np.int32), np.empty(X.n_cols + 1, np.int32)
    v = np.zeros(X.n_cols + 1)
    for k in range(labels[0], labels[1]):
        if skip[k]:
            continue
        factor = problem.factors[k] if len(problem.factors) > 0 else 1.0
        first, second, vb, n_touched = 0.0, 0.0, 0.0, 0
        q, end = YT.indptr[k], YT.indptr[k + 1]
        for p in range(duals.indptr[k], duals.indptr[k + 1]):
            i = duals.indices[p]
            while q < end and YT.indices[q] < i:
                q += 1
            is_positive = q < end and YT.indices[q] == i
            inv, upper = dual_terms(o, cost(problem, o, factor, i, is_positive))
            alpha = min(upper, max(0.0, np.float64(duals.data[p])))
            first += alpha
            second += inv * alpha * alpha
            signed = alpha if is_positive else -alpha
            vb += signed
            for e in range(X.indptr[i], X.indptr[i + 1]):
                j = X.indices[e]
                if number[j] == 0:
                    touched[n_touched] = j
                    n_touched += 1
                    number[j] = n_touched
                v[number[j] - 1] += signed * X.data[e]
        square = soft_square(v[:n_touched], o.lam) / o.tau + vb * vb / o.tau_bias
        out[k] = first - 0.5 * second - 0.5 * square
        for t in range(n_touched):
            number[touched[t]] = 0
            v[t] = 0.0


@numba.njit(nogil=True, cache=True)
def null_objectives(problem: PPDSparseProblem, o: Objective, out: Float64) -> None:
    """Write the null objective of the first labels to out."""
    YT: Pattern = problem.YT
    for k in range(len(out)):
        weight = 0.0
        for i in YT.indices[YT.indptr[k] : YT.indptr[k + 1]]:
            weight += problem.weights[i] if len(problem.weights) > 0 else 1.0
        factor = problem.factors[k] if len(problem.factors) > 0 else 1.0
        out[k] = null_objective(o, weight * factor, problem.total - weight)
