"""The drills of docs/operations.md: a backup taken while jobs run is restored and works as before.

Pods that must not upgrade a store wait for the one that upgrades it.
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
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.integrity import verify_references
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.training import train

pytestmark = pytest.mark.drill

COPIED = ("datasets", "models", "tenants")  # of the home; what is in runs/ is trained again
POD = """
import sys
from pathlib import Path
from tests.support.live_service import client_of, settings_for
from xcray.service.app import create_app
with client_of(create_app(settings_for(Path(sys.argv[1]), store_upgrade=False))) as http:
    print(*(job["id"] for job in http.get("/v1/jobs").json()["jobs"]))
"""
QUICK = {"lease_seconds": 60.0, "heartbeat_seconds": 0.05, "report_seconds": 0.02}


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
        """A data set that is ready; its id."""
        dataset_id = new_id("ds")
        shutil.copytree(self._tiny.path, self.home.dataset(dataset_id))
        self.store.add_dataset("tiny", str(self.home.dataset(dataset_id)), dataset_id=dataset_id)
        return dataset_id

    def job(self, dataset_id: str) -> Job:
        """A training that waits."""
        spec = {
            "dataset": str(self.home.dataset(dataset_id)),
            "name": "tiny",
            "pool": "serial",
            "dataset_id": dataset_id,
        }
        return self.store.submit(spec, name="tiny")[0]

    def run(self, training: Callable[..., Any] = train) -> dict[str, Any]:
        """Run the next job to its end; its result."""
        job = self.store.claim_job("drill", lease_seconds=60)
        assert job is not None
        run_attempt(self.store, self.home, job.id, job.attempt, train_function=training, **QUICK)
        return dict(self.store.get_job(job.id).result or {})

    def copy_store(self) -> None:
        """The first half of a backup."""
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
        """The second half."""
        for name in COPIED:
            if (self.home.path / name).is_dir():
                shutil.copytree(self.home.path / name, self.backups / name)

    def lose_and_restore(self) -> None:
        """All is lost, and put back in the place where it was."""
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
    """What the command says of references."""
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


def test_a_backup_taken_while_jobs_run_is_restored_and_answers_as_before(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset_id = place.dataset()
    place.job(dataset_id)
    first = place.run()
    Registry(place.home.models).set_alias("tiny", "prod", 1)
    running, waiting = place.job(dataset_id), place.job(dataset_id)
    asked = dict(waiting.spec)
    ending = threading.Event()

    def clients() -> None:
        """Others go on asking while the backup is taken."""
        own = JobStore(place.url)
        while not ending.is_set():
            own.submit(asked, name="later")
        own.close()

    def copied_under_way(*given: Any, **how: Any) -> Any:
        """The store is copied while the second training runs; it publishes before the files are
        copied.
        """
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
    place.dataset()  # after the backup: it will be gone
    place.lose_and_restore()

    found = verify(place, capsys)
    assert found["dangling"] == []
    assert found["looked"]["dataset"] == 1
    assert found["looked"]["version"] >= 1
    assert (
        place.store.get_job(running.id).status == "RUNNING"
    )  # as it was when the store was copied: its lease will be missed
    assert place.store.get_job(waiting.id).status == "PENDING"
    assert first["sha256"] == second["sha256"]  # the same data and parameters
    settings = settings_for(place.home.path, store=place.url, preload=["tiny@prod"])
    with client_of(create_app(settings)) as http:
        answer = http.post(
            "/v1/models/tiny@prod:predict", json={"instances": [{"indices": [0], "values": [1.0]}]}
        )
        assert answer.status_code == 200, answer.text
        assert first["sha256"] in answer.text
    assert Model.open(Registry(place.home.models).resolve("tiny@prod")).sha256 == first["sha256"]
    place.store.mark_lost(running.id, 1, max_attempts=3)  # whoever watches misses its heartbeats
    assert (
        place.run()["sha256"] == second["sha256"]
    )  # it comes first again, and ends as it would have
    assert place.store.get_job(running.id).status == "SUCCEEDED"


def test_files_copied_before_the_store_are_found_to_lack(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong order, so that the drill can fail: records that came in between have no files."""
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
        ("job", job.id),  # it made a version that these models never had
        ("job", waiting.id),
    }


def test_what_was_damaged_or_lost_in_the_home_is_named(tmp_path: Path, tiny: Dataset) -> None:
    place = Place(tmp_path, tiny, None)
    dataset_id = place.dataset()
    for _ in range(3):
        place.job(dataset_id)
        place.run()
    registry = Registry(place.home.models)
    registry.set_alias("tiny", "prod", 2)
    registry.delete("tiny", 1)  # on purpose: nothing dangles
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


def test_a_home_that_was_mounted_elsewhere_is_told_so(tmp_path: Path, tiny: Dataset) -> None:
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
    """The order of the chart: a store, pods of the next release that refuse it, the hook, pods that
    start with all that was in it.
    """
    home, following = Home(tmp_path / "home"), program(tmp_path / "next", *ADDED)
    with closing(JobStore(home.store_url)) as store:
        job = submit(store)
    begin = ("-c", POD, str(home.path))
    refused = run_next(following, *begin)
    assert refused.returncode == 1
    assert "xcray.errors.Conflict" in refused.stderr, refused.stderr
    assert "run `xcray store upgrade`" in refused.stderr
    # the hook has the environment of the pods, and upgrades all the same
    hook = ("-m", "xcray", "store", "upgrade", "--home", str(home.path))
    done = run_next(following, *hook, XCRAY_STORE_UPGRADE="false")
    assert done.returncode == 0, done.stderr
    begun = run_next(following, *begin)
    assert begun.stdout.split() == [job.id], begun.stderr
