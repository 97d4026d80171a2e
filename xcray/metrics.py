"""Measures of a ranking: precision, gain, propensity-scored versions, recall, coverage, accuracy and F1; by label frequency.

All take predictions as TopK (best first; labels below 0 are padding and never hit) or as a Pattern, and the truth as
a Pattern with as many rows; all return fractions (1.0 is perfect). Nothing is ever dense in rows x labels.

A row without true labels counts as 0 in P@k, nDCG@k, recall@k and accuracy, and stays in the average; so do the scripts of
the Extreme Classification repository, whose means run over all test rows. Positions beyond the predicted width count as misses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcray.arrays import Float64, Int32, Pattern, TopK, frozen, pattern
from xcray.errors import ParameterError, ShapeMismatch

A, B = 0.55, 1.5  # Jain et al. 2016, section 4.2; Wikipedia and Amazon sets have their own


def evaluate(
    top: TopK, Y: Pattern, *, ks: Sequence[int] = (1, 3, 5), label_counts: Any = None, n_train: int | None = None
) -> dict[str, float]:
    """Every measure that the inputs allow: "P@k", "nDCG@k", "recall@k", "coverage@k" for k in `ks`, "accuracy".

    label_counts: (K,) rows of each label in training, with n_train, the rows of training: adds "PSP@k" and "PSnDCG@k".
    A k above the number of labels is left out. Raises ShapeMismatch, and ParameterError for a k below 1.
    """
    hits = _hits(top, Y)
    out: dict[str, float] = {}
    usable = [k for k in dict.fromkeys(ks) if _checked_k(k) <= max(Y.n_cols, 1)]
    measures: list[tuple[str, Callable[..., float]]] = [("P", _precision), ("nDCG", _ndcg), ("recall", _recall)]
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
    return _precision(_hits(top, Y), Y, _checked_k(k))


def recall_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Mean share of a row's true labels that are among the first k."""
    return _recall(_hits(top, Y), Y, _checked_k(k))


def ndcg_at_k(top: TopK, Y: Pattern, k: int) -> float:
    """Mean of DCG@k = sum over hits at rank r <= k of 1 / log2(r + 1), over its best value with min(k, true labels) hits."""
    return _ndcg(_hits(top, Y), Y, _checked_k(k))


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
    hit = np.unique(top.labels[:, :k][_hits(top, Y)[:, : _checked_k(k)]])
    return _ratio(len(hit), len(np.unique(_ones(Y))))


def accuracy(top: TopK, Y: Pattern) -> float:
    """Share of rows whose first label is a true one: plain accuracy where rows have one label, P@1 where they have more."""
    return precision_at_k(top, Y, 1)


def subset_accuracy(predicted: Pattern, Y: Pattern) -> float:
    """Share of rows whose predicted set is exactly the true set; an empty set can be right."""
    common = _common(predicted, Y)
    per_row = np.bincount(common // max(Y.n_cols, 1), minlength=Y.n_rows) if Y.n_rows else np.zeros(0)
    return _ratio(np.count_nonzero((per_row == np.diff(Y.indptr)) & (per_row == np.diff(predicted.indptr))), Y.n_rows)


def chosen(top: TopK, n_labels: int, *, k: int | None = None, threshold: float = -np.inf) -> Pattern:
    """The predicted sets: of each row the first k labels (all when None) with scores of at least `threshold`."""
    labels, scores = top.labels[:, :k], top.scores[:, :k]
    keep = (labels >= 0) & (scores >= threshold)
    ordered = np.sort(np.where(keep, labels, n_labels), axis=1)
    return pattern(np.concatenate(([0], np.cumsum(keep.sum(axis=1)))), ordered[ordered < n_labels], n_labels)


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
        raise ParameterError(f"{n_groups} groups by equal {equal!r}: use at least 1 group, and equal labels or positives")
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
    top: TopK, Y: Pattern, label_counts: Any, *, ks: Sequence[int] = (1, 3, 5), n_groups: int = 10, equal: str = "labels"
) -> list[dict[str, Any]]:
    """How well labels of each frequency are found: one dictionary a group of `frequency_groups`, rarest first; JSON-ready.

    "labels": how many labels; "least", "most": their training counts (None in an empty group); "true": their ones in Y; and
    for every k, with hits = true labels of the group among the first k, over all rows:
    "P@k" = hits / (k n_rows), the group's part of P@k: the parts of all groups add up to P@k, but for hits of labels that
    training never saw; "recall@k" = hits / true; "precision@k" = hits / (labels of the group among the first k). 0 of nothing.
    A k above the number of labels is left out. Raises ShapeMismatch, ParameterError.
    """
    counts, groups = np.asarray(label_counts, np.int64), frequency_groups(label_counts, n_groups, equal)
    if len(counts) != Y.n_cols:
        raise ShapeMismatch(f"there are counts for {len(counts)} labels, the truth has {Y.n_cols}")

    def tally(labels: Any) -> Any:
        found = groups[labels]
        return np.bincount(found[found >= 0], minlength=n_groups)

    hits, true = _hits(top, Y), tally(_ones(Y))
    out: list[dict[str, Any]] = []
    for group in range(n_groups):
        own = counts[groups == group]
        limits = {"least": int(own.min()), "most": int(own.max())} if len(own) else {"least": None, "most": None}
        out.append({"labels": len(own), **limits, "true": int(true[group])})
    for k in (k for k in dict.fromkeys(ks) if _checked_k(k) <= max(Y.n_cols, 1)):
        first = top.labels[:, :k]
        found, asked = tally(first[hits[:, :k]]), tally(first[first >= 0])
        for row, n_hits, n_true, n_asked in zip(out, found, true, asked, strict=True):
            parts = (("P", k * Y.n_rows), ("recall", n_true), ("precision", n_asked))
            row.update({f"{name}@{k}": _ratio(n_hits, whole) for name, whole in parts})
    return out


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
    return np.repeat(np.arange(Y.n_rows, dtype=np.int64), Y.indptr[1:] - Y.indptr[:-1]) * Y.n_cols + _ones(Y)


