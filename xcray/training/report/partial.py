"""Trainings that reached their time limit: what is finished and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from xcray.arrays import Int32
from xcray.errors import Refused

# why a model has no ranker
NO_TIME: Final = (
    "the time limit ended the second training, which a ranker needs: allow more time (max_seconds)"
)


def check_any_finished(n_labels: int, missing: Int32, max_seconds: float | None) -> None:
    """Raise Refused if all `n_labels` labels are missing: an empty model is not published."""
    if len(missing) == n_labels and max_seconds is not None:
        raise Refused(
            f"no label was finished in {max_seconds:g} s; allow more time (max_seconds), "
            "the same run directory resumes the training",
            code="NO_TIME",
        )


def partial_summary(label_counts: Any, missing: Int32, max_seconds: float | None) -> dict[str, Any]:
    """Return {"partial": counts} for the report, or an empty dict if no label is missing.

    label_counts: (K,) training rows per label. The counts are the numbers of finished and missing
    labels, the share of all positives that finished labels have, and the most training rows of a
    missing label. All labels with more rows are finished.
    """
    if not len(missing):
        return {}
    counts = np.asarray(label_counts, np.int64)
    lost_positives = int(counts[missing].sum())
    return {
        "partial": {
            "done": len(counts) - len(missing),
            "missing": len(missing),
            "max_seconds": max_seconds,
            "positives_share": round(1.0 - lost_positives / max(int(counts.sum()), 1), 6),
            "most_rows_missing": int(counts[missing].max()),
        }
    }


def is_complete(report: Mapping[str, Any]) -> bool:
    """Return whether no label and no ranker is missing because a time limit was reached."""
    return "partial" not in report and report.get("not_ranked") != NO_TIME
