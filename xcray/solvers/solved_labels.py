"""Result of a solver for some labels: their weights, biases and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, csr, frozen
from xcray.storage.atomic import sha256_arrays

UNTRAINED_DTYPE = np.dtype(
    [("label", np.int32), ("positives", np.int32), ("rounds", np.int32)]
)  # when no solver says more


class SolvedLabels(NamedTuple):
    """Solved labels.

    labels: (n,) int32; W: (n, D) CSR float32; bias: (n,) float64; records: (n,) structured. duals:
    (n, N), the dual variables of each label's samples if requested. checksum: what `digest`
    returned where the labels were solved; empty if it was not called. part: name of the part file
    that has the weights, if they were written where they were solved; then W has only its indptr.
    """

    labels: Int32
    W: CSR
    bias: Float64
    records: np.ndarray
    duals: CSR | None = None
    checksum: str = ""
    part: str = ""

    def rows(self, first: int, stop: int) -> SolvedLabels:
        """Return labels [first, stop) of the block, as views."""
        chosen = slice(first, stop)
        return SolvedLabels(
            self.labels[chosen],
            _rows(self.W, first, stop),
            self.bias[chosen],
            self.records[chosen],
            None if self.duals is None else _rows(self.duals, first, stop),
        )

    def digest(self) -> str:
        """Return the SHA-256 of all contents."""
        arrays = {"labels": self.labels, "bias": self.bias, **_entries(self.W)}
        records = {f"record.{name}": self.records[name] for name in self.records.dtype.names or ()}
        if self.duals is not None:
            arrays |= {f"duals.{name}": each for name, each in _entries(self.duals).items()}
        return sha256_arrays({**arrays, **records})


def _entries(matrix: CSR) -> dict[str, Any]:
    """Return the arrays of a matrix and its width, by name."""
    n = matrix.nnz
    entries = {"indices": matrix.indices[:n], "data": matrix.data[:n]}
    return {"indptr": matrix.indptr, **entries, "n_cols": str(matrix.n_cols)}


def _rows(matrix: CSR, first: int, stop: int) -> CSR:
    """Return rows [first, stop) of a matrix, as views."""
    indptr = matrix.indptr[first : stop + 1]
    entries = slice(indptr[0], indptr[-1])
    return csr(indptr - indptr[0], matrix.indices[entries], matrix.data[entries], matrix.n_cols)


def untrained_records(
    labels: Any, positives: Any = None, dtype: Any = UNTRAINED_DTYPE
) -> np.ndarray:
    """Return records of labels that no solver trained: (n,) of `dtype`, with rounds = -1.

    labels: (n,) label numbers; positives: (K,) training rows per label, or None; dtype: that of the
    solver's records, which can lack any of the fields label, positives and rounds. All other fields
    are 0.
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


def concatenate(blocks: Sequence[SolvedLabels]) -> SolvedLabels:
    """Concatenate one or more results with the same features and record type."""
    if len(blocks) == 1:
        return blocks[0]
    labels, bias, records = (
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("labels", "bias", "records")
    )
    duals = [block.duals for block in blocks if block.duals is not None]
    return SolvedLabels(
        frozen(labels, np.int32),
        stack([block.W for block in blocks]),
        frozen(bias, np.float64),
        records,
        stack(duals) if len(duals) == len(blocks) else None,
    )


def stack(matrices: Sequence[CSR]) -> CSR:
    """Return the rows of one or more matrices with the same columns, one after the other."""
    indices, data = (
        np.concatenate([getattr(matrix, name)[: matrix.indptr[-1]] for matrix in matrices])
        for name in ("indices", "data")
    )
    return csr(row_offsets(matrices), indices, data, matrices[0].n_cols)


def row_offsets(matrices: Sequence[CSR]) -> Int64:
    """Return the positions of the entries of all rows of `matrices` in order: (n_rows + 1,)."""
    starts = np.cumsum([0, *(matrix.indptr[-1] for matrix in matrices)])
    indptr = [
        starts[:1],
        *(matrix.indptr[1:] + start for matrix, start in zip(matrices, starts[:-1], strict=True)),
    ]
    return frozen(np.concatenate(indptr), np.int64)


def merge(blocks: Sequence[SolvedLabels], n_labels: int, n_features: int) -> SolvedLabels:
    """Return all labels 0 .. n_labels - 1 in order, from blocks in any order.

    Blocks can overlap; the first block with a label counts. Raises ValueError with the first label
    that is in no block.
    """
    position = np.full(n_labels, -1, np.int64)  # which row of all blocks, end to end, holds a label
    offsets = np.cumsum([0, *(len(block.labels) for block in blocks)])
    for block, offset in reversed(list(zip(blocks, offsets[:-1], strict=True))):
        position[block.labels] = offset + np.arange(len(block.labels))
    if n_labels and position.min() < 0:
        raise ValueError(f"label {int(position.argmin())} is in no block")
    lengths = (
        np.concatenate([np.diff(block.W.indptr) for block in blocks])
        if blocks
        else np.empty(0, np.int64)
    )
    indptr = np.concatenate([[0], np.cumsum(lengths[position])])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    bias = np.empty(n_labels, np.float64)
    records = np.empty(n_labels, blocks[0].records.dtype) if blocks else np.empty(0)
    for block, offset in zip(blocks, offsets[:-1], strict=True):
        for row, label in enumerate(block.labels):
            if position[label] == offset + row:
                lo, hi = indptr[label], indptr[label + 1]
                indices[lo:hi], data[lo:hi] = block.W.row(row)
                bias[label], records[label] = block.bias[row], block.records[row]
    return SolvedLabels(
        np.arange(n_labels, dtype=np.int32), csr(indptr, indices, data, n_features), bias, records
    )