def _common(predicted: Pattern, Y: Pattern) -> Any:
    """The cells that are one in both. Raises ShapeMismatch."""
    if predicted.shape != Y.shape:
        raise ShapeMismatch(
            f"the predictions are {predicted.shape[0]} x {predicted.shape[1]}, the truth {Y.shape[0]} x {Y.shape[1]}"
        )
    return np.intersect1d(_cells(predicted), _cells(Y), assume_unique=True)


def _hits(top: TopK, Y: Pattern) -> Any:
    """(n_rows, k) whether a predicted label is a true one. Raises ShapeMismatch for other rows, or labels, than Y has."""
    if len(top.labels) != Y.n_rows:
        raise ShapeMismatch(f"there are predictions for {len(top.labels)} rows and true labels for {Y.n_rows}")
    if top.labels.size and int(top.labels.max()) >= Y.n_cols:
        raise ShapeMismatch(f"label {int(top.labels.max())} was predicted, the truth has {Y.n_cols} labels")
    cells, asked = _cells(Y), np.arange(Y.n_rows, dtype=np.int64)[:, None] * Y.n_cols + top.labels
    if not len(cells):
        return np.zeros(top.labels.shape, bool)
    at = np.minimum(np.searchsorted(cells, asked), len(cells) - 1)
    return (cells[at] == asked) & (top.labels >= 0)


def _weighted(top: TopK, Y: Pattern, k: int, weights: Any) -> tuple[Any, Any]:
    """(n_rows, k) weights of the hits in ranked order, and of each row's heaviest true labels in falling order; 0 elsewhere."""
    weights = np.asarray(weights, np.float64)
    if len(weights) != Y.n_cols:
        raise ShapeMismatch(f"there are weights for {len(weights)} labels, the truth has {Y.n_cols}")
    gains = np.where(_hits(top, Y), weights[top.labels], 0.0)[:, :k]
    own, lengths = weights[_ones(Y)], Y.indptr[1:] - Y.indptr[:-1]
    row_of = np.repeat(np.arange(Y.n_rows), lengths)
    order = np.lexsort((-own, row_of))
    rank = np.arange(len(own)) - np.repeat(Y.indptr[:-1] - Y.indptr[0], lengths)
    best = np.zeros((Y.n_rows, k))
    first = rank < k
    best[row_of[first], rank[first]] = own[order][first]  # row_of is sorted already: ordering moves weights within their rows
    return gains, best


def _checked_k(k: int) -> int:
    """k itself, or ParameterError."""
    if k < 1:
        raise ParameterError(f"k is {k}; it must be at least 1")
    return int(k)


def _ratio(part: Any, whole: Any) -> float:
    """part / whole, and 0 of nothing."""
    return float(part) / float(whole) if whole else 0.0
