"""Building from files that hold a matrix already: svmlight, XC and Parquet, in chunks from file to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from xcray.arrays import CSR, Pattern, pattern
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import Tally
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import read_parquet
from xcray.data.readers.svmlight import Chunk, read_svmlight
from xcray.data.readers.xc import read_xc
from xcray.data.splits import HashSplit, RowSplit
from xcray.data.writer import DatasetWriter
from xcray.errors import ParameterError
from xcray.kernels.sparse import take_pattern_rows, take_rows

Reader: TypeAlias = Callable[[Path | str, ReadOptions, Tally], Iterator[Chunk]]
READERS: dict[str, Reader] = {"svmlight": read_svmlight, "xc": read_xc, "parquet": read_parquet}


def build_matrices(
    format: str,
    sources: Mapping[str, Path | str],
    writer: DatasetWriter,
    read: ReadOptions,
    split: HashSplit | RowSplit,
    numbers: Mapping[str, int] | None = None,
) -> dict[str, Tally]:
    """Stream the files into the writer; the tally of each. numbers: ids of labels that are names (Parquet). Errors as `build`."""
    reader = READERS[format] if numbers is None else partial(read_parquet, numbers=numbers)
    if read.labels_file is not None and "test" in sources:
        raise ParameterError(
            "labels_file belongs to the training file; hold test rows out with test_rows_file or test_fraction"
        )
    train = Tally(read.max_errors, read.skip_bad)
    for X, Y in reader(sources["train"], read, train):
        for part, x, y in split_rows(X, Y, split.mask(train.n_rows - X.n_rows, train.n_rows)):
            writer.add(part, x, y)
    if isinstance(split, RowSplit):
        split.check(train.n_rows)
    if not train.n_positives:
        raise Source(sources["train"], read).error(
            "NO_POSITIVES",
            "no row has a label; there is nothing to learn",
            hint="give at least one row a label",
        )
    widths = (read.n_features or train.n_features, read.n_labels or train.n_labels)
    writer.widen(*widths)
    if "test" not in sources:
        return {"train": train}
    test = Tally(read.max_errors, read.skip_bad)
    if format == "xc":
        read = replace(read, n_features=widths[0], n_labels=widths[1])
    if numbers is not None:
        reader = partial(read_parquet, numbers=numbers, all_known=False)
    _stream_test(reader, sources["test"], writer, read, widths, test)
    return {"train": train, "test": test}


def _stream_test(
    reader: Reader,
    path: Path | str,
    writer: DatasetWriter,
    read: ReadOptions,
    widths: tuple[int, int],
    test: Tally,
) -> None:
    """Stream a test file as wide as the training part; labels beyond its last one are left out and counted."""
    D, K = widths
    for X, Y in reader(path, read, test):
        if X.n_cols > D:
            problem = f"the file has {X.n_cols} features, the training file {D}"
            raise Source(path, read).error(
                "DIM_MISMATCH", problem, hint=f"read both with n_features={X.n_cols}"
            )
        labels = _below(Y, K)
        test.warnings["labels_unseen_in_train"] += Y.nnz - labels.nnz
        writer.add("test", X, labels)


def split_rows(X: CSR, Y: Pattern, held_out: Any) -> Iterator[tuple[str, CSR, Pattern]]:
    """The rows of X and Y by part; held_out: (n_rows,) bool."""
    if not held_out.any():
        yield "train", X, Y
        return
    for part, mask in (("train", ~held_out), ("test", held_out)):
        rows = np.flatnonzero(mask)
        yield part, take_rows(X, rows), take_pattern_rows(Y, rows)


def _below(Y: Pattern, K: int) -> Pattern:
    """Y without the labels from K on."""
    if Y.n_cols <= K:
        return Y
    kept = Y.indices < K
    before = np.concatenate(([0], np.cumsum(kept)))
    return pattern(before[Y.indptr], Y.indices[kept], K)
