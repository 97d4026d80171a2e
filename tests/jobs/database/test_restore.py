"""Drills of docs/operations.md: a backup taken while jobs run is restored and works as before."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import client_of, settings_for
from tests.support.postgres import binaries
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.jobs.home import Home
from xcray.jobs.job import Job, new_id
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision.integrity import verify_references
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.training import train

pytestmark = pytest.mark.drill

COPIED = ("datasets", "models", "tenants")  # in the home; runs/ is trained again
QUICK = MonitorOptions(lease_seconds=60.0, heartbeat_seconds=0.05, report_seconds=0.02)


class Installation:
    """A home and its store, on SQLite or PostgreSQL, with the backups of docs/operations.md."""

    def __init__(self, folder: Path, tiny: Dataset, server: Any) -> None:
        self.home = Home(folder / "home")
        self.backups = folder / "backups"
        self._tiny = tiny
        self._server = server
        self.backups.mkdir()
        self.url = self.home.store_url if server is None else server.emptied()
        self.store = JobStore(self.url, busy_seconds=300.0)

    def dataset(self) -> str:
        """Add a data set that is READY and return its id."""
        dataset_id = new_id("ds")
        shutil.copytree(self._tiny.path, self.home.dataset(dataset_id))
        self.store.datasets.add("tiny", str(self.home.dataset(dataset_id)), dataset_id=dataset_id)
        return dataset_id

    def job(self, dataset_id: str) -> Job:
        """Submit a training job and return it."""
        spec = {
            "dataset": str(self.home.dataset(dataset_id)),
            "name": "tiny",
            "pool": "serial",
            "dataset_id": dataset_id,
        }
        return self.store.jobs.submit(JobSubmission(spec, name="tiny"))[0]

    def run(self, training: Callable[..., Any] = train) -> dict[str, Any]:
        """Run the next job to its end and return its result."""
        job = self.store.attempts.claim("drill", lease_seconds=60)
        assert job is not None
        run_attempt(
            self.store,
            self.home,
            job.id,
            job.attempt,
            train_function=training,
            options=QUICK,
        )
        return dict(self.store.jobs.get(job.id).result or {})

    def copy_store(self) -> None:
        """Copy the store: the first half of a backup."""
        if self._server is None:
            backup = f"store backup {self.backups}/xcray.db --home {self.home.path}"
            assert main(backup.split()) == 0
        else:
            dump = f"--file={self.backups / 'xcray.dump'}"
            subprocess.run([binaries() / "pg_dump", "--format=custom", dump, self.url], check=True)

    def copy_files(self) -> None:
        """Copy the files: the second half of a backup."""
        for name in COPIED:
            if (self.home.path / name).is_dir():
                shutil.copytree(self.home.path / name, self.backups / name)

    def lose_and_restore(self) -> None:
        """Delete the home and restore the backup at the same path."""
        self.store.close()
        shutil.rmtree(self.home.path)
        self.home = Home(self.home.path)
        for name in COPIED:
            if (self.backups / name).is_dir():
                shutil.copytree(self.backups / name, self.home.path / name, dirs_exist_ok=True)
        if self._server is None:
            shutil.copy(self.backups / "xcray.db", self.home.path / "xcray.db")
        else:
            self.url = self._server.database()
            tool, dump = binaries() / "pg_restore", self.backups / "xcray.dump"
            subprocess.run(
                [tool, "--clean", "--if-exists", f"--dbname={self.url}", dump], check=True
            )
        self.store = JobStore(self.url, upgrade=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(
    request: pytest.FixtureRequest, tmp_path: Path, tiny: Dataset
) -> Iterator[Installation]:
    result = Installation(
        tmp_path, tiny, None if request.param == "sqlite" else request.getfixturevalue("postgres")
    )
    yield result
    result.store.close()


def verify(
    installation: Installation, capsys: pytest.CaptureFixture[str], code: int = 0
) -> dict[str, Any]:
    """Return the report of `xcray store verify`."""
    capsys.readouterr()
    verify = f"store verify --whole --json --home {installation.home.path}"
    assert main([*verify.split(), "--store", installation.url]) == code
    return dict(json.loads(capsys.readouterr().out))


def test_a_backup_taken_while_jobs_run_is_restored_and_works_as_before(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_id = installation.dataset()
    installation.job(dataset_id)
    first = installation.run()
    Registry(installation.home.models).aliases.set("tiny", "prod", 1)
    running, waiting = installation.job(dataset_id), installation.job(dataset_id)
    request = dict(waiting.spec)
    ending = threading.Event()

    def clients() -> None:
        """Submit jobs while the backup is taken."""
        own = JobStore(installation.url, busy_seconds=300.0)
        while not ending.is_set():
            own.jobs.submit(JobSubmission(request, name="later"))
        own.close()

    def copied_under_way(*inputs: Any, **how: Any) -> Any:
        """Copy the store during the second training; it publishes before the files are copied."""
        installation.copy_store()
        return train(*inputs, **how)

    flood = threading.Thread(target=clients)
    flood.start()
    try:
        second = installation.run(copied_under_way)
    finally:
        ending.set()
        flood.join()
    installation.copy_files()
    installation.dataset()  # created after the backup, so the restore drops it
    installation.lose_and_restore()

    result = verify(installation, capsys)
    assert result["dangling"] == []
    assert result["looked"]["dataset"] == 1
    assert result["looked"]["version"] >= 1
    # The copied store still shows the job as RUNNING; its lease will expire.
    assert installation.store.jobs.get(running.id).status == "RUNNING"
    assert installation.store.jobs.get(waiting.id).status == "PENDING"
    assert first["sha256"] == second["sha256"]  # the same data and parameters
    settings = settings_for(installation.home.path, store=installation.url, preload=["tiny@prod"])
    with client_of(create_app(settings)) as http:
        answer = http.post(
            "/v1/models/tiny@prod:predict", json={"instances": [{"indices": [0], "values": [1.0]}]}
        )
        assert answer.status_code == 200, answer.text
        assert first["sha256"] in answer.text
    assert (
        Model.open(Registry(installation.home.models).resolve("tiny@prod")).sha256
        == first["sha256"]
    )
    # as a supervisor does when heartbeats are missing
    installation.store.attempts.mark_lost(running.id, 1, max_attempts=3)
    # The lost job runs again first and gives the same model.
    assert installation.run()["sha256"] == second["sha256"]
    assert installation.store.jobs.get(running.id).status == "SUCCEEDED"


def test_files_copied_before_the_store_give_dangling_references(
    installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup in the wrong order is reported: records written in between have no files."""
    old = installation.dataset()
    installation.job(old)
    installation.run()
    installation.copy_files()
    new = installation.dataset()
    job = installation.job(new)
    installation.run()
    waiting = installation.job(new)
    installation.copy_store()
    installation.lose_and_restore()
    result = verify(installation, capsys, code=1)
    assert {(each["kind"], each["what"]) for each in result["dangling"]} == {
        ("dataset", new),
        ("job", job.id),  # it made a version that is not in the copied models
        ("job", waiting.id),
    }


