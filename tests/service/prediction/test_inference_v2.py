"""The Open Inference Protocol v2: conformance, and results bit-identical to those of /v1 predict.

The schemas below follow https://github.com/kserve/open-inference-protocol (inference_rest.md and
open_inference_rest.yaml in specification/protocol: the members of each object and which are
required), and the extensions for binary tensors and model repositories as documented for Triton
(extension_binary_data.md and extension_model_repository.md in docs/protocol).
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import jsonschema
import numpy as np
import pytest

from tests.support.live_service import TEXTS, client_of, plain_model, publish, settings_for
from xcray.service.app import create_app
from xcray.service.app_state import AppState

INFER = "/v2/models/docs/infer"
FEATURES = 6

STRING, INTEGERS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object of the protocol."""
    return {
        "type": "object",
        "required": [*required],
        "properties": {**required, **(optional or {})},
    }


TENSOR = record({"name": STRING, "datatype": STRING, "shape": INTEGERS})
OUTPUT = record(
    {"name": STRING, "datatype": STRING, "shape": INTEGERS},
    {"data": {"type": "array"}, "parameters": {"type": "object"}},
)
SERVER = record(
    {"name": STRING, "version": STRING, "extensions": {"type": "array", "items": STRING}}
)
MODEL = record(
    {
        "name": STRING,
        "platform": STRING,
        "inputs": {"type": "array", "items": TENSOR},
        "outputs": {"type": "array", "items": TENSOR},
    },
    {"versions": {"type": "array", "items": STRING}},
)
REPLY = record(
    {"model_name": STRING, "outputs": {"type": "array", "items": OUTPUT}},
    {"model_version": STRING, "id": STRING, "parameters": {"type": "object"}},
)
ERROR = record({"error": STRING})
INDEX = {
    "type": "array",
    "items": record({"name": STRING, "state": STRING, "reason": STRING}, {"version": STRING}),
}
DATATYPES = {
    "BOOL",
    *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
}
SIZES = {"BOOL": "?", "INT64": "<i8", "FP64": "<f8"}


class Service(NamedTuple):
    """A served app with a text model "docs" in two versions and a feature model "plain"."""

    http: httpx.Client
    app_state: AppState


@pytest.fixture(scope="module")
def model_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("inference") / "home"
    app = create_app(settings_for(home, max_instances=8))
    app_state: AppState = app.state.app_state
    registry = app_state.registry_of("default")
    publish(registry, "docs", home / "one", seed=1)
    publish(registry, "docs", home / "two", seed=2)
    plain_model(home / "plain", FEATURES)
    registry.publish("plain", home / "plain")
    registry.label_sets("docs").put("files", ["csv", "json"])
    with client_of(app) as http:
        yield Service(http, app_state)


def text(*texts: str) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": [*texts]}


def sparse(indptr: list[int], indices: list[int], values: list[float]) -> list[dict[str, Any]]:
    parts = (("indptr", "INT64", indptr), ("indices", "INT32", indices), ("values", "FP32", values))
    return [
        {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}
        for name, datatype, data in parts
    ]


