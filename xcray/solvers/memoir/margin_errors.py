"""What an approximate search missed: margin errors, and the terms of the paper's Theorem 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64

SAMPLE_ROWS = 100  # samples of a round whose exact rival is searched, too
EPSILONS: Final[Mapping[str, float]] = {"above_1": 0.01, "above_10": 0.1, "above_100": 1.0}
DELTA = 0.05  # of bounds: they hold with probability 1 - DELTA


class OracleErrors(NamedTuple):
    """How an approximate search found the rivals of a sample of a round.

    A margin error is the lead over the rival found less that over the exact one, at least 0: the
    quantity of the paper's Theorem 1. mean, p95, largest: of the margin errors. agreement: share of
    samples with the exact rival. queries_per_second: of all samples of the round. build_seconds: of
    its indexes. samples: number of margin errors. above_1, above_10, above_100: share of them above
    1, 10 and 100 % of the margin. risk, complexity: see `theorem_1`.
    """

    round: float
    mean: float
    p95: float
    largest: float
    agreement: float
    queries_per_second: float
    build_seconds: float
    samples: float
    above_1: float
    above_10: float
    above_100: float
    risk: float
    complexity: float


class Capacity(NamedTuple):
    """What bounds the complexity of a model in Theorem 1: all weights with |W| <= norm.

    classes: C. rows: n. radius: R, the length of the longest row. margin: rho.
    """

    classes: int
    rows: int
    radius: float
    margin: float

    def complexity(self, norm: float) -> float:
        """Return 4 C / rho sqrt(R^2 norm^2 / n): the second term of eq. 4."""
        return 4.0 * self.classes / self.margin * self.radius * norm / math.sqrt(self.rows)


def theorem_1(risk: float, complexity: float, rows: int, delta: float = DELTA) -> float:
    """Return the bound of Theorem 1 (eq. 4) on the true risk; above 1 it says nothing.

    The bound is risk + complexity + 3 sqrt(log(4 / delta) / (2 n)), with probability 1 - delta, for
    an oracle whose margin errors on all `rows` are at most eps rho. risk: mean of max(0, 1 + eps -
    m / rho) over the inexact margins m. That is (1 + eps) times the hinge loss at rho (1 + eps): by
    m_exact >= m - eps rho, the proof has this factor, which the paper's statement lacks.
    """
    return risk + complexity + 3.0 * math.sqrt(math.log(4.0 / delta) / (2.0 * rows))


def share_bound(share: float, samples: int, delta: float = DELTA) -> float:
    """Return Hoeffding's upper bound of a probability: `share` of `samples` was counted."""
    return min(1.0, share + math.sqrt(math.log(1.0 / delta) / (2.0 * max(samples, 1))))


def measure_errors(
    number: int,
    leads: Float64,
    capacity: Capacity,
    norm: float,
    queries_per_second: float,
    build_seconds: float,
) -> OracleErrors:
    """Return the errors of round `number`.

    leads: (n, 2), of samples over the rival found and over the exact one. norm: |W|.
    """
    leads = leads[np.isfinite(leads).all(axis=1)]
    found, exact = leads.T
    errors = np.maximum(0.0, found - exact)
    errors[errors <= 1e-6 * np.maximum(np.abs(found), np.abs(exact))] = 0.0  # other order of sums
    n, rho = len(errors), capacity.margin
    largest = float(errors.max(initial=0.0))
    risk = np.maximum(0.0, 1.0 + largest / rho - found / rho).mean() if n else 1.0
    return OracleErrors(
        round=number,
        mean=float(errors.mean()) if n else 0.0,
        p95=float(np.quantile(errors, 0.95)) if n else 0.0,
        largest=largest,
        agreement=float((errors == 0.0).mean()) if n else 1.0,
        queries_per_second=queries_per_second,
        build_seconds=build_seconds,
        samples=n,
        **{k: float((errors > eps * rho).mean()) if n else 0.0 for k, eps in EPSILONS.items()},
        risk=float(risk),
        complexity=capacity.complexity(norm),
    )


def summarize_errors(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return (eps, delta) of the oracle over all rounds, for each eps as a share of the margin.

    delta: share of the samples with a margin error above eps. delta_bound: upper bound of its
    expectation, with probability 0.95. rounds: fields of `OracleErrors`.
    """
    counts = np.array([each["samples"] for each in rounds], np.float64)
    total = int(counts.sum())
    out = []
    for name, epsilon in EPSILONS.items():
        above = float(counts @ np.array([each[name] for each in rounds]))
        delta = above / max(total, 1)
        out.append({"epsilon": epsilon, "delta": delta, "delta_bound": share_bound(delta, total)})
    return out
