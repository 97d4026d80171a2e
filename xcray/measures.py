"""Evaluation metrics of rankings, label sets and probabilities.

Rankings: precision, nDCG, propensity-scored versions, recall, coverage, accuracy, also by label
frequency. Label sets: subset accuracy and F1. Probabilities: calibration error and Brier score.

Predictions are a TopK (best label first; labels below 0 are padding and never match) or a Pattern.
The truth is a Pattern with as many rows. All metrics are fractions (1.0 is perfect). No array is
dense in rows x labels.

A row without true labels is left out of rankings: no answer to it could be right. (The scripts of
the Extreme Classification repository count it as 0.) Positions beyond the predicted width count as
misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcray.arrays import Float64, Int32, Pattern, TopK, frozen, pattern
from xcray.errors import ParameterError, ShapeMismatch
from xcray.parameters import require_type

# Jain et al. 2016, section 4.2; other values are used for the Wikipedia and Amazon data sets
A, B = 0.55, 1.5


def evaluate(
    top: TopK,
    Y: Pattern,
    *,
    ks: Sequence[int] = (1, 3, 5),
    label_counts: Any = None,
    n_train: int | None = None,
) -> dict[str, float]:
    """Return all metrics that the inputs allow, by name.

    "P@k", "nDCG@k", "recall@k", "F1@k" (mean over rows) and "coverage@k" for k in `ks`, "accuracy",
    and "macro-F1@1" of the first label of each row. Rows without labels are left out. Reports of
    trainings count true labels that training lacks as misses: to get their numbers, give the Y of
    `xcray.data.unseen.with_unseen`, because Y of a data set has no columns for these labels.
    label_counts: (K,) training rows per label, together with n_train, the number of training rows:
    adds "PSP@k" and "PSnDCG@k". Any k above the number of labels is left out. Raises ShapeMismatch,
    and ParameterError for k below 1.
    """
    require_type("top", top, TopK, "a TopK, the result of predict_top_k or Predictor.predict")
    require_type("Y", Y, Pattern, "a Pattern of the true labels, like xcray.arrays.pattern_from(Y)")
    top, Y = labelled_rows(top, Y)
    hits = matches(top, Y)
    out: dict[str, float] = {}
    usable = [k for k in dict.fromkeys(ks) if _checked_k(k) <= max(Y.n_cols, 1)]
    measures: list[tuple[str, Callable[..., float]]] = [
        ("P", _precision),
        ("nDCG", _ndcg),
        ("recall", _recall),
        ("F1", _f1),
    ]
    for name, measure in measures:
        out.update({f"{name}@{k}": measure(hits, Y, k) for k in usable})
    out.update({f"coverage@{k}": label_coverage(top, Y, k) for k in usable})
    if label_counts is not None and n_train is not None:
        weights = inverse_propensities(label_counts, n_train)
        out.update({f"PSP@{k}": psp_at_k(top, Y, k, weights) for k in usable})
        out.update({f"PSnDCG@{k}": psndcg_at_k(top, Y, k, weights) for k in usable})
    out["accuracy"] = accuracy(top, Y)
    out["macro-F1@1"] = macro_f1(predicted_sets(top, Y.n_cols, k=1), Y)
    return out


def labelled_rows(top: TopK, Y: Pattern) -> tuple[TopK, Pattern]:
    """Return the rows that have true labels; the same objects if all have one.

    Raises ShapeMismatch if the numbers of rows differ.
    """
    _check_rows(top, Y)
    has_labels = np.diff(Y.indptr) > 0
    if has_labels.all():
        return top, Y
    indptr = np.concatenate((Y.indptr[:1], Y.indptr[1:][has_labels])) - Y.indptr[0]
    kept = (frozen(each[has_labels], each.dtype) for each in top)
    return TopK(*kept), pattern(indptr, _ones(Y), Y.n_cols)


def precision_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Return the mean share of true labels among the first k."""
    return _precision(matches(top, Y), Y, _checked_k(k))


def recall_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Return the mean share of a row's true labels that are among the first k."""
    return _recall(matches(top, Y), Y, _checked_k(k))


