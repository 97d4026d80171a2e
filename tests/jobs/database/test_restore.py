"""The drills of docs/operations.md: a backup taken while jobs run is restored and works as before.

Pods that must not upgrade a store wait until another process has upgraded it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_store import submit
from tests.support.live_service import client_of, settings_for
from tests.support.next_release import ADDED, program, run_next
from tests.support.postgres import binaries, unhurried
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
POD = """
import sys
from pathlib import Path
from tests.support.live_service import client_of, settings_for
from xcray.service.app import create_app
with client_of(create_app(settings_for(Path(sys.argv[1]), store_upgrade=False))) as http:
    print(*(job["id"] for job in http.get("/v1/jobs").json()["jobs"]))
"""
QUICK = MonitorOptions(lease_seconds=60.0, heartbeat_seconds=0.05, report_seconds=0.02)


class Place:
    """A home and its store, on SQLite or PostgreSQL, with the backups of docs/operations.md."""

    def __init__(self, folder: Path, tiny: Dataset, server: Any) -> None:
        self.home = Home(folder / "home")
        self.backups = folder / "backups"
        self._tiny = tiny
        self._server = server
        self.backups.mkdir()
        self.url = self.home.store_url if server is None else unhurried(server.emptied())
        self.store = JobStore(self.url)

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
            assert (
                main(
                    [
                        "store",
                        "backup",
                        str(self.backups / "xcray.db"),
                        "--home",
                        str(self.home.path),
                    ]
                )
                == 0
            )
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
def place(request: pytest.FixtureRequest, tmp_path: Path, tiny: Dataset) -> Iterator[Place]:
    made = Place(
        tmp_path, tiny, None if request.param == "sqlite" else request.getfixturevalue("postgres")
    )
    yield made
    made.store.close()


def verify(place: Place, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """Return the report of `xcray store verify`."""
    capsys.readouterr()
    assert (
        main(
            [
                "store",
                "verify",
                "--whole",
                "--json",
                "--home",
                str(place.home.path),
                "--store",
                place.url,
            ]
        )
        == code
    )
    return dict(json.loads(capsys.readouterr().out))


def test_a_backup_taken_while_jobs_run_is_restored_and_works_as_before(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_id = place.dataset()
    place.job(dataset_id)
    first = place.run()
    Registry(place.home.models).aliases.set("tiny", "prod", 1)
    running, waiting = place.job(dataset_id), place.job(dataset_id)
    asked = dict(waiting.spec)
    ending = threading.Event()

    def clients() -> None:
        """Submit jobs while the backup is taken."""
        own = JobStore(place.url)
        while not ending.is_set():
            own.jobs.submit(JobSubmission(asked, name="later"))
        own.close()

    def copied_under_way(*given: Any, **how: Any) -> Any:
        """Copy the store during the second training; it publishes before the files are copied."""
        place.copy_store()
        return train(*given, **how)

    flood = threading.Thread(target=clients)
    flood.start()
    try:
        second = place.run(copied_under_way)
    finally:
        ending.set()
        flood.join()
    place.copy_files()
    place.dataset()  # created after the backup, so the restore drops it
    place.lose_and_restore()

    found = verify(place, capsys)
    assert found["dangling"] == []
    assert found["looked"]["dataset"] == 1
    assert found["looked"]["version"] >= 1
    # The copied store still shows the job as RUNNING; its lease will expire.
    assert place.store.jobs.get(running.id).status == "RUNNING"
    assert place.store.jobs.get(waiting.id).status == "PENDING"
    assert first["sha256"] == second["sha256"]  # the same data and parameters
    settings = settings_for(place.home.path, store=place.url, preload=["tiny@prod"])
    with client_of(create_app(settings)) as http:
        answer = http.post(
            "/v1/models/tiny@prod:predict", json={"instances": [{"indices": [0], "values": [1.0]}]}
        )
        assert answer.status_code == 200, answer.text
        assert first["sha256"] in answer.text
    assert Model.open(Registry(place.home.models).resolve("tiny@prod")).sha256 == first["sha256"]
    # as a supervisor does when heartbeats are missing
    place.store.attempts.mark_lost(running.id, 1, max_attempts=3)
    # The lost job runs again first and gives the same model.
    assert place.run()["sha256"] == second["sha256"]
    assert place.store.jobs.get(running.id).status == "SUCCEEDED"


def test_files_copied_before_the_store_give_dangling_references(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup in the wrong order is reported: records written in between have no files."""
    old = place.dataset()
    place.job(old)
    place.run()
    place.copy_files()
    new = place.dataset()
    job = place.job(new)
    place.run()
    waiting = place.job(new)
    place.copy_store()
    place.lose_and_restore()
    found = verify(place, capsys, code=1)
    assert {(each["kind"], each["what"]) for each in found["dangling"]} == {
        ("dataset", new),
        ("job", job.id),  # it made a version that is not in the copied models
        ("job", waiting.id),
    }


def test_damaged_and_missing_files_of_the_home_are_reported(tmp_path: Path, tiny: Dataset) -> None:
    place = Place(tmp_path, tiny, None)
    dataset_id = place.dataset()
    for _ in range(3):
        place.job(dataset_id)
        place.run()
    registry = Registry(place.home.models)
    registry.aliases.set("tiny", "prod", 2)
    registry.delete("tiny", 1)  # a regular deletion leaves no dangling reference
    assert verify_references(place.store, place.home, check_content=True).dangling == []
    shutil.rmtree(place.home.models / "tiny" / "versions" / "2")
    damaged = place.home.models / "tiny" / "versions" / "3" / "weights.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-8] + b"\0" * 8)
    (place.home.dataset(dataset_id) / "manifest.json").unlink()
    assert {each.kind for each in verify_references(place.store, place.home).dangling} == {
        "dataset",
        "version",
        "alias",
    }
    found = {
        (each.kind, each.what): each.why
        for each in verify_references(place.store, place.home, check_content=True).dangling
    }
    assert set(found) == {
        ("dataset", dataset_id),
        ("version", "default tiny:2"),
        ("version", "default tiny:3"),
        ("alias", "default tiny@prod"),
    }
    place.store.close()


def test_a_home_mounted_at_another_path_is_reported(tmp_path: Path, tiny: Dataset) -> None:
    place = Place(tmp_path, tiny, None)
    place.dataset()
    place.store.close()
    place.home.path.rename(tmp_path / "elsewhere")
    moved = Home(tmp_path / "elsewhere")
    store = JobStore(moved.store_url)
    (found,) = verify_references(store, moved).dangling
    assert "old path" in found.why
    store.close()


def test_pods_that_may_not_upgrade_wait_for_the_hook(tmp_path: Path) -> None:
    """Pods of the next release refuse the store until the chart's upgrade hook has run.

    After the hook they start, and all data is still there.
    """
    home, following = Home(tmp_path / "home"), program(tmp_path / "next", *ADDED)
    with closing(JobStore(home.store_url)) as store:
        job = submit(store)
    begin = ("-c", POD, str(home.path))
    refused = run_next(following, *begin)
    assert refused.returncode == 1
    assert "xcray.errors.Conflict" in refused.stderr, refused.stderr
    assert "run `xcray store upgrade`" in refused.stderr
    # The hook has the same environment as the pods, but its command upgrades the store anyway.
    hook = ("-m", "xcray", "store", "upgrade", "--home", str(home.path))
    done = run_next(following, *hook, XCRAY_STORE_UPGRADE="false")
    assert done.returncode == 0, done.stderr
    begun = run_next(following, *begin)
    assert begun.stdout.split() == [job.id], begun.stderr
