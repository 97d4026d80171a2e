"""Labels of a model and solvers over REST, by the Python client."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.live_service import LABELS, serving, settings_for, text_model
from xcray.client import Client
from xcray.errors import NotFound, ParameterError
from xcray.model.model import Model
from xcray.predict.label_details import label_details
from xcray.service.app import create_app
from xcray.solvers import SOLVERS, describe_solver


def test_labels_and_solvers_are_resources(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    labels = [*LABELS, "a/b c"]
    text_model(tmp_path / "model", labels=labels)
    version = app.state.app_state.registry.publish("text", tmp_path / "model")
    model = Model.open(app.state.app_state.registry.resolve("text"))
    with serving(app) as url, Client(url) as client:
        assert [each["label"] for each in client.models.labels("text")] == labels
        first = client._connection.request("GET", "/v1/models/text/labels", query={"limit": 1})
        query = {"limit": 1, "page_token": first["next_page_token"]}
        second = client._connection.request("GET", "/v1/models/text/labels", query=query)
        assert [page["labels"][0]["number"] for page in (first, second)] == [0, 1]
        assert [each["label"] for each in client.models.labels("text", contains="B C")] == ["a/b c"]
        result = client.models.label(f"text:{version}", "a/b c", features=3, similar=2)
        assert result["model"] == {"name": "text", "version": version, "sha256": model.sha256}
        expected = label_details(model, "a/b c", 3, 2)
        assert {name: value for name, value in result.items() if name != "model"} == expected
        with pytest.raises(NotFound, match="did you mean"):
            client.models.label("text", f"{LABELS[0]}s")
        with pytest.raises(NotFound, match="did you mean 'text'"):
            list(client.models.labels("texts"))
        assert client.solvers()[0]["parameters"][0]["name"] == "lam"
        assert [each["name"] for each in client.solvers()] == list(SOLVERS)
        one = client._connection.request("GET", "/v1/solvers/lc")
        assert one["help"] == describe_solver("lc")["help"]
        with pytest.raises(NotFound, match="did you mean 'lc'"):
            client._connection.request("GET", "/v1/solvers/lcc")
        with pytest.raises(ParameterError):
            client._connection.request("GET", "/v1/models/text/labels", query={"page_token": "x"})


def test_head_answers_like_get_without_the_body(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    text_model(tmp_path / "model")
    app.state.app_state.registry.publish("text", tmp_path / "model")
    with serving(app) as url:
        for path in ("/healthz", "/v1/models/text", "/v1/solvers", "/openapi.json", "/v1/none"):
            response, head = httpx.get(url + path), httpx.head(url + path)
            assert (head.status_code, head.content) == (response.status_code, b""), path
            assert head.headers["content-length"] == response.headers["content-length"], path
            assert head.headers.get("etag") == response.headers.get("etag"), path
        assert httpx.head(f"{url}/v1/models/text:predict").status_code == 405