def outputs_of(answer: httpx.Response) -> dict[str, Any]:
    """Return the outputs of a reply by name, as nested lists, after checking its schema."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    body = json.loads(answer.content[:length])
    jsonschema.validate(body, REPLY)
    out, rest = {}, answer.content[length:]
    for tensor in body["outputs"]:
        assert tensor["datatype"] in DATATYPES
        n = int(np.prod(tensor["shape"]))
        if "data" in tensor:
            flat = tensor["data"]
        else:
            size = tensor["parameters"]["binary_data_size"]
            flat, rest = elements(tensor["datatype"], rest[:size]), rest[size:]
        assert len(flat) == n
        out[tensor["name"]] = np.array(flat, object).reshape(tensor["shape"]).tolist()
    assert not rest
    return out


def elements(datatype: str, data: bytes) -> list[Any]:
    """Return the elements of a binary tensor."""
    if datatype != "BYTES":
        return np.frombuffer(data, SIZES[datatype]).tolist()
    out = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        out.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return out


def v1(
    model_service: Service, model: str, instances: list[dict[str, Any]], **more: Any
) -> list[dict[str, Any]]:
    answer = model_service.http.post(
        f"/v1/models/{model}:predict", json={"instances": instances, **more}
    )
    assert answer.status_code == 200, answer.text
    return list(answer.json()["predictions"])


def same(fields: dict[str, Any], predictions: list[dict[str, Any]]) -> None:
    """Check for equal labels and bit-identical scores."""
    assert fields["labels"] == [one["labels"] for one in predictions]
    assert fields["scores"] == [one["scores"] for one in predictions]


def test_health_and_metadata(model_service: Service) -> None:
    assert model_service.http.get("/v2/health/live").json() == {"live": True}
    assert model_service.http.get("/v2/health/ready").json() == {"live": True, "ready": True}
    server = model_service.http.get("/v2").json()
    jsonschema.validate(server, SERVER)
    assert server["extensions"] == ["binary_tensor_data", "model_repository"]
    for path, versions in (("docs", ["1", "2"]), ("docs/versions/1", ["1", "2"]), ("plain", ["1"])):
        body = model_service.http.get(f"/v2/models/{path}").json()
        jsonschema.validate(body, MODEL)
        assert body["versions"] == versions
        assert {tensor["datatype"] for tensor in (*body["inputs"], *body["outputs"])} <= DATATYPES
        assert ("text" in [tensor["name"] for tensor in body["inputs"]]) == path.startswith("docs")
        assert model_service.http.get(f"/v2/models/{path}/ready").json() == {
            "name": path.partition("/")[0],
            "ready": True,
        }


def test_readiness_follows_the_service(model_service: Service) -> None:
    model_service.app_state.draining = True
    try:
        answer = model_service.http.get("/v2/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"live": True, "ready": False})
        assert model_service.http.get("/v2/health/live").status_code == 200
    finally:
        model_service.app_state.draining = False


def test_texts_give_the_results_of_v1(model_service: Service) -> None:
    body = {"id": "42", "inputs": [text(*TEXTS)], "parameters": {"top_k": 3}}
    answer = model_service.http.post(INFER, json=body)
    assert (answer.json()["id"], answer.json()["model_name"], answer.json()["model_version"]) == (
        "42",
        "docs",
        "2",
    )
    result = outputs_of(answer)
    same(result, v1(model_service, "docs", [{"text": each} for each in TEXTS], top_k=3))
    model = model_service.app_state.prediction.model_cache.get(target("docs")).predictor.model
    assert [[model.label_name(j) for j in row] for row in result["label_ids"]] == result["labels"]
    older = outputs_of(model_service.http.post("/v2/models/docs/versions/1/infer", json=body))
    same(older, v1(model_service, "docs:1", [{"text": each} for each in TEXTS], top_k=3))
    column = {**text(*TEXTS), "shape": [len(TEXTS), 1]}
    assert outputs_of(model_service.http.post(INFER, json={**body, "inputs": [column]})) == result
    nested = {**column, "data": [[each] for each in TEXTS]}
    assert outputs_of(model_service.http.post(INFER, json={**body, "inputs": [nested]})) == result


def target(reference: str) -> Any:
    from xcray.service.models.cache import ModelTarget

    return ModelTarget("default", reference)


def test_rows_give_the_results_of_v1(model_service: Service) -> None:
    instances = [
        {"indices": [4, 0, 2], "values": [0.1, 1.5, -2.0]},
        {"indices": [], "values": []},
        {"indices": [5], "values": [3.25]},
    ]
    expected = v1(model_service, "plain", instances)
    inputs = sparse([0, 3, 3, 4], [4, 0, 2, 5], [0.1, 1.5, -2.0, 3.25])
    same(
        outputs_of(model_service.http.post("/v2/models/plain/infer", json={"inputs": inputs})),
        expected,
    )
    same(
        outputs_of(
            model_service.http.post("/v2/models/plain/infer", json={"inputs": inputs[::-1]})
        ),
        expected,
    )
    dense = [[1.5, 0, -2.0, 0, 0.1, 0], [0] * 6, [0, 0, 0, 0, 0, 3.25]]
    expected = v1(model_service, "plain", [{"values": row} for row in dense])
    for data in (dense, [value for row in dense for value in row]):
        inputs = [{"name": "dense", "datatype": "FP32", "shape": [3, 6], "data": data}]
        same(
            outputs_of(model_service.http.post("/v2/models/plain/infer", json={"inputs": inputs})),
            expected,
        )


def test_filters_and_outputs(model_service: Service) -> None:
    texts = [{"text": each} for each in TEXTS]
    for options in (
        {"allow": ["csv", "io"]},
        {"allow": "set:files"},
        {"deny": ["csv"], "top_k": 2},
        {"allow": "csv", "deadline_ms": 600_000},
    ):
        listed = {
            name: [value] if isinstance(value, str) else value for name, value in options.items()
        }
        response = outputs_of(
            model_service.http.post(INFER, json={"inputs": [text(*TEXTS)], "parameters": options})
        )
        same(response, v1(model_service, "docs", texts, **listed))
    for outputs in (["scores"], ["exact", "labels"], []):
        body = {"inputs": [text(*TEXTS)], "outputs": [{"name": name} for name in outputs]}
        response = outputs_of(model_service.http.post(INFER, json=body))
        assert [*response] == outputs
        assert response.get("exact", [True]) == [True] * len(response.get("exact", [True]))
    refused = model_service.http.post(
        INFER, json={"inputs": [text("a")], "outputs": [{"name": "probabilities"}]}
    )
    assert (refused.status_code, refused.json()["code"]) == (400, "NOT_CALIBRATED")


@pytest.mark.parametrize(
    "body",
    [
        '{"id":"r1","model_name":"docs","inputs":[{"name":"text","shape":[2],"datatype":"BYTES",'
        '"data":["%s","%s"]}],"parameters":{"top_k":2}}',
        '{"id":"r1","parameters":{"top_k":2,"content_type":"str"},"inputs":[{"name":"text",'
        '"shape":[2,1],"datatype":"BYTES","parameters":{"content_type":"str"},"data":["%s","%s"]}]}',
    ],
    ids=["kserve 0.21", "mlserver 1.7"],
)
def test_requests_as_other_clients_write_them(model_service: Service, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = model_service.http.post(INFER, content=body % TEXTS[:2], headers=headers)
    assert answer.json()["id"] == "r1"
    texts = [{"text": each} for each in TEXTS[:2]]
    same(outputs_of(answer), v1(model_service, "docs", texts, top_k=2))


def binary(
    inputs: list[dict[str, Any]], tensors: list[bytes], **more: Any
) -> tuple[bytes, dict[str, str]]:
    """Return a body with binary tensors, and its headers."""
    named = [
        {**each, "parameters": {"binary_data_size": len(data)}}
        for each, data in zip(inputs, tensors, strict=True)
    ]
    head = json.dumps({"inputs": named, **more}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    return head + b"".join(tensors), headers


def without_data(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "data"} for each in tensors]


def test_binary_tensors(model_service: Service) -> None:
    strings = b"".join(struct.pack("<I", len(each)) + each for each in (t.encode() for t in TEXTS))
    body, headers = binary(
        without_data([text(*TEXTS)]), [strings], parameters={"binary_data_output": True, "top_k": 2}
    )
    answer = model_service.http.post(INFER, content=body, headers=headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    same(outputs_of(answer), v1(model_service, "docs", [{"text": each} for each in TEXTS], top_k=2))

    inputs = sparse([0, 2, 3], [4, 0, 5], [0.1, 1.5, 3.25])
    tensors = [
        np.array(each["data"], dtype).tobytes()
        for each, dtype in zip(inputs, ("<i8", "<i4", "<f4"), strict=True)
    ]
    outputs = [
        {"name": "labels"},
        {"name": "scores", "parameters": {"binary_data": True}},
        {"name": "exact", "parameters": {"binary_data": True}},
    ]
    body, headers = binary(without_data(inputs), tensors, outputs=outputs)
    response = outputs_of(
        model_service.http.post("/v2/models/plain/infer", content=body, headers=headers)
    )
    rows = [{"indices": [4, 0], "values": [0.1, 1.5]}, {"indices": [5], "values": [3.25]}]
    same(response, v1(model_service, "plain", rows))
    assert response["exact"] == [True, True]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])  # as usual; not aligned
def test_binary_tensors_with_the_same_head_have_their_own_data(
    model_service: Service, order: tuple[int, ...]
) -> None:
    heads = set()
    for indices, values in (([0, 2, 5], [0.1, 1.5, 3.25]), ([5, 1, 0], [1.0, -2.0, 0.5])):
        inputs = [sparse([0, 3], indices, values)[i] for i in order]
        tensors = [
            np.array(
                each["data"], {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}[each["datatype"]]
            )
            for each in inputs
        ]
        parts = [tensor.tobytes() for tensor in tensors]
        body, headers = binary(without_data(inputs), parts, parameters={"binary_data_output": True})
        heads.add(body[: int(headers["Inference-Header-Content-Length"])])
        answer = model_service.http.post("/v2/models/plain/infer", content=body, headers=headers)
        rows = [{"indices": indices, "values": values}]
        same(outputs_of(answer), v1(model_service, "plain", rows))
    assert len(heads) == 1


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([], "LENGTH"),
        ([text("a"), text("a")], "ROW_KIND"),
        ([text("a"), *sparse([0, 0], [], [])], "ROW_KIND"),
        (sparse([0, 1], [0], [1.0])[:2], "ROW_KIND"),
        ([{**text("a"), "name": "other"}], "CHOICE"),
        ([{**text("a"), "datatype": "FP32"}], "DATATYPE"),
        ([{**text("a"), "datatype": "STRING"}], "CHOICE"),
        ([{**text("a"), "shape": [2]}], "TENSOR_SHAPE"),
        ([{**text("a"), "shape": [1, 2]}], "TENSOR_SHAPE"),
        ([{**text("a"), "shape": [2**53, 1]}], "INSTANCES"),
        ([{**text("a"), "shape": [2**60]}], "RANGE"),
        ([{**text("a"), "shape": []}], "LENGTH"),
        ([{**text("a"), "data": ["a", ["b"]]}], "TENSOR_SHAPE"),
        ([{**text("a"), "data": [1]}], "TYPE"),
        ([{**text("a"), "data": None}], "TENSOR_DATA"),
        ([text()], "INSTANCES"),
        ([text(*"abcdefghi")], "INSTANCES"),
        (sparse([1, 1], [0], [1.0]), "ROW_LENGTHS"),
        (sparse([0, 2, 1], [0], [1.0]), "ROW_LENGTHS"),
        (sparse([0, 1], [0], [1.0, 2.0]), "ROW_LENGTHS"),
        (sparse([0, 1], [FEATURES], [1.0]), "INDEX_RANGE"),
        (sparse([0, 1], [-1], [1.0]), "INDEX_RANGE"),
        (sparse([0, 1], [2**32 + 1], [1.0]), "INDEX_RANGE"),  # 1 in 32 bits
        (sparse([0, 2], [1, 1], [1.0, 2.0]), "DUP_INDEX"),
        (sparse([0, 1], [10**30], [1.0]), "RANGE"),
        (sparse([0, 1], [1], [1e39]), "NOT_FINITE"),
        (sparse([0, 1], [True], [1.0]), "TYPE"),
        ([{"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}], "DIM"),
        (
            [
                {
                    "name": "dense",
                    "datatype": "FP32",
                    "shape": [1, 6],
                    "data": [[1, 2, 3], [4, 5, 6]],
                }
            ],
            "TENSOR_SHAPE",
        ),
    ],
)
def test_wrong_tensors_are_refused(
    model_service: Service, inputs: list[dict[str, Any]], code: str
) -> None:
    answer = model_service.http.post("/v2/models/plain/infer", json={"inputs": inputs})
    jsonschema.validate(answer.json(), ERROR)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("sizes", "declared_length", "code"),
    [
        ([4], None, "JSON_INVALID"),  # without the header, the whole body is JSON
        ([4], "9999", "TENSOR_SIZE"),
        ([4], "x", "BAD_HEADER"),
        ([4], "-1", "BAD_HEADER"),
        ([4], "0", "EMPTY_BODY"),
        ([3], "right", "TENSOR_SIZE"),
        ([5], "right", "TENSOR_SIZE"),
        ([2**52], "right", "TENSOR_SIZE"),
    ],
)
def test_wrong_binary_sizes_are_refused(
    model_service: Service, sizes: list[int], declared_length: str | None, code: str
) -> None:
    head = {
        "inputs": [{**without_data([text("a")])[0], "parameters": {"binary_data_size": sizes[0]}}]
    }
    body = json.dumps(head).encode()
    headers = {"Content-Type": "application/octet-stream"}
    if declared_length is not None:
        headers["Inference-Header-Content-Length"] = (
            str(len(body)) if declared_length == "right" else declared_length
        )
    answer = model_service.http.post(INFER, content=body + b"\0\0\0\0", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        (b"\x05\0\0\0a", "TENSOR_SIZE"),
        (b"\xff\xff\xff\xffa", "TENSOR_SIZE"),
        (b"\x01\0\0\0ab", "TENSOR_SIZE"),
        (b"\x01\0\0\0a" * 2, "TENSOR_SIZE"),
        (b"\x01\0", "TENSOR_SIZE"),
        (b"", "TENSOR_SIZE"),
        (b"\x01\0\0\0\xff", "ENCODING"),
    ],
)
def test_wrong_strings_are_refused(model_service: Service, tensor: bytes, code: str) -> None:
    body, headers = binary(without_data([text("a")]), [tensor])
    answer = model_service.http.post(INFER, content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


def test_binary_numbers_must_be_finite(model_service: Service) -> None:
    tensors = [
        np.array(data, dtype).tobytes()
        for data, dtype in (([0, 1], "<i8"), ([1], "<i4"), ([np.nan], "<f4"))
    ]
    body, headers = binary(without_data(sparse([0, 1], [1], [1.0])), tensors)
    answer = model_service.http.post("/v2/models/plain/infer", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "NOT_FINITE")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v2/models/none/infer", {"inputs": [text("a")]}, 404, "NOT_FOUND"),
        ("/v2/models/docs/versions/9/infer", {"inputs": [text("a")]}, 404, "NOT_FOUND"),
        ("/v2/models/plain/infer", {"inputs": [text("a")]}, 400, "NO_TEXT"),
        (INFER, {"inputs": [text("a")], "parameters": {"top_k": 0}}, 400, "K_RANGE"),
        (INFER, {"inputs": [text("a")], "parameters": {"top_k": 10**6}}, 400, "K_RANGE"),
        (INFER, {"inputs": [text("a")], "parameters": {"topk": 1}}, 400, "UNKNOWN_FIELD"),
        (INFER, {"inputs": [text("a")], "model_name": "other"}, 400, "MODEL_NAME"),
        (INFER, {"inputs": [text("a")], "outputs": [{"name": "scores"}] * 2}, 400, "OUTPUTS"),
        ("/v2/nothing", {}, 404, "NO_SUCH_PATH"),
    ],
)
def test_errors_have_the_form_of_the_protocol(
    model_service: Service, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = model_service.http.post(path, json=body)
    jsonschema.validate(answer.json(), ERROR)
    assert (answer.status_code, answer.json()["code"], answer.json()["status"]) == (
        status,
        code,
        status,
    ), answer.text


def test_bodies_are_bounded(model_service: Service) -> None:
    huge = model_service.app_state.settings.predict_body_bytes + 1
    answer = model_service.http.post(
        INFER, content=b" " * huge, headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, "error" in answer.json()) == (413, True)
    assert (
        model_service.http.post(
            INFER, content=b"{}", headers={"Content-Type": "text/plain"}
        ).status_code
        == 415
    )


def test_a_body_without_a_type_or_compressed_is_read(model_service: Service) -> None:
    body = {"inputs": [text(*TEXTS)], "parameters": {"top_k": 3}}
    expected = model_service.http.post(INFER, json=body).json()
    content = json.dumps(body).encode()
    for headers, sent in (
        ({}, content),
        ({"Content-Type": "application/json; profile=x"}, content),
        ({"Content-Encoding": "gzip"}, gzip.compress(content)),
    ):
        answer = model_service.http.post(INFER, content=sent, headers=headers)
        assert (answer.status_code, answer.json()) == (200, expected), answer.text
    refused = model_service.http.post(INFER, content=b"", headers={"Content-Encoding": "br"})
    assert refused.headers["Accept-Encoding"] == "gzip, identity"


def test_repository_calls_as_triton_sends_them(model_service: Service) -> None:
    for verb, body in (("load", {}), ("unload", {"parameters": {"unload_dependents": False}})):
        answer = model_service.http.post(
            f"/v2/repository/models/docs/{verb}",
            content=json.dumps(body).encode(),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert answer.status_code == 200, answer.text


def test_the_model_repository(model_service: Service) -> None:
    def index(**body: Any) -> dict[tuple[str, str], str]:
        document = model_service.http.post("/v2/repository/index", json=body).json()
        jsonschema.validate(document, INDEX)
        return {(one["name"], one["version"]): one["state"] for one in document}

    def repository_status(verb: str, name: str, body: Any = None) -> int:
        return model_service.http.post(
            f"/v2/repository/models/{name}/{verb}", json=body
        ).status_code

    assert repository_status("unload", "docs") == repository_status("unload", "plain") == 200
    everything = {("docs", "1"), ("docs", "2"), ("plain", "1")}
    assert index() == dict.fromkeys(everything, "UNAVAILABLE")
    assert repository_status("load", "docs") == 200
    assert index(ready=True) == {("docs", "2"): "READY"}
    assert repository_status("load", "docs", {"parameters": {"version": "1"}}) == 200
    assert index(ready=True) == {("docs", "1"): "READY", ("docs", "2"): "READY"}
    assert repository_status("unload", "docs", {"parameters": {"version": "2"}}) == 200
    assert index(ready=True) == {("docs", "1"): "READY"}
    assert model_service.http.post(INFER, json={"inputs": [text("a")]}).status_code == 200
    assert (
        repository_status("load", "none")
        == repository_status("unload", "none")
        == repository_status("unload", "docs", {"parameters": {"version": "7"}})
        == 404
    )
    assert (
        repository_status("load", "docs", {"parameters": {"version": "x"}})
        == repository_status("load", "docs", {"parameters": {"config": "{}"}})
        == 400
    )
    assert model_service.http.post("/v2/repository/index").status_code == 200
