"""Rows J1 to J30: JSON requests for predictions, and their HTTP framing."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any, NamedTuple

JSON = "application/json"
PREDICT = "/v1/models/text:predict"
VECTOR = "/v1/models/vector:predict"
MARK = "c4n4ry"  # part of some requests; must not occur in a reply


def body(instance: Any, **more: Any) -> bytes:
    return json.dumps({"instances": [instance], **more}).encode()


def row(indices: str = "[1, 2]", values: str = "[1.0, 0.5]") -> bytes:
    """Return a body with one sparse instance; the lists are inserted unchanged."""
    return f'{{"instances": [{{"indices": {indices}, "values": {values}}}]}}'.encode()


class Case(NamedTuple):
    """One row: the request and the expected reply."""

    id: str
    content: bytes
    status: int
    code: str
    path: str = VECTOR
    headers: dict[str, str] = {"Content-Type": JSON}  # noqa: RUF012 - never changed


CASES = [
    Case("J1 empty", b"", 400, "EMPTY_BODY"),
    Case("J1 blank", b" \n", 400, "EMPTY_BODY"),
    Case("J2 null", b"null", 422, "BODY_TYPE"),
    Case("J2 array", b"[]", 422, "BODY_TYPE"),
    Case("J2 string", b'"x"', 422, "BODY_TYPE"),
    Case("J2 number", b"5", 422, "BODY_TYPE"),
    Case("J2 instances no list", b'{"instances": "' + MARK.encode() + b'"}', 422, "TYPE"),
    Case("J2 instance no object", b'{"instances": [[1]]}', 422, "TYPE"),
    Case("J3 not JSON", b'{"instances": [}', 400, "JSON_INVALID"),
    Case("J3 cut", b'{"instances": [{"text": "a', 400, "JSON_INVALID"),
    Case("J3 trailing", body({"text": "a"}) + b" x", 400, "JSON_INVALID"),
    Case("J3 trailing object", body({"text": "a"}) * 2, 400, "JSON_INVALID"),
    Case("J4 NaN", row(values="[NaN, 1]"), 422, "NOT_FINITE"),
    Case("J4 Infinity", row(values="[Infinity, 1]"), 422, "NOT_FINITE"),
    Case("J4 -Infinity", row(values="[-Infinity, 1]"), 422, "NOT_FINITE"),
    Case("J5 1e400", row(values="[1e400, 1]"), 422, "NOT_FINITE"),
    Case("J5 above float32", row(values="[1e39, 1]"), 422, "NOT_FINITE"),
    Case("J6 string nan", row(values='["nan", 1]'), 422, "TYPE"),
    Case("J6 string number", row(values='["1.5", 1]'), 422, "TYPE"),
    Case("J6 string index", row(indices='["1", 2]'), 422, "TYPE"),
    Case("J7 true as index", row(indices="[true, 2]"), 422, "TYPE"),
    Case("J7 true as value", row(values="[true, 2]"), 422, "TYPE"),
    Case("J8 1.5 as index", row(indices="[1.5, 2]"), 422, "TYPE"),
    Case("J9 negative", row(indices="[-1, 2]"), 422, "INDEX_RANGE"),
    Case("J9 10^30", row(indices="[1" + "0" * 30 + ", 2]"), 422, "INDEX_RANGE"),
    Case("J10 index = features", row(indices="[1, 6]"), 422, "INDEX_RANGE"),
    Case("J11 lengths", row(values="[1.0]"), 422, "ROW_LENGTHS"),
    Case("J12 twice", row(indices="[2, 2]"), 422, "DUP_INDEX"),
    Case("J13 k=0", body({"text": "a"}, top_k=0), 422, "K_RANGE", PREDICT),
    Case("J13 k=-1", body({"text": "a"}, top_k=-1), 422, "K_RANGE", PREDICT),
    Case("J13 k=10^9", body({"text": "a"}, top_k=10**9), 422, "K_RANGE", PREDICT),
    Case(
        "J13 k of 5,000 digits",
        b'{"instances": [{"text": "a"}], "top_k": ' + b"9" * 5000 + b"}",
        422,
        "K_RANGE",
        PREDICT,
    ),
    Case("J13 k=5.5", body({"text": "a"}, top_k=5.5), 422, "TYPE", PREDICT),
    Case("J14 unknown field", body({"text": "a"}, **{MARK: 1}), 422, "UNKNOWN_FIELD", PREDICT),
    Case("J14 unknown in instance", body({"text": "a", "words": 1}), 422, "UNKNOWN_FIELD", PREDICT),
    Case(
        "J15 key twice",
        b'{"instances": [{"text": "a", "text": "b"}]}',
        400,
        "JSON_DUP_KEY",
        PREDICT,
    ),
    Case(
        "J15 top key twice",
        b'{"top_k": 1, "instances": [{"text": "a"}], "top_k": 2}',
        400,
        "JSON_DUP_KEY",
        PREDICT,
    ),
    Case(
        "J15 many keys",
        json.dumps(dict.fromkeys(map(str, range(65)))).encode(),
        400,
        "JSON_KEYS",
        PREDICT,
    ),
    Case("J16 5,000 digits", row(indices="[" + "7" * 5000 + ", 1]"), 422, "INDEX_RANGE"),
    Case("J16 -5,000 digits", row(indices="[-" + "7" * 5000 + ", 1]"), 422, "INDEX_RANGE"),
    Case("J16 value of 5,000 digits", row(values="[" + "7" * 5000 + ", 1]"), 422, "NOT_FINITE"),
    Case("J17 depth", b"[" * 100_000, 400, "JSON_DEPTH"),
    Case("J17 depth of objects", b'{"a":' * 100_000, 400, "JSON_DEPTH"),
    Case("J18 lone surrogate", b'{"instances": [{"text": "\\ud800"}]}', 422, "UNICODE", PREDICT),
    Case(
        "J18 lone surrogate as key",
        b'{"instances": [{"text": "a"}], "\\udfff": 1}',
        422,
        "UNICODE",
        PREDICT,
    ),
    Case("J19 bad UTF-8", b'{"instances": [{"text": "\xff"}]}', 400, "ENCODING", PREDICT),
    Case("J19 overlong", b'{"instances": [{"text": "\xc0\xaf"}]}', 400, "ENCODING", PREDICT),
    Case(
        "J19 encoded surrogate",
        b'{"instances": [{"text": "\xed\xa0\x80"}]}',
        400,
        "ENCODING",
        PREDICT,
    ),
    Case("J20 UTF-16", '{"instances": [{"text": "a"}]}'.encode("utf-16"), 400, "ENCODING", PREDICT),
    Case(
        "J20 UTF-16 without mark",
        '{"instances": [{"text": "a"}]}'.encode("utf-16-le"),
        400,
        "ENCODING",
        PREDICT,
    ),
    Case("J20 byte order mark", b"\xef\xbb\xbf" + body({"text": "a"}), 400, "ENCODING", PREDICT),
    Case("J21 no type", body({"text": MARK}), 415, "CONTENT_TYPE", PREDICT, {}),
    Case(
        "J21 text/plain",
        body({"text": MARK}),
        415,
        "CONTENT_TYPE",
        PREDICT,
        {"Content-Type": "text/plain"},
    ),
    Case(
        "J21 form",
        b"a=b",
        415,
        "CONTENT_TYPE",
        PREDICT,
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    Case(
        "J21 charset",
        body({"text": "a"}),
        415,
        "CONTENT_TYPE",
        PREDICT,
        {"Content-Type": "application/json; charset=latin-1"},
    ),
    *(
        Case(
            f"J22 {name}",
            content,
            status,
            code,
            PREDICT,
            {"Content-Type": JSON, "Content-Encoding": encoding},
        )
        for name, content, status, code, encoding in (
            ("brotli", b"\x1f\x8b", 415, "CONTENT_ENCODING", "br"),
            ("gzip cut", gzip.compress(b"{}")[:-1], 400, "CONTENT_DAMAGED", "gzip"),
            ("gzip twice", 2 * gzip.compress(b"{}"), 400, "CONTENT_DAMAGED", "gzip"),
            ("no gzip", b"{}", 400, "CONTENT_DAMAGED", "gzip"),
            ("gzip bomb", gzip.compress(bytes(1 << 26)), 413, "BODY_TOO_LARGE", "gzip"),
            ("gzip of bad JSON", gzip.compress(b"{"), 400, "JSON_INVALID", "gzip"),
        )
    ),
    Case("J23 none", b'{"instances": []}', 422, "INSTANCES", PREDICT),
    Case(
        "J23 too many",
        json.dumps({"instances": [{"text": "a"}] * 65}).encode(),
        422,
        "INSTANCES",
        PREDICT,
    ),
    Case("J23 too large", body({"text": "a" * 1_000_000}), 413, "BODY_TOO_LARGE", PREDICT),
    Case("J24 dense, wrong length", body({"values": [1.0, 2.0]}), 422, "DIM"),
    Case("J24 nothing in it", body({}), 422, "ROW_KIND"),
    Case(
        "J24 text and row",
        body({"text": "a", "indices": [1], "values": [1.0]}),
        422,
        "ROW_KIND",
        PREDICT,
    ),
    Case("J24 text for vectors", body({"text": "a"}), 422, "NO_TEXT"),
    Case("J25 unknown", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/missing:predict"),
    Case("J25 unknown version", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/text:9:predict"),
    Case(
        "J25 unknown alias", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/text@prod:predict"
    ),
    Case("J25 corrupt", body({"text": "a"}), 503, "CORRUPT", "/v1/models/broken:predict"),
    Case("J25 bad name", body({"text": "a"}), 422, "BAD_NAME", "/v1/models/Text:predict"),
    Case("J28 trailing slash", body({"text": "a"}), 404, "NO_SUCH_PATH", PREDICT + "/"),
    Case("J28 double slash", body({"text": "a"}), 404, "NO_SUCH_PATH", "/v1//models/text:predict"),
    Case("J28 %2f", body({"text": "a"}), 404, "NO_SUCH_PATH", "/v1/models/a%2ftext:predict"),
    Case(
        "J28 %2e%2e%2f",
        body({"text": "a"}),
        404,
        "NO_SUCH_PATH",
        "/v1/models/%2e%2e%2ftext:predict",
    ),
    Case("J26 echo of a type", body({"text": {MARK: [MARK]}}), 422, "TYPE", PREDICT),
    Case(
        "J26 echo of JSON",
        b'{"instances": [{"text": "' + MARK.encode() + b'"}]',
        400,
        "JSON_INVALID",
        PREDICT,
    ),
    Case("J28 NUL", body({"text": "a"}), 422, "BAD_NAME", "/v1/models/te%00xt:predict"),
    Case("J29 query", body({"text": "a"}), 422, "UNKNOWN_FIELD", f"{PREDICT}?top_k=1"),
    Case("J30 NaN", body({"text": "a"}, min_score=math.nan), 422, "NOT_FINITE", PREDICT),
    Case("J30 1e400", b'{"instances": [{}], "min_score": 1e400}', 422, "NOT_FINITE", PREDICT),
    Case("J30 above 1", body({"text": "a"}, min_probability=1.5), 422, "RANGE", PREDICT),
]

METHODS = [
    ("GET", PREDICT, 405),
    ("DELETE", PREDICT, 405),
    ("PATCH", "/v1/jobs", 405),
    ("POST", "/healthz", 405),
    ("GET", "/v1/jobs/", 404),
    ("GET", "/v3/models", 404),
    ("GET", "/static/..%2fapp.py", 404),
    ("GET", "/static/app.py", 404),
]
HEAD = b"POST /v1/models/text:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
# "CL small": the remaining bytes are another, invalid request.
FRAMES = {
    "CL+TE": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "CL<0": (HEAD + b"Content-Length: -1\r\n\r\n", {400}),
    "CL float": (HEAD + b"Content-Length: 1e1\r\n\r\n", {400}),
    "CL twice": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", {400}),
    "CL small": (
        HEAD + b"Content-Length: 2\r\n\r\n{}GARBAGE\r\n\r\n",
        {422},
    ),
    "20 KB": (HEAD + b"X-Big: " + b"a" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}", {431}),
    "100 KB": (HEAD + b"X-Big: " + b"a" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}", {400, 431}),
    "1,000 headers": (
        HEAD + b"".join(b"X-%d: a\r\n" % i for i in range(1000)) + b"Content-Length: 2\r\n\r\n{}",
        {431},
    ),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "evil host": (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {400}),
    "TLS": (b"\x16\x03\x01\x02\x00", {400}),
}
