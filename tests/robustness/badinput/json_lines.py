"""JSON lines: additional rows of the catalogue."""

from __future__ import annotations

from tests.robustness.badinput.case import LFS, Bad, Good

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
    Bad("json-objects", b'{"text": "a", "labels": [{"uri": "u"}]}\n', "FIELD_TYPE", 1, hint=".uri"),
    Bad(
        "json-key",
        b'{"text": "a", "labels": [{"uri": "u"}]}\n',
        "FIELD_MISSING",
        1,
        says="no field 'label'",
        options={"label_field": "labels.label"},
    ),
    Bad("json-indicators", b'{"text": "a", "labels": [0, 1, 0, 1]}\n', "LABEL_INDICATORS", 1),
    Bad("json-soft", b'{"text": "a", "labels": [0.9]}\n', "FIELD_TYPE", 1),
    Bad("json-fasttext", b"__label__a words\n", "FORMAT_MISMATCH", 1, hint="fasttext"),
    Bad("json-lfs", LFS, "FORMAT_MISMATCH", hint="git lfs pull"),
    Bad(
        "json-names",
        b'{"text": "a", "labels": ["x"]}\n',
        "FORMAT_MISMATCH",
        1,
        file="names.jsonl",
        hint="one name per line",
        options={"label_names_file": "names.jsonl"},
        more={"names.jsonl": b'{"title": "x"}\n'},
    ),
    Bad("C13-label", b'{"text": "a", "labels": ["\\ud800"]}\n', "ENCODING", 1),
]

GOOD = [
    Good(
        "objects as labels",
        b'{"text": "some words", "subjects": [{"uri": "u:2"}, {"uri": "u:1"}]}\n',
        labels=["u:1", "u:2"],
        options={"label_field": "subjects.uri"},
    ),
    Good(
        "a field with a point in its name",
        b'{"text": "some words", "a.b": ["x"], "a": [{"b": "y"}]}\n',
        labels=["x"],
        options={"label_field": "a.b"},
    ),
    Good(
        "columns of labels",
        b'{"text": "some words", "a": 1, "b": false}\n{"text": "more", "b": "1", "a": 0.0}\n',
        labels=["a", "b"],
        options={"label_columns": ["a", "b"]},
    ),
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
