"""Reader of the Extreme Classification repository's format.

The format is a header `N D K`, then svmlight lines with ids from 0. In its two-file variant
(`labels_file`) features follow a header `N D` and labels a header `N K`, without leading labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from xcray.arrays import Pattern, pattern
from xcray.data.readers.blocks import LineBlock, Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.format_guess import FIXES, guess_format
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.row_chunks import Chunk
from xcray.data.readers.svmlight import BlockReader
from xcray.data.readers.svmlight_line import LineParser
from xcray.errors import DataError, ParameterError
from xcray.kernels.parse import LineBounds
from xcray.kernels.sparse import pattern_range

# what a file holds -> its header and the sizes in it
HEADERS: Final = {
    "rows": ("N D K", ("rows", "features", "labels")),
    "features": ("N D", ("rows", "features")),
    "labels": ("N K", ("rows", "labels")),
}
# numbers in the first line, and the content that was expected -> what to do
HEADER_FIXES: Final = {
    (2, "rows"): "give the labels, which are in a file of their own, as labels_file",
    (3, "features"): "labels are in this file: leave labels_file out",
}
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
        yield from read_xc_file(Source(path, options), collector, "rows")


def read_xc_file(
    source: Source, collector: ErrorCollector, content: str | None = None
) -> Iterator[Chunk]:
    """Yield the rows of one file, whose content is a key of HEADERS.

    Only lines of "rows" begin with labels. None: rows, or features after a header of two numbers.
    Raises as `read_xc`.
    """
    reader: BlockReader | None = None
    for block in source.blocks():
        if reader is None:
            content = content or (
                "features" if len(block.data.split(b"\n")[0].split()) == 2 else "rows"
            )
            sizes, block = _split_header(source, block, content)
            collector.n_features, collector.n_labels = (*sizes[1:], 0)[:2]
            has_labels = content == "rows"
            bounds = LineBounds(
                base=0, n_features=sizes[1], n_labels=collector.n_labels or 1, labels=has_labels
            )
            reader = BlockReader(
                source, LineParser(source, bounds, collector, xc=True), collector, expected=sizes[0]
            )
        if block.data:
            yield from reader.read(block)
    if reader is None:
        raise source.error("EMPTY_FILE", "no rows; the file is empty")
    reader.close()


def _split_header(
    source: Source, block: LineBlock, content: str
) -> tuple[tuple[int, ...], LineBlock]:
    """Return the sizes in the first line, and the block without it."""
    first, feed, rest = block.data.partition(b"\n")
    sizes = _parse_header(source, first.removesuffix(b"\r"), content)
    return sizes, LineBlock(
        rest, block.line + 1, block.offset + len(first) + len(feed), block.ended
    )


def _parse_header(source: Source, first: bytes, content: str) -> tuple[int, ...]:
    """Return N, D, K (or N and one width) of a header line.

    content: a key of HEADERS. Raises DataError with the column of the error.
    """
    form, names = HEADERS[content]
    fields = len(names)
    words = list(re.finditer(rb"[^ \t]+", first))

    def error(code: str, problem: str, at: int, value: bytes, hint: str | None = None) -> DataError:
        shown = value[:100].decode("utf-8", "backslashreplace")
        return source.error(code, problem, line=1, column=at + 1, value=shown, hint=hint)

    if (
        b":" in first
        or first.startswith(b"#")
        or b"," in first
        or guess_format(first) in ("fasttext", "tsv")
    ):
        problem = f"the first line is not a header '{form}'"
        raise error("XC_NO_HEADER", problem, 0, first, _missing_header_hint(first, content))
    if len(words) != fields:
        problem = f"the header has {len(words)} fields where {fields} are expected: {form}"
        hint = HEADER_FIXES.get((len(words), content))
        raise error("XC_HEADER_FIELDS", problem, 0, first, hint)
    options = source.options
    sizes = []
    for word, name in zip(words, names, strict=True):
        limit, at = getattr(options, f"max_{name}"), word.start()
        if not re.fullmatch(rb"[+-]?[0-9]+", word[0]):
            problem = f"the number of {name} is not a whole number"
            raise error("XC_HEADER_NOT_INT", problem, at, word[0])
        digits = word[0].lstrip(b"+-").lstrip(b"0") or b"0"
        if word[0].startswith(b"-") or digits == b"0":
            problem = f"the number of {name} must be at least 1"
            raise error("XC_HEADER_RANGE", problem, at, word[0])
        if len(digits) > MAX_DIGITS or int(digits) > limit:
            problem = f"more {name} than max_{name}={limit}"
            raise error("XC_HEADER_LIMIT", problem, at, word[0])
        sizes.append(int(digits))
    for name, size in zip(names[1:], sizes[1:], strict=True):
        expected = getattr(options, f"n_{name}")
        if expected not in (None, size):
            problem = f"the header claims {size} {name}, {expected} are expected"
            raise source.error("DIM_MISMATCH", problem, line=1, hint=f"n_{name}={size}?")
    return tuple(sizes)


def _missing_header_hint(first: bytes, content: str) -> str:
    """Return the fix for a file that does not begin with a header."""
    guess = guess_format(first)
    if guess not in (None, "svmlight"):
        return FIXES[str(guess)]
    if content != "rows":
        return f"begin the file with one line: the numbers of rows and {content}"
    return f"add the header; or {FIXES['svmlight']}"


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
        for X, _ in read_xc_file(source, collector, "features"):
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
    for X, _ in read_xc_file(source, collector, "labels"):
        is_set = X.data != 0
        before = np.concatenate(([0], np.cumsum(is_set)))
        lengths.append(np.diff(before[X.indptr]))
        labels.append(X.indices[is_set])
        n_labels = X.n_cols
    return pattern(np.cumsum(np.concatenate(lengths)), np.concatenate(labels), n_labels)