def ndcg_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Return the mean of DCG@k over its best possible value.

    DCG@k = sum over hits at rank r <= k of 1 / log2(r + 1). The best value has min(k, true labels)
    hits.
    """
    return _ndcg(matches(top, Y), Y, _checked_k(k))


def inverse_propensities(label_counts: Any, n_train: int, a: float = A, b: float = B) -> Float64:
    """Return 1 / p_l = 1 + C (n_l + b)^-a of each label: (K,) (Jain et al. 2016, eq. 5).

    C = (ln n_train - 1) (b + 1)^a; n_l: training rows of label l. Raises ParameterError for an
    empty training set.
    """
    if n_train < 1:
        raise ParameterError(f"propensities need the number of training rows; n_train is {n_train}")
    scale = (np.log(n_train) - 1.0) * (b + 1.0) ** a
    out: Float64 = 1.0 + scale * (np.asarray(label_counts, np.float64) + b) ** -a
    return out


def psp_at_k(top: TopK, Y: Pattern, k: int, weights: Any) -> float:
    """Return the propensity-scored precision: the sum of the weights of all hits over its maximum.

    weights: (K,) `inverse_propensities`. Both sums run over all rows before the division, as in the
    repository's scripts. The maximum of a row is that of its min(k, true labels) heaviest true
    labels. 0 if no row has a label.
    """
    gains, best = weighted_hits(top, Y, _checked_k(k), weights)
    return ratio(gains[:, :k].sum(), best[:, :k].sum())


def psndcg_at_k(top: TopK, Y: Pattern, k: int, weights: Any) -> float:
    """Return the propensity-scored nDCG: `psp_at_k` with hits discounted by 1 / log2(rank + 1).

    Each row's sum and its maximum are divided by sum_{r <= min(k, true labels)} 1 / log2(r + 1)
    before rows are added up. The ratio is that of the sums over all rows, as in the repository's
    scripts.
    """
    gains, best = weighted_hits(top, Y, _checked_k(k), weights)
    return ratio(_discounted(gains, k, ideal_dcg(Y, k)), _discounted(best, k, ideal_dcg(Y, k)))


def label_coverage(top: TopK, Y: Pattern, k: int) -> float:
    """Return the share of labels in Y that are hit among the first k of at least one row."""
    hit = top.labels[:, :k][matches(top, Y)[:, : _checked_k(k)]]
    return ratio(_count_distinct(hit), _count_distinct(_ones(Y)))


def accuracy(top: TopK, Y: Pattern) -> float:
    """Return the share of rows whose first label is true; P@1 if rows have several labels."""
    return precision_at_k(top, Y, 1)


def predicted_sets(
    top: TopK, n_labels: int, *, k: int | None = None, min_score: float = -np.inf
) -> Pattern:
    """Return the first k labels of each row (all if None) with scores of at least `min_score`."""
    labels, scores = top.labels[:, :k], top.scores[:, :k]
    keep = (labels >= 0) & (scores >= min_score)
    ordered = np.sort(np.where(keep, labels, n_labels), axis=1)
    return pattern(
        np.concatenate(([0], np.cumsum(keep.sum(axis=1)))), ordered[ordered < n_labels], n_labels
    )


def f1(predicted: Pattern, Y: Pattern) -> dict[str, float]:
    """Return {"micro-F1", "macro-F1"} of predicted label sets.

    F1 of a label = 2 tp / (rows true + rows predicted). The micro value pools all labels. In the
    macro mean, a label that is neither true nor predicted in any row counts as 0. Raises
    ShapeMismatch.
    """
    K = Y.n_cols
    hit = np.bincount(_common(predicted, Y) % max(K, 1), minlength=K)
    totals = np.bincount(_ones(Y), minlength=K) + np.bincount(_ones(predicted), minlength=K)
    per_label = 2.0 * hit / np.maximum(totals, 1)
    return {
        "micro-F1": ratio(2.0 * hit.sum(), totals.sum()),
        "macro-F1": ratio(per_label.sum(), K),
    }


def macro_f1(predicted: Pattern, Y: Pattern) -> float:
    """Return the mean F1 of the labels."""
    return f1(predicted, Y)["macro-F1"]


def frequency_groups(label_counts: Any, n_groups: int = 10, equal: str = "labels") -> Int32:
    """Return the frequency group of each label: (K,) int32.

    0 is the rarest group, and -1 a label without training rows. label_counts: (K,) training rows
    per label. Labels are ordered by count, ties by label number, so equal counts can be in two
    groups. equal="labels": groups of equally many labels, whose sizes differ by at most one.
    equal="positives": groups of about equally many training positives. A label belongs to the group
    in which the middle of its positives lies in the running sum, so a group can be empty if one
    label has more positives than a group. Raises ParameterError.
    """
    counts = np.asarray(label_counts, np.int64)
    if n_groups < 1 or equal not in ("labels", "positives"):
        raise ParameterError(
            f"{n_groups} groups by equal {equal!r}: use at least 1 group, "
            "and equal=labels or positives"
        )
    groups = np.full(len(counts), -1, np.int32)
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    if equal == "labels":
        groups[order] = np.arange(len(order)) * n_groups // max(len(order), 1)
    else:
        ends = np.cumsum(counts[order])
        groups[order] = (2 * ends - counts[order]) * n_groups // (2 * max(int(counts.sum()), 1))
    return frozen(groups, np.int32)


def by_frequency(
    top: TopK,
    Y: Pattern,
    label_counts: Any,
    *,
    ks: Sequence[int] = (1, 3, 5),
    n_groups: int = 10,
    equal: str = "labels",
) -> list[dict[str, Any]]:
    """Return metrics per frequency group of labels, rarest first: JSON-ready dictionaries.

    "labels": number of labels; "least", "most": range of their training counts (None in an empty
    group); "true": number of their ones in Y. For every k, with hits = true labels of the group
    among the first k, over the n rows that have labels: "P@k" = hits / (k n), the group's part of
    P@k. The parts of all groups add up to P@k, except for hits of labels without training rows.
    "recall@k" = hits / true. "precision@k" = hits / (labels of the group among the first k). 0 / 0
    counts as 0. Any k above the number of labels is left out. Raises ShapeMismatch, ParameterError.
    """
    counts, groups = (
        np.asarray(label_counts, np.int64),
        frequency_groups(label_counts, n_groups, equal),
    )
    if len(counts) != Y.n_cols:
        raise ShapeMismatch(f"there are counts for {len(counts)} labels, the truth has {Y.n_cols}")

    def count_by_group(labels: Any) -> Any:
        hit_counts = groups[labels]
        return np.bincount(hit_counts[hit_counts >= 0], minlength=n_groups)

    top, Y = labelled_rows(top, Y)
    hits, true = matches(top, Y), count_by_group(_ones(Y))
    out: list[dict[str, Any]] = []
    for group in range(n_groups):
        own = counts[groups == group]
        limits = (
            {"least": int(own.min()), "most": int(own.max())}
            if len(own)
            else {"least": None, "most": None}
        )
        out.append({"labels": len(own), **limits, "true": int(true[group])})
    for k in (k for k in dict.fromkeys(ks) if _checked_k(k) <= max(Y.n_cols, 1)):
        first = top.labels[:, :k]
        n_correct, n_predicted = (
            count_by_group(first[hits[:, :k]]),
            count_by_group(first[first >= 0]),
        )
        for row, n_hits, n_true, n_asked in zip(out, n_correct, true, n_predicted, strict=True):
            parts = (("P", k * Y.n_rows), ("recall", n_true), ("precision", n_asked))
            row.update({f"{name}@{k}": ratio(n_hits, whole) for name, whole in parts})
    return out


def matches(top: TopK, Y: Pattern) -> Any:
    """Return whether each predicted label is true: (n_rows, k) bool.

    Raises ShapeMismatch if Y has another number of rows, or fewer labels than predicted.
    """
    _check_rows(top, Y)
    if top.labels.size and int(top.labels.max()) >= Y.n_cols:
        raise ShapeMismatch(
            f"label {int(top.labels.max())} was predicted, the truth has {Y.n_cols} labels"
        )
    cells, predicted_cells = (
        _cells(Y),
        np.arange(Y.n_rows, dtype=np.int64)[:, None] * Y.n_cols + top.labels,
    )
    if not len(cells):
        return np.zeros(top.labels.shape, bool)
    at = np.minimum(np.searchsorted(cells, predicted_cells), len(cells) - 1)
    return (cells[at] == predicted_cells) & (top.labels >= 0)


def _check_rows(top: TopK, Y: Pattern) -> None:
    """Raise ShapeMismatch if there are predictions for another number of rows."""
    if len(top.labels) != Y.n_rows:
        raise ShapeMismatch(
            f"there are predictions for {len(top.labels)} rows and true labels for {Y.n_rows}"
        )


def _n_labelled(Y: Pattern) -> int:
    """Return the number of rows with labels."""
    return int(np.count_nonzero(np.diff(Y.indptr)))


def _precision(hits: Any, Y: Pattern, k: int) -> float:
    """Return P@k from the hits."""
    return ratio(hits[:, :k].sum(), k * _n_labelled(Y))


def _recall(hits: Any, Y: Pattern, k: int) -> float:
    """Return recall@k from the hits."""
    return ratio((hits[:, :k].sum(axis=1) / np.maximum(np.diff(Y.indptr), 1)).sum(), _n_labelled(Y))


def _f1(hits: Any, Y: Pattern, k: int) -> float:
    """Return the mean over rows of the F1 of the first k labels."""
    true = np.diff(Y.indptr)
    shares = 2 * hits[:, :k].sum(axis=1) / (min(k, hits.shape[1]) + np.maximum(true, 1))
    return ratio(shares.sum(), _n_labelled(Y))


def _ndcg(hits: Any, Y: Pattern, k: int) -> float:
    """Return nDCG@k from the hits."""
    return ratio(_discounted(hits, k, ideal_dcg(Y, k)), _n_labelled(Y))


def discounts(k: int) -> Float64:
    """Return 1 / log2(rank + 1) for ranks 1 to k."""
    out: Float64 = 1.0 / np.log2(np.arange(2, k + 2))
    return out


def ideal_dcg(Y: Pattern, k: int) -> Any:
    """Return the best possible DCG@k of each row: (n_rows,); 1 for rows without labels."""
    return np.concatenate(([1.0], np.cumsum(discounts(k))))[np.minimum(np.diff(Y.indptr), k)]


def _discounted(gains: Any, k: int, per_row: Any) -> float:
    """Return the sum over rows of discounted gains, each row divided by its own number."""
    width = min(k, gains.shape[1])
    return float(((gains[:, :width] @ discounts(width)) / per_row).sum())


def _ones(Y: Pattern) -> Any:
    """Return the labels of all ones of a pattern; a view of a larger file can start late."""
    return Y.indices[Y.indptr[0] : Y.indptr[-1]]


def _count_distinct(labels: Int32) -> int:
    """Return the number of distinct labels."""
    return int(np.count_nonzero(np.bincount(labels)))


def _cells(Y: Pattern) -> Any:
    """Return row * K + label of every one, ascending."""
    return np.repeat(
        np.arange(Y.n_rows, dtype=np.int64), Y.indptr[1:] - Y.indptr[:-1]
    ) * Y.n_cols + _ones(Y)


def _common(predicted: Pattern, Y: Pattern) -> Any:
    """Return the cells that are one in both. Raises ShapeMismatch."""
    if predicted.shape != Y.shape:
        raise ShapeMismatch(
            f"the predictions are {predicted.shape[0]} x {predicted.shape[1]}, "
            f"the truth {Y.shape[0]} x {Y.shape[1]}"
        )
    return np.intersect1d(_cells(predicted), _cells(Y), assume_unique=True)


def weighted_hits(top: TopK, Y: Pattern, k: int, weights: Any) -> tuple[Any, Any]:
    """Return weights of the hits in ranked order, and the maximum of each row: (n_rows, k) both.

    The maximum has the row's heaviest true labels in descending order; 0 elsewhere. weights: (K,).
    Raises ShapeMismatch.
    """
    weights = np.asarray(weights, np.float64)
    if len(weights) != Y.n_cols:
        raise ShapeMismatch(
            f"there are weights for {len(weights)} labels, the truth has {Y.n_cols}"
        )
    gains = np.where(matches(top, Y), weights[top.labels], 0.0)[:, :k]
    own, lengths = weights[_ones(Y)], Y.indptr[1:] - Y.indptr[:-1]
    row_of = np.repeat(np.arange(Y.n_rows), lengths)
    order = np.lexsort((-own, row_of))
    rank = np.arange(len(own)) - np.repeat(Y.indptr[:-1] - Y.indptr[0], lengths)
    best = np.zeros((Y.n_rows, k))
    first = rank < k
    # row_of is sorted already, so ordering moves weights within their rows only
    best[row_of[first], rank[first]] = own[order][first]
    return gains, best


def _checked_k(k: int) -> int:
    """Return k. Raises ParameterError if it is below 1."""
    if k < 1:
        raise ParameterError(f"k is {k}; it must be at least 1")
    return int(k)


def ratio(part: Any, whole: Any) -> float:
    """Return part / whole; 0 if whole is 0."""
    return float(part) / float(whole) if whole else 0.0
