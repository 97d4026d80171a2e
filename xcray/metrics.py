"""Measures of a ranking: precision, gain, propensity-scored versions, recall, coverage, accuracy and F1; by label frequency.
And of probabilities: calibration error and Brier score.

All take predictions as TopK (best first; labels below 0 are padding and never hit) or as a Pattern, and the truth as
a Pattern with as many rows; all return fractions (1.0 is perfect). Nothing is ever dense in rows x labels.

A row without true labels counts as 0 in P@k, nDCG@k, recall@k and accuracy, and stays in the average; so do the scripts of
the Extreme Classification repository, whose means run over all test rows. Positions beyond the predicted width count as misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int32, Int64, Pattern, TopK, frozen, pattern
from xcray.errors import ParameterError, ShapeMismatch

A, B = 0.55, 1.5  # Jain et al. 2016, section 4.2; Wikipedia and Amazon sets have their own


def evaluate(
    top: TopK,
    Y: Pattern,
    *,
    ks: Sequence[int] = (1, 3, 5),
    label_counts: Any = None,
    n_train: int | None = None,
) -> dict[str, float]:
    """Every measure that the inputs allow: "P@k", "nDCG@k", "recall@k", "coverage@k" for k in `ks`, "accuracy".

    label_counts: (K,) rows of each label in training, with n_train, the rows of training: adds "PSP@k" and "PSnDCG@k".
    A k above the number of labels is left out. Raises ShapeMismatch, and ParameterError for a k below 1.
    """
    hits = matches(top, Y)
    out: dict[str, float] = {}
    usable = [k for k in dict.fromkeys(ks) if _checked_k(k) <= max(Y.n_cols, 1)]
    measures: list[tuple[str, Callable[..., float]]] = [
        ("P", _precision),
        ("nDCG", _ndcg),
        ("recall", _recall),
    ]
    for name, measure in measures:
        out.update({f"{name}@{k}": measure(hits, Y, k) for k in usable})
    out.update({f"coverage@{k}": label_coverage(top, Y, k) for k in usable})
    if label_counts is not None and n_train is not None:
        weights = inverse_propensities(label_counts, n_train)
        out.update({f"PSP@{k}": psp_at_k(top, Y, k, weights) for k in usable})
        out.update({f"PSnDCG@{k}": psndcg_at_k(top, Y, k, weights) for k in usable})
    out["accuracy"] = accuracy(top, Y)
    return out


def precision_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Mean share of true labels among the first k."""
    return _precision(matches(top, Y), Y, _checked_k(k))


def recall_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Mean share of a row's true labels that are among the first k."""
    return _recall(matches(top, Y), Y, _checked_k(k))


