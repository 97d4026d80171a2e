"""Building from matrix files (svmlight, XC, Parquet, NumPy), streamed to disk in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from xcray.arrays import CSR, Pattern, pattern
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.numpy_arrays import read_npy, read_npz
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import read_parquet
from xcray.data.readers.row_chunks import Chunk
from xcray.data.readers.svmlight import read_svmlight
from xcray.data.readers.xc import read_xc
from xcray.data.splits import HashSplit, RowSplit
from xcray.data.writer import DatasetWriter
from xcray.kernels.sparse import take_pattern_rows, take_rows

Reader: TypeAlias = Callable[[Path | str, ReadOptions, ErrorCollector], Iterator[Chunk]]
READERS: dict[str, Reader] = {
    "svmlight": read_svmlight,
    "xc": read_xc,
    "parquet": read_parquet,
    "npz": read_npz,
    "npy": read_npy,
}


def build_matrices(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    read: ReadOptions,
    split: HashSplit | RowSplit,
    label_ids: Mapping[str, int] | None = None,
) -> dict[str, ErrorCollector]:
    """Stream the files into the writer, and return the error collector of each part.

    label_ids: ids of labels that are names (Parquet). Raises errors as `build`.
    """
    reader = READERS[format] if label_ids is None else partial(read_parquet, label_ids=label_ids)
    train = ErrorCollector(read.max_errors, read.skip_bad)
    for X, Y in reader(sources["train"], read, train):
        for part, x, y in split_rows(X, Y, split.mask(train.n_rows - X.n_rows, train.n_rows)):
            writer.add(part, x, y)
    if isinstance(split, RowSplit):
        split.check(train.n_rows)
    if not train.n_positives:
        problem = "no row has a label; there is nothing to learn"
        raise Source(sources["train"], read).error("NO_POSITIVES", problem)
    widths = (read.n_features or train.n_features, read.n_labels or train.n_labels)
    writer.set_widths(*widths)
    if "test" not in sources:
        return {"train": train}
    test = ErrorCollector(read.max_errors, read.skip_bad)
    if format == "xc":
        read = replace(read, n_features=widths[0], n_labels=widths[1])
    if label_ids is not None:
        reader = partial(read_parquet, label_ids=label_ids, refuse_unknown=False)
    _stream_test(reader, sources["test"], writer, read, widths, test)
    return {"train": train, "test": test}


def _stream_test(
    reader: Reader,
    path: Path | str,
    writer: DatasetWriter,
    read: ReadOptions,
    widths: tuple[int, int],
    test: ErrorCollector,
) -> None:
    """Stream a test file with the widths of the training part.

    Labels beyond the last training label are left out and counted.
    """
    D, K = widths
    for X, Y in reader(path, read, test):
        if X.n_cols > D:
            problem = f"the file has {X.n_cols} features, the training file {D}"
            raise Source(path, read).error(
                "DIM_MISMATCH", problem, hint=f"read both with n_features={X.n_cols}"
            )
        labels = _labels_below(Y, K)
        test.warnings["labels_unseen_in_train"] += Y.nnz - labels.nnz
        writer.add("test", X, labels)


def split_rows(X: CSR, Y: Pattern, held_out: Any) -> Iterator[tuple[str, CSR, Pattern]]:
    """Yield the rows of X and Y per part. held_out: (n_rows,) bool."""
    if not held_out.any():
        yield "train", X, Y
        return
    for part, mask in (("train", ~held_out), ("test", held_out)):
        rows = np.flatnonzero(mask)
        yield part, take_rows(X, rows), take_pattern_rows(Y, rows)


def _labels_below(Y: Pattern, K: int) -> Pattern:
    """Return Y without the labels >= K."""
    if Y.n_cols <= K:
        return Y
    below = Y.indices < K
    before = np.concatenate(([0], np.cumsum(below)))
    return pattern(before[Y.indptr], Y.indices[below], K)
