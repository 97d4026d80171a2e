"""The fast decoder of inference requests accepts a subset of what the strict decoder accepts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.mutations import mutated
from xcray.errors import InputError
from xcray.service.http.body import parse_body
from xcray.service.inference_v2.fast_decode import decode_fast
from xcray.service.inference_v2.head import _requested_outputs, _to_query
from xcray.service.schemas.inference import InferRequest


def plain(request: InferRequest) -> list[Any]:
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


def agree(body: bytes) -> bool:
    """Return whether the fast decoder accepted the body; if so, the strict result must be equal."""
    result = decode_fast(body)
    if result is not None:
        try:
            assert plain(result) == plain(parse_body(InferRequest, body))
        except InputError as error:
            raise AssertionError(f"accepted, but {error.code} by the rules: {body!r}") from None
    return result is not None


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
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
labels = texts | st.lists(texts, min_size=1, max_size=3)
options = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(1, 2000),
        "allow": labels,
        "deny": labels,
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
requests = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, min_size=1, max_size=3)},
    optional={
        "id": texts,
        "model_name": texts,
        "model_version": texts,
        "parameters": options,
        "outputs": st.lists(outputs, max_size=3),
    },
)


@given(requests, st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_valid_requests_give_the_same_result_as_the_strict_decoder(
    request: dict[str, Any], ascii_only: bool
) -> None:
    body = json.dumps(request, ensure_ascii=ascii_only).encode()
    assert agree(body) or b"\\u0022" in body


def tensor(name: str, datatype: str, shape: list[int], **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **members}


SPARSE = [
    tensor("indptr", "INT64", [2], parameters={"binary_data_size": 16}),
    tensor("indices", "INT32", [3], data=[4, 0, 2]),
    tensor("values", "FP32", [3], data=[0.5, 1, -1e-3]),
]
SEEDS = [
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
PIECES = [b'"a"', b"null", b"1", b"[1]", b"1.0", b"1e400", b"-0", b",", b"{", b"}", b"]", b'"']
PIECES += [b"\\", b"\\u0022", b"\\ud800", b"\xff", b"NaN", b"\n", b"true", b"9" * 30, b"01", b"+1"]
PIECES += [
    b'"top_k":2,',
    b'"top_k":null,',
    b'"id":"b",',
    b'"data":[],',
    b'"name":"text",',
    b"[[1]]",
]


def test_mutated_requests_never_give_another_result() -> None:
    """Bytes are cut out, duplicated and inserted at random: 30,000 bodies, some of them valid."""
    rng, accepted = random.Random(7), 0
    seeds = [json.dumps(seed).encode() for seed in SEEDS]
    for _ in range(30_000):
        body = mutated(rng, rng.choice(seeds), PIECES)
        accepted += agree(body)
    assert accepted > 300


@pytest.mark.parametrize(
    "body",
    [
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
    ],
)
def test_duplicates_nulls_and_nested_data_are_left_to_the_strict_decoder(body: bytes) -> None:
    assert decode_fast(body) is None


def test_ordinary_requests_are_decoded_fast() -> None:
    """The strict decoder is many times slower, so usual requests must not need it."""
    for seed in SEEDS:
        assert agree(json.dumps(seed).encode())
