"""Curves from scores to probabilities, by isotonic regression on answers of known correctness.

Labels share a curve by their frequency in training. Places (ranks in the answer, from 1) are
grouped as well. The number of groups is chosen by cross validation on the same answers, because few
answers support few curves. The fit is scikit-learn's `IsotonicRegression`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.errors import InputError
from xcray.model.calibration import Calibration

MIN_ANSWERS: Final = 50  # correct answers, and incorrect ones, per curve
BIN_COUNTS: Final = (1, 2, 3, 5, 8)
PLACE_GROUPS: Final = ((), (1, 2), (1, 2, 3))  # first places of the groups
FOLDS: Final = 5
TOP_PLACES: Final = 5  # places that users look at: the groups are chosen by these answers


class RankedLabels(NamedTuple):
    """Answers to held-out rows, best first.

    labels: (n, k) int32. scores: (n, k) float64. correct: (n, k) bool.
    """

    labels: Int32
    scores: Float64
    correct: Any

    def select(self, rows: Any, first: int = 1, last: int | None = None) -> RankedLabels:
        """Return some rows (a mask or numbers), places first to last."""
        places = slice(first - 1, last)
        return RankedLabels(
            self.labels[rows, places], self.scores[rows, places], self.correct[rows, places]
        )

    def at_places(self, first: int, last: int | None) -> RankedLabels:
        """Return places first to last of all rows."""
        return self.select(slice(None), first, last)


def fit_curves(answers: RankedLabels, counts: Int64, seed: int = 0) -> Calibration:
    """Fit the curves that cross validation prefers.

    counts: (K,) training rows per label. First the number of place groups (`PLACE_GROUPS`), then
    the number of frequency bins (`BIN_COUNTS`) is chosen: the smallest whose Brier score over the
    first `TOP_PLACES` places is within one standard error of the best one. seed: of the folds.
    Raises InputError TOO_FEW_ANSWERS if fewer than `MIN_ANSWERS` answers are correct.
    """
    if (n_correct := int(answers.correct.sum())) < MIN_ANSWERS:
        raise InputError(
            f"{n_correct} correct answers to fit on, calibration needs {MIN_ANSWERS}: "
            "hold out more rows",
            code="TOO_FEW_ANSWERS",
        )
    fold = np.random.default_rng(seed).permutation(len(answers.labels)) % FOLDS
    top = answers.at_places(1, 2 * TOP_PLACES)
    places = _choose_smallest(
        [_losses(top, counts, fold, 1, begins) for begins in PLACE_GROUPS], PLACE_GROUPS
    )
    n_bins = _choose_smallest(
        [_losses(top, counts, fold, number, places) for number in BIN_COUNTS], BIN_COUNTS
    )
    return fit_curves_of(answers, frequency_bins(answers, counts, n_bins, places), places)


def fit_curves_of(answers: RankedLabels, bins: Int32, places: tuple[int, ...]) -> Calibration:
    """Fit one curve per group of places and frequency bin; group 0 has all places.

    bins: (K,) int32. A curve without answers is flat.
    """
    groups = [answers, *(answers.at_places(*ends) for ends in _place_ranges(places))]
    curves = []
    for group in groups:
        bin_of = bins[group.labels]
        curves += [
            _fit_curve(group.scores[own], group.correct[own])
            for own in (bin_of == b for b in range(int(bins.max()) + 1))
        ]
    starts = np.concatenate([[0], np.cumsum([len(x) for x, _ in curves])])
    scores, probabilities = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    return Calibration(
        frozen(bins, np.int32),
        frozen(places, np.int64),
        frozen(starts, np.int64),
        frozen(scores, np.float64),
        frozen(probabilities, np.float64),
    )


def frequency_bins(
    answers: RankedLabels, counts: Int64, n_bins: int, places: tuple[int, ...] = ()
) -> Int32:
    """Return (K,) int32: the frequency bin per label, 0 the rarest.

    Each of the `n_bins` bins has about equally many correct answers. Labels with the same count
    share a bin. A bin with fewer than `MIN_ANSWERS` correct or incorrect answers in any group of
    places is merged with its rarer neighbour (the first one with the next).
    """
    own = np.sort(counts[answers.labels[answers.correct]])
    edges = (
        np.unique(own[np.arange(1, n_bins) * len(own) // n_bins])
        if len(own)
        else np.empty(0, np.int64)
    )
    groups = [answers.at_places(*ends) for ends in _place_ranges(places)] or [answers]
    while len(edges):
        thin = _find_thin_bin(groups, np.searchsorted(edges, counts, side="right"), len(edges) + 1)
        if thin is None:
            break
        edges = np.delete(edges, max(thin - 1, 0))
    return frozen(np.searchsorted(edges, counts, side="right"), np.int32)


def _find_thin_bin(groups: list[RankedLabels], bins: Any, n_bins: int) -> int | None:
    """Return the first bin with too few correct or incorrect answers in some group, or None."""
    least = np.full(n_bins, MIN_ANSWERS)
    for group in groups:
        bin_of = bins[group.labels]
        for answers in (group.correct, ~group.correct):
            least = np.minimum(least, np.bincount(bin_of[answers], minlength=n_bins))
    return int(np.argmin(least)) if least.min() < MIN_ANSWERS else None


def _fit_curve(scores: Float64, correct: Any) -> tuple[Float64, Float64]:
    """Return the knots of one curve: isotonic regression of correctness on scores.

    An incorrect answer at the highest score and a correct one at the lowest are added. However many
    answers were correct, the next one can be wrong.
    """
    # Imported here: serving, and training without calibration, do not need scikit-learn.
    from sklearn.isotonic import IsotonicRegression

    if not len(scores):
        return np.zeros(1), np.full(1, 0.5)
    ends = np.array([scores.max(), scores.min()])
    curve = IsotonicRegression().fit(
        np.concatenate([scores, ends]), np.concatenate([correct, [0, 1]]).astype(np.float64)
    )
    return curve.X_thresholds_, np.clip(curve.y_thresholds_, 0.0, 1.0)


def _losses(
    answers: RankedLabels, counts: Int64, fold: Any, n_bins: int, places: tuple[int, ...]
) -> Float64:
    """Return (n,) squared errors of each row over the first `TOP_PLACES` places.

    The curves are fitted without the row. The errors are infinite if a bin has too few answers.
    """
    out = np.empty(len(fold))
    for number in range(FOLDS):
        fit_part, test_part = (
            answers.select(fold != number),
            answers.select(fold == number, 1, TOP_PLACES),
        )
        bins = frequency_bins(fit_part, counts, n_bins, places)
        if (
            places
            and _find_thin_bin(
                [fit_part.at_places(*ends) for ends in _place_ranges(places)],
                bins,
                int(bins.max(initial=0)) + 1,
            )
            is not None
        ):
            return np.full(len(fold), np.inf)
        probabilities = fit_curves_of(fit_part, bins, places).estimate(
            test_part.labels, test_part.scores
        )
        out[fold == number] = ((probabilities - test_part.correct) ** 2).sum(axis=1)
    return out


def _choose_smallest(losses: list[Float64], choices: tuple[Any, ...]) -> Any:
    """Return the first choice whose mean loss is within one standard error of the best.

    The standard error is that of the difference, row by row.
    """
    best = losses[int(np.argmin([loss.mean() for loss in losses]))]
    for loss, choice in zip(losses, choices, strict=True):
        more = loss - best if np.isfinite(loss[0]) else loss
        if more.mean() <= more.std() / np.sqrt(len(more)):
            return choice
    return choices[0]


def _place_ranges(places: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """Return first and last place of each group; the last group has no end."""
    return (
        list(zip(places, [*(begin - 1 for begin in places[1:]), None], strict=True))
        if places
        else []
    )
