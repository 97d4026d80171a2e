"""What a training says of itself: figures for people, one table row a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray import metrics
from xcray.arrays import Pattern, TopK
from xcray.solvers.solved_labels import Block
from xcray.training.report.timeline import class_costs

COLUMNS: Final = (  # of the class table, those that the solver has
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


def figures(block: Block, eps: float) -> dict[str, Any]:
    """How the classes came out: counts, the largest gap relative to the null objective, weights; JSON.

    A solver whose records say themselves what is certified has one problem for all classes: its gap is of the whole.
    """
    records = block.records
    empty = records["positives"] == 0
    gap, null = records["gap"][~empty], records["null"][~empty]
    if "certified" in (records.dtype.names or ()):
        gap, null = gap.sum(keepdims=True), null.sum(keepdims=True)
    return {
        "classes": len(block.labels),
        "classes_without_positives": int(empty.sum()),
        "classes_certified": int(certified(records, eps).sum()),
        "largest_gap": _largest(gap, null),
        "weights": block.W.nnz,
        "weights_pruned": int(records["pruned"].sum()),
        "support_vectors": int(records["support"].sum()),
    }


def largest_gap(records: Any) -> float:
    """The largest duality gap of solved classes, as a share of their null objective; 0 where records (n,) tell none."""
    if not {"gap", "null", "positives"} <= set(records.dtype.names or ()):
        return 0.0
    solved = records["positives"] > 0
    return _largest(records["gap"][solved], records["null"][solved])


def _largest(gap: Any, null: Any) -> float:
    """The largest of some gaps by what each is compared with."""
    return float((gap / np.maximum(null, 1e-300)).max(initial=0.0))


def class_table(
    block: Block, eps: float | None = None, timeline: pa.Table | None = None
) -> pa.Table:
    """The per-class report: one row a label, in the order of the block's labels; columns in the order of COLUMNS.

    Counts, weights and the certificate as the solver recorded them; certified: whether the gap is at most `eps` times the null
    objective (for `eps`), or there was nothing to solve; seconds float64 and worker: the time of its batch, shared out by work,
    and who had it, by the run's `timeline` (see `xcray.training.report.timeline`), null where that does not say. What a solver does not
    record has no column.
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
        columns["certified"] = certified(records, eps)
    seconds, worker = class_costs(
        timeline, block.labels, columns.get("work", np.ones(len(block.labels)))
    )
    columns |= {
        "seconds": pa.array(seconds, from_pandas=True),
        "worker": pa.array(worker, pa.string()),
    }
    return pa.table({name: columns[name] for name in COLUMNS if name in columns})


def certified(records: Any, eps: float) -> Any:
    """(n,) bool: which classes ended with a gap of at most `eps` times their null objective, or had nothing to solve.

    What the records themselves say counts first; a class with rounds = -1 was not solved (but may have had nothing to solve).
    """
    names = records.dtype.names or ()
    if "certified" in names:
        return records["certified"] != 0
    solved = records["rounds"] >= 0 if "rounds" in names else np.ones(len(records), bool)
    return (solved & (records["gap"] <= eps * records["null"])) | (records["positives"] == 0)


def by_frequency(
    top: TopK, truth: Pattern, counts: Any, ks: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """Tenths of the labels by training frequency, on held-out rows: see `xcray.metrics.by_frequency`.

    "labels": tenths of equally many labels; "positives": tenths of about equally many training positives.
    """
    return {
        equal: metrics.by_frequency(top, truth, counts, ks=ks, equal=equal)
        for equal in ("labels", "positives")
    }
