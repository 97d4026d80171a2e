"""Textbook calibration: pool adjacent violators, piecewise linear curves, calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def isotonic(scores: Sequence[float], right: Sequence[int]) -> dict[float, Fraction]:
    """Return the nondecreasing least-squares fit to `right` at each score.

    The algorithm is pool adjacent violators.
    """
    blocks: list[tuple[Fraction, int, list[float]]] = []  # mean, weight, scores
    for score in sorted(set(scores)):
        own = [Fraction(int(r)) for s, r in zip(scores, right, strict=True) if s == score]
        blocks.append((sum(own, Fraction(0)) / len(own), len(own), [score]))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, n, xs), (b, m, ys) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m, xs + ys)]
    return {score: mean for mean, _, own in blocks for score in own}


def read(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return the value at x of the piecewise linear curve through the knots, flat outside."""
    if x <= xs[0]:
        return ys[0]
    for (x0, y0), (x1, y1) in zip(
        zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False
    ):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


def ece(reports: Sequence[float], right: Sequence[bool], n_bins: int) -> float:
    """Return the expected calibration error with bins of equal size.

    Predictions are sorted by probability. All predictions of one value belong to the bin of the
    middle one. The result is the mean of |gap|.
    """
    ordered = sorted(reports)
    groups: dict[int, list[tuple[float, bool]]] = {}
    for p, r in zip(reports, right, strict=True):
        first = ordered.index(p)
        count = ordered.count(p)
        middle = first + count - (count + 1) // 2
        groups.setdefault(middle * n_bins // len(ordered), []).append((p, r))
    return sum(abs(sum(p - r for p, r in group)) for group in groups.values()) / len(ordered)
