"""Memory of a solver's workers: measured on a small problem, and by size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from xcray.arrays import Float64, csr, pattern
from xcray.data.dataset import Dataset, Split
from xcray.solvers.contract import IndependentSolver, SolverState


def entries_per_label(train: Split) -> Float64:
    """Return the entries of X in each label's rows: (K,) float64."""
    lengths = np.diff(train.X.indptr).astype(np.float64)
    labels = np.repeat(np.arange(train.YT.n_rows), np.diff(train.YT.indptr))
    return np.bincount(labels, lengths[train.YT.indices], train.YT.n_rows).astype(np.float64)


def split_sizes(train: Split) -> tuple[int, int, int, int]:
    """Return N, D, K and the entries of X."""
    return len(train.X.indptr) - 1, train.X.n_cols, train.YT.n_rows, train.X.nnz


def worker_bytes(solver: IndependentSolver, train: Split, weights: int) -> tuple[int, int]:
    """Return the bytes of a worker process on a part of a data set, and its reserved bytes.

    Without those of its libraries; see `scratch_bytes`. weights: of the model.
    """
    entries = 3.0 * float(entries_per_label(train).max(initial=0.0))
    own, reserved = scratch_bytes(solver, split_sizes(train), entries)
    needs = solver.task_needs(train.X)
    own += needs.n_bytes + needs.process_bytes
    return own + needs.bytes_per_weight * weights, reserved


def scratch_bytes(
    solver: IndependentSolver, sizes: tuple[int, int, int, int], max_entries: float
) -> tuple[int, int]:
    """Return (scratch bytes of a worker, bytes that it reserves and can leave empty).

    sizes: N, D, K and the entries of X. max_entries: entries of the rows that one label works on.
    The sizes are measured: the solver loads five synthetic problems, each
    with one size doubled, and the bytes of its arrays are linear in these sizes. Arrays that grow
    with the entries of X are only reserved; they fill as far as a label's active set reaches
    (`max_entries`).
    """
    base = np.full(4, PROBE_SIZE)
    first = _local_bytes(solver, *base)
    steps = [
        (_local_bytes(solver, *(base * np.where(np.arange(4) == i, 2, 1))) - first) / PROBE_SIZE
        for i in range(4)
    ]
    fixed = max(0.0, first - float(base @ np.array(steps)))
    linear = np.array(steps) * np.array(sizes, np.float64)
    filled = steps[3] * min(float(sizes[3]), max_entries)
    return int(fixed + linear[:3].sum() + filled), int(linear[3] - filled)


def mapped_bytes(dataset: Dataset) -> int:
    """Return the bytes of the data set's mapped files."""
    return sum(int(entry["bytes"]) for entry in dataset.files.values())


PROBE_SIZE: Final = 512  # rows, features, labels and entries of the made-up problem


def _local_bytes(
    solver: IndependentSolver, rows: int, features: int, labels: int, entries: int
) -> int:
    """Return the bytes of the arrays that each worker has of its own, for a synthetic problem."""
    indices = np.arange(entries) % features
    X = csr(np.linspace(0, entries, rows + 1).astype(np.int64), indices, np.ones(entries), features)
    XT = csr(
        np.linspace(0, entries, features + 1).astype(np.int64),
        np.arange(entries) % rows,
        np.ones(entries),
        rows,
    )
    YT = pattern(
        np.linspace(0, PROBE_SIZE, labels + 1).astype(np.int64), np.arange(PROBE_SIZE) % rows, rows
    )
    inputs = {_address(array) for matrix in (X, XT, YT) for array in matrix[:-1]}
    local: SolverState = solver.load(X, XT, YT)
    sizes = {_address(array): array.nbytes for array in _arrays(local)}  # views count once
    own = sum(size for address, size in sizes.items() if address not in inputs)
    return own - solver.task_needs(X).process_bytes  # counted once per process, not per worker


def _address(array: np.ndarray) -> int:
    """Return the address of the first element."""
    return int(array.__array_interface__["data"][0])


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield every array in nested tuples, lists and dataclasses."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _arrays(entry)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name))
