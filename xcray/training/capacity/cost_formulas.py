"""What a label costs by PPDSparse when there are only numbers of the data: seconds of a core, weights, rows that become active.

Each figure is a count of what the kernels do times the seconds that one of it takes, N rows, D features, r entries a row, Z in all,
n rows of the label, h = C |x|^2 / tau how hard its rows pull:

    descent   active rows   a = N (1 - exp(-ACTIVE min(1, N / 30,000)^ACTIVE_N n^ACTIVE_P / N))
              sweeps        s = SWEEPS n^SWEEPS_P (1 + h / 10)^0.2 ln(1 / eps) / ln(100), rounds R = s / 4.2
              features met  m = D (1 - exp(-a r / 2 D))
              seconds       LABEL + (SAMPLE N + PRICED m) (R + 1) + WALKED Z (1 - exp(-2 q sqrt n)) + s a (VISIT + TOUCHED r)
              weights       0.7 D (1 - exp(-x / 0.7 D)), x = WEIGHTS r^0.4 n^0.6 (0.01 / eps)^0.3; m where lam and prune are 0
    Newton    seconds       PASS 2.5 Z (R + 1) + 8 SAMPLE N (R + 1) + PAIR N r^2 / 2 + CELL 150 R (D + 1)^2, R = 8
              weights       D

q is the share of all entries in the posting lists of a row's features. An entry touched in a sweep costs twice as much where
features are so many that weights leave the caches. Newton's way is for few features and long rows (`xcray.solvers.newton`): its
passes are over all of X, its pairs the Hessian's, its cells those of the quadratic model, 150 sweeps a step.

The constants were fitted to the sets that `benchmarks.sizing.sets` marks, by least squares of logarithms with wide priors
around what the kernels take by themselves. The form was chosen with results on other sets in view, too (the term of features met,
the bound of 30,000 rows), so only sets that `benchmarks.sizing` calls fresh are a test of it.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64
from xcray.solvers.newton import FEW, LONG

ACTIVE, ACTIVE_N, ACTIVE_P = 126.0, 0.30, 0.64
SWEEPS, SWEEPS_P = 11.2, 0.076
ROUND: Final = 4.2  # sweeps a round
LABEL: Final = 40e-6
SAMPLE: Final = 0.95e-9
WALKED: Final = 1.15e-9
PRICED: Final = 43e-9
VISIT, TOUCHED = 115e-9, 0.73e-9
WIDE: Final = 1e5  # features from which on an entry costs twice
WEIGHTS, OF_ROW, OF_ROWS = 34.0, 0.4, 0.6
KEPT: Final = 0.7  # of the features, at most, have a weight after descent
NEWTON_ROUNDS, MODEL_SWEEPS = 8, 150
PASS, PAIR, CELL = 1.1e-9, 0.46e-9, 0.3e-9


class Numbers(NamedTuple):
    """Data by numbers. rows, features, entries: N, D, Z; norm: mean |x|^2 of a row; overlap: q."""

    rows: int
    features: int
    entries: int
    norm: float
    overlap: float


class Costs(NamedTuple):
    """Of each label, (K,) float64: seconds of one core, weights, rows that are active at some time; more: bytes that a worker takes
    beside what its solver's arrays show."""

    seconds: Float64
    weights: Float64
    active: Float64
    more: int


def takes_newton(solver: Any, features: int, norm: float) -> bool:
    """Whether PPDSparse takes Newton's way on such rows, see `xcray.solvers.newton.suits`."""
    return bool(
        solver.loss == "squared_hinge" and features <= FEW and solver.C * norm >= LONG * solver.tau
    )


def newton_bytes(rows: int, features: int) -> int:
    """What Newton's way takes at a worker beside the arrays of descent: three matrices of the features, ten numbers a row."""
    return 24 * (features + 1) ** 2 + 80 * rows


def costs(solver: Any, data: Numbers, counts: Float64) -> Costs:
    """What labels cost whose rows are `counts` (K,), at least one each."""
    return (
        newton(data, counts)
        if takes_newton(solver, data.features, data.norm)
        else descent(solver, data, counts)
    )


def descent(solver: Any, data: Numbers, counts: Float64) -> Costs:
    """Dual coordinate descent on active sets."""
    N, Z, r = data.rows, data.entries, data.entries / data.rows
    n = np.maximum(counts, 1.0)
    sharp = math.log(1.0 / min(solver.eps, 0.5)) / math.log(100.0)
    active = N * -np.expm1(-ACTIVE * min(1.0, N / 30_000) ** ACTIVE_N * n**ACTIVE_P / N)
    sweeps = SWEEPS * n**SWEEPS_P * (1.0 + solver.C * data.norm / solver.tau / 10.0) ** 0.2 * sharp
    entry = TOUCHED * (1.0 + min(1.0, data.features / WIDE))
    walked = Z * -np.expm1(-2.0 * data.overlap * np.sqrt(n))
    met = data.features * -np.expm1(-0.5 * active * r / data.features)
    rounds = (SAMPLE * N + PRICED * met) * (sweeps / ROUND + 1.0)
    seconds = LABEL + rounds + WALKED * walked + sweeps * active * (VISIT + entry * r)
    most = KEPT * data.features
    weights = most * -np.expm1(
        -WEIGHTS * r**OF_ROW * n**OF_ROWS * (0.01 / solver.eps) ** 0.3 / most
    )
    if solver.lam == 0.0 and not (solver.prune or solver.prune_keep or solver.prune_loss):
        weights = met  # every feature of an active row has a weight
    return Costs(seconds, weights, active, 0)


def newton(data: Numbers, counts: Float64) -> Costs:
    """Newton steps on the primal; the Hessian that classes begin from is made once, and shared among them."""
    N, D, Z, r, R = data.rows, data.features, data.entries, data.entries / data.rows, NEWTON_ROUNDS
    pairs = PAIR * N * r * r / 2.0 * (1.0 + 1.0 / len(counts))
    seconds = (
        LABEL
        + (2.5 * PASS * Z + 8.0 * SAMPLE * N) * (R + 1)
        + pairs
        + CELL * MODEL_SWEEPS * R * (D + 1) ** 2
    )
    every = np.ones(len(counts))
    return Costs(every * seconds, every * D, np.zeros(len(counts)), newton_bytes(N, D))
