"""Retention: old jobs are deleted with their files, orphans a day later, all others are kept."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.support.clocks import WallClock
from xcray.cli.main import main
from xcray.errors import NotFound
from xcray.jobs.home import Home
from xcray.jobs.job import new_id
from xcray.jobs.states import FAILED, PENDING, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision.retention import DAY_SECONDS, Retention, RetentionLimits
from xcray.storage.run_directory import REBUILT


def job(store: JobStore, home: Home, status: str) -> str:
    """Create a job in a status, with a run folder, a log and a lock, and return its id."""
    job_id = store.jobs.submit(JobSubmission({"dataset": "/x"}, name="a"))[0].id
    if status != PENDING:
        claimed = store.attempts.claim("test", lease_seconds=60)
        assert claimed is not None
        assert claimed.id == job_id
    if status in (SUCCEEDED, FAILED, STOPPED):
        store.attempts.finish(job_id, 1, status, result={} if status == SUCCEEDED else None)
    folder = home.run(job_id)
    (folder / "publish").mkdir(parents=True)
    for name in ("part-1.arrow", "timeline.arrow", "publish/outcome.json"):
        (folder / name).write_text("x" * 10)
    home.log(job_id).write_text("log")
    (home.runs / f"{job_id}.lock").touch()
    return job_id


def scanned_files(home: Home) -> set[str]:
    """Return all files in the folders that retention scans."""
    roots = (home.runs, home.logs, home.datasets, home.models)
    return {
        str(path.relative_to(home.path))
        for root in roots
        for path in root.rglob("*")
        if path.is_file()
    }


def of(job_id: str, *names: str) -> set[str]:
    return {f"runs/{job_id}/{name}" for name in names}


def test_old_jobs_are_deleted_with_their_files(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    old = job(store, home, FAILED)
    clock.ahead = 31 * DAY_SECONDS
    young = job(store, home, FAILED)
    waiting = job(store, home, PENDING)
    before = scanned_files(home)
    Retention(store, home, RetentionLimits(), clock).sweep()
    with pytest.raises(NotFound):
        store.jobs.get(old)
    assert before - scanned_files(home) == {path for path in before if old in path}
    assert {store.jobs.get(each).status for each in (young, waiting)} == {FAILED, PENDING}


def test_the_oldest_ended_jobs_are_deleted_when_there_are_too_many(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    running = job(store, home, "RUNNING")
    ids = [job(store, home, FAILED) for _ in range(5)]
    retention = Retention(store, home, RetentionLimits(jobs=2), clock)
    retention.sweep()
    assert [store.jobs.find(each) is not None for each in (running, *ids)] == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]
    assert {path.split("/")[1].split(".")[0] for path in scanned_files(home)} == {running, *ids[3:]}
    assert retention.sweep() == []


def test_a_published_job_keeps_its_timeline_and_output(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    done, failed, running = (job(store, home, status) for status in (SUCCEEDED, FAILED, "RUNNING"))
    (home.run(done) / "output").mkdir()
    (home.run(done) / "output" / "part-0.parquet").write_text("answers")
    (home.run(done) / REBUILT).mkdir()  # feedback on a model of `auto` changes this data set
    (home.run(done) / REBUILT / "manifest.json").write_text("{}")
    retention = Retention(store, home, RetentionLimits(runs_hours=24), clock)
    assert retention.sweep() == []
    clock.ahead = 1.1 * DAY_SECONDS
    gone = retention.sweep()
    assert {each.path for each in gone} == of(done, "part-1.arrow", "publish")
    assert sum(each.n_bytes for each in gone) == 20
    left = {
        path
        for path in scanned_files(home)
        if path.startswith("runs/") and not path.endswith(".lock")
    }
    selection = {"part-1.arrow", "timeline.arrow", "publish/outcome.json"}
    kept = of(done, "timeline.arrow", "output/part-0.parquet", f"{REBUILT}/manifest.json")
    assert left == kept | of(failed, *selection) | of(running, *selection)


def test_orphans_are_deleted_after_a_day_and_other_files_never(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    known = store.datasets.add("d", "/d", dataset_id=new_id("ds")).id
    orphan, stray = new_id("job"), new_id("ds")
    for folder in (
        home.run(orphan),
        home.dataset(known),
        home.dataset(stray),
        home.datasets / f".{stray}.ab12cd34.part",
    ):
        folder.mkdir()
        (folder / "file").write_text("x")
    home.log(orphan).write_text("x")
    staged = home.models / "docs" / "versions" / ".3.ab12cd34.part"
    staged.mkdir(parents=True)
    foreign_files = [home.runs / "README", home.datasets / "mine.csv", home.logs / "other.log"]
    for path in foreign_files:
        path.write_text("x")
    clock.ahead = 0.9 * DAY_SECONDS
    assert Retention(store, home, RetentionLimits(), clock).sweep() == []
    clock.ahead = 1.1 * DAY_SECONDS
    gone = {each.path for each in Retention(store, home, RetentionLimits(), clock).sweep()}
    folders = {
        f"runs/{orphan}",
        f"logs/{orphan}.log",
        f"datasets/{stray}",
        f"datasets/.{stray}.ab12cd34.part",
    }
    assert gone == folders | {"models/docs/versions/.3.ab12cd34.part"}
    assert all(path.exists() for path in (*foreign_files, home.dataset(known)))


def test_info_files_of_dead_replicas_are_deleted(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    from xcray.system.processes import host_name

    dead, living, elsewhere = (
        home.path / f"serve-{name}.json"
        for name in (f"{host_name()}-{2**22 + 1}", f"{host_name()}-{os.getpid()}", "other-1")
    )
    for path in (dead, living, elsewhere):
        path.write_text("{}")
    clock.ahead = 2 * DAY_SECONDS
    Retention(store, home, RetentionLimits(), clock).sweep()
    assert [path.exists() for path in (dead, living, elsewhere)] == [False, True, True]


def test_a_job_resumed_during_a_sweep_keeps_its_files(
    store: JobStore, home: Home, clock: WallClock
) -> None:
    failed = job(store, home, FAILED)
    retention = Retention(store, home, RetentionLimits(), clock)
    thing = retention._make_item("of a published job", home.run(failed) / "part-1.arrow")
    store.jobs.resume(failed)
    assert retention._remove(thing).n_bytes == 0
    assert (home.run(failed) / "part-1.arrow").exists()


def test_the_command_lists_with_dry_run_and_deletes_without(
    store: JobStore, home: Home, clock: WallClock, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = job(store, home, SUCCEEDED)
    for path in (home.run(outcome), *home.run(outcome).iterdir()):
        os.utime(path, (time.time() - 2 * DAY_SECONDS,) * 2)
    before = scanned_files(home)
    for how, expected in (
        (["--dry-run"], before),
        ([], before - of(outcome, "part-1.arrow", "publish/outcome.json")),
    ):
        assert main(["store", "sweep", "--home", str(home.path), "--json", *how]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["removed"], document["files"], document["bytes"]) == (not how, 2, 20)
        assert {thing["path"] for thing in document["things"]} == of(
            outcome, "part-1.arrow", "publish"
        )
        assert scanned_files(home) == expected