def test_damaged_and_missing_files_of_the_home_are_reported(tmp_path: Path, tiny: Dataset) -> None:
    installation = Installation(tmp_path, tiny, None)
    dataset_id = installation.dataset()
    for _ in range(3):
        installation.job(dataset_id)
        installation.run()
    registry = Registry(installation.home.models)
    registry.aliases.set("tiny", "prod", 2)
    registry.delete("tiny", 1)  # a regular deletion leaves no dangling reference
    assert (
        verify_references(installation.store, installation.home, check_content=True).dangling == []
    )
    shutil.rmtree(installation.home.models / "tiny" / "versions" / "2")
    damaged = installation.home.models / "tiny" / "versions" / "3" / "weights.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-8] + b"\0" * 8)
    (installation.home.dataset(dataset_id) / "manifest.json").unlink()
    assert {
        each.kind for each in verify_references(installation.store, installation.home).dangling
    } == {
        "dataset",
        "version",
        "alias",
    }
    results = {
        (each.kind, each.what): each.why
        for each in verify_references(
            installation.store, installation.home, check_content=True
        ).dangling
    }
    assert set(results) == {
        ("dataset", dataset_id),
        ("version", "default tiny:2"),
        ("version", "default tiny:3"),
        ("alias", "default tiny@prod"),
    }
    installation.store.close()


def test_a_home_mounted_at_another_path_is_reported(tmp_path: Path, tiny: Dataset) -> None:
    installation = Installation(tmp_path, tiny, None)
    installation.dataset()
    installation.store.close()
    installation.home.path.rename(tmp_path / "elsewhere")
    moved = Home(tmp_path / "elsewhere")
    store = JobStore(moved.store_url)
    (result,) = verify_references(store, moved).dangling
    assert "old path" in result.why
    store.close()
