"""Rows J1 to J28 of the bad-input table for predictions: status and code.

Responses contain no input and no paths, and are never 5xx. Valid input passes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.badinput.predict import (
    CASES,
    FRAMES,
    JSON,
    MARK,
    METHODS,
    PREDICT,
    VECTOR,
    Case,
    row,
)
from tests.support.live_service import LABELS, client_of, plain_model, raw, settings_for, text_model
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.http import strict_json
from xcray.service.http.strict_json import HUGE_INTEGER, BadJSON, loads
from xcray.service.inference_v2.fast_decode import decode_fast as decode_object
from xcray.service.prediction.fast_decode import decode_fast as decode_request


class ServerSetup(NamedTuple):
    """A served app and its home."""

    http: httpx.Client
    home: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    home = tmp_path_factory.mktemp("json") / "home"
    app = create_app(
        settings_for(home, predict_body_bytes=1_000_000, max_instances=64, max_top_k=100)
    )
    registry: Registry = app.state.app_state.registry
    text_model(home / "a")
    plain_model(home / "b")
    text_model(home / "c")
    for name, staged in (("text", "a"), ("vector", "b"), ("broken", "c")):
        registry.publish(name, home / staged)
    damage(registry.resolve("broken"))
    with client_of(app) as http:
        yield ServerSetup(http, home)


def damage(model: Path) -> None:
    """Change one byte of the weights; sizes do not change."""
    path = model / "weights.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_bad_input_is_refused_and_the_error_names_the_fix(server: ServerSetup, case: Case) -> None:
    answer = server.http.post(case.path, content=case.content, headers=case.headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (case.status, case.code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == case.status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert len(problem["detail"]) > 10
    assert "\n" not in problem["detail"]
    assert str(server.home) not in answer.text
    assert "Traceback" not in answer.text
    # The name of an unknown field is part of its location.
    assert MARK not in answer.text or case.code == "UNKNOWN_FIELD"
    assert "input" not in problem
    assert len(answer.content) < 2_500
    if case.status == 503:
        assert int(answer.headers["retry-after"]) > 0


def test_errors_have_their_locations(server: ServerSetup) -> None:
    def problem(content: bytes) -> dict[str, Any]:
        return dict(
            server.http.post(VECTOR, content=content, headers={"Content-Type": JSON}).json()
        )

    cut = problem(b'{"instances":\n [}')
    assert (cut["line"], cut["column"]) == (2, 3)
    two = problem(
        b'{"instances": [{"indices": [1], "values": [1.0]}, {"indices": [1, "x"], "values": [1.0, true]}]}'
    )
    assert [entry["loc"] for entry in two["errors"]] == [
        "instances[1].indices[1]",
        "instances[1].values[1]",
    ]
    assert two["detail"] == "instances[1].indices[1]: an integer was expected"
    plain = problem(b'{"instances": ["a text"]}')
    assert plain["detail"] == 'instances[0]: an object was expected, such as {"text": "..."}'
    third = problem(
        b'{"instances": [{"values": [1, 2, 3, 4, 5, 6]}, {"indices": [1], "values": []}]}'
    )
    assert third["loc"] == "instances[1]"


def test_at_most_twenty_errors_are_listed_and_one_per_list(server: ServerSetup) -> None:
    bad = {"indices": [True] * 1000, "values": ["x"] * 1000, **{f"x{i}": 1 for i in range(50)}}
    answer = server.http.post(VECTOR, json={"instances": [bad] * 30}).json()
    assert (len(answer["errors"]), answer["count"]) == (20, 52)
    assert answer["errors"][0]["loc"] == "instances[0].indices[0]"


@pytest.mark.parametrize(("method", "path", "status"), METHODS)
def test_j28_methods_and_paths(server: ServerSetup, method: str, path: str, status: int) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == status
    assert status == 404 or answer.headers["allow"]


@pytest.mark.parametrize(("request_bytes", "statuses"), FRAMES.values(), ids=list(FRAMES))
def test_j27_framing(server: ServerSetup, request_bytes: bytes, statuses: set[int]) -> None:
    answer = raw(str(server.http.base_url), request_bytes)
    assert int(answer.split(b" ")[1]) in statuses, answer[:300]
    assert server.http.get("/healthz").status_code == 200


def test_j23_a_body_without_length_is_limited_while_it_is_received(server: ServerSetup) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65_536

    answer = server.http.post(PREDICT, content=endless(), headers={"Content-Type": JSON})
    assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")


def test_valid_input_is_answered(server: ServerSetup) -> None:
    request = {"instances": [{"text": "read a csv \U0001f600 file"}, {"text": ""}], "top_k": 100}
    texts = server.http.post(PREDICT, json=request).json()
    assert [sorted(one["labels"]) for one in texts["predictions"]] == [sorted(LABELS)] * 2
    assert all(one["scores"] == sorted(one["scores"], reverse=True) for one in texts["predictions"])
    in_order = server.http.post(
        VECTOR, content=row("[1, 3]", "[1, -0.5e0]"), headers={"Content-Type": JSON}
    ).json()
    other_order = server.http.post(
        VECTOR,
        content=row("[3, 1]", "[-0.5, 1.0]"),
        headers={"Content-Type": f"{JSON}; charset=UTF-8"},
    )
    dense = server.http.post(
        VECTOR, json={"instances": [{"values": [0, 1.0, 0, -0.5, 0, 0]}]}
    ).json()
    assert in_order == other_order.json() == dense


WORST = {
    "objects": b'{"instances": [' + b",".join([b"{}"] * 300_000) + b"]}",
    "numbers": b'{"instances": [{"indices": [0], "values": ['
    + b",".join([b"1.5"] * 240_000)
    + b"]}]}",
    "wrong numbers": b'{"instances": [{"indices": [' + b",".join([b"true"] * 190_000) + b"]}]}",
    "wrong fields": b'{"instances": [{"text": "a"}], '
    + b",".join(b'"%d": 1' % i for i in range(80_000))
    + b"}",
    "nested in options": b'{"instances": [' + b",".join([b'{"text": [[[[]]]]}'] * 50_000) + b"]}",
}


@pytest.mark.parametrize("worst", sorted(WORST))
def test_the_most_expensive_bodies_are_refused(server: ServerSetup, worst: str) -> None:
    assert 500_000 < len(WORST[worst]) <= 1_000_000
    answer = server.http.post(VECTOR, content=WORST[worst], headers={"Content-Type": JSON})
    assert answer.status_code in (400, 422), answer.text[:200]
    assert len(answer.content) < 100_000


def test_a_large_body_is_parsed_off_the_event_loop(
    server: ServerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser blocks until other requests have been answered."""
    reached, go_on = threading.Event(), threading.Event()

    def slow(content: bytes) -> object:
        reached.set()
        assert go_on.wait(600)
        return loads(content)

    monkeypatch.setattr("xcray.service.http.body.loads", slow)
    how = {"content": WORST["objects"], "headers": {"Content-Type": JSON}}
    sender = threading.Thread(target=server.http.post, args=(VECTOR,), kwargs=how)
    sender.start()
    try:
        assert reached.wait(600)
        for _ in range(3):
            assert (
                httpx.get(
                    f"{server.http.base_url}/healthz", trust_env=False, timeout=600
                ).status_code
                == 200
            )
        assert sender.is_alive()
    finally:
        go_on.set()
        sender.join()


