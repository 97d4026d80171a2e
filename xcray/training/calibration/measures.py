"""Measures of probabilities: expected calibration error, its floor, Brier score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import ParameterError, ShapeMismatch
from xcray.measures import ratio


class Reliability(NamedTuple):
    """Groups of predictions with similar probability, ascending: predicted and observed frequency.

    counts: (m,) int64, size of each group; predicted: (m,) float64, mean probability; observed:
    (m,) float64, share of hits.
    """

    counts: Int64
    predicted: Float64
    observed: Float64


def reliability(probabilities: Any, hits: Any, n_bins: int = 15) -> Reliability:
    """Return groups of equal mass: predictions sorted by probability, cut into `n_bins`.

    probabilities, hits: arrays of the same shape. Equal probabilities stay in one group, so there
    can be fewer groups, and the result does not depend on the order of the input. Raises
    ShapeMismatch, and ParameterError for n_bins below 1 or probabilities outside 0 to 1. Source:
    Nguyen and O'Connor, EMNLP 2015.
    """
    p, h = np.asarray(probabilities, np.float64).ravel(), np.asarray(hits, bool).ravel()
    if np.shape(probabilities) != np.shape(hits):
        raise ShapeMismatch(
            f"there are {np.shape(probabilities)} probabilities for {np.shape(hits)} answers"
        )
    if n_bins < 1 or not ((p >= 0) & (p <= 1)).all():
        raise ParameterError(
            f"probabilities must be numbers from 0 to 1, and n_bins at least 1, not {n_bins}"
        )
    values, group, count = np.unique(p, return_inverse=True, return_counts=True)
    # the middle one of equal probabilities decides the bin of all of them
    middle = np.cumsum(count) - (count + 1) // 2
    bin_of = (middle * n_bins // max(len(p), 1))[group.ravel()]
    size = np.bincount(bin_of, minlength=n_bins)
    some = size > 0
    predicted, observed = (
        np.bincount(bin_of, weights, n_bins)[some] / size[some] for weights in (p, h)
    )
    return Reliability(size[some], predicted, observed)


def ece(probabilities: Any, hits: Any, n_bins: int = 15) -> float:
    """Return the expected calibration error (Guo et al., ICML 2017, eq. 3).

    The sum over groups of |share of hits - mean probability| count / all, with groups as in
    `reliability` (theirs are of equal width). Over the first k labels of each row it is ECE@k
    (Ullah et al., KDD 2025): `ece(p[:, :k], hits[:, :k])`. Groups are finite, so a perfect forecast
    does not get 0, see `ece_floor`. hits: as returned by `matches`. 0 without predictions.
    """
    groups = reliability(probabilities, hits, n_bins)
    return ratio(
        (groups.counts * np.abs(groups.predicted - groups.observed)).sum(), groups.counts.sum()
    )


def ece_floor(probabilities: Any, n_bins: int = 15) -> float:
    """Return about the `ece` of a perfect forecast, by the normal approximation.

    E|share - p| = sqrt(2 / pi) sqrt(sum p (1 - p)) / count for a group of independent predictions.
    """
    p = np.sort(np.asarray(probabilities, np.float64).ravel())
    groups = np.array_split(p, n_bins)
    return ratio(sum(np.sqrt(2 / np.pi * (group * (1 - group)).sum()) for group in groups), len(p))


def brier(probabilities: Any, hits: Any) -> float:
    """Return the mean of (probability - hit)^2; 0 without predictions.

    Of two calibrated forecasts, the sharper one has the lower score.
    """
    p, h = np.asarray(probabilities, np.float64), np.asarray(hits, bool)
    if p.shape != h.shape:
        raise ShapeMismatch(f"there are {p.shape} probabilities for {h.shape} answers")
    return ratio(((p - h) ** 2).sum(), p.size)
