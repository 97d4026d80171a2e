"""Serving and job-running processes of one home: one each on a file, any number on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service_processes import PATIENCE, process, read_process_file, until
from xcray.jobs.home import Home
from xcray.jobs.states import SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore

pytestmark = pytest.mark.drill

SIZES = {"rows": 400, "features": 200, "labels": 40, "seed": 7}
DATA = {
    "name": "small",
    "format": "synthetic",
    "options": {"test_fraction": 0.2, "synthetic": SIZES},
}


def build_dataset(http: httpx.Client, home: Path) -> str:
    """Build a data set and return its id."""
    body: str = http.post("/v1/datasets", json=DATA).json()["id"]
    until(lambda: http.get(f"/v1/datasets/{body}").json()["status"] == "READY", home)
    return body


def trained(http: httpx.Client, home: Path, data: str) -> dict[str, Any]:
    """Run a training job and return the ended job."""
    job = http.post("/v1/jobs", json={"dataset": data, "model": "m", "pool": "serial"}).json()["id"]
    body: dict[str, Any] = until(
        lambda: (job_ := http.get(f"/v1/jobs/{job}").json())["status"] in TERMINAL and job_, home
    )
    return body


def client(url: str) -> httpx.Client:
    """Return an HTTP client without proxies."""
    return httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE)


def refused(home: Path, *words: str) -> str:
    """Run a command that must be refused and return its error output."""
    environment = {**os.environ, "XCRAY_HOME": str(home), "XCRAY_PORT": "0"}
    completion = subprocess.run(
        [sys.executable, "-m", "xcray", *words, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completion.returncode == 1
    return completion.stderr


def test_on_sqlite_one_process_serves_and_one_runs_jobs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (
        process(home, "serve", "--no-runner") as api,
        process(home, "runner") as runner,
    ):
        details = read_process_file(home, api, "serve"), read_process_file(home, runner, "runner")
        with client(details[0]["url"]) as http, client(details[1]["url"]) as health:
            assert trained(http, home, build_dataset(http, home))["status"] == SUCCEEDED
            assert (health.get("/healthz").status_code, health.get("/readyz").status_code) == (
                200,
                200,
            )
            assert "xcray_dataset_builds_total" in health.get("/metrics").text
            # a runner serves only health and metrics
            assert health.get("/v1/jobs").status_code == 404
        for words in (("serve",), ("serve", "--no-runner"), ("runner",)):
            assert "HOME_IN_USE" in refused(home, *words)
        for child in (runner, api):
            child.send_signal(signal.SIGTERM)
            assert child.wait(PATIENCE) == 0, (home / "processes.log").read_text()[-4000:]
    assert not [*home.glob("serve*.json"), *home.glob("runner*.json")]


def test_on_postgresql_replicas_share_a_home_and_a_killed_leader_is_replaced(
    tmp_path: Path, postgres: Any
) -> None:
    """Two API replicas and two runners share a home.

    After the maintenance leader is killed, the other replica builds data sets and runs maintenance.
    """
    home, url = tmp_path / "home", postgres.emptied()
    with ExitStack() as stack:
        first = stack.enter_context(process(home, "serve", "--no-runner", store=url))
        read_process_file(home, first, "serve")  # the first process creates the tables
        apis = [first, stack.enter_context(process(home, "serve", "--no-runner", store=url))]
        runners = [
            stack.enter_context(process(home, "runner", store=url, lease="6")) for _ in range(2)
        ]
        https = [
            stack.enter_context(client(read_process_file(home, api, "serve")["url"]))
            for api in apis
        ]
        for runner in runners:
            read_process_file(home, runner, "runner")
        build_dataset(https[0], home)
        keeper = keeper_of(url)
        dead = next(runner for runner in runners if f":{runner.pid}:" in keeper)
        dead.kill()
        assert trained(https[1], home, build_dataset(https[1], home))["status"] == SUCCEEDED
        assert keeper_of(url) != keeper
        assert len(https[0].get("/v1/models/m").json()["versions"]) == 1


def keeper_of(url: str) -> str:
    """Return the id of the maintenance leader's process, from the store."""
    import sqlalchemy as sa

    from xcray.jobs.database.schema import DUTIES

    store = JobStore(url)
    with store._database.read() as connection:
        owner = connection.execute(
            sa.select(DUTIES.c.owner).where(DUTIES.c.name == "maintenance")
        ).scalar()
    store.close()
    return str(owner)


def test_settings_name_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xcray.service.settings import Settings

    home = Home(tmp_path)
    assert (Settings(home=tmp_path).store_url, Settings(home=tmp_path).has_shared_store) == (
        home.store_url,
        False,
    )
    monkeypatch.setenv("XCRAY_STORE", "postgresql+psycopg://db/xcray")
    settings = Settings(home=tmp_path)
    assert (settings.store_url, settings.has_shared_store) == (
        "postgresql+psycopg://db/xcray",
        True,
    )
