"""Evaluation at a sync point: objective and held-out measures, as JSON entries of the history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xcray.arrays import Pattern, TopK, frozen
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import f1, precision_at_k, predicted_sets
from xcray.solvers.rotation_contract import SweepMetrics, SyncState


def sync_point_metrics(
    objective: float, metrics: Sequence[SweepMetrics], truth: Pattern | None
) -> dict[str, Any]:
    """Return "objective" and the held-out measures; numbers that are not finite are None.

    metrics: of each shard. truth: labels of the held-out rows. Sums are correctly rounded, so they
    do not depend on the order.
    """
    evaluated = [each for each in metrics if each.held_out_rows]
    measures = held_out_metrics(evaluated, truth) if evaluated and truth is not None else {}
    return {
        name: value if math.isfinite(value) else None
        for name, value in {"objective": objective, **measures}.items()
    }


def held_out_metrics(metrics: Sequence[SweepMetrics], truth: Pattern) -> dict[str, float]:
    """Return the measures of the evaluated held-out rows of all shards.

    "held_out" is their loss. "P@1", "P@3" and "P@k" are for the k labels returned per row,
    "micro-F1" and "macro-F1" for the first label. Rows without labels are not evaluated. In P@k
    they count as misses, with their share of the part, as in `xcray.measures`. So the values are
    those that the published model will have, if all rows are evaluated.
    """
    labels, scores, rows = (
        np.concatenate([getattr(each, name) for each in metrics])
        for name in ("labels", "scores", "rows")
    )
    top, Y = (
        TopK(frozen(labels, np.int32), frozen(scores, np.float64)),
        take_pattern_rows(truth, frozen(rows, np.int64)),
    )
    share = float(np.mean(np.diff(truth.indptr) > 0))
    precision = {
        f"P@{k}": share * precision_at_k(top, Y, k)
        for k in sorted({1, min(3, labels.shape[1]), labels.shape[1]})
    }
    return {
        "held_out": math.fsum(each.held_out_loss for each in metrics),
        **precision,
        **f1(predicted_sets(top, truth.n_cols, k=1), Y),
    }


def to_sync_state(entry: Mapping[str, Any]) -> SyncState:
    """Convert an entry of the history to the solver's view of a sync point."""
    objective = entry["objective"]
    exact = {name: entry[name] for name in ("length", "slope") if name in entry}
    return SyncState(
        entry["epoch"],
        entry["rate"],
        math.inf if objective is None else objective,
        held_out=entry.get("held_out"),
        rolled_back=entry["back"],
        **exact,
    )
