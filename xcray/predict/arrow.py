"""Search results as Arrow tables, built from the arrays without loops over rows or labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64
from xcray.errors import ShapeMismatch
from xcray.index.search_result import Bools, SearchResult


def to_arrow(
    answer: SearchResult,
    names: pa.LargeStringArray | None,
    probabilities: Float64 | None = None,
    keep: Bools | None = None,
) -> pa.Table:
    """Return a table with one row per query row, in order.

    answer: n rows of k labels. names: (K,) names of the model's labels; None returns label numbers.
    probabilities: (n, k), from `Predictor.probabilities`. keep: (n, k), which labels are listed;
    None: all. Columns: `labels` list<large_string> (or list<int32>), `scores` list<double>,
    `probabilities` list<double> if given, `exact` bool, `bound_gap` double (null if not finite: all
    allowed labels were returned), `labels_scored` and `postings_read` int64. Numbers are views of
    the arrays of the result. Raises ShapeMismatch.
    """
    n, k = answer.labels.shape
    if probabilities is not None and probabilities.shape != (n, k):
        raise ShapeMismatch(
            f"probabilities have shape {probabilities.shape}, the result has shape {(n, k)}"
        )
    kept: Any = slice(None) if keep is None else keep.reshape(-1)
    numbers = pa.array(answer.labels.reshape(-1)[kept])
    columns: dict[str, Any] = {
        "labels": numbers if names is None else names.take(numbers),
        "scores": answer.scores.reshape(-1)[kept],
    }
    if probabilities is not None:
        columns["probabilities"] = probabilities.reshape(-1)[kept]
    lengths = np.full(n, k) if keep is None else np.count_nonzero(keep, axis=1)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    lists = {name: pa.ListArray.from_arrays(offsets, values) for name, values in columns.items()}
    gaps = pa.array(answer.bound_gap, mask=~np.isfinite(answer.bound_gap))
    flat = {name: pa.array(getattr(answer, name)) for name in ("labels_scored", "postings_read")}
    return pa.table({**lists, "exact": pa.array(answer.exact), "bound_gap": gaps, **flat})
