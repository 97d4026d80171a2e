"""Reading svmlight: `l1,l2 index:value index:value ... # comment`, one row a line, in blocks of a few megabytes.

A numba kernel reads the plain lines at some hundred megabytes a second; a line it is not sure of goes to the careful
parser. Comment lines and blank lines at the end of the file are no rows; a blank line between rows is an error,
because dropping it would shift the rows that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import CSR, Pattern, csr, frozen, pattern
from xcray.data.readers.blocks import Block, Source
from xcray.data.readers.error_log import DataErrors, Tally
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.svmlight_line import Line, LineParser, Row
from xcray.errors import DataError
from xcray.kernels.parse import Bounds, Rows, capacity, parse_lines

Chunk = tuple[CSR, Pattern]


def read_svmlight(path: Path | str, options: ReadOptions, tally: Tally) -> Iterator[Chunk]:
    """Rows of an svmlight file, chunk by chunk: X (n x d) float32 and Y (n x k), as wide as the ids seen so far.

    `tally` is filled on the way. Raises DataErrors for bad lines (unless they are skipped), DataError for a file that is no
    svmlight, EMPTY_FILE when it has no row.
    """
    source = Source(path, options)
    bounds = Bounds(
        base=0 if options.zero_based else 1,
        n_features=options.n_features or options.max_features,
        n_labels=options.n_labels or options.max_labels,
        labels=True,
    )
    reader = BlockReader(source, LineParser(source, bounds, tally), tally)
    with tally.collected():
        for block in source.blocks():
            if block.line == 1:
                check_svmlight(source, block.data)
            yield from reader.read(block)
        reader.close()
        if not tally.n_rows:
            raise source.error(
                "EMPTY_FILE", "no rows; the file is empty, or holds only comments and blank lines"
            )


class BlockReader:
    """Blocks of lines to chunks of rows: the kernel for the plain lines, the parser for the others."""

    def __init__(
        self, source: Source, parser: LineParser, tally: Tally, expected: int | None = None
    ) -> None:
        """expected: the number of rows that a header claims, if one did."""
        self.source = source
        self.parser = parser
        self.tally = tally
        self.expected = expected
        tally.file = source.name
        self.blank: list[Line] = []
        self.n_blank = 0

    def read(self, block: Block) -> Iterator[Chunk]:
        """At most one chunk: the rows of a block."""
        data = block.data if block.ended else block.data + b"\n"
        text = frozen(np.frombuffer(data, np.uint8), np.uint8)
        stop = (
            len(data) if block.ended else data.rfind(b"\n", 0, len(data) - 1) + 1
        )  # an unfinished line is read with care
        plain = text[:stop]
        rows, out = _room(text)
        pos = row = slow = 0
        number = block.line
        while pos < len(data):
            last = min(rows, row + self._missing(row))
            before, counted = row, pos
            pos, row, slow = parse_lines(plain, pos, row, last, slow, out, self.parser.bounds)
            number += data.count(b"\n", counted, pos)
            self._flush_blank(row > before)
            if pos < len(data):
                end = data.index(b"\n", pos)
                line = Line(
                    data[pos:end].removesuffix(b"\r"), number, block.ended or end + 1 < len(data)
                )
                row += self._strange(line, row, out)
                pos, number = end + 1, number + 1
        if row:
            yield self._chunk(text, out, row, slow)

    def close(self) -> None:
        """The end of the file: as many rows as expected, and no errors but those to be skipped."""
        lines = self.tally.n_rows + self.tally.n_bad
        if self.expected is not None and lines < self.expected:
            problem = f"the header tells {self.expected} rows, the file has {lines}"
            raise self.source.error("XC_ROW_COUNT", problem, line=1, hint="is the file cut short?")
        self.tally.close()
        if self.tally.errors and not self.tally.n_rows:
            raise DataErrors(self.tally.errors)

    def _missing(self, row: int) -> int:
        """Rows that may still come, with `row` rows in the present block."""
        if self.expected is None:
            return 1 << 62
        return max(0, self.expected - self.tally.n_rows - self.tally.n_bad - row)

    def _strange(self, line: Line, row: int, out: Rows) -> int:
        """Read one line with care into row `row`; the number of rows it made, 0 or 1."""
        bare = line.data.strip(b" \t\r")
        if not bare:
            self.n_blank += 1
            if len(self.blank) < self.tally.keep:
                self.blank.append(line)
            return 0
        if bare.startswith(b"#"):
            return 0
        self._flush_blank(True)
        if not self._missing(row):
            problem = f"more rows than the {self.expected} that the header tells"
            raise self.source.error(
                "XC_ROW_COUNT", problem, line=line.number, hint="correct the header 'N D K'"
            )
        try:
            _put(self.parser(line), row, out)
        except DataError as error:
            self.tally.bad(error)
            return 0
        return 1

    def _flush_blank(self, row_follows: bool) -> None:
        """Blank lines turn out to stand between rows."""
        if not row_follows or not self.n_blank:
            return
        more, self.n_blank = self.n_blank - len(self.blank), 0
        for line in self.blank:
            hint = "remove it; a row without labels and features is not kept"
            self.tally.bad(
                self.source.error(
                    "SVM_BLANK_LINE", "a blank line between rows", line=line.number, hint=hint
                )
            )
        self.blank.clear()
        self.tally.n_bad += more

    def _chunk(self, text: Any, out: Rows, row: int, slow: int) -> Chunk:
        """The rows read, with the left-over values filled in, and the tally brought up to date."""
        if slow:
            data, places = text.tobytes(), out.slow[:slow]
            out.x_value[places[:, 0]] = np.array(
                [float(data[start:stop]) for _, start, stop in places.tolist()]
            )
        features, labels = out.x_index[: out.x_ptr[row]], out.y_index[: out.y_ptr[row]]
        tally = self.tally
        tally.n_rows += row
        tally.n_entries += len(features)
        tally.n_positives += len(labels)
        tally.n_features = max(tally.n_features, int(features.max(initial=-1)) + 1)
        tally.n_labels = max(tally.n_labels, int(labels.max(initial=-1)) + 1)
        tally.warnings["rows_without_features"] += int(
            np.count_nonzero(np.diff(out.x_ptr[: row + 1]) == 0)
        )
        tally.warnings["rows_without_labels"] += int(
            np.count_nonzero(np.diff(out.y_ptr[: row + 1]) == 0)
        )
        X = csr(out.x_ptr[: row + 1], features, out.x_value[: len(features)], tally.n_features)
        return X, pattern(out.y_ptr[: row + 1], labels, tally.n_labels)


def check_svmlight(source: Source, head: bytes) -> None:
    """Raise FORMAT_MISMATCH when the first lines look like another format."""
    lines = [line.strip(b"\r") for line in head[: 1 << 16].split(b"\n")[:4]]
    lines = [line for line in lines if line and not line.startswith(b"#")]
    first = lines[0] if lines else b""
    if (
        b":" not in first
        and len(first.split()) == 3
        and all(word.isdigit() for word in first.split())
    ):
        hint = "read it with format=xc, the XC repository format"
        raise source.error(
            "FORMAT_MISMATCH",
            "begins with an XC header 'N D K'",
            line=1,
            column=1,
            value=_text(first),
            hint=hint,
        )
    if first.lstrip().startswith((b"{", b"[")):
        raise source.error(
            "FORMAT_MISMATCH",
            "looks like JSON",
            line=1,
            column=1,
            value=_text(first),
            hint="format=jsonl?",
        )
    if looks_like_table(lines):
        raise source.error(
            "FORMAT_MISMATCH",
            "looks like CSV",
            line=1,
            column=1,
            value=_text(first),
            hint="format=csv?",
        )


def looks_like_table(lines: list[bytes]) -> bool:
    """Lines without any colon that are a header of words, or repeat the same number of commas, semicolons or tabs."""
    first = lines[0] if lines else b""
    for mark in (b",", b";", b"\t"):
        counts = [line.count(mark) for line in lines]
        if counts and counts[0] and not any(b":" in line for line in lines):
            words = any(c.isalpha() for c in first.decode("utf-8", "replace"))
            if words or (
                len(lines) > 2
                and len(set(counts[:3])) == 1
                and not any(b" " in line for line in lines)
            ):
                return True
    return False


def _text(line: bytes) -> str:
    """A line as an error shows it."""
    return line[:100].decode("utf-8", "backslashreplace")


def _room(text: Any) -> tuple[int, Rows]:
    """How many rows a block may have, and room for them; pages that stay untouched take no memory."""
    rows, colons, commas = capacity(text)
    room = Rows(
        x_ptr=np.zeros(rows + 1, np.int64),
        x_index=np.empty(colons, np.int32),
        x_value=np.empty(colons, np.float32),
        y_ptr=np.zeros(rows + 1, np.int64),
        y_index=np.empty(commas + rows, np.int32),
        slow=np.empty((colons, 3), np.int64),
    )
    return rows, room


def _put(parsed: Row, row: int, out: Rows) -> None:
    """Store a row that the careful parser read."""
    x, y = int(out.x_ptr[row]), int(out.y_ptr[row])
    out.x_ptr[row + 1], out.y_ptr[row + 1] = x + len(parsed.indices), y + len(parsed.labels)
    out.x_index[x : x + len(parsed.indices)] = parsed.indices
    out.x_value[x : x + len(parsed.indices)] = parsed.values
    out.y_index[y : y + len(parsed.labels)] = parsed.labels
