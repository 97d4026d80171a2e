"""Slices of rows as chunks of a data set, and the errors of their rows.

For formats whose rows have numbers instead of lines.
"""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, Pattern, csr, pattern
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.error_log import DataErrors, ErrorCollector
from xcray.data.readers.options import MAX_INDEX
from xcray.data.readers.svmlight import Chunk
from xcray.errors import DataError


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
        options, hint = self.source.options, default_fix(code)
        if (
            code == "INDEX_RANGE"
            and options.n_features is None
            and value is not None
            and 0 <= int(value) <= MAX_INDEX
        ):
            code, hint = "DIM_LIMIT", "if this is intended, raise max_features"
        if code == "LABEL_RANGE":
            limited = (
                options.n_labels is None and value is not None and 0 <= int(value) <= MAX_INDEX
            )
            code, hint = (
                ("DIM_LIMIT", "if this is intended, raise max_labels") if limited else (code, hint)
            )
        self.errors[row] = self.source.error(
            code, problem, line=self.start + row, value=value, hint=hint
        )

    def flush(self) -> None:
        """Add the errors to the collector. Raises DataErrors as the collector does."""
        for row in sorted(self.errors):
            self.collector.add(self.errors[row])


def to_chunk(collector: ErrorCollector, X: CSR, Y: Pattern) -> Chunk:
    """Return the valid rows of a slice, as wide as the ids so far, and update the collector."""
    collector.n_rows += X.n_rows
    collector.n_entries += X.nnz
    collector.n_positives += Y.nnz
    collector.n_features = max(collector.n_features, int(X.indices.max(initial=-1)) + 1)
    collector.n_labels = max(collector.n_labels, int(Y.indices.max(initial=-1)) + 1)
    collector.warnings["rows_without_features"] += int(np.count_nonzero(np.diff(X.indptr) == 0))
    collector.warnings["rows_without_labels"] += int(np.count_nonzero(np.diff(Y.indptr) == 0))
    return csr(X.indptr, X.indices, X.data, collector.n_features), pattern(
        Y.indptr, Y.indices, collector.n_labels
    )


def finish_file(source: Source, collector: ErrorCollector) -> None:
    """Raise the collected errors unless they are skipped, and EMPTY_FILE if there is no row."""
    collector.raise_errors()
    if not collector.n_rows:
        raise (
            DataErrors(collector.errors)
            if collector.errors
            else source.error("EMPTY_FILE", "the file has no rows")
        )
