"""Model files of DiSMEC++: a JSON file that names files with weights of ranges of labels.

The weights are text with `feature:weight` for every label, or dense NumPy arrays. Features are
numbered from 0; a bias is the weight of a last feature with the constant value 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.arrays import CSR, stack_rows
from xcray.errors import InputError
from xcray.model.exchange.checks import (
    checked_numbers,
    checked_size,
    file_within,
    source_bytes,
)
from xcray.model.exchange.weights import (
    ForeignWeights,
    from_entries,
    join_bias,
    number_names,
    read_json_object,
)

SPARSE_TEXT, DENSE_TEXT, DENSE_NPY = "SparseTXT", "DenseTXT", "DenseNPY"
FORMATS: Final = (SPARSE_TEXT, DENSE_TEXT, DENSE_NPY)


def read(path: Path) -> ForeignWeights:
    """Return the weights of a model; labels are named by their numbers, biases are 0.

    path: the JSON file. Raises InputError if a file is missing or is not what the JSON says.
    """
    header = read_json_object(path)
    try:
        D, K, files = header["num-features"], header["num-labels"], header["files"]
        files = sorted(files, key=lambda entry: int(entry["first"]))
        paths = [file_within(path.parent, entry["file"]) for entry in files]
        n_bytes = sum(map(source_bytes, paths))
        D, K = checked_size(D, "features", n_bytes), checked_size(K, "labels", n_bytes)
        blocks = [_read_range(*each, D) for each in zip(paths, files, strict=True)]
    except (KeyError, TypeError, OSError, OverflowError, ValueError) as error:
        raise InputError(f"{path.name} is not a complete model of DiSMEC++: {error!r}") from None
    ends = np.cumsum([0, *(block.n_rows for block in blocks)])
    if not files or ends[-1] != K or [int(entry["first"]) for entry in files] != ends[:-1].tolist():
        raise InputError(f"the files of {path.name} do not have the {K} labels it states")
    W = stack_rows(blocks, D)
    return ForeignWeights(W, np.zeros(K, np.float32), number_names(K))


def write(weights: ForeignWeights, path: Path) -> None:
    """Write a model with one file of sparse text; the last feature is the bias."""
    W = join_bias(weights)
    target = path.with_name(f"{path.name}.weights")
    with target.open("w") as out:
        for k in range(W.n_rows):
            indices, data = W.row(k)
            out.writelines(f"{j}:{w:.9g} " for j, w in zip(indices, data, strict=True))
            out.write("\n")
    entry = {"first": 0, "count": W.n_rows, "file": target.name, "weight-format": SPARSE_TEXT}
    header = {"num-features": W.n_cols, "num-labels": W.n_rows, "files": [entry]}
    path.write_text(json.dumps(header, indent=4) + "\n")


def _read_range(source: Path, entry: dict[str, Any], n_features: int) -> CSR:
    """Return the weights of a range of labels. Raises ValueError, KeyError, OSError, InputError."""
    kind, count = entry["weight-format"], int(entry["count"])
    if kind == DENSE_NPY:
        # mapped: a header that states more than the file has is refused without memory for it
        block = _to_sparse(np.load(source, mmap_mode="r", allow_pickle=False))
    elif kind == DENSE_TEXT:
        block = _to_sparse(np.loadtxt(source, np.float32, ndmin=2))
    elif kind == SPARSE_TEXT:
        block = _read_sparse(source, n_features)
    else:
        raise ValueError(f"the weights are {kind!r}; known are {', '.join(FORMATS)}")
    if block.shape != (count, n_features):
        raise ValueError(f"{source.name} has {block.shape} weights instead of {count, n_features}")
    return block


def _to_sparse(dense: np.ndarray) -> CSR:
    """Return a dense matrix as a sparse one. Raises InputError, ValueError for another array."""
    checked_numbers(dense, "an array of weights")
    rows, columns = np.nonzero(dense)
    return from_entries(rows, columns, dense[rows, columns], dense.shape)


def _read_sparse(source: Path, n_features: int) -> CSR:
    """Return the weights in a file of sparse text, a row per line."""
    counts, indices, data = [], [], []
    with source.open() as lines:
        for line in lines:
            fields = line.split()
            counts.append(len(fields))
            for field in fields:
                index, _, value = field.partition(":")
                indices.append(int(index))
                data.append(float(value))
    if indices and not 0 <= min(indices) <= max(indices) < n_features:
        raise ValueError(f"{source.name} has features beyond 0 to {n_features - 1}")
    rows = np.repeat(np.arange(len(counts)), counts)
    return from_entries(rows, np.array(indices, np.int64), data, (len(counts), n_features))
