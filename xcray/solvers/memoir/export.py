"""Labels and records of a MEMOIR training that has ended."""

from __future__ import annotations

import numpy as np

from xcray.arrays import Int32, csr, frozen
from xcray.kernels.sparse import take_rows
from xcray.solvers.declarations import WEIGHT_FIELDS, RecordField, RecordSchema
from xcray.solvers.memoir.state import MemoirState, MemoirTraining
from xcray.solvers.solved_labels import SolvedLabels

RECORDS = RecordSchema(
    *WEIGHT_FIELDS,
    RecordField("tested", np.int32, "held-out training rows with the label", "tested"),
    RecordField("predicted", np.int32, "of all held-out rows: predicted as the label", "predicted"),
    RecordField("hits", np.int32, "of these: with the label", "hits"),
    RecordField("best_round", np.int32, "round of the weights; 0 without held-out rows"),
)


def export_labels(training: MemoirTraining, local: MemoirState, labels: Int32) -> SolvedLabels:
    """Return the model in the order of `labels`."""
    W, n_labels, seen = training.weights(), len(local.positives), local.label_ids
    is_large = np.abs(W.data) > training.params.prune
    owners = np.repeat(seen, np.diff(W.indptr))
    kept, all_weights = (
        np.bincount(each, minlength=n_labels) for each in (owners[is_large], owners)
    )
    records = np.zeros(n_labels, RECORDS.dtype)
    records["label"], records["positives"] = np.arange(n_labels), local.positives
    records["rounds"], records["rounds"][seen] = -1, training.number
    records["nnz"], records["pruned"] = kept, all_weights - kept
    records["best_round"] = training.best_number
    for name, counts in training.counts._asdict().items():
        records[name][seen] = counts
    indptr = np.concatenate([[0], np.cumsum(kept)])
    kept_W = csr(indptr, W.indices[is_large], W.data[is_large], W.n_cols)
    bias = np.full(n_labels, -1.0)
    bias[seen] = 0.0
    return SolvedLabels(
        labels,
        take_rows(kept_W, labels.astype(np.int64)),
        frozen(bias[labels], np.float64),
        records[labels],
    )
