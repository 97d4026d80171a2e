"""Every operation of the description has an example, and a service accepts all of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import settings_for
from tests.support.service_processes import process, until
from xcray.service.app import create_app
from xcray.service.openapi import ID_EXAMPLES

# In the order in which a reader could try them: what an operation needs comes before it.
_ORDER = """
health_healthz health_readyz health_metrics solvers_index solvers_show datasets_create datasets_index datasets_show
datasets_histograms pictures_dataset pictures_runs jobs_estimate jobs_submit jobs_index jobs_show jobs_events jobs_logs jobs_timeline jobs_labels pictures_job jobs_stop
models_index models_show models_show_version models_card versions_report pictures_model versions_diff comparisons_compare versions_archive
models_set_alias models_shadow models_load
models_put_set models_sets models_show_set labels_index labels_show predict_predict predict_explain feedback_create feedback_index feedback_show feedback_export
inference_server inference_live inference_ready inference_metadata inference_version_metadata inference_model_ready
inference_version_ready inference_infer inference_version_infer inference_repository_index inference_load inference_unload
datasets_upload batch_submit batch_output batch_output_file updates_submit
feedback_delete models_unload models_delete_set models_delete_alias jobs_delete datasets_delete models_delete_version
keys_create keys_index keys_me keys_audit keys_revoke
"""
ORDER = _ORDER.split()
# A job that is over cannot be resumed: the example is right for a stopped job only.
NEEDS_A_STOPPED_JOB = {"jobs_resume"}


@pytest.fixture
def operations(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Return the operations by id, each with its method and path."""
    app = create_app(settings_for(tmp_path / "described"))
    description = app.openapi()
    app.state.app_state.store.close()
    return {
        one["operationId"]: {**one, "method": method, "path": path}
        for path, methods in description["paths"].items()
        for method, one in methods.items()
    }


def test_every_operation_has_an_example(operations: dict[str, dict[str, Any]]) -> None:
    assert set(ORDER) | NEEDS_A_STOPPED_JOB == set(operations)
    for name, one in operations.items():
        for parameter in one.get("parameters", []):
            assert not parameter["required"] or "example" in parameter, (name, parameter["name"])
        content = one.get("requestBody", {}).get("content", {})
        assert not content or any("example" in each for each in content.values()), name


class Reader:
    """A reader who pastes one example after another and puts in the ids of earlier replies."""

    def __init__(self, http: httpx.Client, home: Path) -> None:
        self._http = http
        self._home = home
        self._ids = dict(ID_EXAMPLES)

    def paste(self, name: str, one: dict[str, Any]) -> None:
        """Send the example of an operation."""
        path = one["path"]
        for parameter in one.get("parameters", []):
            if parameter["required"]:
                example = self._ids.get(parameter["name"], parameter["example"])
                path = path.replace(f"{{{parameter['name']}}}", str(example))
        bodies = [
            (kind, each["example"])
            for kind, each in one.get("requestBody", {}).get("content", {}).items()
            if "example" in each
        ]
        for kind, example in bodies or [("", "")]:
            text = example if isinstance(example, str) else json.dumps(example)
            text = text.replace(ID_EXAMPLES["upload"], self._ids["upload"])
            headers = {"content-type": kind} if kind else {}
            ask = partial(self._http.request, one["method"], path, content=text, headers=headers)
            # 503: such as a check of readiness that is not done yet on a slow machine
            answer = until(lambda ask=ask: (it := ask()).status_code != 503 and it, self._home)
            assert answer.is_success, (name, path, answer.status_code, answer.text)
            self._take_id(name, answer)

    def _take_id(self, name: str, answer: httpx.Response) -> None:
        """Remember the id of a new resource, and wait until it is complete."""
        places = {
            "datasets_create": "dataset_id",
            "jobs_submit": "job_id",
            "batch_submit": "job_id",
            "updates_submit": "job_id",
            "datasets_upload": "upload",
            "keys_create": "key_id",
        }
        if name not in places:
            return
        self._ids[places[name]] = answer.json()["id"]
        if name in ("datasets_create", "jobs_submit", "batch_submit", "updates_submit"):
            self._wait(answer)

    def change_data_set(self) -> None:
        """Make the changed data set that the example of an update names."""
        row = b'{"text": "read rows of a file", "labels": ["csv"]}\n'
        kind = {"content-type": "application/octet-stream"}
        upload = self._http.post("/v1/uploads", content=row, headers=kind).json()["id"]
        change = {
            "name": "pydocs-2",
            "format": "jsonl",
            "base": "pydocs",
            "uploads": {"train": upload},
        }
        answer = self._http.post("/v1/datasets", json=change)
        assert answer.is_success, answer.text
        self._wait(answer)

    def _wait(self, answer: httpx.Response) -> None:
        """Wait until the new resource is complete."""
        location = answer.headers["location"]
        until(lambda: self._is_complete(location), self._home)

    def _is_complete(self, path: str) -> bool:
        """Return whether a data set or a job is complete; fail if it failed."""
        body = self._http.get(path).json()
        assert body["status"] != "FAILED", body
        return body["status"] in ("READY", "SUCCEEDED")


@pytest.mark.drill
def test_every_example_works_as_pasted(
    operations: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """A new service accepts all examples with status 2xx, in a sensible order."""
    home = tmp_path / "home"
    with process(home, "serve"):
        until((home / "serve.json").is_file, home)
        url = json.loads((home / "serve.json").read_text())["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=600) as http:
            key = http.post("/v1/keys", json={"name": "reader", "scopes": ["admin"]}).json()["key"]
            http.headers["authorization"] = f"Bearer {key}"
            reader = Reader(http, home)
            for name in ORDER:
                if name == "updates_submit":
                    reader.change_data_set()
                reader.paste(name, operations[name])
