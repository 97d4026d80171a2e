"""Answers as Arrow tables: made of the arrays as they are, with no loop over rows or labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64
from xcray.errors import ShapeMismatch
from xcray.index.search_result import Answer


def answer_table(
    answer: Answer, names: pa.LargeStringArray | None, probabilities: Float64 | None = None
) -> pa.Table:
    """One row for each row asked, in order.

    answer: n rows of k labels. names: (K,) names of the model's labels; None gives their numbers. probabilities: (n, k), of
    `Predictor.probabilities`. Columns: `labels` list<large_string> (or list<int32>), `scores` list<double>, `probabilities`
    list<double> when given, `exact` bool, `bound_gap` double (null where it isn't finite: all labels allowed were answered),
    `labels_scored` and `postings_read` int64. Numbers are views of the answer's arrays. Raises ShapeMismatch.
    """
    n, k = answer.labels.shape
    if probabilities is not None and probabilities.shape != (n, k):
        raise ShapeMismatch(
            f"there are {probabilities.shape} probabilities for {n} rows of {k} answers"
        )
    numbers = pa.array(answer.labels.reshape(-1))
    columns: dict[str, Any] = {
        "labels": numbers if names is None else names.take(numbers),
        "scores": answer.scores.reshape(-1),
    }
    if probabilities is not None:
        columns["probabilities"] = probabilities.reshape(-1)
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * k)
    lists = {name: pa.ListArray.from_arrays(offsets, values) for name, values in columns.items()}
    gaps = pa.array(answer.bound_gap, mask=~np.isfinite(answer.bound_gap))
    flat = {name: pa.array(getattr(answer, name)) for name in ("labels_scored", "postings_read")}
    return pa.table({**lists, "exact": pa.array(answer.exact), "bound_gap": gaps, **flat})
