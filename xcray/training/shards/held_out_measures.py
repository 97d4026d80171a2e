"""Measures of held-out rows during a training, as entries of its history."""

from __future__ import annotations

import numpy as np

from xcray.arrays import Pattern, TopK, frozen
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import f1, precision_at_k, predicted_sets
from xcray.solvers.held_out import HeldOut


def held_out_measures(held_out: HeldOut | None, truth: Pattern | None) -> dict[str, float | None]:
    """Return the measures of the evaluated held-out rows; nothing if there are none.

    "held_out" is their loss. "P@1", "P@3" and "P@k" are for the k labels returned per row,
    "micro-F1" and "macro-F1" for the first label. Rows without labels are not evaluated. In P@k
    they count as misses, with their share of the part, as in `xcray.measures`. So the values are
    those that the published model will have, if all rows are evaluated.
    """
    if held_out is None or truth is None:
        return {}
    top, Y = (
        TopK(frozen(held_out.labels, np.int32), frozen(held_out.scores, np.float64)),
        take_pattern_rows(truth, frozen(held_out.rows, np.int64)),
    )
    share, k_max = float(np.mean(np.diff(truth.indptr) > 0)), held_out.labels.shape[1]
    precision = {
        f"P@{k}": share * precision_at_k(top, Y, k) for k in sorted({1, min(3, k_max), k_max})
    }
    return {
        "held_out": held_out.loss,
        **precision,
        **f1(predicted_sets(top, truth.n_cols, k=1), Y),
    }
