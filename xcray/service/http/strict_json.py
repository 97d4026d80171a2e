"""JSON read strictly: what two readers could understand differently is refused, with its position.

Refused: bytes that are not UTF-8, byte order marks, NaN and infinities, numbers too large for a float, keys given twice,
half surrogate pairs, nesting and objects beyond a limit. Integers of more than 300 digits become +-10**300, which no field admits.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from xcray.errors import InputError, excerpt

MAX_DEPTH = 32
MAX_KEYS = (
    64  # of one object; no request has so many, and each wrong one would cost an error of its own
)
HUGE = (
    10**300
)  # stands for integers of more digits than anybody means; converting those is quadratic

# A string up to its closing quote, or to the end of the data: always a match, so the scan is linear on hostile input.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1


class BadJSON(InputError):
    """A body that is not strict JSON."""

    code = "JSON_INVALID"


def loads(body: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text. Raises BadJSON with code EMPTY_BODY, ENCODING, JSON_INVALID, JSON_DEPTH, JSON_KEYS,
    JSON_DUP_KEY, NOT_FINITE or UNICODE, and with line and column where there is one.
    """
    text = _decode(body)
    _check_depth(body, max_depth)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_pairs,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
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


def _decode(body: bytes) -> str:
    """The text of a body in UTF-8 without a byte order mark."""
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


def _check_depth(body: bytes, limit: int) -> None:
    """Count brackets outside strings; vectorised, since a body may be megabytes."""
    marks = np.frombuffer(_STRING.sub(b"", body), np.uint8)
    if len(marks) and int(np.cumsum(_STEP[marks], dtype=np.int32).max()) > limit:
        raise BadJSON(f"the body nests deeper than {limit} levels", code="JSON_DEPTH")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are few and each given once."""
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


def _constant(name: str) -> Any:
    """NaN and infinities are no JSON."""
    raise BadJSON(
        f"{name} is not a finite number: leave the entry out or send a number", code="NOT_FINITE"
    )


def _float(digits: str) -> float:
    """A number that a float holds."""
    value = float(digits)
    if not math.isfinite(value):
        raise BadJSON(f"{excerpt(digits)} is too large for a number of 64 bits", code="NOT_FINITE")
    return value


def _int(digits: str) -> int:
    """An integer, or +-HUGE for more than 300 digits."""
    if len(digits) > 300:
        return -HUGE if digits[0] == "-" else HUGE
    return int(digits)


def _check_surrogates(value: Any) -> None:
    """Escapes may spell half a surrogate pair, which is no character and can't be written back."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        half = "half a surrogate pair (\\ud800 to \\udfff alone)"
        raise BadJSON(f"a string holds {half}: send whole characters", code="UNICODE") from None
