"""Rows as chunks of a data set, and the errors of rows that have numbers instead of lines."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, Pattern, csr, pattern
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import MAX_INDEX
from xcray.errors import DataError

Chunk = tuple[CSR, Pattern]


class RowErrors:
    """The first error of each row of a slice, added to the collector in row order."""

    def __init__(self, source: Source, collector: ErrorCollector, start: int) -> None:
        self.source = source
        self.collector = collector
        self.start = start
        self.errors: dict[int, DataError] = {}

    def __call__(self, row: int, code: str, problem: str, value: str | None) -> None:
        """Record a bad row by its number in the slice."""
        if row in self.errors:
            return
        options = self.source.options
        sizes = {"INDEX_RANGE": options.n_features, "LABEL_RANGE": options.n_labels}
        if sizes.get(code, 0) is None and value is not None and 0 <= int(value) <= MAX_INDEX:
            code = "DIM_LIMIT"
        self.errors[row] = self.source.error(code, problem, line=self.start + row, value=value)

    def flush(self) -> None:
        """Add the errors to the collector. Raises DataErrors as the collector does."""
        for row in sorted(self.errors):
            self.collector.add(self.errors[row])


def to_chunk(collector: ErrorCollector, X: CSR, Y: Pattern) -> Chunk:
    """Return the valid rows of a slice, as wide as the ids so far, and update the collector."""
    collector.n_rows, collector.pending_rows = collector.n_rows + X.n_rows, 0
    collector.n_entries += X.nnz
    collector.n_positives += Y.nnz
    collector.n_features = max(collector.n_features, int(X.indices.max(initial=-1)) + 1)
    collector.n_labels = max(collector.n_labels, int(Y.indices.max(initial=-1)) + 1)
    collector.warnings["rows_without_features"] += int(np.count_nonzero(np.diff(X.indptr) == 0))
    collector.warnings["rows_without_labels"] += int(np.count_nonzero(np.diff(Y.indptr) == 0))
    return csr(X.indptr, X.indices, X.data, collector.n_features), pattern(
        Y.indptr, Y.indices, collector.n_labels
    )
