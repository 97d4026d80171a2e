"""The fast path of the svmlight reader: lines of the plain grammar, from bytes to arrays.

    line    = [label *("," label)] *(blank index ":" value) [blanks] [CR] LF
    value   = ["+" | "-"] digits ["." digits] [("e" | "E") ["+" | "-"] digits]

A line is accepted only if it is certainly valid: indices ascend, labels do not repeat, all numbers
are in range. At any other line the parser stops and returns its position. The full parser
(`data/readers/svmlight.py`) then reads that line or reports its error. Values that a product of two
exact doubles cannot represent with correct rounding are deferred to Python's float, token by token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Int32, Int64
from xcray.kernels.inner import inner

TAB, LF, CR, BLANK = 9, 10, 13, 32
PLUS, COMMA, MINUS, DOT, COLON = 43, 44, 45, 46, 58
ZERO, NINE, UPPER_E, LOWER_E = 48, 57, 69, 101
MAX_EXACT_INTEGER = 1 << 53  # integers up to here are exact doubles
POWERS_OF_TEN = 10.0 ** np.arange(23)  # exact doubles too
MAX_DECIMAL = 38  # a value below 1e38 is finite in float32
# longer label lists must ascend; shorter ones are sorted by insertion
MAX_UNSORTED_LABELS = 64


class ParsedRows(NamedTuple):
    """Output buffers for the rows of one block.

    x_ptr, y_ptr: (rows + 1,); x_index, x_value: (features,); y_index: (labels,); deferred:
    (features, 3), for each deferred value its position in x_value, and start and end of its token
    in the text.
    """

    x_ptr: Int64
    x_index: Int32
    x_value: Float32
    y_ptr: Int64
    y_index: Int32
    deferred: Int64


class LineBounds(NamedTuple):
    """Limits of a line: number of the first feature (0 or 1), D, K, and whether it has labels."""

    base: int
    n_features: int
    n_labels: int
    labels: bool


@numba.njit(nogil=True, cache=True)
def capacity(text: Any) -> tuple[int, int, int]:
    """Return the numbers of line feeds, colons and commas of a text (uint8).

    They are upper bounds on its rows, features and labels.
    """
    lines = colons = commas = 0
    for c in text:
        lines += c == LF
        colons += c == COLON
        commas += c == COMMA
    return lines, colons, commas


@inner(inline="always")
def _is_digit(c: int) -> bool:
    """Return whether a byte is 0-9."""
    return ZERO <= c <= NINE


@inner()
def _integer(text: Any, pos: int) -> tuple[int, int]:
    """Return an integer of 1 to 10 digits and its end; -1 if there is none."""
    start, number = pos, 0
    while _is_digit(text[pos]) and pos - start <= 10:
        number = number * 10 + (text[pos] - ZERO)
        pos += 1
    return (number if 0 < pos - start <= 10 else -1), pos


@inner()
def _put_label(labels: Int32, first: int, last: int, label: int) -> bool:
    """Insert a label into the ascending run first..last-1.

    Returns False if it repeats, or if sorting would be too slow.
    """
    k = last
    while k > first and labels[k - 1] >= label:
        if labels[k - 1] == label or last - first > MAX_UNSORTED_LABELS:
            return False
        labels[k] = labels[k - 1]
        k -= 1
    labels[k] = label
    return True


@inner()
def _exponent(text: Any, pos: int) -> tuple[int, int]:
    """Return the exponent after the e, of at most 4 digits, and its end; -1 if invalid."""
    sign = 1
    if text[pos] == PLUS or text[pos] == MINUS:
        sign = -1 if text[pos] == MINUS else 1
        pos += 1
    number, end = _integer(text, pos)
    if number < 0 or end - pos > 4:
        return 0, -1
    return sign * number, end


@numba.njit(nogil=True, cache=True)
def _value(text: Any, pos: int) -> tuple[float, int, bool]:
    """Return a decimal number, its end (-1: invalid or too large), and whether it is exact."""
    negative = text[pos] == MINUS
    if negative or text[pos] == PLUS:
        pos += 1
    mantissa, significant, whole, fraction, digits = 0, 0, 0, 0, 0
    point = False
    while _is_digit(text[pos]) or (text[pos] == DOT and not point):
        if text[pos] == DOT:
            point = True
        else:
            digits += 1
            fraction += point
            if significant > 0 or text[pos] != ZERO:
                significant += 1
                whole += not point
            if significant <= 18:
                mantissa = mantissa * 10 + (text[pos] - ZERO)
        pos += 1
    if digits == 0:
        return 0.0, -1, False
    exponent = 0
    if text[pos] == LOWER_E or text[pos] == UPPER_E:
        exponent, pos = _exponent(text, pos + 1)
    if pos < 0 or whole + exponent > MAX_DECIMAL:
        return 0.0, -1, False
    power = exponent - fraction
    if mantissa > MAX_EXACT_INTEGER or abs(power) > 22:  # 18 digits and more are always above EXACT
        return 0.0, pos, False
    magnitude = mantissa * POWERS_OF_TEN[power] if power >= 0 else mantissa / POWERS_OF_TEN[-power]
    return (-magnitude if negative else magnitude), pos, True


@inner()
def _line(
    text: Any, pos: int, row: int, n_deferred: int, out: ParsedRows, bounds: LineBounds
) -> tuple[int, int]:
    """Parse one line into row `row`.

    Returns the start of the next line (-1: not the plain grammar), and the number of deferred
    values.
    """
    x, y = out.x_ptr[row], out.y_ptr[row]
    need_blank = bounds.labels
    if bounds.labels and _is_digit(text[pos]):
        while True:
            label, pos = _integer(text, pos)
            if (
                label < 0
                or label >= bounds.n_labels
                or not _put_label(out.y_index, out.y_ptr[row], y, label)
            ):
                return -1, n_deferred
            y += 1
            if text[pos] != COMMA:
                break
            pos += 1
    previous = -1
    while True:
        start = pos
        while text[pos] == BLANK or text[pos] == TAB:
            pos += 1
        if text[pos] == LF or (text[pos] == CR and text[pos + 1] == LF):
            break
        index, end = _integer(text, pos)
        index -= bounds.base
        if (
            (pos == start and need_blank)
            or index <= previous
            or index >= bounds.n_features
            or text[end] != COLON
        ):
            return -1, n_deferred
        value, pos, exact = _value(text, end + 1)
        if pos < 0 or not (
            text[pos] == BLANK or text[pos] == LF or text[pos] == TAB or text[pos] == CR
        ):
            return -1, n_deferred
        if not exact:
            (
                out.deferred[n_deferred, 0],
                out.deferred[n_deferred, 1],
                out.deferred[n_deferred, 2],
            ) = x, end + 1, pos
            n_deferred += 1
        out.x_index[x], out.x_value[x] = index, value
        x += 1
        previous, need_blank = index, True
    if x == out.x_ptr[row] and y == out.y_ptr[row]:
        return -1, n_deferred  # a blank line is not a row
    out.x_ptr[row + 1], out.y_ptr[row + 1] = x, y
    return pos + (2 if text[pos] == CR else 1), n_deferred


@numba.njit(nogil=True, cache=True)
def parse_lines(
    text: Any,
    pos: int,
    row: int,
    last_row: int,
    n_deferred: int,
    out: ParsedRows,
    bounds: LineBounds,
) -> tuple[int, int, int]:
    """Parse lines of `text` from `pos` on into rows `row`, `row` + 1, ... of `out`.

    text: (n,) uint8, read-only, ending with LF. n_deferred: number of deferred values so far.
    Returns the position where it stopped (the end, a line outside the plain grammar, or the first
    line after row `last_row` - 1), the next row, and the number of deferred values.
    """
    while pos < len(text) and row < last_row:
        end, left = _line(text, pos, row, n_deferred, out, bounds)
        if end < 0:
            break
        pos, row, n_deferred = end, row + 1, left
    return pos, row, n_deferred
