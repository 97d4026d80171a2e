"""One threshold per label, fitted to the scores of answers whose correctness is known.

A row is given each label whose score reaches the threshold of that label. Most labels are too rare
for a threshold of their own: the answers of labels with a similar number of training rows count as
further answers of each of them, with the weight of `strength` correct labels. The strength is
chosen by cross validation.

Micro-F1 is a ratio of sums over labels, which Dinkelbach's iteration maximises label by label: for
the ratio F of the last iteration, each label maximises 2 TP - F (predicted). Source: W. Dinkelbach,
On nonlinear fractional programming, Management Science 13, 1967.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float32, Float64, Int32, Int64, Pattern, frozen
from xcray.kernels.sparse import take_pattern_rows
from xcray.training.calibration.isotonic import RankedLabels

OBJECTIVES: Final = ("micro-F1", "macro-F1", "precision")
STRENGTHS: Final = (1.0, 4.0, 16.0, 64.0, 256.0)
FOLDS: Final = 5
GROUP_POSITIVES: Final = 200  # correct labels of a group of labels with similar frequency
MAX_GROUPS: Final = 10
GRID: Final = 16  # thresholds of its group that each label tries besides its own scores
MAX_ITERATIONS: Final = 20


class ThresholdObjective(NamedTuple):
    """What thresholds maximise: a name of OBJECTIVES, with the least precision of "precision"."""

    name: str
    precision: float = 0.0


class LabelCounts(NamedTuple):
    """Counts per label, (K,) each: correctly predicted, predicted, and true labels."""

    hits: Any
    predicted: Any
    true: Any

    def measures(self, n_labels: int) -> dict[str, float]:
        """Return the measures of these counts; macro-F1 is the mean over the first `n_labels`."""
        hits, predicted, true = (float(np.sum(each)) for each in self)
        f1 = 2 * self.hits / np.maximum(self.predicted + self.true, 1)
        return {
            "micro-F1": 2 * hits / max(predicted + true, 1),
            "macro-F1": float(f1[:n_labels].mean()) if n_labels else 0.0,
            "precision": hits / max(predicted, 1),
            "recall": hits / max(true, 1),
        }


class FittedThresholds(NamedTuple):
    """Thresholds per label: (K,) float32, infinite for a label that is never predicted.

    measured: counts by cross validation. strength: the chosen one.
    """

    thresholds: Float32
    measured: LabelCounts
    strength: float


def fit_label_thresholds(
    answers: RankedLabels, Y: Pattern, folds: Int64, frequency: Int64, objective: ThresholdObjective
) -> FittedThresholds:
    """Return the thresholds that maximise the objective on these answers.

    answers: the best labels of n rows. Y: (n, K or more), their labels; those from K on are labels
    that the model lacks. folds: (n,), from 0 to FOLDS - 1. frequency: (K,) training rows per label.
    Their strength is the one whose thresholds are best on the rows of the folds that they were not
    fitted to.
    """
    group = frequency_groups(frequency, _count(Y)[: len(frequency)])
    parts: list[list[LabelCounts]] = [[] for _ in STRENGTHS]
    for fold in range(FOLDS):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fitted = best_thresholds(
            answers.select(others), take_pattern_rows(Y, others), group, STRENGTHS, objective
        )
        for part, thresholds in zip(parts, fitted, strict=True):
            held_out = take_pattern_rows(Y, rows)
            part.append(count_labels(answers.select(rows), held_out, thresholds))
    measured = [LabelCounts(*map(sum, zip(*part, strict=True))) for part in parts]
    best = max(range(len(STRENGTHS)), key=lambda i: _rank(measured[i], len(group), objective))
    strength = STRENGTHS[best]
    (thresholds,) = best_thresholds(answers, Y, group, (strength,), objective)
    return FittedThresholds(thresholds, measured[best], strength)


def best_thresholds(
    answers: RankedLabels,
    Y: Pattern,
    group: Int32,
    strengths: Sequence[float],
    objective: ThresholdObjective,
) -> list[Float32]:
    """Return the best threshold of each label, (K,) float32, for each strength.

    group: (K,), labels with similar frequency. strength: the weight of the group's answers, in
    correct labels.
    """
    n_labels, n_groups = len(group), int(group.max(initial=0)) + 1
    labels, scores, correct = (each.ravel() for each in answers)
    known = labels >= 0
    labels, scores, correct = labels[known].astype(np.int64), scores[known], correct[known]
    answered = np.flatnonzero(np.bincount(labels, minlength=n_labels))
    # one further label per group, without answers, stands for all labels without answers
    tried = np.concatenate([answered, n_labels + np.arange(n_groups)])
    group_of = np.concatenate([group, np.arange(n_groups)])
    of_group = [np.flatnonzero(group[labels] == g) for g in range(n_groups)]
    grids = np.array([_grid(scores[each][correct[each]]) for each in of_group])
    label = np.concatenate([labels, np.repeat(tried, GRID + 1)])
    score = np.concatenate([scores, grids[group_of[tried]].ravel()])
    hit, predicted = (
        np.concatenate([each, np.zeros(len(tried) * (GRID + 1))])
        for each in (correct, np.ones(len(labels)))
    )
    order = np.lexsort((-score, label))
    label, score = label[order], score[order]
    first = np.flatnonzero(np.diff(label, prepend=-1))
    hit, predicted = _running(hit[order], first), _running(predicted[order], first)
    # equal scores of a label have one threshold
    last = np.flatnonzero((np.diff(label, append=-1) != 0) | (np.diff(score, append=0.0) != 0))
    label, score = label[last], score[last]
    true = _count(Y)
    all_true = np.concatenate([true[:n_labels], np.zeros(n_groups)])
    counts = LabelCounts(hit[last], predicted[last], all_true[label])
    of_answers = [(scores[each], correct[each]) for each in of_group]
    group_true = np.bincount(group, true[:n_labels], n_groups)
    shared = _shared_counts(of_answers, group_true, group_of[label], score)
    first = np.flatnonzero(np.diff(label, prepend=-1))
    fitted = []
    for strength in strengths:
        smooth = LabelCounts(*(a + strength * b for a, b in zip(counts, shared, strict=True)))
        best = score[_choose(counts, smooth, first, int(true.sum()), objective)]
        thresholds = best[len(answered) :][group]
        thresholds[answered] = best[: len(answered)]
        fitted.append(round_down(thresholds))
    return fitted


def _grid(scores: Any) -> Float64:
    """Return the thresholds that each label of a group tries, with infinity: never predicted."""
    quantiles = np.quantile(scores, np.linspace(0, 1, GRID)) if len(scores) else np.zeros(GRID)
    return frozen(np.append(quantiles, np.inf), np.float64)


def _running(values: Float64, first: Int64) -> Float64:
    """Return the running sums of values within segments that begin at `first`."""
    total = np.cumsum(values)
    before = np.concatenate([[0.0], total])[first]
    return frozen(total - np.repeat(before, np.diff(first, append=len(values))), np.float64)


def _shared_counts(
    answers: Sequence[tuple[Any, Any]], true: Any, group: Int64, tried: Float64
) -> LabelCounts:
    """Return the counts of a label's group at each tried threshold, per correct label of the group.

    answers: (scores, correct) by group; true: correct labels by group; group: of each threshold.
    """
    counts = np.zeros((3, len(group)))
    for g, (scores, correct) in enumerate(answers):
        if not true[g]:
            continue
        at = np.flatnonzero(group == g)
        for row, values in enumerate((scores[correct], scores)):
            below = np.searchsorted(np.sort(values), tried[at])
            counts[row, at] = (len(values) - below) / true[g]
        counts[2, at] = 1.0
    return LabelCounts(*counts)


def _choose(
    counts: LabelCounts,
    smooth: LabelCounts,
    first: Int64,
    n_true: int,
    objective: ThresholdObjective,
) -> Int64:
    """Return the number of the best threshold of each label, whose thresholds begin at `first`.

    n_true: correct labels of all rows.
    """
    if objective.name == "macro-F1":
        size = smooth.predicted + smooth.true
        return _argmax(2 * smooth.hits / np.where(size > 0, size, 1.0), first)
    if objective.name == "precision":
        precise = smooth.hits >= objective.precision * smooth.predicted
        return _argmax(np.where(precise, smooth.hits, -1.0), first)
    ratio = 0.5
    for _ in range(MAX_ITERATIONS):
        chosen = _argmax(2 * smooth.hits - ratio * smooth.predicted, first)
        size = counts.predicted[chosen].sum() + n_true
        reached = 2 * counts.hits[chosen].sum() / max(size, 1.0)
        if abs(reached - ratio) < 1e-9:
            break
        ratio = reached
    return chosen


def _argmax(values: Float64, first: Int64) -> Int64:
    """Return the number of the first largest value of each segment; segments begin at `first`."""
    lengths = np.diff(first, append=len(values))
    is_best = values == np.repeat(np.maximum.reduceat(values, first), lengths)
    best = np.flatnonzero(is_best)
    return frozen(best[np.searchsorted(best, first)], np.int64)


def count_labels(answers: RankedLabels, Y: Pattern, thresholds: Any) -> LabelCounts:
    """Return the counts of the answers whose scores reach the thresholds of their labels.

    Y: (n, m), the labels of the rows; the counts are (m,).
    """
    kept = (answers.labels >= 0) & (answers.scores >= thresholds[answers.labels])
    return LabelCounts(
        np.bincount(answers.labels[kept & answers.correct], minlength=Y.n_cols),
        np.bincount(answers.labels[kept], minlength=Y.n_cols),
        _count(Y),
    )


def frequency_groups(frequency: Int64, true: Int64) -> Int32:
    """Return the group of each label: (K,) int32; labels of one frequency share one.

    true: (K,), correct labels. Each of at most MAX_GROUPS groups has about GROUP_POSITIVES of them.
    """
    total = int(true.sum())
    n_groups = int(np.clip(total // GROUP_POSITIVES, 1, MAX_GROUPS))
    values, of_value = np.unique(frequency, return_inverse=True)
    below = np.cumsum(np.bincount(of_value, true, len(values)))
    group = np.minimum(below * n_groups // (total + 1), n_groups - 1).astype(np.int64)
    return frozen(np.unique(group[of_value], return_inverse=True)[1], np.int32)


def round_down(thresholds: Float64) -> Float32:
    """Return thresholds as float32 that no score at a threshold is below."""
    rounded = thresholds.astype(np.float32)
    too_high = rounded > thresholds
    rounded[too_high] = np.nextafter(rounded[too_high], np.float32(-np.inf))
    return frozen(rounded, np.float32)


def _rank(counts: LabelCounts, n_labels: int, objective: ThresholdObjective) -> tuple[float, ...]:
    """Return what is compared to choose a strength."""
    measures = counts.measures(n_labels)
    if objective.name != "precision":
        return (measures[objective.name],)
    missed = min(measures["precision"] - objective.precision, 0.0)
    return (missed, measures["recall"])


def _count(Y: Pattern) -> Int64:
    """Return the rows of each label."""
    return frozen(np.bincount(Y.indices[Y.indptr[0] : Y.indptr[-1]], minlength=Y.n_cols), np.int64)
