"""Log-normalisers of softmax, one row and one exponential at a time, with exact sums."""

from __future__ import annotations

import math
from typing import Any


def log_normaliser(scores: Any) -> list[float]:
    """Return log sum exp(score) of each row of scores (n, K); minus infinity if K is 0."""
    out = []
    for row in scores.tolist():
        top = max(row, default=-math.inf)
        out.append(
            top + math.log(math.fsum(math.exp(value - top) for value in row)) if row else -math.inf
        )
    return out
