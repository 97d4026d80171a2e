"""Jobs on a data set whose training rows are in object storage: submitted over REST, and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.live_service import client_of, settings_for
from tests.support.s3 import BUCKET, FaultProxy
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import FAILED, SUCCEEDED
from xcray.service.app import create_app
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory
from xcray.solvers.indexed_bcd.remote_copy import plan_copy
from xcray.storage.objectstore.client import StoragePath
from xcray.training import TrainSpec, train
from xcray.training.independent import IndependentLabels

PARAMS = {"selection": "forest", "first_rows": 20, "query_rows": 10, "leaf_rows": 16}
REQUEST = {"dataset": "news", "model": "news", "solver": "indexed-bcd", "params": PARAMS}
MEMORY_LIMIT = 1 << 40
QUICK = MonitorOptions(lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02)


class RemoteService(NamedTuple):
    """A service on which `news`, a copy without rows, is registered."""

    http: httpx.Client
    app_state: Any
    whole: Dataset
    copy: Dataset

    def run(self, **changes: Any) -> dict[str, Any]:
        """Submit a job, run its attempt, and return the job."""
        body = {**REQUEST, "memory_limit": MEMORY_LIMIT, "pool": "serial", **changes}
        submitted = self.http.post("/v1/jobs", json=body)
        assert submitted.status_code == 201, submitted.text
        store = self.app_state.store
        claimed = store.attempts.claim("test", lease_seconds=600)
        run_attempt(store, self.app_state.home, claimed.id, claimed.attempt, options=QUICK)
        return dict(self.http.get(f"/v1/jobs/{submitted.json()['id']}").json())


@pytest.fixture
def service(tmp_path: Path, proxy: FaultProxy) -> Iterator[RemoteService]:
    """Push a data set, copy it without rows below an allowed folder, and register the copy."""
    synthetic = {"rows": 1_600, "features": 200, "labels": 3, "seed": 7}
    options = BuildOptions.from_dict({"synthetic": synthetic, "test_fraction": 0.1})
    whole = build("synthetic", {}, tmp_path / "whole" / "news", options)
    build_forest_directory(whole, 16)
    place = StoragePath.parse(f"s3://{BUCKET}/jobs/{tmp_path.name}") / "news"
    push_dataset(whole.path, place)
    path = tmp_path / "open" / "news"
    plan_copy(place.uri, with_rows=False).fetch(path)
    app = create_app(settings_for(tmp_path / "home", dataset_roots=(path.parent,), pool="serial"))
    with client_of(app) as http:
        body = {"name": "news", "format": "dataset", "path": str(path)}
        answer = http.post("/v1/datasets", json=body)
        assert answer.status_code == 201, answer.text
        assert answer.json()["status"] == "READY"
        yield RemoteService(http, app.state.app_state, whole, Dataset.open(path))


def test_a_job_reads_the_rows_within_its_memory_limit(
    service: RemoteService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TrainSpec(str(service.whole.path), solver="indexed-bcd", pool="serial", params=PARAMS)
    reference = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    n_bytes, limits = 8 * (service.whole.train.X.nnz + service.whole.train.n_rows), list[int]()
    rows_limit = IndependentLabels.rows_limit

    def half_of_the_rows(strategy: IndependentLabels) -> int:
        limits.append(rows_limit(strategy) or 0)
        return n_bytes // 2

    fits = service.run()
    monkeypatch.setattr(IndependentLabels, "rows_limit", half_of_the_rows)
    paged = service.run()
    assert 0 < limits[0] < MEMORY_LIMIT  # the limit of the request arrives
    for job in (fits, paged):
        assert job["status"] == SUCCEEDED, job
        assert job["result"]["sha256"] == reference.sha256
        assert job["result"]["report"]["requests"] > 0
    requested = [job["result"]["report"]["bytes_requested"] for job in (fits, paged)]
    assert requested[0] == 8 * service.whole.train.X.nnz < requested[1]


def test_what_needs_the_rows_is_refused(service: RemoteService) -> None:
    for changes in ({"solver": "ppdsparse", "params": {}}, {"calibrate": True}):
        estimate = service.http.post("/v1/jobs:estimate", json={**REQUEST, **changes})
        assert estimate.json()["code"] == "ROWS_REMOTE", estimate.text
        job = service.run(**changes)
        assert (job["status"], job["reason"]) == (FAILED, "ROWS_REMOTE")
        assert "xcray data pull s3://" in job["message"]


def test_figures_and_estimates_need_no_rows(service: RemoteService) -> None:
    (listed,) = service.http.get("/v1/datasets").json()["datasets"]
    assert listed["stats"]["splits"]["train"]["n_rows"] == service.whole.train.n_rows
    figures = service.http.get(f"/v1/datasets/{listed['id']}/figures")
    assert figures.status_code == 200, figures.text
    body = {**REQUEST, "memory_limit": MEMORY_LIMIT, "pool": "serial"}
    estimate = service.http.post("/v1/jobs:estimate", json=body)
    assert estimate.status_code == 200, estimate.text
    assert estimate.json()["fits"], estimate.text
