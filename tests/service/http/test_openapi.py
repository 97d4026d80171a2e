"""The OpenAPI description is complete, correct and has stable names.

`python -m tests.support.openapi` tests it with many more requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import client_of, settings_for
from tests.support.openapi import explore, service
from xcray.service.app import create_app
from xcray.service.openapi import EXTRA_STATUSES, LINKS

OPERATIONS = """
batch_output batch_output_file batch_submit datasets_create datasets_delete datasets_index datasets_show datasets_upload
health_healthz health_metrics health_readyz inference_infer inference_live inference_load inference_metadata inference_model_ready
inference_ready inference_repository_index inference_server inference_unload inference_version_infer inference_version_metadata
inference_version_ready jobs_classes jobs_delete jobs_events jobs_index jobs_logs jobs_resume jobs_show jobs_stop jobs_submit
jobs_timeline keys_audit keys_create keys_index keys_revoke models_card models_delete_alias models_delete_set models_delete_version
models_index models_put_set models_set_alias models_sets models_show models_show_set models_show_version predict_explain
predict_predict
"""  # clients are generated from these names: add, never rename


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = create_app(settings_for(tmp_path_factory.mktemp("described") / "home"))
    found: dict[str, Any] = app.openapi()
    app.state.app_state.store.close()
    return found


def operations(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        one["operationId"]: one for each in description["paths"].values() for one in each.values()
    }


def test_names_stay(description: dict[str, Any]) -> None:
    assert set(OPERATIONS.split()) <= set(operations(description))


def test_tables_speak_of_operations_that_there_are(description: dict[str, Any]) -> None:
    found = operations(description)
    assert set(EXTRA_STATUSES) <= set(found)
    for link in LINKS:
        links = found[link.source]["responses"][str(link.status)]["links"]
        parameters = {parameter["name"] for parameter in found[link.target].get("parameters", [])}
        assert set(links[link.target]["parameters"]) <= parameters, link


def test_every_operation_says_all(description: dict[str, Any]) -> None:
    for name, one in operations(description).items():
        closed = "security" in one
        assert one["summary"], name
        assert one["description"], name
        assert {"400", "431"} <= set(one["responses"]), name
        assert (
            closed == ({"401", "403", "429", "503"} <= set(one["responses"]))
            or name == "health_readyz"
        ), name
        assert "default" not in one["responses"], name
        for status, response in one["responses"].items():
            content = response.get("content", {})
            assert not (int(status) >= 400 and "$ref" not in response and not content), (
                name,
                status,
            )


def test_every_reference_leads_somewhere(description: dict[str, Any]) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                found: Any = description
                for part in reference.removeprefix("#/").split("/"):
                    found = found[part]
            for entry in value.values():
                walk(entry)
        elif isinstance(value, list):
            for entry in value:
                walk(entry)

    walk(description)


def test_the_description_is_served(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        found = http.get("/openapi.json").json()
        assert found["openapi"].startswith("3.1")
        assert set(found["components"]["securitySchemes"]) == {"bearer"}


def test_wrong_methods_are_told_the_right_ones(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        for path, allowed in (
            ("/v1/jobs", "GET, POST"),
            ("/v1/jobs/job_x", "DELETE, GET"),
            ("/v1/models/m/label-sets/s", "DELETE, GET, PUT"),
        ):
            answer: httpx.Response = http.patch(path)
            assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (
                405,
                "METHOD",
                allowed,
            )


def test_the_service_does_what_it_says(tmp_path: Path) -> None:
    """Some hundred requests, the same each time: no failure of any check, no answer that blames
    ourselves.
    """
    with service(tmp_path) as (description, url, known):
        found = explore(description, url, known, examples=3, seed=7, whole=False)
    assert found.requests > 200
    assert found.statuses["2xx"] > 30
    assert found.statuses["5xx"] == 0
    assert not found.failures
