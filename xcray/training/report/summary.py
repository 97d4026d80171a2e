"""Training summaries: the report, and the per-label table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from xcray import measures
from xcray.arrays import Pattern, TopK
from xcray.data.data_warnings import data_warnings
from xcray.data.dataset import Dataset
from xcray.data.texts import texts_at
from xcray.data.unseen import with_unseen
from xcray.predict.drift import MAX_TEXTS, reference_of
from xcray.predict.ranking import widen
from xcray.solvers.contract import Solver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.report.timeline import label_costs


def summarize_block(block: SolvedLabels, solver: Solver) -> dict[str, Any]:
    """Return the number of labels and weights, and the solver's summary of the records; JSON."""
    return {
        "labels": len(block.labels),
        "weights": block.W.nnz,
        **solver.summarize(block.records),
    }


def data_report(data: Dataset) -> dict[str, Any]:
    """Return what a report says of its data set; JSON."""
    return {
        "name": data.name,
        "rows": data.train.n_rows,
        "held_out": data.test.n_rows if data.test else 0,
        "warnings": data_warnings(data, copies=False),
    }


def convergence_warnings(solver: Solver, outcome: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a warning with "code" and "message" if a training ended without its tolerance.

    outcome: "converged" and "stopped" of the training, as `TrainingStrategy.summarize` returns.
    """
    if outcome.get("converged", True):
        return []
    return [{"code": "NOT_CONVERGED", "message": solver.stopping.warning(outcome["stopped"])}]


def label_table(block: SolvedLabels, solver: Solver, timeline: pa.Table | None = None) -> pa.Table:
    """Return the per-label report: one row per label in the block's order.

    Columns: label; those of the solver's record schema; certified, if the solver has certificates;
    seconds float64 and worker: the time of the label's batch, distributed by recorded work, and its
    worker, from the run's `timeline` (see `xcray.training.report.timeline`), null if unknown; bias.
    """
    records, columns = block.records, {"label": block.labels}
    for column, field in solver.records.columns.items():
        columns[column] = np.ascontiguousarray(records[field])
    certified = solver.certified(records)
    if certified is not None:
        columns["certified"] = certified
    work = columns.get("work", np.ones(len(block.labels)))
    seconds, worker = label_costs(timeline, block.labels, work)
    return pa.table(
        {
            **columns,
            "seconds": pa.array(seconds, from_pandas=True),
            "worker": pa.array(worker, pa.string()),
            "bias": block.bias,
        }
    )


def measure_held_out(
    top: TopK, data: Dataset, ks: Sequence[int], n_labels: int | None
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return measures of the answers to the test part, and entries of the report.

    These are "by_frequency", the measures by training frequency, and "drift", see
    `drift_reference`.
    n_labels: labels that can be answered, if there are more than those of the data set.
    """
    assert data.test is not None
    Y, counts = widen(data.test.Y, data.label_counts, n_labels or data.n_labels)
    Y, counts = with_unseen(Y, counts, data.test.unseen)
    values = measures.evaluate(top, Y, ks=ks, label_counts=counts, n_train=data.train.n_rows)
    frequency = measures_by_frequency(top, Y, counts, ks)
    return values, {"by_frequency": frequency, "drift": drift_reference(top, data, counts)}


def drift_reference(top: TopK, data: Dataset, counts: Any) -> dict[str, Any]:
    """Return what is kept of the answers to the test part, see `xcray.predict.drift`; JSON.

    counts: training rows of the labels; labels beyond them have none.
    """
    assert data.test is not None
    counts = np.pad(counts, (0, max(0, int(top.labels.max()) + 1 - len(counts))))
    texts = texts_at(data, "test", range(min(MAX_TEXTS, data.test.n_rows)))
    return reference_of(top, data.test.X, counts, data.text, texts)


def measures_by_frequency(
    top: TopK, truth: Pattern, counts: Any, ks: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """Return measures by tenths of the labels' training frequency.

    See `xcray.measures.by_frequency`.

    "labels": tenths of equally many labels. "positives": tenths of about equally many training
    positives.
    """
    return {
        equal: measures.by_frequency(top, truth, counts, ks=ks, equal=equal)
        for equal in ("labels", "positives")
    }
