"""Reader of the Extreme Classification repository's format.

The format is a header `N D K`, then svmlight lines with ids from 0. In its two-file variant
(`labels_file`) features follow a header `N D` and labels a header `N K`, without leading labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xcray.arrays import Pattern, pattern
from xcray.data.readers.blocks import LineBlock, Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.svmlight import BlockReader, Chunk
from xcray.data.readers.svmlight_line import LineParser
from xcray.errors import DataError, ParameterError
from xcray.kernels.parse import LineBounds
from xcray.kernels.sparse import pattern_range

HEADERS = {3: ("N D K", ("rows", "features", "labels")), 2: ("N D or N K", ("rows", "columns"))}
MAX_DIGITS = 18


def read_xc(path: Path | str, options: ReadOptions, collector: ErrorCollector) -> Iterator[Chunk]:
    """Yield the rows of an XC file in chunks, and update `collector`.

    A chunk is X (n x D) float32 and Y (n x K), with D and K from the header. Raises DataErrors
    for bad lines (unless they are skipped), and DataError for a header that is missing,
    invalid, or contradicts the rows. No memory is allocated by the header's claims.
    """
    if options.labels_file is not None:
        yield from _read_pair(path, options, collector)
        return
    with collector.reading():
        yield from _read_one(Source(path, options), collector, fields=3)


def _read_one(source: Source, collector: ErrorCollector, fields: int) -> Iterator[Chunk]:
    """Yield the rows of one file with a header of `fields` numbers.

    With two numbers, lines have no leading labels.
    """
    reader: BlockReader | None = None
    for block in source.blocks():
        if reader is None:
            sizes, block = _split_header(source, block, fields)
            n_labels = sizes[2] if fields == 3 else 1
            collector.n_features, collector.n_labels = sizes[1], n_labels if fields == 3 else 0
            bounds = LineBounds(base=0, n_features=sizes[1], n_labels=n_labels, labels=fields == 3)
            reader = BlockReader(
                source, LineParser(source, bounds, collector, xc=True), collector, expected=sizes[0]
            )
        if block.data:
            yield from reader.read(block)
    if reader is None:
        raise source.error("EMPTY_FILE", "no rows; the file is empty")
    reader.close()


def _split_header(
    source: Source, block: LineBlock, fields: int
) -> tuple[tuple[int, ...], LineBlock]:
    """Return the sizes in the first line, and the block without it."""
    first, feed, rest = block.data.partition(b"\n")
    sizes = parse_header(source, first.removesuffix(b"\r"), fields)
    return sizes, LineBlock(
        rest, block.line + 1, block.offset + len(first) + len(feed), block.ended
    )


def parse_header(source: Source, first: bytes, fields: int = 3) -> tuple[int, ...]:
    """Return N, D, K (or N and one width) of a header line.

    Raises DataError with the column of the error.
    """
    form, names = HEADERS[fields]
    words = list(re.finditer(rb"[^ \t]+", first))

    def error(code: str, problem: str, at: int, value: bytes, hint: str | None = None) -> DataError:
        shown = value[:100].decode("utf-8", "backslashreplace")
        return source.error(code, problem, line=1, column=at + 1, value=shown, hint=hint)

    if b":" in first or b"," in first:
        raise error(
            "XC_NO_HEADER",
            f"the first line is not a header '{form}'",
            0,
            first,
            "read it with format=svmlight, or add the header",
        )
    if len(words) != fields:
        raise error(
            "XC_HEADER_FIELDS",
            f"the header has {len(words)} fields where {fields} are expected: {form}",
            0,
            first,
        )
    options = source.options
    sizes = []
    for word, name, limit in zip(words, names, _limits(options, fields), strict=True):
        if not re.fullmatch(rb"[+-]?[0-9]+", word[0]):
            raise error(
                "XC_HEADER_NOT_INT",
                f"the number of {name} is not a whole number",
                word.start(),
                word[0],
            )
        digits = word[0].lstrip(b"+-").lstrip(b"0") or b"0"
        if word[0].startswith(b"-") or digits == b"0":
            raise error(
                "XC_HEADER_RANGE", f"the number of {name} must be at least 1", word.start(), word[0]
            )
        if len(digits) > MAX_DIGITS or int(digits) > limit:
            raise error(
                "XC_HEADER_LIMIT",
                f"more {name} than the limit of {limit}",
                word.start(),
                word[0],
                f"if this is intended, raise max_{name}",
            )
        sizes.append(int(digits))
    for name, expected, size in zip(
        ("features", "labels"), (options.n_features, options.n_labels), sizes[1:], strict=False
    ):
        if fields == 3 and expected not in (None, size):
            raise source.error(
                "DIM_MISMATCH",
                f"the header claims {size} {name}, {expected} are expected",
                line=1,
                hint=f"n_{name}={size}?",
            )
    return tuple(sizes)


def _limits(options: ReadOptions, fields: int) -> tuple[int, ...]:
    """Return the largest allowed sizes."""
    widths = (options.max_features, options.max_labels)
    return (options.max_rows, *widths) if fields == 3 else (options.max_rows, max(widths))


def _read_pair(
    path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> Iterator[Chunk]:
    """Yield rows whose labels are in another file; all labels are read first."""
    if options.skip_bad:
        raise ParameterError(
            "labels_file can't be read with skip_bad: "
            "leaving a line out of one file would shift the other"
        )
    source, label_source = Source(path, options), Source(str(options.labels_file), options)
    Y = _read_label_sets(label_source, ErrorCollector(collector.max_errors))
    start = 0
    with collector.reading():
        for X, _ in _read_one(source, collector, fields=2):
            stop = start + X.n_rows
            if stop <= Y.n_rows:
                labels = pattern_range(Y, start, stop)
                collector.n_labels = Y.n_cols
                collector.n_positives += labels.nnz
                yield X, labels
            start = stop
    if start != Y.n_rows:
        problem = f"{start} rows of features, but {Y.n_rows} rows of labels in {label_source.name}"
        raise source.error("ROW_MISMATCH", problem, hint="give the two files of the same rows")
    collector.warnings["rows_without_labels"] = int(np.count_nonzero(np.diff(Y.indptr) == 0))


def _read_label_sets(source: Source, collector: ErrorCollector) -> Pattern:
    """Read a label file completely; a row has a label where its value is not zero."""
    lengths, labels, n_labels = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], 0
    for X, _ in _read_one(source, collector, fields=2):
        is_set = X.data != 0
        before = np.concatenate(([0], np.cumsum(is_set)))
        lengths.append(np.diff(before[X.indptr]))
        labels.append(X.indices[is_set])
        n_labels = X.n_cols
    return pattern(np.cumsum(np.concatenate(lengths)), np.concatenate(labels), n_labels)
