"""Training summaries: figures for users, and the per-class table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray import metrics
from xcray.arrays import Pattern, TopK
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.report.timeline import class_costs

# Columns of the class table, as far as the solver records them.
COLUMNS: Final = (
    *(
        "label",
        "positives",
        "rounds",
        "sweeps",
        "active",
        "support",
        "violating",
        "nnz",
        "pruned",
        "work",
    ),
    *("primal", "dual", "gap", "null", "certified", "seconds", "worker", "bias"),
)


def summarize_block(block: SolvedLabels, eps: float) -> dict[str, Any]:
    """Return counts, the largest gap relative to the null objective, and weights; JSON.

    A solver whose records state what is certified solves one problem for all classes. Its gap is
    that of the whole problem.
    """
    records = block.records
    empty = records["positives"] == 0
    gap, null = records["gap"][~empty], records["null"][~empty]
    if "certified" in (records.dtype.names or ()):
        gap, null = gap.sum(keepdims=True), null.sum(keepdims=True)
    return {
        "classes": len(block.labels),
        "classes_without_positives": int(empty.sum()),
        "classes_certified": int(certified_classes(records, eps).sum()),
        "largest_gap": _largest_ratio(gap, null),
        "weights": block.W.nnz,
        "weights_pruned": int(records["pruned"].sum()),
        "support_vectors": int(records["support"].sum()),
    }


def largest_gap(records: Any) -> float:
    """Return the largest duality gap of solved classes, as a share of their null objective.

    0 if the records (n,) have no gaps.
    """
    if not {"gap", "null", "positives"} <= set(records.dtype.names or ()):
        return 0.0
    solved = records["positives"] > 0
    return _largest_ratio(records["gap"][solved], records["null"][solved])


def _largest_ratio(gap: Any, null: Any) -> float:
    """Return the largest ratio of gaps to null objectives."""
    return float((gap / np.maximum(null, 1e-300)).max(initial=0.0))


def class_table(
    block: SolvedLabels, eps: float | None = None, timeline: pa.Table | None = None
) -> pa.Table:
    """Return the per-class report: one row per label in the block's order, columns as in COLUMNS.

    Counts, weights and the certificate come from the solver's records. certified: whether the gap
    is at most `eps` times the null objective (given `eps`), or there was nothing to solve. seconds
    float64,
    worker: the time of the label's batch, distributed by work, and its worker, from the run's
    `timeline` (see `xcray.training.report.timeline`); null if unknown. A quantity that the solver
    does not record has no column.
    """
    records, names = block.records, set(block.records.dtype.names or ())
    columns: dict[str, Any] = {"label": block.labels, "bias": block.bias}
    columns |= {
        name: np.ascontiguousarray(records[name])
        for name in COLUMNS
        if name in names - set(columns)
    }
    if "n_active" in names:
        columns["active"] = np.ascontiguousarray(records["n_active"])
    if eps is not None and {"gap", "null", "positives"} <= names:
        columns["certified"] = certified_classes(records, eps)
    seconds, worker = class_costs(
        timeline, block.labels, columns.get("work", np.ones(len(block.labels)))
    )
    columns |= {
        "seconds": pa.array(seconds, from_pandas=True),
        "worker": pa.array(worker, pa.string()),
    }
    return pa.table({name: columns[name] for name in COLUMNS if name in columns})


def certified_classes(records: Any, eps: float) -> Any:
    """Return (n,) bool: classes with a gap of at most `eps` times their null objective.

    Classes with nothing to solve are certified as well. An explicit "certified" record has
    precedence. A class with rounds = -1 was not solved.
    """
    names = records.dtype.names or ()
    if "certified" in names:
        return records["certified"] != 0
    solved = records["rounds"] >= 0 if "rounds" in names else np.ones(len(records), bool)
    return (solved & (records["gap"] <= eps * records["null"])) | (records["positives"] == 0)


def measures_by_frequency(
    top: TopK, truth: Pattern, counts: Any, ks: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """Return measures by tenths of the labels' training frequency.

    See `xcray.metrics.by_frequency`.

    "labels": tenths of equally many labels. "positives": tenths of about equally many training
    positives.
    """
    return {
        equal: metrics.by_frequency(top, truth, counts, ks=ks, equal=equal)
        for equal in ("labels", "positives")
    }
