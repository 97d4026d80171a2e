"""Certificates of trained labels: the duality gap relative to the null objective.

The null objective of a label is its objective at w = 0 with the best bias. The gap bounds how far
the objective of the trained weights is above the minimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SMALLEST_NULL = 1e-300


def relative_gaps(gap: Any, null: Any) -> np.ndarray:
    """Return duality gaps as shares of null objectives: (n,) float64, 0 where the objective is 0.

    gap, null: (n,) or a number. A label without positives has the null objective 0.
    """
    gap, null = np.asarray(gap, np.float64), np.asarray(null, np.float64)
    return np.where(null > 0.0, gap / np.maximum(null, SMALLEST_NULL), 0.0)


def largest_gap(records: np.ndarray) -> float:
    """Return the largest relative gap of labels with positives, 0 if there is none.

    records: (n,) with the fields positives, gap and null.
    """
    solved = records[records["positives"] > 0]
    return float(relative_gaps(solved["gap"], solved["null"]).max(initial=0.0))


def is_certified(records: np.ndarray, eps: float) -> np.ndarray:
    """Return (n,) bool: a gap of at most `eps` of the null objective, or nothing to solve.

    records: (n,) with the fields rounds (-1 for labels that were not trained), positives, gap and
    null.
    """
    within = records["gap"] <= eps * records["null"]
    out: np.ndarray = ((records["rounds"] >= 0) & within) | (records["positives"] == 0)
    return out
