"""Compose a new model's weights, biases and report from an earlier model and newly trained labels.

The weights are never dense. Rows of both sources share one numbering: i >= 0 is row i of the
earlier model, i < 0 is row -1 - i of the trained labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int64, frozen
from xcray.certificate import relative_gaps
from xcray.index.packed import BUFFER_BYTES, ENTRY_BYTES, row_ranges
from xcray.kernels.merge import copy_rows
from xcray.storage.arrow import MatrixWriter

COMPOSED_BYTES: Final = 1 << 20  # of weights at once: pieces reuse memory that is in a cache


def compose_weights(
    path: Path,
    parent: CSR,
    trained: CSR,
    rows: Int64,
    *,
    budget: int = BUFFER_BYTES,
) -> None:
    """Write the matrix of `rows` (K',) int64 (see above) to the matrix file `path`.

    parent: (K, D). trained: (n, D). budget: bytes of weights in memory at once; it does not change
    the file.
    """
    sources = ((parent, rows >= 0, rows), (trained, rows < 0, -1 - rows))
    lengths = np.zeros(len(rows), np.int64)
    for source, own, numbers in sources:
        lengths[own] = np.diff(source.indptr)[numbers[own]]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    with MatrixWriter(path, indptr, parent.n_cols) as out:
        for first, stop in row_ranges(indptr, min(budget, COMPOSED_BYTES) // ENTRY_BYTES):
            n = int(indptr[stop] - indptr[first])
            indices, weights = np.empty(n, np.int32), np.empty(n, np.float32)
            for source, own, numbers in sources:
                here = np.flatnonzero(own[first:stop]) + first
                starts = indptr[here] - indptr[first]
                copy_rows(
                    source,
                    frozen(numbers[here], np.int64),
                    frozen(starts, np.int64),
                    indices,
                    weights,
                )
            out.write(int(indptr[first]), indices, weights)


def compose_bias(parent: Float32, trained: Any, rows: Int64) -> Float32:
    """Return the biases (K',) float32 of `rows` (K',) int64.

    parent: (K,) float32. trained: (n,) float64.
    """
    out = np.empty(len(rows), np.float32)
    out[rows >= 0] = parent[rows[rows >= 0]]
    out[rows < 0] = np.asarray(trained, np.float32)[-1 - rows[rows < 0]]
    return frozen(out, np.float32)


def compose_label_table(
    parent: pa.Table | None, trained: pa.Table | None, rows: Int64
) -> pa.Table | None:
    """Return the report rows of `rows` (K',) int64, renumbered from 0.

    None if the earlier model has no report. Columns that only one report has (they can come from
    different versions of a solver) are null for the rows of the other.
    """
    if parent is None:
        return None
    both = [table.drop_columns("label") for table in (parent, trained) if table is not None]
    combined = pa.concat_tables(both, promote_options="permissive")
    places = np.where(rows >= 0, rows, parent.num_rows - 1 - rows)
    return (
        combined.take(pa.array(places))
        .combine_chunks()
        .add_column(0, "label", pa.array(np.arange(len(rows), dtype=np.int32)))
    )


def count_missing_labels(label_table: pa.Table | None) -> int:
    """Return the number of labels of a report that were never trained because of a time limit."""
    if label_table is None or "rounds" not in label_table.column_names:
        return 0
    return int((label_table.column("rounds").fill_null(0).to_numpy() == -1).sum())


def summarize_label_table(label_table: pa.Table | None) -> dict[str, Any]:
    """Return "labels", "labels_certified" and "largest_gap" of a report, as far as available."""
    if label_table is None:
        return {}
    out: dict[str, Any] = {"labels": label_table.num_rows}
    if "certified" in label_table.column_names:
        out["labels_certified"] = int(
            label_table.column("certified").fill_null(False).to_numpy().sum()
        )
    if {"gap", "null"} <= set(label_table.column_names):
        gap, null = (label_table.column(name).fill_null(0.0).to_numpy() for name in ("gap", "null"))
        out["largest_gap"] = float(relative_gaps(gap, null).max(initial=0.0))
    return out
