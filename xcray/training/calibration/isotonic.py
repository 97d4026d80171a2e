"""Curves from scores to probabilities, fitted by isotonic regression on answers of which it is known whether they were right.

Labels share a curve by their frequency in training, places by theirs in the answer; how many groups there are is chosen by cross
validation on the same answers: few answers bear few curves. scikit-learn's `IsotonicRegression` does the fitting.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.errors import InputError
from xcray.model.calibration import Calibration

LEAST: Final = 50  # right answers, and wrong ones, that a curve is worth fitting to
BIN_NUMBERS: Final = (1, 2, 3, 5, 8)
PLACES: Final = ((), (1, 2), (1, 2, 3))  # where groups of places begin
FOLDS: Final = 5
SEEN: Final = 5  # places that people look at: the choice is made by the answers there


class Answers(NamedTuple):
    """Answers to held-out rows, best first. labels: (n, k) int32; scores: (n, k) float64; right: (n, k) bool."""

    labels: Int32
    scores: Float64
    right: Any

    def of(self, rows: Any, first: int = 1, last: int | None = None) -> Answers:
        """Some rows (a mask or numbers), places first to last."""
        places = slice(first - 1, last)
        return Answers(
            self.labels[rows, places], self.scores[rows, places], self.right[rows, places]
        )

    def between(self, first: int, last: int | None) -> Answers:
        """Places first to last of all rows."""
        return self.of(slice(None), first, last)


def fit(answers: Answers, counts: Int64, seed: int = 0) -> Calibration:
    """The curves that cross validation likes best.

    counts: (K,) training rows of each label. Of the numbers of groups of places (`PLACES`), then of frequency bins (`BIN_NUMBERS`),
    the smallest whose Brier score over the first `SEEN` places is within one standard error of the best one. seed: of the folds.
    Raises InputError TOO_FEW_ANSWERS when fewer than `LEAST` answers are right.
    """
    if (n_right := int(answers.right.sum())) < LEAST:
        raise InputError(
            f"{n_right} held-out answers are right, calibration needs {LEAST}: hold out more rows",
            code="TOO_FEW_ANSWERS",
        )
    fold = np.random.default_rng(seed).permutation(len(answers.labels)) % FOLDS
    near = answers.between(1, 2 * SEEN)
    places = _chosen([_losses(near, counts, fold, 1, begins) for begins in PLACES], PLACES)
    n_bins = _chosen(
        [_losses(near, counts, fold, number, places) for number in BIN_NUMBERS], BIN_NUMBERS
    )
    return fitted(answers, frequency_bins(answers, counts, n_bins, places), places)


def fitted(answers: Answers, bins: Int32, places: tuple[int, ...]) -> Calibration:
    """One curve for each group of places and bin, group 0 of all places; bins: (K,) int32; a curve without answers is flat."""
    groups = [answers, *(answers.between(*ends) for ends in _groups(places))]
    curves = []
    for group in groups:
        bin_of = bins[group.labels]
        curves += [
            _curve(group.scores[own], group.right[own])
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
    answers: Answers, counts: Int64, n_bins: int, places: tuple[int, ...] = ()
) -> Int32:
    """(K,) int32: the frequency bin of each label, 0 the rarest: about equally many right answers in each of `n_bins`.

    Labels of one count are in one bin. A bin with fewer than `LEAST` right or wrong answers in any group of places becomes one with
    its rarer neighbour (the first one with the next).
    """
    own = np.sort(counts[answers.labels[answers.right]])
    edges = (
        np.unique(own[np.arange(1, n_bins) * len(own) // n_bins])
        if len(own)
        else np.empty(0, np.int64)
    )
    groups = [answers.between(*ends) for ends in _groups(places)] or [answers]
    while len(edges):
        thin = _thin(groups, np.searchsorted(edges, counts, side="right"), len(edges) + 1)
        if thin is None:
            break
        edges = np.delete(edges, max(thin - 1, 0))
    return frozen(np.searchsorted(edges, counts, side="right"), np.int32)


def _thin(groups: list[Answers], bins: Any, n_bins: int) -> int | None:
    """The first bin that lacks answers, right or wrong, in some group."""
    least = np.full(n_bins, LEAST)
    for group in groups:
        bin_of = bins[group.labels]
        for answers in (group.right, ~group.right):
            least = np.minimum(least, np.bincount(bin_of[answers], minlength=n_bins))
    return int(np.argmin(least)) if least.min() < LEAST else None


def _curve(scores: Float64, right: Any) -> tuple[Float64, Float64]:
    """Knots of one curve: isotonic regression of hits on scores.

    A wrong answer at the highest score and a right one at the lowest are thought of: however many were right, the next may not be.
    """
    from sklearn.isotonic import (
        IsotonicRegression,
    )  # here: serving and training without calibration need no scikit-learn

    if not len(scores):
        return np.zeros(1), np.full(1, 0.5)
    ends = np.array([scores.max(), scores.min()])
    found = IsotonicRegression().fit(
        np.concatenate([scores, ends]), np.concatenate([right, [0, 1]]).astype(np.float64)
    )
    return found.X_thresholds_, np.clip(found.y_thresholds_, 0.0, 1.0)


def _losses(
    answers: Answers, counts: Int64, fold: Any, n_bins: int, places: tuple[int, ...]
) -> Float64:
    """(n,) squared errors of each row over the first `SEEN` places, told by curves that did not see it; infinite when too thin."""
    out = np.empty(len(fold))
    for number in range(FOLDS):
        inside, outside = answers.of(fold != number), answers.of(fold == number, 1, SEEN)
        bins = frequency_bins(inside, counts, n_bins, places)
        if (
            places
            and _thin(
                [inside.between(*ends) for ends in _groups(places)],
                bins,
                int(bins.max(initial=0)) + 1,
            )
            is not None
        ):
            return np.full(len(fold), np.inf)
        told = fitted(inside, bins, places).of(outside.labels, outside.scores)
        out[fold == number] = ((told - outside.right) ** 2).sum(axis=1)
    return out


def _chosen(losses: list[Float64], choices: tuple[Any, ...]) -> Any:
    """The first choice whose mean loss is within one standard error (of the difference, row by row) of the best."""
    best = losses[int(np.argmin([loss.mean() for loss in losses]))]
    for loss, choice in zip(losses, choices, strict=True):
        more = loss - best if np.isfinite(loss[0]) else loss
        if more.mean() <= more.std() / np.sqrt(len(more)):
            return choice
    return choices[0]


def _groups(places: tuple[int, ...]) -> list[tuple[int, int | None]]:
    """First and last place of each group; the last group has no end."""
    return (
        list(zip(places, [*(begin - 1 for begin in places[1:]), None], strict=True))
        if places
        else []
    )
