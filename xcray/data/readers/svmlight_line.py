"""Strict parser of one line of svmlight or XC: returns the row, or an error with position and fix.

Error columns count bytes from 1. In addition to the lines that the kernel reads, it accepts
comments after a blank, indices that do not ascend (sorted and counted), and repeated labels (kept
once and counted).
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.labels import INDICATOR_LIST, MIN_INDICATORS
from xcray.data.readers.options import MAX_INDEX, ReadOptions
from xcray.kernels.parse import LineBounds

DECIMAL = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
INTEGER = re.compile(rb"-?\d+")
TOKEN = re.compile(rb"[^ \t]+")
NON_FINITE = re.compile(rb"[+-]?(nan|inf(inity)?)", re.IGNORECASE)
# numbers with more digits are out of every range, so int() is not called
MAX_DIGITS = 18


class RawLine(NamedTuple):
    """A line: its bytes without the line end, its number, and whether it has a line end."""

    data: bytes
    number: int
    ended: bool = True


class ParsedRow(NamedTuple):
    """Labels (ascending, once each), 0-based feature indices (ascending) and float32 values."""

    labels: list[int]
    indices: list[int]
    values: list[float]


class LineError(Exception):
    """What is wrong at byte `at` of a line."""

    def __init__(
        self, code: str, text: str, at: int, value: bytes, hint: str | None = None
    ) -> None:
        super().__init__(text)
        self.code, self.text, self.at, self.value, self.hint = code, text, at, value, hint


class LineParser:
    """Parser of the lines of one file. Raises DataError with the position of the error."""

    def __init__(
        self, source: Source, bounds: LineBounds, collector: ErrorCollector, xc: bool = False
    ) -> None:
        self.source = source
        self.bounds = bounds
        self.collector = collector
        self.xc = xc
        self.options: ReadOptions = source.options

    def __call__(self, line: RawLine) -> ParsedRow:
        """Return the row of a line that is neither blank nor a comment."""
        try:
            return self._parse(line)
        except LineError as error:
            raise self.source.error(
                error.code,
                error.text,
                line=line.number,
                column=error.at + 1,
                value=error.value.decode("utf-8", "backslashreplace"),
                hint=error.hint,
            ) from None

    def _parse(self, line: RawLine) -> ParsedRow:
        """Return the row of a line."""
        _check_text(line.data)
        tokens = list(TOKEN.finditer(line.data))
        comment = next(
            (i for i, token in enumerate(tokens) if token[0].startswith(b"#")), len(tokens)
        )
        tokens = tokens[:comment]
        if (
            self.xc
            and len(tokens) == 3
            and all(re.fullmatch(rb"\d+", token[0]) for token in tokens)
        ):
            raise LineError("XC_HEADER_TWICE", "a second header 'N D K'", 0, line.data)
        labels: list[int] = []
        if self.bounds.labels and not line.data.startswith((b" ", b"\t")):
            labels = self._labels(tokens.pop(0))
        pairs = [self._feature(line, token) for token in tokens]
        return self._row(line.data, labels, pairs)

    def _labels(self, token: re.Match[bytes]) -> list[int]:
        """Return the label set of the first token; repeats are dropped and counted."""
        if b":" in token[0]:
            problem = "the line begins with a feature where labels are expected"
            raise LineError("LABEL_MISSING", problem, 0, token[0])
        labels, at = [], token.start()
        for part in token[0].split(b","):
            labels.append(self._label(part, at))
            at += len(part) + 1
        unique = sorted(set(labels))
        if len(labels) >= MIN_INDICATORS and unique[-1] <= 1:
            raise LineError("LABEL_INDICATORS", INDICATOR_LIST, token.start(), token[0])
        self.collector.warnings["duplicate_labels"] += len(labels) - len(unique)
        return unique

    def _label(self, part: bytes, at: int) -> int:
        """Return one label id."""
        if not part:
            hint = "remove a comma at the end or a blank after a comma"
            raise LineError("LABEL_EMPTY", "an empty label", at, part, hint)
        if not INTEGER.fullmatch(part):
            problem = f"label '{_escape(part)}' is not a whole number"
            raise LineError("LABEL_NOT_INT", problem, at, part)
        number = _parse_int(part)
        K = self.options.n_labels if self.options.n_labels is not None else self.bounds.n_labels
        negative = part.startswith(b"-")  # -0 too
        if 0 <= number < self.bounds.n_labels and not negative:
            return number
        if negative:
            problem = f"label {_escape(part)} is negative; labels begin at 0"
            hint = "labels +1 and -1 of a two-class file: write 1 and 0"
            raise LineError("LABEL_RANGE", problem, at, part, hint if part == b"-1" else None)
        if self.xc or self.options.n_labels is not None or number > MAX_INDEX:
            most = min(K, MAX_INDEX + 1)
            problem = f"label {_escape(part)} is not below the number of labels, {most}"
            raise LineError("LABEL_RANGE", problem, at, part)
        raise self._limit_error("label", number, self.options.max_labels, at, part)

    def _feature(self, line: RawLine, token: re.Match[bytes]) -> tuple[int, float]:
        """Return one index:value pair, the index 0-based."""
        text, at = token[0], token.start()
        index, colon, value = text.partition(b":")
        if not colon:
            raise LineError("SVM_NO_COLON", f"'{_escape(text)}' has no colon", at, text)
        if index == b"qid":
            raise LineError("SVM_QID", "qid (ranking data) is not supported", at, text)
        return self._index(index, at), self._value(line, index, value, at + len(index) + 1)

    def _index(self, index: bytes, at: int) -> int:
        """Return a feature index, 0-based."""
        if not INTEGER.fullmatch(index):
            if index and b"." in index and DECIMAL.fullmatch(index) and b"e" in index.lower():
                problem = f"'{_escape(index)}' before the colon is a value, not an index"
                raise LineError(
                    "SVM_BAD_VALUE", problem, at, index, "missing space between two features?"
                )
            problem = f"index '{_escape(index)}' is not a whole number"
            raise LineError("SVM_BAD_INDEX", problem, at, index)
        number = _parse_int(index) - self.bounds.base
        negative = index.startswith(b"-")  # -0 too
        if 0 <= number < self.bounds.n_features and not negative:
            return number
        if number < 0 or negative:
            hint = (
                "if indices start at 0, read the file with zero_based"
                if number == -1 and self.bounds.base
                else None
            )
            problem = f"index {_escape(index)} is below the first feature, {self.bounds.base}"
            raise LineError("SVM_INDEX_RANGE", problem, at, index, hint)
        if self.xc or self.options.n_features is not None or number > MAX_INDEX:
            known = self.xc or self.options.n_features is not None
            most = (self.bounds.n_features if known else MAX_INDEX + 1) - 1 + self.bounds.base
            hint = (
                "XC indices start at 0, not at 1"
                if self.xc and number == self.bounds.n_features
                else None
            )
            problem = f"index {_escape(index)} is above the last feature, {most}"
            raise LineError("SVM_INDEX_RANGE", problem, at, index, hint)
        raise self._limit_error("feature", number, self.options.max_features, at, index)

    def _limit_error(self, what: str, number: int, limit: int, at: int, value: bytes) -> LineError:
        """Return the error for an id that would make the matrix wider than the limit."""
        problem = (
            f"{what} {_escape(value)} makes {number + 1} {what}s, more than the limit of {limit}"
        )
        return LineError("DIM_LIMIT", problem, at, value, f"if this is intended, raise max_{what}s")

    def _value(self, line: RawLine, index: bytes, value: bytes, at: int) -> float:
        """Return a finite decimal number, rounded to float32."""
        feature = f"feature {_escape(index)}"
        if NON_FINITE.fullmatch(value):
            problem = f"{feature}: value '{_escape(value)}' is not a finite number"
            raise LineError("SVM_NOT_FINITE", problem, at, value)
        if not DECIMAL.fullmatch(value):
            hint = (
                "write decimals with a point, not a comma"
                if re.fullmatch(rb"[+-]?\d+,\d+", value)
                else None
            )
            hint = "missing space between two features?" if value.count(b":") else hint
            hint = "put a blank before a comment" if b"#" in value else hint
            problem = f"{feature}: value '{_escape(value)}' is not a number"
            raise LineError("SVM_BAD_VALUE", problem, at, value, hint)
        if value.endswith(b".") and not line.ended and at + len(value) == len(line.data):
            problem = f"{feature}: the file ends inside a value"
            raise LineError("UPLOAD_TRUNCATED", problem, at, value)
        with np.errstate(over="ignore"):
            number = float(np.float32(float(value)))
        if not math.isfinite(number):
            problem = f"{feature}: value '{_escape(value)}' is too large for float32"
            raise LineError("SVM_NOT_FINITE", problem, at, value)
        return number

    def _row(self, data: bytes, labels: list[int], pairs: list[tuple[int, float]]) -> ParsedRow:
        """Return the row in ascending order. Raises SVM_DUP_INDEX."""
        indices = [index for index, _ in pairs]
        ordered = sorted(pairs, key=lambda pair: pair[0])
        for one, two in pairwise(ordered):
            if one[0] == two[0]:
                index = str(one[0] + self.bounds.base).encode()
                at = [m.start() for m in re.finditer(rb"(?<![^ \t])0*" + index + rb":", data)][-1]
                problem = f"index {index.decode()} is given twice"
                raise LineError("SVM_DUP_INDEX", problem, at, index)
        unsorted = indices != [index for index, _ in ordered]
        self.collector.warnings["unsorted_rows"] += unsorted
        return ParsedRow(labels, [index for index, _ in ordered], [value for _, value in ordered])


def _check_text(data: bytes) -> None:
    """Raise LineError unless the line is UTF-8 without carriage returns."""
    at = data.find(b"\r")
    if at >= 0:
        around = data[max(0, at - 20) : at + 20]
        raise LineError("LINE_ENDING", "a CR inside the line", at, around)
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            invalid = data[error.start : error.start + 8]
            raise LineError("ENCODING", "not UTF-8", error.start, invalid) from None


def _parse_int(digits: bytes) -> int:
    """Return a whole number; very many digits give a number beyond every range."""
    body = digits.lstrip(b"-").lstrip(b"0") or b"0"
    number = int(body) if len(body) <= MAX_DIGITS else 10**MAX_DIGITS
    return -number if digits.startswith(b"-") else number


def _escape(text: bytes) -> str:
    """Return bytes of the input for a message: short and escaped."""
    from_bytes = text[:60].decode("utf-8", "backslashreplace")
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in from_bytes
    )
