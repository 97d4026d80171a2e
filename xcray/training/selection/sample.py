"""Rows and labels that settings are compared on: a part of the training rows and labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Int64, Pattern, frozen
from xcray.data.splits import HashSplit
from xcray.errors import InputError
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern

HOLDOUT = 0.2  # share of the training rows that are measured
# Every n-th label is used, in the order of their training rows, so that frequent and rare ones are
# in proportion; below MIN_LABELS all of them.
LABEL_STEP, MIN_LABELS = 2, 17


class SelectionData(NamedTuple):
    """Rows and labels that settings are compared on.

    X (n, D), XT, YT (K', n): rows to learn from; weights (n,) or None. held_X (m, D) and
    held_Y (m, K'): rows to measure on. counts (K',): rows to learn from, per label. share: product
    of the shares of rows and of labels, which is about the share of a training's cost.
    """

    X: CSR
    XT: CSR
    YT: Pattern
    weights: Float32 | None
    held_X: CSR
    held_Y: Pattern
    counts: Int64
    share: float


def selection_data(X: CSR, Y: Pattern, weights: Float32 | None, seed: int = 0) -> SelectionData:
    """Split training rows X (N, D), Y (N, K) by a hash, and take a part of the labels.

    Labels without a row to learn from are left out, and held-out rows without one of the labels.
    Raises InputError if no row is left on one side.
    """
    held_out = HashSplit(HOLDOUT, seed).mask(0, X.n_rows)
    learn = frozen(np.flatnonzero(~held_out), np.int64)
    counts = np.bincount(take_pattern_rows(Y, learn).indices, minlength=Y.n_cols)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    labels = np.sort(order[::LABEL_STEP] if len(order) >= MIN_LABELS else order)
    part = transpose_pattern(take_pattern_rows(transpose_pattern(Y), frozen(labels, np.int64)))
    measured = frozen(np.flatnonzero(held_out & (np.diff(part.indptr) > 0)), np.int64)
    if not (len(labels) and len(measured)):
        raise InputError(
            "too few rows to choose parameters on: train without auto", code="TOO_FEW_ROWS"
        )
    rows = take_rows(X, learn)
    return SelectionData(
        rows,
        transpose(rows),
        transpose_pattern(take_pattern_rows(part, learn)),
        None if weights is None else frozen(weights[learn], np.float32),
        take_rows(X, measured),
        take_pattern_rows(part, measured),
        frozen(counts[labels], np.int64),
        len(labels) / len(order) * len(learn) / X.n_rows,
    )


def selection_bytes(entries: int, weights: int) -> int:
    """Estimate the memory of a selection in bytes, without the scratch memory of its threads.

    entries: of the training rows; weights: of a model of all labels. The rows to learn from are
    held by row and by column, once more with normalised values, and three settings with their
    weights, index and duals.
    """
    rows = 8 * entries * (2 * (1 - HOLDOUT) + HOLDOUT)
    rows += 8 * entries * (1 - HOLDOUT)  # normalised values, by row and by column
    return int(rows + 3 * 24 * weights / 2)
