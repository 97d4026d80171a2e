"""What a class-separable solver hands over for a batch of labels: their weights, biases and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int32, csr, frozen
from xcray.storage.atomic import sha256_arrays

UNTRAINED = np.dtype(
    [("label", np.int32), ("positives", np.int32), ("rounds", np.int32)]
)  # when no solver says more


class Block(NamedTuple):
    """Finished labels: ids (n,) int32, weights as n rows of a CSR (n x D, float32), bias (n,) float64, records (n,) structured.

    duals: (n x N) the dual variables of each label's samples, where they were asked for: no part of what is kept or hashed.
    """

    labels: Int32
    W: CSR
    bias: Float64
    records: np.ndarray
    duals: CSR | None = None

    def digest(self) -> str:
        """SHA-256 over everything in the block."""
        arrays = {
            "labels": self.labels,
            "bias": self.bias,
            "indptr": self.W.indptr,
            "indices": self.W.indices,
        }
        records = {f"record.{name}": self.records[name] for name in self.records.dtype.names or ()}
        return sha256_arrays(
            {**arrays, "data": self.W.data, **records, "n_cols": str(self.W.n_cols)}
        )


def untrained(labels: Any, positives: Any = None, dtype: Any = UNTRAINED) -> np.ndarray:
    """Records of labels that no solver had in hand: (n,) of `dtype`, all 0 but label, positives and rounds = -1.

    labels: (n,) numbers; positives: (K,) rows of each label in training, or None; dtype: that of the solver's records, which
    may lack any of these fields.
    """
    records, names = np.zeros(len(labels), dtype), set(np.dtype(dtype).names or ())
    values = {
        "label": labels,
        "rounds": -1,
        "positives": 0 if positives is None else np.asarray(positives)[labels],
    }
    for name in names & set(values):
        records[name] = values[name]
    return records


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks of the same features and kind of records, at least one, end to end in one; without duals."""
    if len(blocks) == 1:
        return blocks[0]
    starts = np.cumsum([0, *(block.W.indptr[-1] for block in blocks)])
    indptr = [
        starts[:1],
        *(block.W.indptr[1:] + start for block, start in zip(blocks, starts[:-1], strict=True)),
    ]
    indices, data = (
        [getattr(block.W, name)[: block.W.indptr[-1]] for block in blocks]
        for name in ("indices", "data")
    )
    W = csr(
        np.concatenate(indptr), np.concatenate(indices), np.concatenate(data), blocks[0].W.n_cols
    )
    labels, bias, records = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("labels", "bias", "records")
    )
    return Block(frozen(labels, np.int32), W, frozen(bias, np.float64), records)


def merge(blocks: Sequence[Block], n_labels: int, n_features: int) -> Block:
    """All labels 0 .. n_labels - 1 in order, from blocks that may overlap (the first one counts) and come in any order.

    Raises ValueError naming the first label that no block holds.
    """
    place = np.full(n_labels, -1, np.int64)  # which row of all blocks, end to end, holds a label
    offsets = np.cumsum([0, *(len(block.labels) for block in blocks)])
    for block, offset in reversed(list(zip(blocks, offsets[:-1], strict=True))):
        place[block.labels] = offset + np.arange(len(block.labels))
    if n_labels and place.min() < 0:
        raise ValueError(f"label {int(place.argmin())} is in no block")
    lengths = (
        np.concatenate([np.diff(block.W.indptr) for block in blocks])
        if blocks
        else np.empty(0, np.int64)
    )
    indptr = np.concatenate([[0], np.cumsum(lengths[place])])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    bias = np.empty(n_labels, np.float64)
    records = np.empty(n_labels, blocks[0].records.dtype) if blocks else np.empty(0)
    for block, offset in zip(blocks, offsets[:-1], strict=True):
        for row, label in enumerate(block.labels):
            if place[label] == offset + row:
                lo, hi = indptr[label], indptr[label + 1]
                indices[lo:hi], data[lo:hi] = block.W.row(row)
                bias[label], records[label] = block.bias[row], block.records[row]
    return Block(
        np.arange(n_labels, dtype=np.int32), csr(indptr, indices, data, n_features), bias, records
    )
