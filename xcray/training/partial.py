"""A training whose time was up: what it has, what it lacks, and how to go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import Int32
from xcray.errors import Refused


def check_some(n_labels: int, missing: Int32, max_seconds: float | None) -> None:
    """Refuse to publish a model of nothing. Raises Refused when all `n_labels` labels are missing."""
    if len(missing) == n_labels and max_seconds is not None:
        raise Refused(
            f"no label was done in {max_seconds:g} s; allow more time (max_seconds), the same run directory goes on",
            code="NO_TIME",
        )


def partial(label_counts: Any, missing: Int32, max_seconds: float | None) -> dict[str, Any]:
    """{"partial": figures} for the report, or nothing when no label is missing.

    label_counts: (K,) training rows of each label. The figures: labels done and missing, the share of all positives that
    those done have, and the most training rows of a missing label: labels with more of them are all there.
    """
    if not len(missing):
        return {}
    counts = np.asarray(label_counts, np.int64)
    lost = int(counts[missing].sum())
    return {
        "partial": {
            "done": len(counts) - len(missing),
            "missing": len(missing),
            "max_seconds": max_seconds,
            "positives_share": round(1.0 - lost / max(int(counts.sum()), 1), 6),
            "most_rows_missing": int(counts[missing].max()),
        }
    }
