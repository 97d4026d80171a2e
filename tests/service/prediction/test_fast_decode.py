"""The fast decoder of predict requests: it accepts a subset of what the strict decoder accepts."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.badinput.predict import CASES
from tests.support.live_service import plain_model, text_model
from tests.support.mutations import mutated
from xcray.arrays import CSR
from xcray.errors import InputError
from xcray.service.http.body import parse_body
from xcray.service.prediction import fast_decode as quick
from xcray.service.prediction.instances import to_csr, to_rows
from xcray.service.schemas.predict import Instance, PredictRequest

MOST = 64


def strictly(body: bytes) -> quick.PredictQuery:
    """Return the result of the strict decoder."""
    return quick.to_query(parse_body(PredictRequest, body))


def plain(ask: quick.PredictQuery) -> list[Any]:
    """Return a request as comparable values; repr distinguishes -0.0 from 0.0."""
    rows = [
        (
            each.text,
            each.fields,
            each.indices,
            None if each.values is None else [repr(float(v)) for v in each.values],
        )
        for each in ask.instances
    ]
    return [rows, *ask[1:]]


def agree(body: bytes) -> bool:
    """Return whether the fast decoder accepted the body; if so, the strict result must be equal."""
    result = quick.decode_fast(body, MOST)
    if result is not None:
        assert plain(result) == plain(strictly(body))
    return result is not None


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
indices = st.lists(st.integers(0, 2**31 - 2), max_size=5)
values = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6),
    max_size=5,
)
fields = st.dictionaries(
    texts, texts | st.integers(-9, 9) | st.floats(-1, 1) | values, min_size=1, max_size=3
)
instances = st.fixed_dictionaries(
    {}, optional={"text": texts, "fields": fields, "indices": indices, "values": values}
)
labels = st.lists(texts, min_size=1, max_size=3)
requests = st.fixed_dictionaries(
    {"instances": st.lists(instances, min_size=1, max_size=3)},
    optional={
        "top_k": st.integers(1, 2000),
        "allow": labels,
        "deny": labels,
        "min_score": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "min_probability": st.floats(0.0, 1.0) | st.integers(0, 1),
        "label_thresholds": st.booleans(),
        "deadline_ms": st.floats(0.001, 1000.0),
        "certificate": st.booleans(),
        "probabilities": st.booleans(),
    },
)


@given(requests, st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_valid_requests_give_the_same_result_as_the_strict_decoder(
    request: dict[str, Any], ascii_only: bool
) -> None:
    body = json.dumps(request, ensure_ascii=ascii_only).encode()
    took = agree(body)
    assert took or b"\\u0022" in body


PIECES = [
    *b'"text": "indices": "values": "top_k": "a" null 1 [1] 1.0 1e400 -0 , { } ] true 01 1. +1'.split(),
    *b'" \\ \\u0022 \\ud800 \xff \xc0\xaf NaN \x00 "allow":["x"], [[1]] "top_k":2,'.split(),
    *b'"certificate":true, "certificate":null, "te\\u0078t":"b", "text":"b",'.split(),
    *(b" ", b"\n", b"9" * 30),
]


def test_mutated_requests_never_give_another_result() -> None:
    """Bytes are cut out, duplicated and inserted at random: 30,000 bodies, some of them valid."""
    rng, took = random.Random(7), 0
    seeds = [
        json.dumps(
            {"instances": [{"text": 'a "b" \\ c'}], "top_k": 3, "allow": ["x"], "certificate": True}
        ).encode(),
        json.dumps(
            {
                "instances": [{"indices": [3, 1], "values": [0.5, -1e-3]}, {"values": [1.0]}],
                "deadline_ms": 5.0,
                "min_score": -0.5,
                "min_probability": 1,
            }
        ).encode(),
        b'{"instances":[{"text":"a"},{"indices":[1],"values":[2]}],"probabilities":false,"deny":["y"]}',
    ]
    for _ in range(30_000):
        body = mutated(rng, rng.choice(seeds), PIECES)
        try:
            took += agree(body)
        except InputError as error:
            raise AssertionError(f"taken, but the law says {error.code}: {body!r}") from None
    assert took > 300


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.status in (400, 422)], ids=lambda case: case.id
)
def test_requests_that_the_strict_decoder_refuses_are_left_to_it(case: Any) -> None:
    """Invalid requests are refused by the strict decoder, or later by the model."""
    try:
        strictly(case.content)
    except InputError:
        assert quick.decode_fast(case.content, MOST) is None


TWICE = [
    b'{"instances": [{"text": "a", "text": "a"}]}',
    b'{"instances": [{"text": "a"}], "instances": [{"text": "a"}]}',
    b'{"instances": [{"text": "\\"", "text": "a"}]}',
    b'{"instances": [{"text": "a", "te\\u0078t": "\\u0022\\u0022"}]}',
    b'{"instances": [{"text": "a"}], "top_k": 1, "top_k": 1}',
    b'{"instances": [{"text": "a", "indices": null}]}',
    b'{"instances": [{"values": [1], "values": [1]}]}',
]


@pytest.mark.parametrize("body", TWICE)
def test_duplicate_keys_and_nulls_are_left_to_the_strict_decoder(body: bytes) -> None:
    assert quick.decode_fast(body, MOST) is None


def test_ordinary_requests_are_decoded_fast() -> None:
    """The strict decoder is many times slower, so usual requests must not need it."""
    for body in (
        b'{"instances": [{"text": "say \\"hello\\" \\\\ \\u00e9 \xc3\xa9"}], "top_k": 5}',
        b'{"top_k":1,"instances":[{"values":[1,2.5,-0.0,1e-3],"indices":[4,3,2,1]}],"certificate":true,"deadline_ms":2}',
        json.dumps({"instances": [{"text": "a"}] * MOST, "allow": ["b", "set:c"]}).encode(),
    ):
        assert agree(body)
    assert (
        quick.decode_fast(json.dumps({"instances": [{"text": "a"}] * (MOST + 1)}).encode(), MOST)
        is None
    )


def ask(*rows: dict[str, Any]) -> list[Instance]:
    """Return instances as decoded by the fast decoder."""
    result = quick.decode_fast(json.dumps({"instances": rows}).encode(), MOST)
    assert result is not None
    return list(result.instances)


def test_rows_converted_together_equal_rows_converted_one_by_one(tmp_path: Any) -> None:
    model = plain_model(tmp_path / "model", 6)
    good = [
        {"indices": [4, 1], "values": [0.1, 2]},
        {"indices": [], "values": []},
        {"indices": [0, 5], "values": [1, -3.5]},
    ]
    for rows in (
        good,
        good[:1],
        good[1:2],
        good[1:],
        [good[1], good[1]],
        [*good, {"values": [0, 1, 0, 0, 2, 0]}],
    ):
        result, expected = to_rows(model, ask(*rows)), to_csr(model, ask(*rows))
        assert isinstance(result, CSR)
        for one, other in zip(result, expected, strict=True):
            assert np.array_equal(one, other)
            assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"indices": [1, 6], "values": [1, 1]}, "INDEX_RANGE"),
        ({"indices": [1, 2], "values": [1]}, "ROW_LENGTHS"),
        ({"indices": [2, 1, 2], "values": [1, 1, 1]}, "DUP_INDEX"),
        ({"values": [1]}, "DIM"),
        ({"text": "a"}, "NO_TEXT"),
        ({"fields": {"text": "a"}}, "NO_TEXT"),
        ({"fields": {"text": "a"}, "text": "a"}, "ROW_KIND"),
        ({}, "ROW_KIND"),
    ],
)
def test_an_error_among_valid_rows_has_its_location(
    tmp_path: Any, row: dict[str, Any], code: str
) -> None:
    model, good = plain_model(tmp_path / "model", 6), {"indices": [5, 1], "values": [1, 1]}
    with pytest.raises(InputError) as caught:
        to_rows(model, ask(good, row, good))
    assert (caught.value.code, caught.value.details["loc"]) == (code, "instances[1]")


def test_texts_stay_texts_and_mixed_instances_become_rows(tmp_path: Any) -> None:
    model = text_model(tmp_path / "model")
    assert to_rows(model, ask({"text": "a csv file"}, {"text": ""})) == ["a csv file", ""]
    assert to_rows(model, ask({"fields": {"text": "a"}}, {"text": "b"})) == ["a", "b"]
    with pytest.raises(InputError, match="no field 'title'"):
        to_rows(model, ask({"fields": {"title": "a"}}))
    mixed = to_rows(model, ask({"text": "a csv file"}, {"indices": [1], "values": [2.0]}))
    assert isinstance(mixed, CSR)
    assert mixed.n_rows == 2
