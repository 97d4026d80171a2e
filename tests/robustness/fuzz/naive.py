"""Short reference readers for docs/formats.md: slow and strict.

A reader returns a list of rows or raises Refused.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

import numpy as np

MOST = 1 << 25  # default limit of features and of labels
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WHOLE = re.compile(r"[0-9]+")


class Refused(Exception):
    """The file does not have the format."""


def lines_of(data: bytes) -> list[str]:
    """Return the lines of a text file without their line ends."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise Refused("encoding") from None
    if "\0" in text:
        raise Refused("zero byte")
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def without_comments(data: bytes) -> bytes:
    """Replace comment lines by `#`; readers skip them, so they need not be valid text."""
    return b"\n".join(
        b"#" if line.strip(b" \t\r").startswith(b"#") else line for line in data.split(b"\n")
    )


def svmlight(
    data: bytes, base: int = 1, n_features: int = MOST, n_labels: int = MOST, n_rows: int = 0
) -> list[Any]:
    """Return the rows of an svmlight file: (labels, {index: value}); n_rows: of a header."""
    rows, blank = [], False
    for line in lines_of(without_comments(data)):
        if "\r" in line and not line.strip(" \t\r").startswith("#") and line.strip(" \t\r"):
            raise Refused("CR")
        bare = line.strip(" \t\r")
        if bare.startswith("#"):
            continue
        if not bare and len(rows) < n_rows:
            rows.append(([], {}))
            continue
        if not bare:
            blank = True
            continue
        if blank:
            raise Refused("blank line between rows")
        rows.append(_svmlight_row(line, base, n_features, n_labels))
    if not rows:
        raise Refused("no rows")
    return rows


def _svmlight_row(line: str, base: int, n_features: int, n_labels: int) -> Any:
    """Parse one row: labels, then pairs, then an optional comment."""
    tokens = re.findall(r"[^ \t]+", line)
    labels: set[int] = set()
    if not line.startswith((" ", "\t")):
        parts = tokens.pop(0).split(",")
        if len(parts) > 2 and all(re.fullmatch(r"0*[01]", part) for part in parts):
            raise Refused("a row of a 0/1 matrix")
        for part in parts:
            if (
                not WHOLE.fullmatch(part)
                or not part.isascii()
                or len(part.lstrip("0")) > 18
                or int(part[-18:]) >= n_labels
            ):
                raise Refused(f"label {part!r}")
            labels.add(int(part[-18:]))
    pairs: dict[int, float] = {}
    for token in tokens:
        if token.startswith("#"):
            break
        index, colon, value = token.partition(":")
        if (
            not colon
            or not WHOLE.fullmatch(index)
            or not index.isascii()
            or len(index.lstrip("0")) > 18
        ):
            raise Refused(f"index {token!r}")
        number = int(index[-18:]) - base
        if (
            not 0 <= number < n_features
            or number in pairs
            or not DECIMAL.fullmatch(value)
            or not value.isascii()
        ):
            raise Refused(f"pair {token!r}")
        with np.errstate(over="ignore"):
            pairs[number] = float(np.float32(float(value)))
        if not math.isfinite(pairs[number]):
            raise Refused("not finite")
    return sorted(labels), pairs


def xc(data: bytes) -> list[Any]:
    """Return the rows of an XC file; the header gives their number and the dimensions."""
    first, _, rest = data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    words = re.findall(rb"[^ \t]+", first.removesuffix(b"\r"))
    if len(words) != 3 or not all(re.fullmatch(rb"\+?[0-9]{1,40}", word) for word in words):
        raise Refused("header")
    n, d, k = (int(word) for word in words)
    if not (1 <= n <= 10**9 and 1 <= d <= MOST and 1 <= k <= MOST):
        raise Refused("sizes")
    rows = svmlight(rest, 0, d, k, n)
    if len(rows) != n:
        raise Refused("number of rows")
    return rows


def jsonl(data: bytes) -> list[Any]:
    """Return the documents of a JSON lines file: (text, labels)."""
    out = []
    for line in lines_of(data):
        if line.strip():
            try:
                document = json.loads(line, object_pairs_hook=_once, parse_constant=_no)
            except (ValueError, RecursionError):
                raise Refused("JSON") from None
            out.append(_document(document))
    return _some(out)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raise Refused if a name occurs twice."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refused("a name twice")
    return dict(pairs)


def _no(name: str) -> Any:
    """Refuse NaN and infinities."""
    raise Refused(name)


def _document(result: Any) -> Any:
    """Return the text and labels of a document.

    The text must not be blank. Labels are a list of strings and integers, or one string.
    """
    if (
        not isinstance(result, dict)
        or not isinstance(result.get("text"), str)
        or not result["text"].strip()
    ):
        raise Refused("text")
    labels = result.get("labels")
    if isinstance(labels, str):
        labels = _cell(labels)
    if not isinstance(labels, list) or any(type(label) not in (str, int) for label in labels):
        raise Refused("labels")
    names = [unicodedata.normalize("NFC", str(label)).strip() for label in labels]
    if len(names) > 2 and set(names) <= {"0", "1"}:
        raise Refused("a row of a 0/1 matrix")
    if "" in names or any(0xD800 <= ord(c) < 0xE000 for name in names for c in name):
        raise Refused("a label")
    return result["text"], tuple(dict.fromkeys(names))


