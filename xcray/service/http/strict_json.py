"""Strict JSON decoding: input that two decoders could read differently is rejected.

Rejected, with position: bytes that are not UTF-8, byte order marks, NaN and infinities, numbers too
large for a float, duplicate keys, lone surrogates, nesting and objects beyond a limit. Integers of
more than 300 digits become +-10**300, which no field accepts.

Short bodies are decoded by msgspec, which is ten times as fast, and again by the slow decoder if
that could differ. The only input that msgspec accepts and the rules above do not are duplicate
keys, too many keys, too deep nesting and very large integers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np

from xcray.errors import InputError, excerpt

MAX_DEPTH = 32
# Per object. No valid request has more, and each wrong key would cost an error entry.
MAX_KEYS = 64
# Stands for integers of more digits than any field accepts; their conversion is quadratic.
HUGE_INTEGER = 10**300
MAX_FAST_BYTES = 65_536
_MAX_FAST_INTEGER = 2**63

_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_QUOTE = ord('"')


class BadJSON(InputError):
    """A body that is not strict JSON."""

    code = "JSON_INVALID"


def loads(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises BadJSON with code EMPTY_BODY, ENCODING, JSON_INVALID, JSON_DEPTH, JSON_KEYS,
    JSON_DUP_KEY, NOT_FINITE or UNICODE, with line and column if known.
    """
    fast = _loads_fast(body)
    if fast is not None:
        return fast[0]
    text = _decode(body)
    _check_depth(body)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_from_pairs,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        raise BadJSON(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            line=error.lineno,
            column=error.colno,
        ) from None
    if b"\\u" in body:
        _check_surrogates(value)
    return value


def _loads_fast(body: bytes) -> tuple[Any] | None:
    """Return the value of a JSON text, or None if it is to be decoded slowly.

    Two quotation marks per string and key are counted: if the body has more, a key was dropped.
    """
    if len(body) > MAX_FAST_BYTES or b"\\" in body:
        return None
    try:
        value = msgspec.json.decode(body)
        is_lossless = body.count(b'"') == 2 * _count_strings([value], MAX_DEPTH + 1)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError):
        return None
    return (value,) if is_lossless else None


def _count_strings(value: Any, depth: int) -> int:
    """Return the number of strings and keys in an array or object.

    Raises OverflowError for more than `depth` levels, too many keys or very large integers.
    """
    count, elements = 0, value
    if isinstance(value, dict):
        count, elements = len(value), value.values()
    if depth == 0 or count > MAX_KEYS:
        raise OverflowError("levels or keys")
    for each in elements:
        kind = type(each)
        if kind is str:
            count += 1
        elif kind is dict or kind is list:
            count += _count_strings(each, depth - 1)
        elif kind is int and not -_MAX_FAST_INTEGER < each < _MAX_FAST_INTEGER:
            raise OverflowError("an integer")
    return count


def _decode(body: bytes) -> str:
    """Return the text of a UTF-8 body without byte order mark."""
    if not body.strip(b" \t\r\n"):
        raise BadJSON("the body is empty where a JSON object was expected", code="EMPTY_BODY")
    if body.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in body[:4]:
        raise BadJSON("the body looks like UTF-16 or UTF-32: send JSON as UTF-8", code="ENCODING")
    if body.startswith(b"\xef\xbb\xbf"):
        raise BadJSON(
            "the body begins with a byte order mark: send UTF-8 without it", code="ENCODING"
        )
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start} of the body"
        raise BadJSON(
            f"{where} is not UTF-8: send JSON as UTF-8", code="ENCODING", offset=error.start
        ) from None


def _check_depth(body: bytes) -> None:
    """Raise BadJSON if the brackets outside strings nest deeper than MAX_DEPTH.

    Array operations only, since a body can have megabytes, and a loop or a regular expression would
    hold the interpreter lock for seconds. A pair of backslashes, or a backslash and a quotation
    mark, is removed first, so that each remaining mark begins or ends a string.
    """
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(body, np.uint8)
    marks = characters[(_STEP[characters] != 0) | (characters == _QUOTE)]
    in_string = np.cumsum(marks == _QUOTE, dtype=np.int32) & 1
    depth = np.cumsum(_STEP[marks] * (1 - in_string), dtype=np.int32)
    if int(depth.max(initial=0)) > MAX_DEPTH:
        raise BadJSON(f"the body nests deeper than {MAX_DEPTH} levels", code="JSON_DEPTH")


def _object_from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises BadJSON for too many or duplicate keys."""
    if len(pairs) > MAX_KEYS:
        raise BadJSON(f"an object has {len(pairs):,} keys, more than {MAX_KEYS}", code="JSON_KEYS")
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _value in pairs:
            if key in seen:
                raise BadJSON(
                    f"key {excerpt(key)!r} is given twice in one object", code="JSON_DUP_KEY"
                )
            seen.add(key)
    return out


def _reject_constant(name: str) -> Any:
    """Raise BadJSON for NaN and infinities."""
    raise BadJSON(
        f"{name} is not a finite number: leave the entry out or send a number", code="NOT_FINITE"
    )


def _parse_float(digits: str) -> float:
    """Return a number. Raises BadJSON if it does not fit a float."""
    value = float(digits)
    if not math.isfinite(value):
        raise BadJSON(f"{excerpt(digits)} is too large for a number of 64 bits", code="NOT_FINITE")
    return value


def _parse_int(digits: str) -> int:
    """Return an integer, or +-HUGE_INTEGER for more than 300 digits."""
    if len(digits) > 300:
        return -HUGE_INTEGER if digits[0] == "-" else HUGE_INTEGER
    return int(digits)


def _check_surrogates(value: Any) -> None:
    """Raise BadJSON if a string has a lone surrogate.

    Escapes can produce one, and it cannot be encoded again.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        half = "half a surrogate pair (\\ud800 to \\udfff alone)"
        raise BadJSON(f"a string holds {half}: send whole characters", code="UNICODE") from None
