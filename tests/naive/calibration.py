"""Calibration as a textbook has it: pool adjacent violators, curves read knot by knot, calibration
error group by group.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def isotonic(scores: Sequence[float], right: Sequence[int]) -> dict[float, Fraction]:
    """The never falling function of the score that is nearest to `right` in squares, at each score:
    pool adjacent violators.
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
    """The piecewise linear curve through the knots at x, flat beyond its ends."""
    if x <= xs[0]:
        return ys[0]
    for (x0, y0), (x1, y1) in zip(
        zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False
    ):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


def ece(told: Sequence[float], right: Sequence[bool], n_bins: int) -> float:
    """Answers sorted by probability, each value's middle answer decides for all with that value;
    then the mean of |gap|.
    """
    ordered = sorted(told)
    groups: dict[int, list[tuple[float, bool]]] = {}
    for p, r in zip(told, right, strict=True):
        first = ordered.index(p)
        count = ordered.count(p)
        middle = first + count - (count + 1) // 2
        groups.setdefault(middle * n_bins // len(ordered), []).append((p, r))
    return sum(abs(sum(p - r for p, r in group)) for group in groups.values()) / len(ordered)
