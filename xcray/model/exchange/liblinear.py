"""Model files of LIBLINEAR: a text header, then one line per feature with a weight per class.

Source: Fan, Chang, Hsieh, Wang, Lin, "LIBLINEAR", JMLR 2008; its README describes the file. With
two classes most solvers store one vector, which is positive for the first class. DiSMEC writes a
folder of such files, one per range of labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from xcray.arrays import frozen, stack_rows
from xcray.errors import InputError
from xcray.kernels.sparse import take_rows, transpose
from xcray.model.exchange.checks import checked_size
from xcray.model.exchange.weights import (
    ForeignWeights,
    from_entries,
    join_bias,
    number_names,
)

HEADER: Final = ("solver_type", "nr_class", "label", "nr_feature", "bias")
MULTI_CLASS: Final = "MCSVM_CS"  # the solver that stores a vector per class, also for two
MAX_CELLS: Final = 1 << 30  # of the dense text that is written


def read(path: Path) -> ForeignWeights:
    """Return the weights in a model file of a classifier, or in all files of a folder.

    Labels are named by their numbers in the files, and those of a folder are in numerical order.
    Raises InputError for another file, and if files of a folder do not fit together.
    """
    if not path.is_dir():
        return _read_file(path)
    parts = [_read_file(each) for each in sorted(path.iterdir()) if each.is_file()]
    try:
        labels = [int(name) for part in parts for name in part.labels]
    except ValueError as error:
        raise InputError(f"a label of {path.name} is not a number: {error}") from None
    widths = {part.W.n_cols for part in parts}
    if len(widths) != 1 or len(set(labels)) != len(labels):
        raise InputError(
            f"the files in {path.name} are not parts of one model: they have {sorted(widths)} "
            "features, or labels in common"
        )
    order = np.argsort(labels)
    W = take_rows(stack_rows([part.W for part in parts], *widths), order)
    b = np.concatenate([part.b for part in parts])[order]
    return ForeignWeights(W, frozen(b, np.float32), [str(labels[k]) for k in order])


def _read_file(path: Path) -> ForeignWeights:
    """Return the weights in a model file. Raises InputError."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        header = _read_header(lines, path.name)
        labels = header["label"].split()
        try:
            bias, n_features = float(header["bias"]), int(header["nr_feature"])
        except ValueError as error:
            raise InputError(f"the header of {path.name} is damaged: {error}") from None
        checked_size(n_features, "features", path.stat().st_size)
        checked_size(len(labels), "labels", path.stat().st_size)
        is_pair = len(labels) == 2 and header["solver_type"] != MULTI_CLASS
        n_vectors = 1 if is_pair else len(labels)
        n_rows = n_features + (bias >= 0)
        blocks = list(_read_blocks(lines, n_rows, n_vectors, path.name))
    features, vectors, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    if is_pair:
        features, values = np.tile(features, 2), np.concatenate([values, -values])
        vectors = np.concatenate([vectors, vectors + 1])
    b, is_bias = np.zeros(len(labels)), features == n_features
    b[vectors[is_bias]] = bias * values[is_bias]
    rows, columns, values = (part[~is_bias] for part in (vectors, features, values))
    W = from_entries(rows, columns, values, (len(labels), n_features))
    return ForeignWeights(W, frozen(b, np.float32), labels)


def write(weights: ForeignWeights, path: Path) -> None:
    """Write a model file with a vector for each class; labels are numbers.

    Raises InputError if the text would be too large: LIBLINEAR's files are dense.
    """
    K, D = weights.W.shape
    if K * (D + 1) > MAX_CELLS:
        raise InputError(
            f"a LIBLINEAR file is dense and would have {K * (D + 1):,} numbers, more than "
            f"{MAX_CELLS:,}: write npz or dismec instead"
        )
    columns = transpose(join_bias(weights))
    with path.open("w") as out:
        numbers = " ".join(number_names(K))
        out.write(f"solver_type {MULTI_CLASS}\nnr_class {K}\nlabel {numbers}\n")
        out.write(f"nr_feature {D}\nbias 1\nw\n")
        for j in range(columns.n_rows):
            line, (classes, values) = ["0"] * K, columns.row(j)
            for k, w in zip(classes, values, strict=True):
                line[k] = f"{w:.9g}"
            out.write(" ".join(line) + " \n")


def _read_header(lines: TextIO, name: str) -> dict[str, str]:
    """Return the entries before the weights. Raises InputError if one is missing."""
    header: dict[str, str] = {}
    for line in lines:
        key, _, value = line.strip().partition(" ")
        if key == "w":
            break
        header[key] = value
        if len(header) > 2 * len(HEADER):
            break
    missing = [key for key in HEADER if key not in header]
    if missing:
        raise InputError(f"{name} is not a classifier of LIBLINEAR: it has no {missing[0]}")
    return header


def _read_blocks(
    lines: TextIO, n_rows: int, n_vectors: int, name: str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (features, vectors, values) of the weights that are not 0. Raises InputError."""
    yield np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    for feature in range(n_rows):
        fields = lines.readline().split()
        try:
            row = np.array(fields, np.float64)
        except ValueError:
            row = np.empty(0)
        if len(row) != n_vectors:
            raise InputError(f"{name} has no line of {n_vectors} numbers for feature {feature + 1}")
        vectors = np.flatnonzero(row)
        yield np.full(len(vectors), feature), vectors, row[vectors]
