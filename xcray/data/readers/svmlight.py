"""Reading svmlight: `l1,l2 index:value index:value ... # comment`, one row per line.

The file is read in blocks of a few megabytes. A numba kernel reads plain lines at some hundred
megabytes per second and leaves all other lines to the strict parser. Comment lines and blank lines
at the end of the file are not rows. A blank line between rows is an error, because dropping it
would shift the rows that follow. If a header gives the number of rows, blank lines are rows without
labels and features, because writers of sparse matrices write them so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import csr, frozen, pattern
from xcray.data.readers.blocks import LineBlock, Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.row_chunks import Chunk, to_chunk
from xcray.data.readers.svmlight_line import LineParser, ParsedRow, RawLine
from xcray.errors import DataError
from xcray.kernels.parse import LineBounds, ParsedRows, capacity, parse_lines


def read_svmlight(
    path: Path | str, options: ReadOptions, collector: ErrorCollector
) -> Iterator[Chunk]:
    """Yield the rows of an svmlight file in chunks, and update `collector`.

    A chunk is X (n x d) float32 and Y (n x k), as wide as the ids so far. Raises DataErrors for
    bad lines (unless they are skipped), DataError for a file in another format, EMPTY_FILE if
    it has no row.
    """
    source = Source(path, options, format="svmlight")
    bounds = LineBounds(
        base=0 if options.zero_based else 1,
        n_features=options.feature_limit,
        n_labels=options.label_limit,
        labels=True,
    )
    reader = BlockReader(source, LineParser(source, bounds, collector), collector)
    with collector.reading():
        for block in source.blocks():
            yield from reader.read(block)
        reader.close()


class BlockReader:
    """Converter of line blocks to chunks: the kernel reads plain lines, the parser the others."""

    def __init__(
        self,
        source: Source,
        parser: LineParser,
        collector: ErrorCollector,
        expected: int | None = None,
    ) -> None:
        """Initialise. expected: number of rows in the header, if there is one."""
        self.source = source
        self.parser = parser
        self.collector = collector
        self.expected = expected
        collector.file = source.name
        self.blank: list[RawLine] = []
        self.n_blank = 0
        self.has_blank_rows = False

    def read(self, block: LineBlock) -> Iterator[Chunk]:
        """Yield the rows of a block: at most one chunk."""
        data = block.data if block.ended else block.data + b"\n"
        text = frozen(np.frombuffer(data, np.uint8), np.uint8)
        # the strict parser reads an unfinished line
        stop = len(data) if block.ended else data.rfind(b"\n", 0, len(data) - 1) + 1
        plain = text[:stop]
        rows, out = _allocate_rows(text)
        pos = row = slow = 0
        number = block.line
        while pos < len(data):
            last = min(rows, row + self._rows_left(row))
            before, counted = row, pos
            pos, row, slow = parse_lines(plain, pos, row, last, slow, out, self.parser.bounds)
            number += data.count(b"\n", counted, pos)
            self._report_blank_lines(row > before)
            if pos < len(data):
                end = data.index(b"\n", pos)
                line = RawLine(
                    data[pos:end].removesuffix(b"\r"), number, block.ended or end + 1 < len(data)
                )
                self.collector.pending_rows = row
                row += self._parse_line(line, row, out)
                pos, number = end + 1, number + 1
        if row:
            yield self._chunk(text, out, row, slow)

    def close(self) -> None:
        """Check the number of rows, and raise the collected errors unless they are skipped."""
        lines = self.collector.n_rows + self.collector.n_bad
        if self.expected is not None and lines < self.expected:
            problem = f"the header claims {self.expected} rows, the file has {lines}"
            raise self.source.error("XC_ROW_COUNT", problem, line=1, hint="is the file truncated?")
        self.collector.finish(self.source)

    def _rows_left(self, row: int) -> int:
        """Return how many more rows are allowed when the current block has `row` rows."""
        if self.expected is None:
            return 1 << 62
        return max(0, self.expected - self.collector.n_rows - self.collector.n_bad - row)

    def _parse_line(self, line: RawLine, row: int, out: ParsedRows) -> int:
        """Parse one line into row `row`, and return the number of rows it gave: 0 or 1."""
        bare = line.data.strip(b" \t\r")
        if not bare and self.expected is not None and self._rows_left(row):
            _store_row(ParsedRow([], [], []), row, out)
            self.has_blank_rows = True
            return 1
        if not bare:
            self.n_blank += 1
            if len(self.blank) < self.collector.max_errors:
                self.blank.append(line)
            return 0
        if bare.startswith(b"#"):
            return 0
        self._report_blank_lines(True)
        if not self._rows_left(row):
            problem = f"more rows than the {self.expected} in the header"
            note = "; blank lines before this one count as rows" if self.has_blank_rows else ""
            raise self.source.error(
                "XC_ROW_COUNT", problem, line=line.number, hint=f"correct the header 'N D K'{note}"
            )
        try:
            _store_row(self.parser(line), row, out)
        except DataError as error:
            self.collector.add(error)
            return 0
        return 1

    def _report_blank_lines(self, row_follows: bool) -> None:
        """Report the pending blank lines once a row follows them."""
        if not row_follows or not self.n_blank:
            return
        more, self.n_blank = self.n_blank - len(self.blank), 0
        for line in self.blank:
            problem = "a blank line between rows"
            self.collector.add(self.source.error("SVM_BLANK_LINE", problem, line=line.number))
        self.blank.clear()
        self.collector.n_bad += more

    def _chunk(self, text: Any, out: ParsedRows, row: int, slow: int) -> Chunk:
        """Return the rows of a block, and update the collector.

        Values that the kernel left out are parsed here.
        """
        if slow:
            data, places = text.tobytes(), out.deferred[:slow]
            out.x_value[places[:, 0]] = np.array(
                [float(data[start:stop]) for _, start, stop in places.tolist()]
            )
        features, labels = out.x_index[: out.x_ptr[row]], out.y_index[: out.y_ptr[row]]
        values, bounds = out.x_value[: len(features)], self.parser.bounds
        X = csr(out.x_ptr[: row + 1], features, values, bounds.n_features)
        return to_chunk(self.collector, X, pattern(out.y_ptr[: row + 1], labels, bounds.n_labels))


def _allocate_rows(text: Any) -> tuple[int, ParsedRows]:
    """Return the maximum number of rows of a block, and buffers for them.

    Untouched pages take no memory.
    """
    rows, colons, commas = capacity(text)
    buffers = ParsedRows(
        x_ptr=np.zeros(rows + 1, np.int64),
        x_index=np.empty(colons, np.int32),
        x_value=np.empty(colons, np.float32),
        y_ptr=np.zeros(rows + 1, np.int64),
        y_index=np.empty(commas + rows, np.int32),
        deferred=np.empty((colons, 3), np.int64),
    )
    return rows, buffers


def _store_row(parsed: ParsedRow, row: int, out: ParsedRows) -> None:
    """Store a row of the strict parser."""
    x, y = int(out.x_ptr[row]), int(out.y_ptr[row])
    out.x_ptr[row + 1], out.y_ptr[row + 1] = x + len(parsed.indices), y + len(parsed.labels)
    out.x_index[x : x + len(parsed.indices)] = parsed.indices
    out.x_value[x : x + len(parsed.indices)] = parsed.values
    out.y_index[y : y + len(parsed.labels)] = parsed.labels
