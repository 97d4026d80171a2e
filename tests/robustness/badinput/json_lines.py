"""JSON lines: additional rows of the catalogue."""

from __future__ import annotations

from tests.robustness.badinput.case import Bad, Good

BAD = [
    Bad("json", b'{"text": "a", "labels": ["x"]}\n{"text": }\n', "JSON_INVALID", 2, 10),
    Bad("json-after", b'{"text": "a", "labels": ["x"]} 1\n', "JSON_INVALID", 1, 32),
    Bad("json-nan", b'{"text": "a", "labels": NaN}\n', "JSON_INVALID", 1),
    Bad("json-dup", b'{"text": "a", "text": "b", "labels": []}\n', "JSON_DUP_KEY", 1),
    Bad("json-deep", b'{"text": ' + b"[" * 100_000 + b"\n", "JSON_DEPTH", 1),
    Bad("json-digits", b'{"text": "a", "labels": [' + b"9" * 5000 + b"]}\n", "JSON_INVALID", 1),
    Bad("json-array", b'[{"text": "a"}]\n', "FORMAT_MISMATCH", 1, hint="jq"),
    Bad("json-missing", b'{"words": "a", "labels": []}\n', "FIELD_MISSING", 1, says="words"),
    Bad("json-type", b'{"text": 1, "labels": []}\n', "FIELD_TYPE", 1),
    Bad("json-labels", b'{"text": "a", "labels": [1.5]}\n', "FIELD_TYPE", 1),
    Bad(
        "json-cr",
        b'{"text": "a", "labels": []}\r{"text": "b", "labels": []}\n',
        "LINE_ENDING",
        1,
        28,
    ),
    Bad("C13-label", b'{"text": "a", "labels": ["\\ud800"]}\n', "ENCODING", 1),
]

GOOD = [
    Good(
        "C13-json",
        b'{"text": "cafe\\u0301 zero\\u200bwidth \\ud800half", "labels": ["e\\u0301"]}\n'
        b'{"text": "caf\\u00e9 zerowidth half", "labels": ["\\u00e9"]}\n',
        labels=["\u00e9"],
        warnings={},
    ),
    Good(
        "numbers as labels",
        b'{"text": "some words", "labels": [10, "9"]}\n',
        labels=["9", "10"],
        warnings={},
    ),
]