def ndcg_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Mean of DCG@k = sum over hits at rank r <= k of 1 / log2(r + 1), over its best value with min(k, true labels) hits."""
    return _ndcg(matches(top, Y), Y, _checked_k(k))


def inverse_propensities(label_counts: Any, n_train: int, a: float = A, b: float = B) -> Float64:
    """(K,) 1 / p_l = 1 + C (n_l + b)^-a with C = (ln n_train - 1) (b + 1)^a (Jain et al. 2016, eq. 5); n_l: training rows of l.

    Raises ParameterError for an empty training set.
    """
    if n_train < 1:
        raise ParameterError(f"propensities need the number of training rows; n_train is {n_train}")
    scale = (np.log(n_train) - 1.0) * (b + 1.0) ** a
    out: Float64 = 1.0 + scale * (np.asarray(label_counts, np.float64) + b) ** -a
    return out


def psp_at_k(top: TopK, Y: Pattern, k: int, weights: Any) -> float:
    """Propensity-scored precision: sum over rows and hits of weights, over the sum that the best possible ranking gets.

    weights: (K,) `inverse_propensities`. Both sums run over all rows before the division, as in the repository's scripts; the
    best ranking of a row is its min(k, true labels) heaviest true labels. 0 when no row has a label.
    """
    gains, best = _weighted(top, Y, _checked_k(k), weights)
    return _ratio(gains[:, :k].sum(), best[:, :k].sum())


def psndcg_at_k(top: TopK, Y: Pattern, k: int, weights: Any) -> float:
    """Propensity-scored nDCG: like `psp_at_k`, with hits discounted by 1 / log2(rank + 1).

    Each row's sum, and that of its best ranking, is divided by sum_{r <= min(k, true labels)} 1 / log2(r + 1) before the
    rows are added up; the ratio is taken over the sums of all rows, as in the repository's scripts.
    """
    gains, best = _weighted(top, Y, _checked_k(k), weights)
    return _ratio(_discounted(gains, k, _ideal(Y, k)), _discounted(best, k, _ideal(Y, k)))


def label_coverage(top: TopK, Y: Pattern, k: int) -> float:
    """Share of the labels that occur in Y which are hit at least once among the first k of some row."""
    hit = np.unique(top.labels[:, :k][matches(top, Y)[:, : _checked_k(k)]])
    return _ratio(len(hit), len(np.unique(_ones(Y))))


def accuracy(top: TopK, Y: Pattern) -> float:
    """Share of rows whose first label is a true one: plain accuracy where rows have one label, P@1 where they have more."""
    return precision_at_k(top, Y, 1)


def subset_accuracy(predicted: Pattern, Y: Pattern) -> float:
    """Share of rows whose predicted set is exactly the true set; an empty set can be right."""
    common = _common(predicted, Y)
    per_row = (
        np.bincount(common // max(Y.n_cols, 1), minlength=Y.n_rows) if Y.n_rows else np.zeros(0)
    )
    return _ratio(
        np.count_nonzero((per_row == np.diff(Y.indptr)) & (per_row == np.diff(predicted.indptr))),
        Y.n_rows,
    )


def chosen(
    top: TopK, n_labels: int, *, k: int | None = None, threshold: float = -np.inf
) -> Pattern:
    """The predicted sets: of each row the first k labels (all when None) with scores of at least `threshold`."""
    labels, scores = top.labels[:, :k], top.scores[:, :k]
    keep = (labels >= 0) & (scores >= threshold)
    ordered = np.sort(np.where(keep, labels, n_labels), axis=1)
    return pattern(
        np.concatenate(([0], np.cumsum(keep.sum(axis=1)))), ordered[ordered < n_labels], n_labels
    )


def f1(predicted: Pattern, Y: Pattern) -> dict[str, float]:
    """{"micro-F1", "macro-F1"} of predicted label sets; a label neither true nor predicted anywhere counts as 0 in the macro mean.

    F1 of a label = 2 tp / (rows true + rows predicted); the micro value pools all labels. Raises ShapeMismatch.
    """
    K = Y.n_cols
    hit = np.bincount(_common(predicted, Y) % max(K, 1), minlength=K)
    seen = np.bincount(_ones(Y), minlength=K) + np.bincount(_ones(predicted), minlength=K)
    per_label = 2.0 * hit / np.maximum(seen, 1)
    return {"micro-F1": _ratio(2.0 * hit.sum(), seen.sum()), "macro-F1": _ratio(per_label.sum(), K)}


def micro_f1(predicted: Pattern, Y: Pattern) -> float:
    """F1 over all cells pooled."""
    return f1(predicted, Y)["micro-F1"]


def macro_f1(predicted: Pattern, Y: Pattern) -> float:
    """Mean F1 of the labels."""
    return f1(predicted, Y)["macro-F1"]


def frequency_groups(label_counts: Any, n_groups: int = 10, equal: str = "labels") -> Int32:
    """(K,) int32: the frequency group of each label, 0 the rarest; -1 for labels that training never saw.

    label_counts: (K,) training rows of each label. Labels are ordered by count, equal counts by label number (so a count may
    lie in two groups). equal="labels": groups of equally many labels, sizes differing by one at most. equal="positives":
    groups of about equally many training positives: a label belongs where the middle of its positives lies in the running
    sum, so a group can be empty when one label has more than its share. Raises ParameterError.
    """
    counts = np.asarray(label_counts, np.int64)
    if n_groups < 1 or equal not in ("labels", "positives"):
        raise ParameterError(
            f"{n_groups} groups by equal {equal!r}: use at least 1 group, and equal labels or positives"
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
    """How well labels of each frequency are found: one dictionary a group of `frequency_groups`, rarest first; JSON-ready.

    "labels": how many labels; "least", "most": their training counts (None in an empty group); "true": their ones in Y; and
    for every k, with hits = true labels of the group among the first k, over all rows:
    "P@k" = hits / (k n_rows), the group's part of P@k: the parts of all groups add up to P@k, but for hits of labels that
    training never saw; "recall@k" = hits / true; "precision@k" = hits / (labels of the group among the first k). 0 of nothing.
    A k above the number of labels is left out. Raises ShapeMismatch, ParameterError.
    """
    counts, groups = (
        np.asarray(label_counts, np.int64),
        frequency_groups(label_counts, n_groups, equal),
    )
    if len(counts) != Y.n_cols:
        raise ShapeMismatch(f"there are counts for {len(counts)} labels, the truth has {Y.n_cols}")

    def tally(labels: Any) -> Any:
        found = groups[labels]
        return np.bincount(found[found >= 0], minlength=n_groups)

    hits, true = matches(top, Y), tally(_ones(Y))
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
        found, asked = tally(first[hits[:, :k]]), tally(first[first >= 0])
        for row, n_hits, n_true, n_asked in zip(out, found, true, asked, strict=True):
            parts = (("P", k * Y.n_rows), ("recall", n_true), ("precision", n_asked))
            row.update({f"{name}@{k}": _ratio(n_hits, whole) for name, whole in parts})
    return out


def matches(top: TopK, Y: Pattern) -> Any:
    """(n_rows, k) whether a predicted label is a true one. Raises ShapeMismatch for other rows, or labels, than Y has."""
    if len(top.labels) != Y.n_rows:
        raise ShapeMismatch(
            f"there are predictions for {len(top.labels)} rows and true labels for {Y.n_rows}"
        )
    if top.labels.size and int(top.labels.max()) >= Y.n_cols:
        raise ShapeMismatch(
            f"label {int(top.labels.max())} was predicted, the truth has {Y.n_cols} labels"
        )
    cells, asked = _cells(Y), np.arange(Y.n_rows, dtype=np.int64)[:, None] * Y.n_cols + top.labels
    if not len(cells):
        return np.zeros(top.labels.shape, bool)
    at = np.minimum(np.searchsorted(cells, asked), len(cells) - 1)
    return (cells[at] == asked) & (top.labels >= 0)


class Reliability(NamedTuple):
    """Answers in groups of about equal probability, ascending: what was told, and what came true.

    answers: (m,) int64, how many are in each group; told: (m,) float64, their mean probability; true: (m,) float64, share of hits.
    """

    answers: Int64
    told: Float64
    true: Float64


def reliability(probabilities: Any, hits: Any, n_bins: int = 15) -> Reliability:
    """Groups of equal mass (Nguyen and O'Connor, EMNLP 2015): answers sorted by probability, cut into `n_bins`.

    probabilities, hits: arrays of one shape. Equal probabilities are never cut apart, so there may be fewer groups, and the result
    depends on no order. Raises ShapeMismatch, and ParameterError for a bin number below 1 or numbers outside of 0 to 1.
    """
    p, h = np.asarray(probabilities, np.float64).ravel(), np.asarray(hits, bool).ravel()
    if np.shape(probabilities) != np.shape(hits):
        raise ShapeMismatch(
            f"there are {np.shape(probabilities)} probabilities for {np.shape(hits)} answers"
        )
    if n_bins < 1 or not ((p >= 0) & (p <= 1)).all():
        raise ParameterError(
            f"probabilities lie in 0 to 1 and n_bins is at least 1, not {n_bins}; NaN is none"
        )
    values, group, count = np.unique(p, return_inverse=True, return_counts=True)
    middle = (
        np.cumsum(count) - (count + 1) // 2
    )  # of each value's answers, the one in the middle says where all of them go
    bin_of = (middle * n_bins // max(len(p), 1))[group.ravel()]
    size = np.bincount(bin_of, minlength=n_bins)
    some = size > 0
    told, true = (np.bincount(bin_of, weights, n_bins)[some] / size[some] for weights in (p, h))
    return Reliability(size[some], told, true)


def ece(probabilities: Any, hits: Any, n_bins: int = 15) -> float:
    """Expected calibration error: sum over groups of |share of hits - mean probability| count / all (Guo et al., ICML 2017, eq. 3).

    Of the first k answers of each row it is ECE@k (Ullah et al., KDD 2025): `ece(p[:, :k], hits[:, :k])`. Groups as in
    `reliability` (theirs are of equal width). A perfect forecast doesn't get 0, because groups are finite: `ece_floor`.
    hits: as `matches` gives. 0 of no answers.
    """
    found = reliability(probabilities, hits, n_bins)
    return _ratio((found.answers * np.abs(found.told - found.true)).sum(), found.answers.sum())


def ece_floor(probabilities: Any, n_bins: int = 15) -> float:
    """About what `ece` would be were every probability right: the mean |error| of each group's share of hits, by the normal law.

    E|share - p| = sqrt(2 / pi) sqrt(sum p (1 - p)) / count for a group of independent answers.
    """
    p = np.sort(np.asarray(probabilities, np.float64).ravel())
    groups = np.array_split(p, n_bins)
    return _ratio(sum(np.sqrt(2 / np.pi * (group * (1 - group)).sum()) for group in groups), len(p))


def brier(probabilities: Any, hits: Any) -> float:
    """Mean of (probability - hit)^2: of two forecasts that are both calibrated, the sharper one has less. 0 of no answers."""
    p, h = np.asarray(probabilities, np.float64), np.asarray(hits, bool)
    if p.shape != h.shape:
        raise ShapeMismatch(f"there are {p.shape} probabilities for {h.shape} answers")
    return _ratio(((p - h) ** 2).sum(), p.size)


def _precision(hits: Any, Y: Pattern, k: int) -> float:
    """P@k from the hits."""
    return _ratio(hits[:, :k].sum(), k * Y.n_rows)


def _recall(hits: Any, Y: Pattern, k: int) -> float:
    """recall@k from the hits."""
    return _ratio((hits[:, :k].sum(axis=1) / np.maximum(np.diff(Y.indptr), 1)).sum(), Y.n_rows)


def _ndcg(hits: Any, Y: Pattern, k: int) -> float:
    """nDCG@k from the hits."""
    return _ratio(_discounted(hits, k, _ideal(Y, k)), Y.n_rows)


def _discounts(k: int) -> Float64:
    """1 / log2(rank + 1) for ranks 1 to k."""
    out: Float64 = 1.0 / np.log2(np.arange(2, k + 2))
    return out


def _ideal(Y: Pattern, k: int) -> Any:
    """(n_rows,) the best DCG@k of each row; 1 for rows without labels, which gain nothing."""
    return np.concatenate(([1.0], np.cumsum(_discounts(k))))[np.minimum(np.diff(Y.indptr), k)]


def _discounted(gains: Any, k: int, per_row: Any) -> float:
    """Sum over rows of discounted gains, each row divided by its own number."""
    width = min(k, gains.shape[1])
    return float(((gains[:, :width] @ _discounts(width)) / per_row).sum())


def _ones(Y: Pattern) -> Any:
    """The label of every one of a pattern (a view of a larger file may start late)."""
    return Y.indices[Y.indptr[0] : Y.indptr[-1]]


def _cells(Y: Pattern) -> Any:
    """row * K + label of every one: ascending, one number each."""
    return np.repeat(
        np.arange(Y.n_rows, dtype=np.int64), Y.indptr[1:] - Y.indptr[:-1]
    ) * Y.n_cols + _ones(Y)


def _common(predicted: Pattern, Y: Pattern) -> Any:
    """The cells that are one in both. Raises ShapeMismatch."""
    if predicted.shape != Y.shape:
        raise ShapeMismatch(
            f"the predictions are {predicted.shape[0]} x {predicted.shape[1]}, the truth {Y.shape[0]} x {Y.shape[1]}"
        )
    return np.intersect1d(_cells(predicted), _cells(Y), assume_unique=True)


def _weighted(top: TopK, Y: Pattern, k: int, weights: Any) -> tuple[Any, Any]:
    """(n_rows, k) weights of the hits in ranked order, and of each row's heaviest true labels in falling order; 0 elsewhere."""
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
    best[row_of[first], rank[first]] = own[order][
        first
    ]  # row_of is sorted already: ordering moves weights within their rows
    return gains, best


def _checked_k(k: int) -> int:
    """k itself, or ParameterError."""
    if k < 1:
        raise ParameterError(f"k is {k}; it must be at least 1")
    return int(k)


def _ratio(part: Any, whole: Any) -> float:
    """part / whole, and 0 of nothing."""
    return float(part) / float(whole) if whole else 0.0
