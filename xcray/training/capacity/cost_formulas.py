"""Analytical cost model of PPDSparse: core seconds, weights and active rows per label.

The input is numbers only: N rows, D features, r entries per row, Z entries in all, n rows of the
label, and h = C |x|^2 / tau, the strength of the hinge loss. Each result is a count of kernel
operations times the seconds of one operation:

    descent   active rows   a = N (1 - exp(-ACTIVE min(1, N / 30,000)^ACTIVE_N n^ACTIVE_P / N))
              sweeps        s = SWEEPS n^SWEEPS_P (1 + h / 10)^0.2 ln(1 / eps) / ln(100)
              rounds        R = s / 4.2
              features met  m = D (1 - exp(-a r / 2 D))
              seconds       LABEL + (SAMPLE N + PRICED m) (R + 1)
                            + WALKED Z (1 - exp(-2 q sqrt n)) + s a (VISIT + TOUCHED r)
              weights       0.7 D (1 - exp(-x / 0.7 D)), x = WEIGHTS r^0.4 n^0.6 (0.01 / eps)^0.3
                            (m if lam and prune are 0)
    Newton    seconds       PASS 2.5 Z (R + 1) + 8 SAMPLE N (R + 1) + PAIR N r^2 / 2
                            + CELL 150 R (D + 1)^2, R = 8
              weights       D

q is the share of all entries in the posting lists of a row's features. An entry touched in a sweep
costs twice as much if the weights of all features do not fit in the caches. Newton's method is for
few features and long rows (`xcray.solvers.newton`). Its passes read all of X, its pairs fill the
Hessian, and its cells belong to the quadratic model (150 sweeps per step).

The constants were fitted to the sets that `benchmarks.sizing.sets` marks, by least squares of
logarithms with wide priors around the measured kernel times. The form of the formula (the term of
features met, the bound of 30,000 rows) was chosen with results on other sets in view. Therefore
only the sets that `benchmarks.sizing` calls fresh are a test of it.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64
from xcray.solvers.newton import MAX_FEATURES, MIN_MEAN_CURVATURE

ACTIVE, ACTIVE_N, ACTIVE_P = 126.0, 0.30, 0.64
SWEEPS, SWEEPS_P = 11.2, 0.076
SWEEPS_PER_ROUND: Final = 4.2
LABEL: Final = 40e-6
SAMPLE: Final = 0.95e-9
WALKED: Final = 1.15e-9
PRICED: Final = 43e-9
VISIT, TOUCHED = 115e-9, 0.73e-9
# An entry costs twice as much from this number of features on.
WIDE_FEATURES: Final = 1e5
WEIGHTS, WEIGHTS_R, WEIGHTS_N = 34.0, 0.4, 0.6
# Largest share of the features with a weight after descent.
MAX_WEIGHT_SHARE: Final = 0.7
NEWTON_ROUNDS, MODEL_SWEEPS = 8, 150
PASS, PAIR, CELL = 1.1e-9, 0.46e-9, 0.3e-9


class MatrixShape(NamedTuple):
    """Size of a data matrix.

    rows, features, entries: N, D, Z. norm: mean |x|^2 of a row. overlap: q.
    """

    rows: int
    features: int
    entries: int
    norm: float
    overlap: float


class PredictedCosts(NamedTuple):
    """Predicted costs per label, (K,) float64 each.

    seconds: of one core. weights: nonzero weights. active: rows that are active at some time.
    extra_bytes: bytes of a worker in addition to the arrays of its solver.
    """

    seconds: Float64
    weights: Float64
    active: Float64
    extra_bytes: int


def uses_newton(solver: Any, features: int, norm: float) -> bool:
    """Return whether PPDSparse uses Newton's method on such rows.

    See `xcray.solvers.newton.suits`.
    """
    return bool(
        solver.loss == "squared_hinge"
        and features <= MAX_FEATURES
        and solver.C * norm >= MIN_MEAN_CURVATURE * solver.tau
    )


def newton_bytes(rows: int, features: int) -> int:
    """Return the bytes that Newton's method needs at a worker in addition to descent.

    Three matrices of the features and ten numbers per row.
    """
    return 24 * (features + 1) ** 2 + 80 * rows


def predict_costs(solver: Any, data: MatrixShape, counts: Float64) -> PredictedCosts:
    """Predict the costs of labels with `counts` (K,) rows, at least one each."""
    return (
        newton_costs(data, counts)
        if uses_newton(solver, data.features, data.norm)
        else coordinate_descent_costs(solver, data, counts)
    )


def coordinate_descent_costs(solver: Any, data: MatrixShape, counts: Float64) -> PredictedCosts:
    """Predict the costs of dual coordinate descent on active sets."""
    N, Z, r = data.rows, data.entries, data.entries / data.rows
    n = np.maximum(counts, 1.0)
    sharp = math.log(1.0 / min(solver.eps, 0.5)) / math.log(100.0)
    active = N * -np.expm1(-ACTIVE * min(1.0, N / 30_000) ** ACTIVE_N * n**ACTIVE_P / N)
    sweeps = SWEEPS * n**SWEEPS_P * (1.0 + solver.C * data.norm / solver.tau / 10.0) ** 0.2 * sharp
    entry = TOUCHED * (1.0 + min(1.0, data.features / WIDE_FEATURES))
    walked = Z * -np.expm1(-2.0 * data.overlap * np.sqrt(n))
    met = data.features * -np.expm1(-0.5 * active * r / data.features)
    rounds = (SAMPLE * N + PRICED * met) * (sweeps / SWEEPS_PER_ROUND + 1.0)
    seconds = LABEL + rounds + WALKED * walked + sweeps * active * (VISIT + entry * r)
    max_weights = MAX_WEIGHT_SHARE * data.features
    weights = max_weights * -np.expm1(
        -WEIGHTS * r**WEIGHTS_R * n**WEIGHTS_N * (0.01 / solver.eps) ** 0.3 / max_weights
    )
    if solver.lam == 0.0 and not (solver.prune or solver.prune_keep or solver.prune_loss):
        weights = met  # every feature of an active row has a weight
    return PredictedCosts(seconds, weights, active, 0)


def newton_costs(data: MatrixShape, counts: Float64) -> PredictedCosts:
    """Predict the costs of Newton steps on the primal.

    The Hessian that classes start from is computed once and shared.
    """
    N, D, Z, r, R = data.rows, data.features, data.entries, data.entries / data.rows, NEWTON_ROUNDS
    pairs = PAIR * N * r * r / 2.0 * (1.0 + 1.0 / len(counts))
    seconds = (
        LABEL
        + (2.5 * PASS * Z + 8.0 * SAMPLE * N) * (R + 1)
        + pairs
        + CELL * MODEL_SWEEPS * R * (D + 1) ** 2
    )
    ones = np.ones(len(counts))
    return PredictedCosts(ones * seconds, ones * D, np.zeros(len(counts)), newton_bytes(N, D))
