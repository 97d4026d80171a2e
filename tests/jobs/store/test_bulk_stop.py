"""POST /v1/jobs:stop: one request stops all matching jobs of the caller's tenant."""

from contextlib import closing

import pytest

from tests.support.job_store import claim, submit
from tests.support.live_service import client_of, settings_for
from xcray.jobs.states import PENDING, STOPPED
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import AppParts, create_app
from xcray.service.routes import jobs


@pytest.fixture
def served(tmp_path):
    settings = settings_for(tmp_path / "home")
    settings.home.mkdir()
    with (
        closing(JobStore(settings.store_url)) as store,
        client_of(create_app(settings, parts=AppParts(store=store))) as http,
    ):
        yield store, http


def test_one_request_stops_all_matching_jobs(served, monkeypatch):
    monkeypatch.setattr(jobs, "STOP_BATCH_JOBS", 3)
    store, http = served
    running = submit(store, "running")
    claim(store)
    waiting = [submit(store, f"n{number % 2}", model="m") for number in range(8)]
    theirs = submit(store, tenant="theirs")
    assert http.post("/v1/jobs:stop", json={"name": "n1"}).json() == {"stopped": 4, "more": False}
    assert http.post("/v1/jobs:stop", json={"status": "PENDING"}).json() == {
        "stopped": 4,
        "more": False,
    }
    assert {store.jobs.get(job.id).status for job in waiting} == {STOPPED}
    assert not store.jobs.get(running.id).stop_requested
    assert http.post("/v1/jobs:stop", json={}).json() == {"stopped": 1, "more": False}
    assert store.jobs.get(running.id).stop_requested
    assert http.post("/v1/jobs:stop", json={}).json() == {"stopped": 0, "more": False}
    assert store.jobs.get(theirs.id, "theirs").status == PENDING


def test_a_request_that_reaches_its_time_limit_can_be_repeated(served, monkeypatch):
    monkeypatch.setattr(jobs, "STOP_BATCH_JOBS", 2)
    monkeypatch.setattr(jobs, "STOP_REQUEST_SECONDS", 0.0)
    store, http = served
    for number in range(3):
        submit(store, f"n{number}")
    assert http.post("/v1/jobs:stop", json={}).json() == {"stopped": 2, "more": True}
    assert http.post("/v1/jobs:stop", json={}).json() == {"stopped": 1, "more": False}
    assert store.statistics.read().jobs[STOPPED] == 3


@pytest.mark.parametrize(
    "wrong", [{"status": "SUCCEEDED"}, {"everything": True}, {"name": ""}, [], {"dataset": 3}]
)
def test_an_invalid_request_is_refused(served, wrong):
    store, http = served
    job = submit(store)
    assert http.post("/v1/jobs:stop", json=wrong).status_code == 422
    assert store.jobs.get(job.id).status == PENDING
