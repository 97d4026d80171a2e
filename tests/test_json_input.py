"""Rows J1 to J28 of the bad-input table for predictions: status and code, no echo, no path, no 5xx; and what is good passes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from live import LABELS, client_of, plain_model, raw, settings_for, text_model

from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.strict_json import HUGE, BadJSON, loads

JSON = "application/json"
PREDICT = "/v1/models/text:predict"
VECTOR = "/v1/models/vector:predict"
MARK = "c4n4ry"  # in what is sent; must not come back


class Place(NamedTuple):
    """A served app and where it keeps things."""

    http: httpx.Client
    home: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("json") / "home"
    app = create_app(settings_for(home, predict_body_bytes=1_000_000, max_instances=64, max_top_k=100))
    registry: Registry = app.state.rooms.registry
    text_model(home / "a")
    plain_model(home / "b")
    text_model(home / "c")
    for name, staged in (("text", "a"), ("vector", "b"), ("broken", "c")):
        registry.publish(name, home / staged)
    damage(registry.resolve("broken"))
    with client_of(app) as http:
        yield Place(http, home)


def damage(model: Path) -> None:
    """One byte of the weights is another; sizes stay."""
    path = model / "weights.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def body(instance: Any, **more: Any) -> bytes:
    return json.dumps({"instances": [instance], **more}).encode()


def row(indices: str = "[1, 2]", values: str = "[1.0, 0.5]") -> bytes:
    """A sparse instance, its lists written as given."""
    return f'{{"instances": [{{"indices": {indices}, "values": {values}}}]}}'.encode()


class Case(NamedTuple):
    """One row: what is sent, what must come back."""

    id: str
    content: bytes
    status: int
    code: str
    path: str = VECTOR
    headers: dict[str, str] = {"Content-Type": JSON}  # noqa: RUF012  # never changed


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
    Case("J8 1.0 as index", row(indices="[1.0, 2]"), 422, "TYPE"),
    Case("J9 negative", row(indices="[-1, 2]"), 422, "INDEX_RANGE"),
    Case("J9 10^30", row(indices="[1" + "0" * 30 + ", 2]"), 422, "INDEX_RANGE"),
    Case("J10 index = features", row(indices="[1, 6]"), 422, "INDEX_RANGE"),
    Case("J11 lengths", row(values="[1.0]"), 422, "ROW_LENGTHS"),
    Case("J12 twice", row(indices="[2, 2]"), 422, "DUP_INDEX"),
    Case("J13 k=0", body({"text": "a"}, top_k=0), 422, "K_RANGE", PREDICT),
    Case("J13 k=-1", body({"text": "a"}, top_k=-1), 422, "K_RANGE", PREDICT),
    Case("J13 k=10^9", body({"text": "a"}, top_k=10**9), 422, "K_RANGE", PREDICT),
    Case("J13 k of 5,000 digits", b'{"instances": [{"text": "a"}], "top_k": ' + b"9" * 5000 + b"}", 422, "K_RANGE", PREDICT),
    Case("J13 k=5.0", body({"text": "a"}, top_k=5.0), 422, "TYPE", PREDICT),
    Case("J14 unknown field", body({"text": "a"}, **{MARK: 1}), 422, "UNKNOWN_FIELD", PREDICT),
    Case("J14 unknown in instance", body({"text": "a", "words": 1}), 422, "UNKNOWN_FIELD", PREDICT),
    Case("J15 key twice", b'{"instances": [{"text": "a", "text": "b"}]}', 400, "JSON_DUP_KEY", PREDICT),
    Case("J15 top key twice", b'{"top_k": 1, "instances": [{"text": "a"}], "top_k": 2}', 400, "JSON_DUP_KEY", PREDICT),
    Case("J15 many keys", json.dumps(dict.fromkeys(map(str, range(65)))).encode(), 400, "JSON_KEYS", PREDICT),
    Case("J16 5,000 digits", row(indices="[" + "7" * 5000 + ", 1]"), 422, "INDEX_RANGE"),
    Case("J16 -5,000 digits", row(indices="[-" + "7" * 5000 + ", 1]"), 422, "INDEX_RANGE"),
    Case("J16 value of 5,000 digits", row(values="[" + "7" * 5000 + ", 1]"), 422, "NOT_FINITE"),
    Case("J17 depth", b"[" * 100_000, 400, "JSON_DEPTH"),
    Case("J17 depth of objects", b'{"a":' * 100_000, 400, "JSON_DEPTH"),
    Case("J18 lone surrogate", b'{"instances": [{"text": "\\ud800"}]}', 422, "UNICODE", PREDICT),
    Case("J18 lone surrogate as key", b'{"instances": [{"text": "a"}], "\\udfff": 1}', 422, "UNICODE", PREDICT),
    Case("J19 bad UTF-8", b'{"instances": [{"text": "\xff"}]}', 400, "ENCODING", PREDICT),
    Case("J19 overlong", b'{"instances": [{"text": "\xc0\xaf"}]}', 400, "ENCODING", PREDICT),
    Case("J19 encoded surrogate", b'{"instances": [{"text": "\xed\xa0\x80"}]}', 400, "ENCODING", PREDICT),
    Case("J20 UTF-16", '{"instances": [{"text": "a"}]}'.encode("utf-16"), 400, "ENCODING", PREDICT),
    Case("J20 UTF-16 without mark", '{"instances": [{"text": "a"}]}'.encode("utf-16-le"), 400, "ENCODING", PREDICT),
    Case("J20 byte order mark", b"\xef\xbb\xbf" + body({"text": "a"}), 400, "ENCODING", PREDICT),
    Case("J21 no type", body({"text": MARK}), 415, "CONTENT_TYPE", PREDICT, {}),
    Case("J21 text/plain", body({"text": MARK}), 415, "CONTENT_TYPE", PREDICT, {"Content-Type": "text/plain"}),
    Case("J21 form", b"a=b", 415, "CONTENT_TYPE", PREDICT, {"Content-Type": "application/x-www-form-urlencoded"}),
    Case("J21 charset", body({"text": "a"}), 415, "CONTENT_TYPE", PREDICT, {"Content-Type": "application/json; charset=latin-1"}),
    Case("J22 gzip", b"\x1f\x8b", 415, "CONTENT_ENCODING", PREDICT, {"Content-Type": JSON, "Content-Encoding": "gzip"}),
    Case("J23 none", b'{"instances": []}', 422, "INSTANCES", PREDICT),
    Case("J23 too many", json.dumps({"instances": [{"text": "a"}] * 65}).encode(), 422, "INSTANCES", PREDICT),
    Case("J23 too large", body({"text": "a" * 1_000_000}), 413, "BODY_TOO_LARGE", PREDICT),
    Case("J24 dense, wrong length", body({"values": [1.0, 2.0]}), 422, "DIM"),
    Case("J24 nothing in it", body({}), 422, "ROW_KIND"),
    Case("J24 text and row", body({"text": "a", "indices": [1], "values": [1.0]}), 422, "ROW_KIND", PREDICT),
    Case("J24 text for vectors", body({"text": "a"}), 422, "NO_TEXT"),
    Case("J25 unknown", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/nobody:predict"),
    Case("J25 unknown version", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/text:9:predict"),
    Case("J25 unknown alias", body({"text": "a"}), 404, "NOT_FOUND", "/v1/models/text@prod:predict"),
    Case("J25 corrupt", body({"text": "a"}), 503, "CORRUPT", "/v1/models/broken:predict"),
    Case("J25 bad name", body({"text": "a"}), 422, "BAD_NAME", "/v1/models/Text:predict"),
    Case("J28 trailing slash", body({"text": "a"}), 404, "NO_SUCH_PATH", PREDICT + "/"),
    Case("J28 double slash", body({"text": "a"}), 404, "NO_SUCH_PATH", "/v1//models/text:predict"),
    Case("J28 %2f", body({"text": "a"}), 404, "NO_SUCH_PATH", "/v1/models/a%2ftext:predict"),
    Case("J28 %2e%2e%2f", body({"text": "a"}), 404, "NO_SUCH_PATH", "/v1/models/%2e%2e%2ftext:predict"),
    Case("J28 NUL", body({"text": "a"}), 422, "BAD_NAME", "/v1/models/te%00xt:predict"),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_bad_input_is_refused_with_the_mend(place: Place, case: Case) -> None:
    answer = place.http.post(case.path, content=case.content, headers=case.headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (case.status, case.code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == case.status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert len(problem["detail"]) > 10
    assert "\n" not in problem["detail"]
    assert str(place.home) not in answer.text
    assert "Traceback" not in answer.text
    assert "input" not in problem
    assert len(answer.content) < 2_500
    if case.status == 503:
        assert int(answer.headers["retry-after"]) > 0


def test_places_are_told(place: Place) -> None:
    def problem(content: bytes) -> dict[str, Any]:
        return dict(place.http.post(VECTOR, content=content, headers={"Content-Type": JSON}).json())

    cut = problem(b'{"instances":\n [}')
    assert (cut["line"], cut["column"]) == (2, 3)
    two = problem(b'{"instances": [{"indices": [1], "values": [1.0]}, {"indices": [1, "x"], "values": [1.0, true]}]}')
    assert [entry["loc"] for entry in two["errors"]] == ["instances[1].indices[1]", "instances[1].values[1]"]
    assert two["detail"] == "instances[1].indices[1]: an integer was expected"
    third = problem(b'{"instances": [{"values": [1, 2, 3, 4, 5, 6]}, {"indices": [1], "values": []}]}')
    assert third["loc"] == "instances[1]"


def test_nothing_of_the_body_is_repeated(place: Place) -> None:
    for case in CASES:
        if MARK.encode() in case.content and case.code != "UNKNOWN_FIELD":  # a field's name is its place
            answer = place.http.post(case.path, content=case.content, headers=case.headers)
            assert MARK not in answer.text


def test_at_most_twenty_errors_are_listed_and_one_of_a_list(place: Place) -> None:
    bad = {"indices": [True] * 1000, "values": ["x"] * 1000, **{f"x{i}": 1 for i in range(50)}}
    answer = place.http.post(VECTOR, json={"instances": [bad] * 30}).json()
    assert (len(answer["errors"]), answer["count"]) == (20, 52)
    assert answer["errors"][0]["loc"] == "instances[0].indices[0]"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PREDICT, 405),
        ("DELETE", PREDICT, 405),
        ("PATCH", "/v1/jobs", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/static/..%2fapp.py", 404),
        ("GET", "/static/app.py", 404),
    ],
)
def test_j28_methods_and_paths(place: Place, method: str, path: str, status: int) -> None:
    answer = place.http.request(method, path)
    assert answer.status_code == status
    assert status == 404 or answer.headers["allow"]


HEAD = b"POST /v1/models/text:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "statuses"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        (HEAD + b"Content-Length: -1\r\n\r\n", {400}),
        (HEAD + b"Content-Length: 1e1\r\n\r\n", {400}),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", {400}),
        (HEAD + b"Content-Length: 2\r\n\r\n{}GARBAGE\r\n\r\n", {422}),  # what follows is another, bad request
        (HEAD + b"X-Big: " + b"a" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}", {431}),
        (HEAD + b"X-Big: " + b"a" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}", {400, 431}),
        (HEAD + b"".join(b"X-%d: a\r\n" % i for i in range(1000)) + b"Content-Length: 2\r\n\r\n{}", {431}),
        (b"GET / HTTP/1.1\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {400}),
        (b"\x16\x03\x01\x02\x00", {400}),
    ],
    ids=["CL+TE", "CL<0", "CL float", "CL twice", "CL small", "20 KB", "100 KB", "1,000 headers", "no host", "evil host", "TLS"],
)
def test_j27_framing(place: Place, request_bytes: bytes, statuses: set[int]) -> None:
    answer = raw(str(place.http.base_url), request_bytes)
    assert int(answer.split(b" ")[1]) in statuses, answer[:300]
    assert place.http.get("/healthz").status_code == 200


def test_j23_a_body_without_length_is_counted_as_it_comes(place: Place) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65_536

    answer = place.http.post(PREDICT, content=endless(), headers={"Content-Type": JSON})
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


def test_good_input_is_answered(place: Place) -> None:
    asked = {"instances": [{"text": "read a csv \U0001f600 file"}, {"text": ""}], "top_k": 100}
    texts = place.http.post(PREDICT, json=asked).json()
    assert [sorted(one["labels"]) for one in texts["predictions"]] == [sorted(LABELS)] * 2
    assert all(one["scores"] == sorted(one["scores"], reverse=True) for one in texts["predictions"])
    in_order = place.http.post(VECTOR, content=row("[1, 3]", "[1, -0.5e0]"), headers={"Content-Type": JSON}).json()
    other_order = place.http.post(VECTOR, content=row("[3, 1]", "[-0.5, 1.0]"), headers={"Content-Type": f"{JSON}; charset=UTF-8"})
    dense = place.http.post(VECTOR, json={"instances": [{"values": [0, 1.0, 0, -0.5, 0, 0]}]}).json()
    assert in_order == other_order.json() == dense


WORST = {
    "objects": b'{"instances": [' + b",".join([b"{}"] * 300_000) + b"]}",
    "numbers": b'{"instances": [{"indices": [0], "values": [' + b",".join([b"1.5"] * 240_000) + b"]}]}",
    "wrong numbers": b'{"instances": [{"indices": [' + b",".join([b"true"] * 190_000) + b"]}]}",
    "wrong fields": b'{"instances": [{"text": "a"}], ' + b",".join(b'"%d": 1' % i for i in range(80_000)) + b"}",
    "nested in options": b'{"instances": [' + b",".join([b'{"text": [[[[]]]]}'] * 50_000) + b"]}",
}


@pytest.mark.parametrize("worst", sorted(WORST))
def test_the_worst_bodies_are_refused_in_order(place: Place, worst: str) -> None:
    assert 500_000 < len(WORST[worst]) <= 1_000_000
    answer = place.http.post(VECTOR, content=WORST[worst], headers={"Content-Type": JSON})
    assert answer.status_code in (400, 422), answer.text[:200]
    assert len(answer.content) < 100_000


def test_a_large_body_is_parsed_off_the_event_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser stands still until the test has heard from others meanwhile."""
    reached, go_on = threading.Event(), threading.Event()

    def slow(content: bytes) -> object:
        reached.set()
        assert go_on.wait(60)
        return loads(content)

    monkeypatch.setattr("xcray.service.body.loads", slow)
    how = {"content": WORST["objects"], "headers": {"Content-Type": JSON}}
    sender = threading.Thread(target=place.http.post, args=(VECTOR,), kwargs=how)
    sender.start()
    try:
        assert reached.wait(60)
        for _ in range(3):
            assert httpx.get(f"{place.http.base_url}/healthz", trust_env=False, timeout=60).status_code == 200
        assert sender.is_alive()
    finally:
        go_on.set()
        sender.join()


