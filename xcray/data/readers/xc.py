"""Reading the Extreme Classification repository's format: a header `N D K`, then svmlight lines with ids from 0.

Also its two-file variant (`labels_file`): features under a header `N D`, labels under a header `N K`, no labels in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xcray.arrays import Pattern, pattern
from xcray.data.readers.blocks import Block, Source
from xcray.data.readers.error_log import Tally
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.svmlight import BlockReader, Chunk
from xcray.data.readers.svmlight_line import LineParser
from xcray.errors import DataError, ParameterError
from xcray.kernels.parse import Bounds
from xcray.kernels.sparse import pattern_range

HEADERS = {3: ("N D K", ("rows", "features", "labels")), 2: ("N D or N K", ("rows", "columns"))}
DIGITS = 18


def read_xc(path: Path | str, options: ReadOptions, tally: Tally) -> Iterator[Chunk]:
    """Rows of an XC file, chunk by chunk: X (n x D) float32 and Y (n x K), with D and K as the header tells.

    `tally` is filled on the way. Raises DataErrors for bad lines (unless they are skipped), DataError for a header that is
    missing, wrong, or does not agree with the rows. Nothing is allocated by what the header claims.
    """
    if options.labels_file is not None:
        yield from _read_pair(path, options, tally)
        return
    with tally.collected():
        yield from _read_one(Source(path, options), tally, fields=3)


def _read_one(source: Source, tally: Tally, fields: int) -> Iterator[Chunk]:
    """The rows of one file with a header of `fields` numbers; two numbers mean lines without labels in front."""
    reader: BlockReader | None = None
    for block in source.blocks():
        if reader is None:
            sizes, block = _split_header(source, block, fields)
            n_labels = sizes[2] if fields == 3 else 1
            tally.n_features, tally.n_labels = sizes[1], n_labels if fields == 3 else 0
            bounds = Bounds(base=0, n_features=sizes[1], n_labels=n_labels, labels=fields == 3)
            reader = BlockReader(
                source, LineParser(source, bounds, tally, xc=True), tally, expected=sizes[0]
            )
        if block.data:
            yield from reader.read(block)
    if reader is None:
        raise source.error("EMPTY_FILE", "no rows; the file is empty")
    reader.close()


def _split_header(source: Source, block: Block, fields: int) -> tuple[tuple[int, ...], Block]:
    """The sizes in the first line, and the block without it."""
    first, feed, rest = block.data.partition(b"\n")
    sizes = parse_header(source, first.removesuffix(b"\r"), fields)
    return sizes, Block(rest, block.line + 1, block.offset + len(first) + len(feed), block.ended)


def parse_header(source: Source, first: bytes, fields: int = 3) -> tuple[int, ...]:
    """N, D, K (or N and one width) of a header line; DataError with the column of what is wrong in it."""
    form, names = HEADERS[fields]
    words = list(re.finditer(rb"[^ \t]+", first))

    def error(code: str, problem: str, at: int, value: bytes, hint: str | None = None) -> DataError:
        shown = value[:100].decode("utf-8", "backslashreplace")
        return source.error(code, problem, line=1, column=at + 1, value=shown, hint=hint)

    if b":" in first or b"," in first:
        raise error(
            "XC_NO_HEADER",
            f"the first line is no header '{form}'",
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
        if len(digits) > DIGITS or int(digits) > limit:
            raise error(
                "XC_HEADER_LIMIT",
                f"more {name} than the limit of {limit}",
                word.start(),
                word[0],
                f"raise max_{name} if so many",
            )
        sizes.append(int(digits))
    for name, wanted, size in zip(
        ("features", "labels"), (options.n_features, options.n_labels), sizes[1:], strict=False
    ):
        if fields == 3 and wanted not in (None, size):
            raise source.error(
                "DIM_MISMATCH",
                f"the header tells {size} {name}, {wanted} are expected",
                line=1,
                hint=f"n_{name}={size}?",
            )
    return tuple(sizes)


def _limits(options: ReadOptions, fields: int) -> tuple[int, ...]:
    """The largest sizes a header may claim."""
    widths = (options.max_features, options.max_labels)
    return (options.max_rows, *widths) if fields == 3 else (options.max_rows, max(widths))


def _read_pair(path: Path | str, options: ReadOptions, tally: Tally) -> Iterator[Chunk]:
    """Rows whose labels are in a file of their own; the labels are read first, whole."""
    if options.skip_bad:
        raise ParameterError(
            "labels_file can't be read with skip_bad: leaving a line out of one file would shift the other"
        )
    source, label_source = Source(path, options), Source(str(options.labels_file), options)
    Y = _label_sets(label_source, Tally(tally.keep))
    start = 0
    with tally.collected():
        for X, _ in _read_one(source, tally, fields=2):
            stop = start + X.n_rows
            if stop <= Y.n_rows:
                labels = pattern_range(Y, start, stop)
                tally.n_labels = Y.n_cols
                tally.n_positives += labels.nnz
                yield X, labels
            start = stop
    if start != Y.n_rows:
        problem = f"{start} rows of features, but {Y.n_rows} rows of labels in {label_source.name}"
        raise source.error("ROW_MISMATCH", problem, hint="give the two files of the same rows")
    tally.warnings["rows_without_labels"] = int(np.count_nonzero(np.diff(Y.indptr) == 0))


def _label_sets(source: Source, tally: Tally) -> Pattern:
    """A label file, whole: a label is held where its value is not zero."""
    lengths, labels, n_labels = [np.zeros(1, np.int64)], [np.empty(0, np.int32)], 0
    for X, _ in _read_one(source, tally, fields=2):
        held = X.data != 0
        before = np.concatenate(([0], np.cumsum(held)))
        lengths.append(np.diff(before[X.indptr]))
        labels.append(X.indices[held])
        n_labels = X.n_cols
    return pattern(np.cumsum(np.concatenate(lengths)), np.concatenate(labels), n_labels)