# The parser alone


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2.5, "x", true, null, {"b": "\\u00e9\\ud83d\\ude00"}]}',
        "[]",
        '"[[[["',
        '"\\"[[["',
        "-0.0",
        "1E5",
    ],
)
def test_the_strict_parser_agrees_with_json_on_good_text(text: str) -> None:
    assert loads(text.encode()) == json.loads(text)


WORDS = st.text(alphabet=st.characters(codec="utf-8"), max_size=3)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
)
JSON_TEXTS = st.recursive(
    SCALARS.map(lambda value: json.dumps(value, ensure_ascii=False)),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(WORDS.map(json.dumps), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=12,
).map(str.encode)


def read(body: bytes) -> str:
    """Return the value of a body, or the error; repr distinguishes 1 from 1.0 and from True."""
    try:
        return repr(loads(body))
    except BadJSON as error:
        return repr((error.code, str(error)))


@given(JSON_TEXTS, st.integers(0, 200), st.sampled_from(["", '"', ",", "{", "]", "1e999", "NaN"]))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_the_fast_and_the_slow_parser_agree(body: bytes, position: int, extra: str) -> None:
    """Also on objects with duplicate keys, and on texts with a piece in the wrong place."""
    body = body[:position] + extra.encode() + body[position:]
    fast = read(body)
    with mock.patch.object(strict_json, "MAX_FAST_BYTES", -1):
        assert read(body) == fast


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": "c"}}',
        b"[" * 33 + b"]" * 33,
        json.dumps({str(i): 0 for i in range(65)}).encode(),
        b"1" + b"0" * 400,
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_only_msgspec_accepts_is_left_to_the_slow_parser(body: bytes) -> None:
    fast = read(body)
    with mock.patch.object(strict_json, "MAX_FAST_BYTES", -1):
        assert read(body) == fast


def test_brackets_in_strings_do_not_nest() -> None:
    value = {"a": "[" * 100_000, "b": '\\"[{' * 1000}
    assert loads(json.dumps(value).encode()) == value
    assert loads(b"[" * 32 + b"]" * 32)
    with pytest.raises(BadJSON) as caught:
        loads(b"[" * 33 + b"]" * 33)
    assert caught.value.code == "JSON_DEPTH"


@pytest.mark.parametrize("levels", [33, 200, 1_000, 5_000, 20_000, 200_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"instances":[{"text":', b'[["\\"[",'])
def test_any_depth_is_an_error_of_its_own(opening: bytes, levels: int) -> None:
    body = opening * levels
    with pytest.raises(BadJSON) as caught:
        loads(body)
    assert caught.value.code == "JSON_DEPTH"
    assert decode_request(body, 100) is None
    assert decode_object(body) is None


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"\\" * 200_001,
        b'"' + b'\\"' * 200_000,
        b'"a" "' * 100_000,
        b'{"' + b'\\"[' * 100_000,
    ],
)
def test_hostile_strings_take_linear_time(text: bytes) -> None:
    started = time.thread_time()  # CPU time of this thread only
    with pytest.raises(BadJSON):
        loads(text)
    assert time.thread_time() - started < 20.0  # milliseconds when linear, minutes when quadratic


def test_huge_integers_are_clamped_not_computed() -> None:
    assert loads(b"[1" + b"0" * 1_000_000 + b"]") == [HUGE_INTEGER]
    assert loads(b"-" + b"9" * 301) == -HUGE_INTEGER
    assert loads(b"1" + b"0" * 299) == 10**299
