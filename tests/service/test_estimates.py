"""Estimates before a job is submitted: over REST, with the client and with the command."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.live_service import PATIENCE, serving, settings_for
from xcray.cli.main import main
from xcray.client import Client
from xcray.data.dataset import Dataset
from xcray.errors import Refused
from xcray.service.app import create_app
from xcray.service.routes import jobs as routes


class Service(NamedTuple):
    """A served app, a plain client, and the folder of its READY data set `small`."""

    url: str
    http: httpx.Client
    data: Path


@pytest.fixture(scope="module")
def service(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("estimates")
    data = folder / "small"
    shutil.copytree(tiny.path, data)
    app = create_app(settings_for(folder / "home"))
    app.state.app_state.store.datasets.add("small", str(data), stats={"n_labels": 40})
    with (
        serving(app) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as http,
    ):
        yield Service(url, http, data)


def estimate(service: Service, **more: Any) -> httpx.Response:
    body = {"dataset": "small", "model": "m", "pool": "threads", "workers": 2, **more}
    return service.http.post("/v1/jobs:estimate", json=body)


# Each estimate starts a process, so that few are made here.


def test_an_estimate_has_figures_and_submits_nothing(service: Service) -> None:
    answer = estimate(service, auto="P@1")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["fits"], found["problem"], found["workers"]) == (True, None, 2)
    assert 0 < found["probed_labels"] <= 40
    assert found["memory_bytes"] > 2 * found["worker_bytes"] > 0
    assert 0 < found["disk_bytes"] < found["disk_free_bytes"]
    assert 0.0 < found["core_seconds"] < 600.0
    assert found["selection_core_seconds"] > found["core_seconds"]
    assert service.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("solver", ["stagewise", "dsmlr", "memoir"])
def test_every_family_is_estimated_for_the_client(service: Service, solver: str) -> None:
    with Client(service.url) as client:
        found = client.jobs.estimate(dataset="small", model="m", solver=solver, pool="serial")
    assert (found["memory_bytes"] > 0, found["workers"]) == (True, 1)
    assert found["selection_core_seconds"] is None


def test_a_training_that_does_not_fit_is_refused_by_the_command_with_the_reason(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    submit = ["jobs", "submit", "small", "--model", "m", "--estimate", "--server", service.url]
    assert main([*submit, "--memory-limit", "1kB"]) != 0
    printed = capsys.readouterr()
    assert "core time" in printed.out
    assert "--memory-limit leaves" in printed.err


def test_wrong_requests_are_refused_as_at_a_submission(service: Service) -> None:
    assert estimate(service, dataset="nothing").status_code == 404
    refused = estimate(service, params={"lam": -1})
    assert (refused.status_code, refused.json()["code"]) == (422, "PARAMETER")


def test_many_estimates_of_a_tenant_are_refused_at_once_and_stop_no_other_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def wait(*_: Any) -> dict[str, Any]:
        assert ended.wait(PATIENCE)
        raise Refused("no estimate")

    monkeypatch.setattr(routes, "estimate_in_child", wait)
    with ThreadPoolExecutor(50) as pool:
        estimates = [pool.submit(estimate, service) for _ in range(50)]
        try:
            finished = as_completed(estimates, PATIENCE)
            refused = [next(finished).result() for _ in range(48)]
            assert service.http.get("/v1/jobs").status_code == 200
        finally:
            ended.set()
    assert {(reply.status_code, reply.json()["code"]) for reply in refused} == {
        (429, "CONCURRENCY")
    }
    assert all(int(reply.headers["Retry-After"]) > 0 for reply in refused)
    assert Counter(each.result().status_code for each in estimates) == {429: 48, 422: 2}


def test_a_damaged_data_set_is_named_without_folders(service: Service) -> None:
    texts = {path: path.read_text() for path in service.data.glob("*.json")}
    try:
        for path in texts:
            path.write_text("{")
        answer = estimate(service)
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert (answer.status_code, answer.json()["code"]) == (503, "CORRUPT")
    assert str(service.data.parent) not in answer.text
