"""The fast decoders of requests accept a subset of what the strict decoders accept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.robustness.badinput.predict import CASES
from tests.support.live_service import plain_model, text_model
from xcray.arrays import CSR
from xcray.errors import InputError
from xcray.service.http.body import parse_body
from xcray.service.inference_v2.fast_decode import decode_fast as decode_inference
from xcray.service.inference_v2.head import _requested_outputs, _to_query
from xcray.service.prediction import fast_decode as quick
from xcray.service.prediction.instances import to_csr, to_rows
from xcray.service.schemas.inference import InferRequest
from xcray.service.schemas.predict import Instance, PredictRequest

MOST = 64


class Decoders(NamedTuple):
    """The two decoders of a kind of request.

    plain: comparable values of a decoded request. requests: valid ones. seeds: bodies to mutate.
    """

    fast: Callable[[bytes], Any]
    strict: Callable[[bytes], Any]
    plain: Callable[[Any], list[Any]]
    requests: st.SearchStrategy[dict[str, Any]]
    seeds: list[bytes]

    def agree(self, body: bytes) -> bool:
        """Return whether the fast decoder accepted the body; then the strict result is equal."""
        result = self.fast(body)
        if result is None:
            return False
        try:
            expected = self.strict(body)
        except InputError as error:
            raise AssertionError(f"accepted, but {error.code} by the rules: {body!r}") from None
        assert self.plain(result) == self.plain(expected)
        return True


def plain_query(ask: quick.PredictQuery) -> list[Any]:
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


def plain_inference(request: InferRequest) -> list[Any]:
    """Return a request as comparable values; repr distinguishes 1 from 1.0 and -0.0 from 0.0."""
    tensors = [
        (
            tensor.name,
            tensor.shape,
            tensor.datatype,
            tensor.parameters.binary_data_size if tensor.parameters else None,
            repr(tensor.data),
        )
        for tensor in request.inputs
    ]
    try:
        outputs: Any = _requested_outputs(request)
    except InputError as error:
        outputs = error.code
    return [tensors, outputs, request.id, request.model_name, _to_query(request, False)]


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
predict_requests = st.fixed_dictionaries(
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


elements = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6) | texts
sizes = st.fixed_dictionaries(
    {}, optional={"binary_data_size": st.integers(0, 99), "content_type": texts}
)
inputs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["text", "indptr", "indices", "values", "dense"]),
        "shape": st.lists(st.integers(0, 2**53), min_size=1, max_size=4),
        "datatype": st.sampled_from(["INT32", "INT64", "FP32", "FP64", "BYTES", "BOOL"]),
    },
    optional={"data": st.lists(elements, max_size=5), "parameters": sizes},
)
names = texts | labels
options = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(1, 2000),
        "allow": names,
        "deny": names,
        "min_score": st.floats(allow_nan=False, allow_infinity=False),
        "min_probability": st.floats(0.0, 1.0),
        "label_thresholds": st.booleans(),
        "deadline_ms": st.floats(0.001, 1000.0),
        "probabilities": st.booleans(),
        "binary_data_output": st.booleans(),
    },
)
outputs = st.fixed_dictionaries(
    {"name": st.sampled_from(["labels", "scores", "label_ids", "probabilities", "exact"])},
    optional={"parameters": st.fixed_dictionaries({}, optional={"binary_data": st.booleans()})},
)
infer_requests = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, min_size=1, max_size=3)},
    optional={
        "id": texts,
        "model_name": texts,
        "model_version": texts,
        "parameters": options,
        "outputs": st.lists(outputs, max_size=3),
    },
)


def tensor(name: str, datatype: str, shape: list[int], **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **members}


SPARSE = [
    tensor("indptr", "INT64", [2], parameters={"binary_data_size": 16}),
    tensor("indices", "INT32", [3], data=[4, 0, 2]),
    tensor("values", "FP32", [3], data=[0.5, 1, -1e-3]),
]
INFER_SEEDS = [
    {
        "inputs": SPARSE,
        "parameters": {"top_k": 3, "binary_data_output": True},
        "outputs": [{"name": "labels"}, {"name": "scores", "parameters": {"binary_data": False}}],
    },
    {
        "id": "7",
        "inputs": [tensor("text", "BYTES", [1, 1], data=['a "b" \\ c'])],
        "parameters": {"allow": "x", "deny": ["y"], "deadline_ms": 5.0},
    },
]
PREDICT_SEEDS = [
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
PIECES = [
    *b'"text": "indices": "values": "top_k": "a" null 1 [1] 1.0 1e400 -0 , { } ] true 01 1. +1'.split(),
    *b'" \\ \\u0022 \\ud800 \xff \xc0\xaf NaN \x00 "allow":["x"], [[1]] "top_k":2, [ "data":[],'.split(),
    *b'"certificate":true, "certificate":null, "te\\u0078t":"b", "text":"b", "name":"text",'.split(),
    *(b'"top_k":null,', b'"id":"b",', b" ", b"\n", b"9" * 30),
]
DECODERS = {
    "predict": Decoders(
        lambda body: quick.decode_fast(body, MOST),
        lambda body: quick.to_query(parse_body(PredictRequest, body)),
        plain_query,
        predict_requests,
        PREDICT_SEEDS,
    ),
    "inference": Decoders(
        decode_inference,
        lambda body: parse_body(InferRequest, body),
        plain_inference,
        infer_requests,
        [json.dumps(seed).encode() for seed in INFER_SEEDS],
    ),
}
each_kind = pytest.mark.parametrize("decoders", DECODERS.values(), ids=list(DECODERS))


@each_kind
@given(data=st.data(), ascii_only=st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_valid_requests_give_the_same_result_as_the_strict_decoder(
    decoders: Decoders, data: st.DataObject, ascii_only: bool
) -> None:
    body = json.dumps(data.draw(decoders.requests), ensure_ascii=ascii_only).encode()
    assert decoders.agree(body) or b"\\u0022" in body


def mutated(rng: random.Random, body: bytes) -> bytes:
    """Return a body of which bytes were cut out, duplicated or inserted, one to three times."""
    for _ in range(rng.randint(1, 3)):
        i, j = sorted(rng.randrange(len(body) + 1) for _ in range(2))
        piece = rng.choice([*PIECES, body[i : i + 12]])
        body = rng.choice(
            [
                body[:i] + piece + body[i:],
                body[:i] + body[min(j, i + 8) :],
                body[:i] + piece + body[i + len(piece) :],
            ]
        )
    return body


@each_kind
def test_mutated_requests_never_give_another_result(decoders: Decoders) -> None:
    """30,000 bodies, some of them valid."""
    rng = random.Random(7)
    bodies = (mutated(rng, rng.choice(decoders.seeds)) for _ in range(30_000))
    assert sum(map(decoders.agree, bodies)) > 300


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.status in (400, 422)], ids=lambda case: case.id
)
def test_requests_that_the_strict_decoder_refuses_are_left_to_it(case: Any) -> None:
    """Invalid requests are refused by the strict decoder, or later by the model."""
    try:
        DECODERS["predict"].strict(case.content)
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


INFER_LEFT = [
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "shape": [1]}]}',
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": null}]}',
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [["a"]]}]}',
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}], "id": "1", "id": "1"}',
    b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}], "parameters": null}',
    b'{"inputs": []}',
    b'{"inputs": [{"name": "values", "datatype": "FP32", "shape": [1], "data": [1e999]}]}',
    b'{"inputs": [{"name": "values", "datatype": "FP32", "shape": [1], "data": [true]}]}',
    b'{"inputs": [{"name": "indptr", "datatype": "INT64", "shape": [1], "data": [1'
    + b"0" * 400
    + b"]}]}",
]


@pytest.mark.parametrize("body", INFER_LEFT)
def test_duplicates_nulls_and_nested_data_are_left_to_the_strict_decoder(body: bytes) -> None:
    assert decode_inference(body) is None


def test_ordinary_requests_are_decoded_fast() -> None:
    """The strict decoder is many times slower, so usual requests must not need it."""
    for body in (
        b'{"instances": [{"text": "say \\"hello\\" \\\\ \\u00e9 \xc3\xa9"}], "top_k": 5}',
        b'{"top_k":1,"instances":[{"values":[1,2.5,-0.0,1e-3],"indices":[4,3,2,1]}],"certificate":true,"deadline_ms":2}',
        json.dumps({"instances": [{"text": "a"}] * MOST, "allow": ["b", "set:c"]}).encode(),
    ):
        assert DECODERS["predict"].agree(body)
    assert all(map(DECODERS["inference"].agree, DECODERS["inference"].seeds))
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
