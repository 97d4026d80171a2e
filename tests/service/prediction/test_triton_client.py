"""The clients of the package tritonclient, synchronous and asynchronous, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

from tests.support.live_service import plain_model, publish, serving, settings_for
from xcray.client import Client
from xcray.service.app import create_app

pytestmark = pytest.mark.drill
TEXTS = ["read rows of a csv file", "parse json documents"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a service with a text model "docs" and a feature model "plain"."""
    home = tmp_path_factory.mktemp("triton") / "home"
    app = create_app(settings_for(home))
    registry = app.state.app_state.registry_of("default")
    publish(registry, "docs", home / "staged", seed=1)
    plain_model(home / "plain", 6)
    registry.publish("plain", home / "plain")
    with serving(app) as address:
        yield address


def text_input(module: Any, binary: bool, shape: list[int]) -> Any:
    """Return the tensor of TEXTS."""
    tensor = module.InferInput("text", shape, "BYTES")
    tensor.set_data_from_numpy(np.array(TEXTS, object).reshape(shape), binary_data=binary)
    return tensor


def expected_labels(url: str) -> list[list[str]]:
    """Return the labels of TEXTS by /v1."""
    with Client(url) as client:
        answer = client.predict("docs", [{"text": each} for each in TEXTS], top_k=5)
    return [each["labels"] for each in answer["predictions"]]


def decoded(result: Any) -> list[list[str]]:
    """Return the names of labels in a result."""
    rows = result.as_numpy("labels").tolist()
    return [[name.decode() if isinstance(name, bytes) else name for name in row] for row in rows]


@pytest.mark.parametrize("binary_out", [False, True])
@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("shape", [[2], [2, 1]])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_texts(
    url: str, binary_in: bool, binary_out: bool, shape: list[int], compression: str | None
) -> None:
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        result = client.infer(
            "docs",
            [text_input(triton, binary_in, shape)],
            outputs=[triton.InferRequestedOutput("labels", binary_data=binary_out)],
            request_compression_algorithm=compression,
        )
    assert decoded(result) == expected_labels(url)


def test_features(url: str) -> None:
    dense = triton.InferInput("dense", [1, 6], "FP32")
    dense.set_data_from_numpy(np.eye(6, dtype=np.float32)[:1])
    sparse = [
        triton.InferInput(name, [len(data)], kind)
        for name, data, kind in (
            ("indptr", [0, 1], "INT64"),
            ("indices", [0], "INT32"),
            ("values", [1.0], "FP32"),
        )
    ]
    arrays = (np.array([0, 1]), np.array([0], np.int32), np.array([1.0], np.float32))
    for tensor, array in zip(sparse, arrays, strict=True):
        tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        scores = [
            client.infer("plain", inputs).as_numpy("scores").tolist()
            for inputs in ([dense], sparse)
        ]
    assert scores[0] == scores[1]


def test_health_metadata_and_the_repository(url: str) -> None:
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_model_metadata("docs")["name"] == "docs"
        client.load_model("docs")
        assert client.is_model_ready("docs")
        states = {each["name"]: each["state"] for each in client.get_model_repository_index()}
        assert states["docs"] == "READY"
        client.unload_model("docs")
        states = {each["name"]: each["state"] for each in client.get_model_repository_index()}
        assert states["docs"] == "UNAVAILABLE"


def test_the_asynchronous_client(url: str) -> None:
    async def run() -> Any:
        async with triton_aio.InferenceServerClient(url.removeprefix("http://")) as client:
            await client.load_model("docs")
            result = await client.infer("docs", [text_input(triton_aio, True, [2])])
            await client.unload_model("docs")
            return result

    assert decoded(asyncio.run(run())) == expected_labels(url)
