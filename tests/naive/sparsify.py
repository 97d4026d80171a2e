"""Sparse rows of a dense block of weights, one label and one weight at a time."""

from __future__ import annotations

from typing import Any


def sparse_rows(
    W: Any, prune: float, keep: int
) -> tuple[list[list[int]], list[list[float]], list[int]]:
    """Return per column of W (D, n): the kept features, their weights, and the lost weights' count.

    Only weights other than 0 count as lost.
    """
    features, weights, lost = [], [], []
    for label in range(W.shape[1]):
        column = [float(w) for w in W[:, label]]
        stay = [f for f in range(len(column)) if abs(column[f]) > prune]
        if keep:
            stay = sorted(sorted(stay, key=lambda f: (-abs(column[f]), f))[:keep])
        features.append(stay)
        weights.append([column[f] for f in stay])
        lost.append(sum(w != 0 for w in column) - len(stay))
    return features, weights, lost
