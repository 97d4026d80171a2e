"""Check a file for errors without building a data set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xcray.data.data_warnings import SAMPLE_NAMES, label_warning
from xcray.data.matrices import READERS
from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import DataErrors, ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import label_names, parquet_layout, parquet_records, read_parquet
from xcray.data.readers.records import FORMATS as TEXT_FORMATS
from xcray.data.readers.records import read_records
from xcray.errors import DataError, ParameterError, excerpt, similar_or_all


@dataclass(frozen=True)
class CheckReport:
    """Contents of a checked file.

    rows: valid rows; features: D, None for text; labels: K, or the number of distinct names;
    nnz: stored features, None for text; errors: the first ones as `DataError.as_dict`; n_bad:
    number of all errors; warnings: count per kind; data_warnings: as `data_warnings` returns
    them, about the names of labels.
    """

    rows: int
    features: int | None
    labels: int
    nnz: int | None
    errors: list[dict[str, Any]]
    n_bad: int
    warnings: dict[str, int]
    data_warnings: list[dict[str, Any]]

    @property
    def is_readable(self) -> bool:
        """Whether the file can be read without skipping anything."""
        return not self.n_bad

    def as_dict(self) -> dict[str, Any]:
        """Return the report, JSON-ready."""
        return asdict(self)


def check(format: str, path: Path | str, options: ReadOptions | None = None) -> CheckReport:
    """Read the whole file as training data and return a report.

    All bad lines are counted; the first `max_errors` are kept. format: svmlight, xc, jsonl,
    csv, tsv, fasttext, parquet, npz or npy. Raises NotFound if there is no file, ParameterError for
    another format.
    """
    options = replace(options or ReadOptions(), skip_bad=False)
    if format not in READERS and format not in TEXT_FORMATS:
        raise ParameterError(
            f"there is no file format {excerpt(format)!r}"
            f"{similar_or_all(format, (*READERS, *TEXT_FORMATS))}"
        )
    text = format in TEXT_FORMATS
    collector = ErrorCollector(options.max_errors, skip_bad=True)
    fatal: list[DataError] = []
    counts: dict[Any, int] = {}
    try:
        text = text or (format == "parquet" and bool(parquet_layout(path, options).text))
        counts = (
            _text_counts(format, path, options, collector)
            if text
            else _matrix_counts(format, path, options, collector)
        )
        if not collector.n_positives:
            problem = "no row has a label; there is nothing to learn"
            fatal.append(Source(path, options).error("NO_POSITIVES", problem))
    except DataError as error:
        # with several errors, every line is bad, and the collector has them already
        if not isinstance(error, DataErrors):
            fatal.append(error)
    warnings = dict(collector.as_dict()["warnings"])
    if (
        counts
        and collector.n_rows > 1
        and (everywhere := sum(count == collector.n_rows for count in counts.values()))
    ):
        warnings["labels_in_every_row"] = everywhere
    warning = label_warning(list(islice(counts, SAMPLE_NAMES))) if text else None
    return CheckReport(
        rows=collector.n_rows,
        features=None if text else collector.n_features,
        labels=len(counts) if text else collector.n_labels,
        nnz=None if text else collector.n_entries,
        errors=[error.as_dict() for error in [*collector.errors, *fatal][: options.max_errors]],
        n_bad=collector.n_bad + len(fatal),
        warnings=warnings,
        data_warnings=[] if warning is None else [warning._asdict()],
    )


def _matrix_counts(
    format: str, path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> dict[Any, int]:
    """Count the rows per label id."""
    counts = np.zeros(0, np.int64)
    reader = READERS[format]
    if format == "parquet" and parquet_layout(path, options).named_labels:
        numbers = {name: k for k, name in enumerate(label_names(path, options))}
        reader = partial(read_parquet, label_ids=numbers)
    for _, Y in reader(path, options, collector):
        chunk_counts = np.bincount(Y.indices)
        counts = np.pad(counts, (0, max(0, len(chunk_counts) - len(counts))))
        counts[: len(chunk_counts)] += chunk_counts
    return {int(k): int(counts[k]) for k in np.flatnonzero(counts)}


def _text_counts(
    format: str, path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> dict[Any, int]:
    """Count the records per label name."""
    counts: dict[Any, int] = {}
    records = (
        parquet_records(path, options, collector)
        if format == "parquet"
        else read_records(format, path, options, collector)
    )
    for record in records:
        for label in record.labels:
            counts[label] = counts.get(label, 0) + 1
    return counts
