"""True labels of test rows that do not occur in training: measures count them as misses."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import Int64, Pattern, pattern


def with_unseen(Y: Pattern, label_counts: Any, unseen: Any) -> tuple[Pattern, Int64]:
    """Return the truth with the labels that training lacks, and the training rows of all labels.

    unseen: (n,) true labels of each row beyond the K columns; None for none. They get columns after
    these, numbered by row, so no answer hits them.
    """
    counts = np.asarray(label_counts, np.int64)
    if unseen is None or not unseen.any():
        return Y, counts
    indptr = np.concatenate(([0], np.cumsum(np.diff(Y.indptr) + unseen)))
    new = np.arange(indptr[-1]) - np.repeat(indptr[1:] - unseen, np.diff(indptr))
    labels = np.where(new < 0, 0, Y.n_cols + new)
    labels[new < 0] = Y.indices[Y.indptr[0] : Y.indptr[-1]]
    width = int(unseen.max())
    return pattern(indptr, labels, Y.n_cols + width), np.pad(counts, (0, width))