def _cell(cell: str) -> Any:
    """Return the labels in a string: a list in text, tags, or parts between bars."""
    cell = cell.strip()
    if not cell:
        return []
    if cell[0] + cell[-1] in ("[]", "()", "{}") and len(cell) > 1:
        result = _list(cell)
        if result is not None:
            return result
    if len(cell) > 2 and cell[0] == cell[-1] == "|":
        cell = cell[1:-1]
    out = []
    for part in cell.split("|"):
        tags = part.strip().replace("><", ">\0<")
        tags = re.sub(r">\s+<", ">\0<", tags).split("\0")
        is_tag = [len(tag) > 2 and tag[0] + tag[-1] == "<>" for tag in tags]
        plain = all(not set("<>") & set(tag[1:-1]) for tag in tags)
        out += [tag[1:-1] for tag in tags] if all(is_tag) and plain else [part]
    return out


def _list(cell: str) -> Any:
    """Return the items of a list in the notation of JSON, Python or NumPy; None for other text."""
    if cell[0] == "[":
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            pass
    elif "'" not in cell and '"' not in cell:
        return None
    items: list[Any] = []
    rest = cell[1:-1].strip()
    while rest:
        rest = rest.strip()
        if rest[0] in "'\"":
            at = 1
            item = ""
            while at < len(rest) and rest[at] != rest[0]:
                if rest[at] == "\\":
                    at += 1
                    if rest[at : at + 1] not in ("'", '"', "\\"):
                        return None
                item += rest[at]
                at += 1
            if at >= len(rest):
                return None
            items.append(item)
            rest = rest[at + 1 :]
        else:
            digits = re.match(r"[0-9]+", rest)
            if not digits or len(digits[0]) > 18 or re.match(r"[\w.]", rest[digits.end() :]):
                return None
            items.append(int(digits[0]))
            rest = rest[digits.end() :]
        rest = rest.strip().removeprefix(",")
    return items


def fasttext(data: bytes) -> list[Any]:
    """Return the documents of a file of fastText: (text, labels)."""
    out = []
    for line in lines_of(data):
        words = line.split()
        if words:
            text = " ".join(word for word in words if not word.startswith("__label__"))
            labels = [word[9:] for word in words if word.startswith("__label__")]
            out.append(_document({"text": text, "labels": labels}))
    return _some(out)


def csv(data: bytes, delimiter: str = ",", quoted: bool = True) -> list[Any]:
    """Return the documents of a table with a header."""
    rows = (
        _cells("\n".join(lines_of(data)), delimiter)
        if quoted
        else [line.split(delimiter) for line in lines_of(data) if line]
    )
    if not rows:
        raise Refused("no header")
    names = [name.strip() for name in rows[0]]
    if "" in names[1:] or len(set(names)) < len(names) or not {"text", "labels"} <= set(names):
        raise Refused("header")
    if any(len(row) != len(names) for row in rows):
        raise Refused("fields")
    return _some([_document(dict(zip(names, row, strict=True))) for row in rows[1:]])


def _cells(text: str, delimiter: str) -> list[list[str]]:
    """Parse RFC 4180 one character at a time; lines end with LF here, blank lines are skipped."""
    rows: list[list[str]] = []
    row: list[str] = []
    at, end = 0, len(text)
    while at < end:
        if not row and text[at] == "\n":
            at += 1
            continue
        cell, at = _quoted(text, at) if text[at] == '"' else _plain(text, at, delimiter)
        row.append(cell)
        while at < end and text[at] == delimiter:
            at += 1
            if at < end and text[at] == '"':
                cell, at = _quoted(text, at)
            else:
                cell, at = _plain(text, at, delimiter)
            row.append(cell)
        if at < end and text[at] != "\n":
            raise Refused("text after a quote")
        rows.append(row)
        row, at = [], at + 1
    return rows


def _plain(text: str, at: int, delimiter: str) -> tuple[str, int]:
    """Return a field without quotes and the position of its end."""
    stop = at
    while stop < len(text) and text[stop] not in (delimiter, "\n"):
        if text[stop] == '"':
            raise Refused("a quote inside")
        stop += 1
    return text[at:stop], stop


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return a quoted field and the position after it."""
    out, at = "", at + 1
    while at < len(text):
        if text[at] == '"':
            if text[at + 1 : at + 2] != '"':
                return out, at + 1
            at += 1
        out += text[at]
        at += 1
    raise Refused("never closed")


def _some(rows: list[Any]) -> list[Any]:
    """Return rows; raise Refused if there are none."""
    if not rows:
        raise Refused("no rows")
    return rows
