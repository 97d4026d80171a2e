"""Rows that are held out of a training, to compare settings on: on disk, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Int64, Pattern, frozen
from xcray.data.dataset import Dataset, open_verified
from xcray.data.matrices import split_rows
from xcray.data.splits import HashSplit
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, InputError, ParameterError
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern
from xcray.storage.atomic import sha256_arrays

HOLDOUT = 0.2  # share of the training rows that are measured
# Every n-th label is used, in the order of their training rows, so that frequent and rare ones are
# in proportion; below MIN_LABELS all of them.
LABEL_STEP, MIN_LABELS = 2, 17
CHUNK_ROWS = 1 << 16  # rows split per step


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

    @property
    def sha256(self) -> str:
        """Return a hash of all rows. It reads them."""
        weights = "equal" if self.weights is None else self.weights
        return sha256_arrays(
            {
                "X": self.X.data,
                "columns": self.X.indices,
                "Y": self.YT.indices,
                "weights": weights,
                "held_X": self.held_X.data,
                "held_Y": self.held_Y.indices,
            }
        )


def split_training_rows(n_rows: int) -> tuple[Int64, Int64]:
    """Return the rows to learn from, and HOLDOUT of them to measure on, by a hash of numbers."""
    held_out = HashSplit(HOLDOUT, 0).mask(0, n_rows)
    learn, held = (frozen(np.flatnonzero(part), np.int64) for part in (~held_out, held_out))
    return learn, held


class LearnRows(NamedTuple):
    """Rows to learn from: X (n, D), Y (n, K), and weights (n,) or None."""

    X: CSR
    Y: Pattern
    weights: Float32 | None


def selection_data(X: CSR, Y: Pattern, weights: Float32 | None) -> SelectionData:
    """Split training rows X (N, D), Y (N, K) by a hash, and take a part of the labels.

    Raises InputError if no row is left on one side.
    """
    learn, held = split_training_rows(X.n_rows)
    kept = None if weights is None else frozen(weights[learn], np.float32)
    rows = LearnRows(take_rows(X, learn), take_pattern_rows(Y, learn), kept)
    return selection_of(rows, take_rows(X, held), take_pattern_rows(Y, held))


def selection_of(
    rows: LearnRows, held_X: CSR, held_Y: Pattern, step: int = LABEL_STEP
) -> SelectionData:
    """Return the data to compare settings on. step: every n-th label is used.

    Labels without a row to learn from are left out, and held-out rows without one of the labels.
    Raises InputError if no row is left on one side.
    """
    counts = np.bincount(rows.Y.indices, minlength=rows.Y.n_cols)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    labels = frozen(np.sort(order[::step] if len(order) >= MIN_LABELS else order), np.int64)
    held_part = _of_labels(held_Y, labels)
    measured = frozen(np.flatnonzero(np.diff(held_part.indptr)), np.int64)
    if not (len(labels) and len(measured)):
        raise InputError(
            "too few rows to choose parameters on: train without auto", code="TOO_FEW_ROWS"
        )
    n_rows = rows.X.n_rows
    return SelectionData(
        rows.X,
        transpose(rows.X),
        take_pattern_rows(transpose_pattern(rows.Y), labels),
        rows.weights,
        take_rows(held_X, measured),
        take_pattern_rows(held_part, measured),
        frozen(counts[labels], np.int64),
        len(labels) / len(order) * n_rows / (n_rows + held_X.n_rows),
    )


def _of_labels(Y: Pattern, labels: Int64) -> Pattern:
    """Return the label sets of rows, with some of the labels, numbered in their order."""
    return transpose_pattern(take_pattern_rows(transpose_pattern(Y), labels))


def selection_bytes(entries: int, weights: int) -> int:
    """Estimate the memory of a selection in bytes, without the scratch memory of its threads.

    entries: of the training rows; weights: of a model of all labels. The rows to learn from are
    held by row and by column, once more with normalised values, and three settings with their
    weights, index and duals.
    """
    rows = 8 * entries * (2 * (1 - HOLDOUT) + HOLDOUT)
    rows += 8 * entries * (1 - HOLDOUT)  # normalised values, by row and by column
    return int(rows + 3 * 24 * weights / 2)


def hold_out(
    data: Dataset, share: float, seed: int, path: Path, *, with_rest: bool = True
) -> Dataset:
    """Split the training rows of a data set into a new data set with a held-out part.

    share: of the rows to hold out, selected by a hash of their numbers. path: where it is stored.
    with_rest: store the held-out rows, too. Both parts have the labels and features of the whole.
    Raises ParameterError if one side would be empty, Conflict if `path` holds another split.
    """
    source = {"of": data.content_hash, "holdout": share, "seed": seed}
    if path.exists():
        existing = open_verified(path)
        if existing.manifest["source"] != source:
            raise Conflict(
                "the run directory holds another search (other data, holdout or seed); "
                "choose a new one"
            )
        return existing
    split, n_rest = HashSplit(share, seed), 0
    with DatasetWriter(
        path, name="held", n_features=data.n_features, n_labels=data.n_labels
    ) as writer:
        for start in range(0, data.train.n_rows, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, data.train.n_rows)
            for part, X, Y in split_rows(*data.train.take(start, stop), split.mask(start, stop)):
                n_rest += X.n_rows * (part == "test")
                if with_rest or part == "train":
                    writer.add(part, X, Y)
        if not (writer.n_rows("train") and n_rest):
            rows = f"{writer.n_rows('train')} rows to learn from and {n_rest} to measure on"
            raise ParameterError(f"holdout={share:g} leaves {rows}; choose another share")
        weights = data.train.weights
        kept_weights = (
            None
            if weights is None
            else frozen(weights[~split.mask(0, data.train.n_rows)], np.float32)
        )
        return writer.finish(source=source, label_names=data.label_names, weights=kept_weights)


def held_out_rows(data: Dataset) -> SelectionData:
    """Return all rows and labels of a data set with a held-out part, see `hold_out`; mapped."""
    train, held = data.train, data["test"]
    rows = (train.X, train.XT, train.YT, train.weights, held.X, held.Y)
    return SelectionData(*rows, data.label_counts, 1.0)
