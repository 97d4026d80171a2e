"""The OpenAPI description is complete, correct and has stable names.

`python -m tests.support.openapi` tests it with many more requests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.support.live_service import client_of, settings_for
from tests.support.openapi import explore, service
from xcray.errors import ParameterError
from xcray.jobs.store.tokens import KeyLimits
from xcray.service.app import create_app
from xcray.service.openapi import EXTRA_STATUSES, PARAMETER_SCHEMAS
from xcray.service.schemas.base import ALIAS_PATTERN, NAME_PATTERN, REFERENCE_PATTERN
from xcray.service.schemas.jobs import JobRequest
from xcray.service.schemas.models import AliasRequest
from xcray.solvers import SOLVERS
from xcray.storage.atomic import check_name

OPERATIONS = """
batch_output batch_output_file batch_submit datasets_create datasets_delete datasets_index datasets_show datasets_upload
feedback_create feedback_delete feedback_export feedback_index feedback_show
health_healthz health_metrics health_readyz inference_infer inference_live inference_load inference_metadata inference_model_ready
inference_ready inference_repository_index inference_server inference_unload inference_version_infer inference_version_metadata
inference_version_ready jobs_labels jobs_delete jobs_events jobs_index jobs_logs jobs_resume jobs_show jobs_stop jobs_submit
jobs_timeline keys_audit keys_create keys_index keys_revoke models_card models_delete_alias models_delete_set models_delete_version
models_index models_put_set models_set_alias models_sets models_show models_show_set models_show_version predict_explain
predict_predict updates_submit
"""  # clients are generated from these names: add names, never rename one


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = create_app(settings_for(tmp_path_factory.mktemp("described") / "home"))
    result: dict[str, Any] = app.openapi()
    app.state.app_state.store.close()
    return result


def operations(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        one["operationId"]: one for each in description["paths"].values() for one in each.values()
    }


def test_operation_names_are_stable(description: dict[str, Any]) -> None:
    assert set(OPERATIONS.split()) <= set(operations(description))


def test_tables_contain_existing_operations_only(description: dict[str, Any]) -> None:
    assert set(EXTRA_STATUSES) <= set(operations(description))


def test_every_operation_is_fully_described(description: dict[str, Any]) -> None:
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


def test_every_reference_resolves(description: dict[str, Any]) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                result: Any = description
                for part in reference.removeprefix("#/").split("/"):
                    result = result[part]
            for entry in value.values():
                walk(entry)
        elif isinstance(value, list):
            for entry in value:
                walk(entry)

    walk(description)


def schema_of(description: dict[str, Any], name: str) -> dict[str, Any]:
    result: dict[str, Any] = description["components"]["schemas"][name]["properties"]
    return result


def test_names_of_the_description_are_those_that_the_service_takes() -> None:
    parts = ("a", "0", ".", "-", "con", "com1", "lpt9", "nul", "A", "_", "x" * 63, "x" * 64)
    names = [*parts, *(a + b for a in parts for b in parts), "", "con.txt", "a..b", "a.b", "cone"]
    for name in names:
        try:
            check_name(name)
        except ParameterError:
            assert not re.fullmatch(NAME_PATTERN, name), name
            assert not re.fullmatch(REFERENCE_PATTERN, f"{name}:1"), name
        else:
            assert re.fullmatch(NAME_PATTERN, name), name
            for suffix in ("", ":1", "@stable"):
                assert re.fullmatch(REFERENCE_PATTERN, name + suffix), name
    assert not re.fullmatch(ALIAS_PATTERN, "latest")
    assert re.fullmatch(ALIAS_PATTERN, "latest2")


def test_rules_that_the_service_checks_itself_are_described(description: dict[str, Any]) -> None:
    limits = schema_of(description, "KeyRequest")["limits"]
    assert limits["propertyNames"]["enum"] == list(KeyLimits._fields)
    assert limits["additionalProperties"]["minimum"] == 0
    for operation in operations(description).values():
        for parameter in operation.get("parameters", []):
            assert {"type": "null"} not in parameter["schema"].get("anyOf", []), parameter
    results = {
        (parameter["in"], parameter["name"].lower())
        for operation in operations(description).values()
        for parameter in operation.get("parameters", [])
    }
    assert set(PARAMETER_SCHEMAS) <= results


def test_the_solvers_of_the_service_are_described(description: dict[str, Any]) -> None:
    """Others are refused, so a request that fits the description names one of these."""
    assert schema_of(description, "JobRequest")["solver"]["enum"] == list(SOLVERS)


def test_limits_of_integers_are_described_and_whole_floats_are_integers(
    description: dict[str, Any],
) -> None:
    workers = schema_of(description, "JobRequest")["workers"]
    assert (workers["type"], workers["minimum"], workers["maximum"]) == ("integer", 0, 4096)
    request = {"dataset": "d", "model": "m"}
    for value in (3, 3.0):
        selection = JobRequest.model_validate({**request, "workers": value})
        assert repr(selection.model_dump()["workers"]) == "3"
    for wrong in (3.5, "3", True, 1e6, -1.0):
        with pytest.raises(ValidationError):
            JobRequest.model_validate({**request, "workers": wrong})
    assert repr(AliasRequest.model_validate({"version": 1, "shadow": 2.0}).shadow) == "2"


def test_the_description_is_served(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        body = http.get("/openapi.json").json()
        assert body["openapi"].startswith("3.1")
        assert set(body["components"]["securitySchemes"]) == {"bearer"}


def test_wrong_methods_get_the_allowed_ones(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        for path, allowed in (
            ("/v1/jobs", "GET, HEAD, POST"),
            ("/v1/jobs/job_x", "DELETE, GET, HEAD"),
            ("/v1/models/m/label-sets/s", "DELETE, GET, HEAD, PUT"),
        ):
            answer: httpx.Response = http.patch(path)
            assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (
                405,
                "METHOD",
                allowed,
            )


def test_the_service_conforms_to_its_description(tmp_path: Path) -> None:
    """The service conforms to its description in some hundred requests with a fixed seed."""
    with service(tmp_path) as (description, url, known):
        result = explore(description, url, known, examples=1, seed=7, whole=False)
    assert result.requests > 100
    assert result.statuses["2xx"] > 30
    assert result.statuses["5xx"] == 0
    assert not result.failures
