"""Textbook metrics, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def precision(ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int) -> float:
    """Return P@k over the rows with labels."""
    return mean(
        [sum(label in t for label in r[:k]) / k for r, t in zip(ranked, true, strict=True) if t]
    )


def recall(ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int) -> float:
    """Return recall@k over the rows with labels."""
    return mean(
        [
            sum(label in t for label in r[:k]) / len(t)
            for r, t in zip(ranked, true, strict=True)
            if t
        ]
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0


def dcg(gains: Sequence[float]) -> float:
    """Return the sum of gains discounted by the logarithm of their rank."""
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))


def ndcg(ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int) -> float:
    """Return nDCG@k."""
    rows = [
        dcg([float(label in t) for label in r[:k]]) / dcg([1.0] * min(k, len(t)))
        for r, t in zip(ranked, true, strict=True)
        if t
    ]
    return mean(rows)


def inverse_propensity(count: int, n: int, a: float = 0.55, b: float = 1.5) -> float:
    """Return 1 / p of a label (Jain et al. 2016, equation 5)."""
    return 1.0 + (math.log(n) - 1.0) * (b + 1.0) ** a * math.exp(-a * math.log(count + b))


def _gains(
    r: Sequence[int], t: set[int], k: int, w: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the gains of a ranking and of the best ranking."""
    return [w[label] if label in t else 0.0 for label in r[:k]], sorted(
        (w[label] for label in t), reverse=True
    )[:k]


def psp(
    ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int, w: Sequence[float]
) -> float:
    """Return PSP@k."""
    pairs = [_gains(r, t, k, w) for r, t in zip(ranked, true, strict=True)]
    best = sum(sum(b) for _, b in pairs)
    return sum(sum(g) for g, _ in pairs) / best if best else 0.0


def psndcg(
    ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int, w: Sequence[float]
) -> float:
    """Return PSnDCG@k."""
    actual = best = 0.0
    for r, t in zip(ranked, true, strict=True):
        if t:
            g, b = _gains(r, t, k, w)
            ideal = dcg([1.0] * min(k, len(t)))
            actual, best = actual + dcg(g) / ideal, best + dcg(b) / ideal
    return actual / best if best else 0.0


def coverage(ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int) -> float:
    """Return the share of occurring labels that are hit."""
    occurring = set().union(*true)
    hit = {label for r, t in zip(ranked, true, strict=True) for label in r[:k] if label in t}
    return len(hit) / len(occurring) if occurring else 0.0


def groups(counts: Sequence[int], n: int, equal: str) -> list[int]:
    """Return the frequency group of each label; -1 where the count is 0."""
    values = sorted((count, label) for label, count in enumerate(counts) if count)
    total, before, out = sum(counts), 0, [-1] * len(counts)
    for rank, (count, label) in enumerate(values):
        place = (
            Fraction(rank, len(values))
            if equal == "labels"
            else (before + Fraction(count, 2)) / total
        )
        out[label] = math.floor(place * n)
        before += count
    return out


def by_group(
    ranked: Sequence[Sequence[int]], true: Sequence[set[int]], k: int, of: Sequence[int], group: int
) -> dict[str, float]:
    """Return the contribution to P@k, the recall and the precision of the labels of one group."""
    hits = sum(
        label in t and of[label] == group
        for r, t in zip(ranked, true, strict=True)
        for label in r[:k]
    )
    there = sum(of[label] == group for t in true for label in t)
    labelled = [r for r, t in zip(ranked, true, strict=True) if t]
    request = sum(of[label] == group for r in labelled for label in r[:k])
    whole = {"P": k * len(labelled), "recall": there, "precision": request}
    return {f"{name}@{k}": hits / size if size else 0.0 for name, size in whole.items()}