# The parser alone.


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5, "x", true, null, {"b": "\\u00e9\\ud83d\\ude00"}]}', "[]", '"[[[["', '"\\"[[["', "-0.0", "1E5"]
)
def test_the_strict_parser_agrees_with_json_on_good_text(text: str) -> None:
    assert loads(text.encode()) == json.loads(text)


def test_brackets_in_strings_do_not_nest() -> None:
    value = {"a": "[" * 100_000, "b": '\\"[{' * 1000}
    assert loads(json.dumps(value).encode()) == value
    assert loads(b"[" * 32 + b"]" * 32)
    with pytest.raises(BadJSON) as caught:
        loads(b"[" * 33 + b"]" * 33)
    assert caught.value.code == "JSON_DEPTH"


@pytest.mark.parametrize("text", [b'"' + b"\\" * 200_001, b'"' + b'\\"' * 200_000, b'"a" "' * 100_000, b'{"' + b'\\"[' * 100_000])
def test_hostile_strings_take_linear_time(text: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(BadJSON):
        loads(text)
    assert time.perf_counter() - started < 20.0  # milliseconds when linear, minutes when quadratic


def test_huge_integers_are_clamped_not_computed() -> None:
    assert loads(b"[1" + b"0" * 1_000_000 + b"]") == [HUGE]
    assert loads(b"-" + b"9" * 301) == -HUGE
    assert loads(b"1" + b"0" * 299) == 10**299
