"""One attempt of a job with trainings that the test controls: every outcome, at most one result."""

import contextlib
import errno
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from xcray.arrays import csr
from xcray.errors import ParameterError, Refused, Stopped, Unavailable
from xcray.jobs.home import check_id
from xcray.jobs.runner.main import FENCED, MAX_ENTRY_CHARS, run_attempt, shorten_report
from xcray.jobs.runner.monitor import AttemptMonitor, MonitorOptions
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision.ray_launch import submission_id
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.training import Progress, TrainResult
from xcray.workers.pool import StopFlag

SPEC = {"dataset": "/nowhere", "name": "pydocs", "pool": "threads", "dataset_id": "ds_1"}
# On a slow machine, short times would end the test process.
QUICK = MonitorOptions(
    lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02, stop_grace_seconds=600.0
)


class Crash(BaseException):
    """Simulates the death of the process."""


@pytest.fixture
def store(home):
    store = JobStore(home.store_url, busy_seconds=300.0)
    yield store
    store.close()


@pytest.fixture
def registry(home):
    return Registry(home.models)


@pytest.fixture
def job(store):
    store.jobs.submit(JobSubmission(SPEC, name="pydocs"))
    return store.attempts.claim("test", lease_seconds=60)


def run_job(store, home, job, training, number=1, *, options=QUICK, **more):
    """Run an attempt of a job with a training and return its outcome."""
    return run_attempt(
        store, home, job.id, number, train_function=training, options=options, **more
    )


def again(store, job_id, attempt):
    """Mark the attempt as lost and claim the next one."""
    store.attempts.mark_lost(job_id, attempt, max_attempts=99)
    return store.attempts.claim("test", lease_seconds=60)


def model_at(out):
    eye = csr(np.arange(3, dtype=np.int64), np.arange(2, dtype=np.int32), np.ones(2, np.float32), 2)
    bias = np.zeros(2, np.float32)
    return write_model(
        out,
        ModelContent(W=eye, b=bias, label_names=["a", "b"], feature_names=["x", "y"]),
        TrainingRecord(solver="ppdsparse", params={}, dataset_hash="0" * 64),
    )


def good(spec, *, run_dir, out, progress, stop, job, exclusive):
    """Run a training that succeeds."""
    progress(Progress("LOADING", 0, 0, 0.0, 0.0, None, ""))
    progress(Progress("TRAINING", 2, 2, 0.1, float("inf"), float("nan"), "two classes"))
    model = model_at(out)
    return TrainResult(
        out,
        model.sha256,
        {"P@1": 0.5},
        {"seconds": {"TRAINING": 0.1}, "timeline": ["x" * MAX_ENTRY_CHARS]},
    )


def until_stopped(spec, *, run_dir, out, progress, stop, job, exclusive):
    """Run a training that continues until its stop flag is set."""
    deadline = time.monotonic() + 300
    while not stop.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    raise Stopped("stopped on request")


def never(*_, **__):
    raise AssertionError("no training is expected here")


def raising(error):
    def training(*_, **__):
        raise error

    return training


# --- success


def test_a_training_is_published_and_the_job_has_its_result(store, home, registry, job):
    assert run_job(store, home, job, good) == SUCCEEDED
    outcome = store.jobs.get(job.id)
    described = registry.describe("pydocs", 1)
    assert (outcome.status, outcome.phase) == (SUCCEEDED, "TRAINING")
    assert outcome.result == {
        "model": "pydocs",
        "version": 1,
        "sha256": described.sha256,
        "measures": {"P@1": 0.5},
        "report": {"seconds": {"TRAINING": 0.1}},
    }
    assert outcome.progress["eta"] is None  # JSON has no NaN
    assert [e.data["phase"] for e in store.jobs.list_events(job.id) if e.kind == "phase"] == [
        "LOADING",
        "TRAINING",
    ]
    assert not (home.run(job.id) / "publish").exists()


def test_the_training_gets_its_spec_run_folder_and_job_id(store, home, job):
    entries = {}

    def training(spec, **more):
        entries.update(more, spec=spec)
        return good(spec, **more)

    run_job(store, home, job, training)
    assert (entries["spec"].dataset, entries["spec"].name, entries["spec"].pool) == (
        "/nowhere",
        "pydocs",
        "threads",
    )
    assert (entries["run_dir"], entries["job"], entries["spec"].ray_address) == (
        home.run(job.id),
        job.id,
        None,
    )


def test_a_spec_for_ray_gets_the_cluster_address_unless_it_has_one(store, home):
    addresses = []

    def training(spec, **more):
        addresses.append(spec.ray_address)
        return good(spec, **more)

    for extra in ({}, {"ray_address": "own:1"}, {"pool": "threads"}):
        store.jobs.submit(JobSubmission({**SPEC, "pool": "ray", **extra}, name="pydocs"))
        mine = store.attempts.claim("test", lease_seconds=60)
        run_job(store, home, mine, training, ray_address="cluster:1")
    assert addresses == ["cluster:1", "own:1", None]


def test_a_partial_model_is_published_and_marked_in_the_result(store, home, job):
    lacks = {
        "done": 1,
        "missing": 1,
        "max_seconds": 9.0,
        "positives_share": 0.7,
        "most_rows_missing": 3,
    }

    def in_time(spec, **inputs):
        result = good(spec, **inputs)
        return result._replace(report={**result.report, "partial": lacks})

    assert run_job(store, home, job, in_time) == SUCCEEDED
    assert store.jobs.get(job.id).result["partial"] == lacks


def run_reporting_late(store, home, job, training):
    """Run the first attempt of a job, which writes its reports at its end."""
    late = replace(QUICK, heartbeat_seconds=600.0, report_seconds=600.0)
    run_job(store, home, job, training, options=late)


def test_progress_events_are_throttled_and_phase_events_are_not(store, home, job):
    def training(spec, *, progress, **more):
        for phase in ("LOADING", "TRAINING", "MERGING"):
            for done in range(2000):
                progress(Progress(phase, done, 2000, 0.1, 1.0, 1.0, ""))
        return good(spec, progress=progress, **more)

    run_reporting_late(store, home, job, training)
    events = store.jobs.list_events(job.id)
    assert [e.data["phase"] for e in events if e.kind == "phase"] == [
        "LOADING",
        "TRAINING",
        "MERGING",
        "LOADING",
        "TRAINING",
    ]
    assert [e.kind for e in events].count("progress") == 1  # the last one
    assert store.jobs.get(job.id).progress["note"] == "two classes"


def test_every_epoch_is_recorded_once(store, home, job):
    def training(spec, *, progress, **more):
        for epoch in range(1, 41):
            for _ in range(3):  # each epoch is reported three times, recorded once
                newest = {"epoch": epoch, "objective": 1.0 / epoch, "held_out": float("nan")}
                progress(Progress("TRAINING", epoch, 40, 0.1, 1.0, 1.0, "falling", newest))
        return good(spec, progress=progress, **more)

    run_reporting_late(store, home, job, training)
    reports = [e.data for e in store.jobs.list_events(job.id) if e.kind == "epoch"]
    assert reports == [
        {"epoch": epoch, "objective": 1.0 / epoch, "held_out": None} for epoch in range(1, 41)
    ]
    assert "newest" not in store.jobs.get(job.id).progress  # the last phase has no epochs


# --- other outcomes


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (ParameterError("C is -1: use a positive number"), "PARAMETER", "use a positive number"),
        (Refused("needs 90 GB, there are 24", code="MEMORY"), "MEMORY", "90 GB"),
        (OSError(errno.EPERM, "not permitted", "/secret"), "INTERNAL", "log"),
        (MemoryError(), "OUT_OF_MEMORY", "fewer workers"),
        (
            OSError(errno.ENOMEM, "Cannot allocate memory", "/secret"),
            "OUT_OF_MEMORY",
            "fewer workers",
        ),
        (ZeroDivisionError("/secret"), "INTERNAL", "log"),
    ],
)
def test_a_failure_has_a_reason_and_a_message(store, home, registry, job, error, reason, words):
    assert run_job(store, home, job, raising(error)) == FAILED
    failed = store.jobs.get(job.id)
    assert (failed.status, failed.reason) == (FAILED, reason)
    assert words in failed.message
    assert "secret" not in failed.message
    assert registry.names() == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left", "/secret"),
        OSError(errno.EDQUOT, "Quota exceeded", "/secret"),
        Refused("the disk of the job store is full: make room", code="DISK_FULL"),
    ],
    ids=["space", "quota", "store"],
)
def test_a_job_on_a_full_disk_waits_and_goes_on(home, error):
    clock = SimpleNamespace(seconds=1e9)
    with contextlib.closing(JobStore(home.store_url, now=lambda: clock.seconds)) as store:
        job, _ = store.jobs.submit(JobSubmission(SPEC, name="pydocs"))
        for attempt in range(1, 6):  # more often than a job may be lost
            assert store.attempts.claim("test", lease_seconds=60).attempt == attempt
            outcome = run_job(store, home, job, raising(error), number=attempt)
            waiting = store.jobs.get(job.id)
            assert (outcome, waiting.status, waiting.reason) == (PENDING, PENDING, "DISK_FULL")
            assert "make room" in waiting.message
            assert "secret" not in waiting.message
            assert store.attempts.claim("test", lease_seconds=60) is None  # not before a pause
            clock.seconds += 1000
        store.attempts.claim("test", lease_seconds=60)
        ended = run_job(store, home, job, good, number=6)
        assert ended == SUCCEEDED


def test_the_log_has_the_traceback_of_an_unexpected_failure(store, home, job, caplog):
    run_job(store, home, job, raising(ZeroDivisionError("at the very bottom")))
    assert "at the very bottom" in caplog.text


def test_an_invalid_spec_fails_with_its_own_reason(store, home):
    store.jobs.submit(JobSubmission({**SPEC, "pool": "swimming"}, name="pydocs"))
    job = store.attempts.claim("test", lease_seconds=60)
    assert run_job(store, home, job, never) == FAILED
    assert store.jobs.get(job.id).reason == "PARAMETER"


def test_an_unavailable_resource_is_retried_and_fails_in_the_end(store, home, job):
    trouble = raising(Unavailable("no Ray answers", code="RAY_UNREACHABLE"))
    for attempt, end in ((1, PENDING), (2, PENDING), (3, FAILED)):
        assert run_job(store, home, job, trouble, number=attempt) == end
        store.attempts._now = lambda later=1000 * attempt: time.time() + later
        if end == PENDING:
            assert store.attempts.claim("test", lease_seconds=1e6).attempt == attempt + 1
    assert store.jobs.get(job.id).reason == "RAY_UNREACHABLE"


def test_a_stop_ends_the_training_and_keeps_finished_work(store, home, job):
    parts = home.run(job.id) / "part"

    def training(spec, *, run_dir, **more):
        run_dir.mkdir(exist_ok=True)
        parts.write_text("finished")
        store.jobs.request_stop(job.id)
        until_stopped(spec, run_dir=run_dir, **more)

    assert run_job(store, home, job, training) == STOPPED
    assert store.jobs.get(job.id).status == STOPPED
    assert parts.read_text() == "finished"
    store.jobs.resume(job.id)
    assert store.attempts.claim("test", lease_seconds=60).attempt == 2
    assert run_job(store, home, job, good, number=2) == SUCCEEDED


def test_the_monitor_keeps_the_lease_and_the_cluster(home, tmp_path):
    """The monitor renews the lease with heartbeats and keeps the local Ray cluster alive.

    The clock of the process that watches the lease advances only after a heartbeat that followed
    its last check.
    """
    clock, beats = [0.0], threading.Semaphore(0)
    watcher, store = JobStore(home.store_url, monotonic=lambda: clock[0]), JobStore(home.store_url)
    store.jobs.submit(JobSubmission(SPEC, name="pydocs"))
    job, real = store.attempts.claim("test", lease_seconds=60), store.attempts.heartbeat
    store.attempts.heartbeat = lambda *args, **more: (real(*args, **more), beats.release())[0]
    options = replace(QUICK, lease_seconds=60.0, keep_alive_file=tmp_path / "wanted")
    heart = AttemptMonitor(store, job.id, 1, StopFlag(), options)
    heart.start()
    for _ in range(4):
        assert watcher.attempts.expire() == []
        for _ in range(2):  # the first one can have started before the check
            assert beats.acquire(timeout=300)
        while beats.acquire(blocking=False):
            pass
        clock[0] += 45.0
    heart.stop()
    watcher.attempts.expire()
    clock[0] += 61.0
    assert [lost.id for lost in watcher.attempts.expire()] == [
        job.id
    ]  # there are no more heartbeats
    watcher.close()
    store.close()
    assert (tmp_path / "wanted").exists()


# --- fencing, and at most one result


def test_an_attempt_that_is_not_the_current_one_does_nothing(store, home, registry, job):
    again(store, job.id, 1)
    before = (store.jobs.get(job.id), store.jobs.list_events(job.id))
    assert run_job(store, home, job, never) == FENCED
    assert run_attempt(store, home, "job_none", 1, train_function=never, options=QUICK) == FENCED
    assert (store.jobs.get(job.id), store.jobs.list_events(job.id)) == before


def test_an_attempt_that_lost_its_job_publishes_nothing(store, home, registry, job):
    def robbed(spec, **more):
        again(store, job.id, 1)
        return good(spec, **more)

    assert run_job(store, home, job, robbed) == FENCED
    assert registry.names() == []
    assert store.jobs.get(job.id).status == RUNNING
    assert run_job(store, home, job, good, number=2) == SUCCEEDED
    assert registry.versions("pydocs") == [1]


def test_a_fenced_training_is_stopped(store, home, job):
    def robbed(spec, **more):
        again(store, job.id, 1)
        until_stopped(spec, **more)

    assert run_job(store, home, job, robbed) == FENCED
    assert store.jobs.get(job.id).attempt == 2


def test_a_crash_between_publishing_and_finishing_gives_no_second_version(
    store, home, registry, job, monkeypatch
):
    monkeypatch.setattr(store.attempts, "finish", raising(Crash()))
    with pytest.raises(Crash):
        run_job(store, home, job, good)
    monkeypatch.undo()
    assert registry.versions("pydocs") == [1]
    assert store.jobs.get(job.id).status == RUNNING
    again(store, job.id, 1)
    assert run_job(store, home, job, never, number=2) == SUCCEEDED
    assert registry.versions("pydocs") == [1]
    result = store.jobs.get(job.id).result
    assert (result["version"], result["sha256"]) == (1, registry.describe("pydocs", 1).sha256)
    assert result["measures"] == {"P@1": 0.5}


def test_a_crash_before_publishing_is_trained_again(store, home, registry, job, monkeypatch):
    monkeypatch.setattr(Registry, "publish", raising(Crash()))
    with pytest.raises(Crash):
        run_job(store, home, job, good)
    monkeypatch.undo()
    again(store, job.id, 1)
    assert run_job(store, home, job, good, number=2) == SUCCEEDED
    assert registry.versions("pydocs") == [1]


def test_an_attempt_fenced_while_it_publishes_leaves_its_version_to_the_next(
    store, home, registry, job, monkeypatch
):
    """An attempt that loses its job while it publishes leaves its version to the next attempt.

    Attempt 1 is suspended inside the registry and loses its job, then resumes and publishes.
    Attempt 2 is ready to publish at the same time.
    """
    real, ends, second = Registry.publish, [], []

    def stalled(self, name, staged):
        if not second:
            again(store, job.id, 1)
            thread = threading.Thread(
                target=lambda: ends.append(run_job(store, home, job, good, number=2)),
                name="second",
            )
            second.append(thread)
            thread.start()
            thread.join(1.0)  # it waits for attempt 1
            assert thread.is_alive()
        return real(self, name, staged)

    monkeypatch.setattr(Registry, "publish", stalled)
    assert run_job(store, home, job, good) == FENCED
    second[0].join(300)
    assert ends == [SUCCEEDED]
    assert registry.versions("pydocs") == [1]
    outcome = store.jobs.get(job.id)
    assert (outcome.attempt, outcome.result["version"]) == (2, 1)


def test_the_marker_is_not_part_of_the_model(store, home, registry, job):
    from xcray.model.model import Model

    run_job(store, home, job, good)
    path = registry.resolve("pydocs:1")
    assert (path / "job.json").exists()
    assert Model.open(path, verify=True).sha256 == store.jobs.get(job.id).result["sha256"]


# --- summaries, paths and names


def test_a_summary_omits_long_entries():
    assert shorten_report({"a": 1, "b": list(range(10_000)), "c": {"d": 2}}) == {
        "a": 1,
        "c": {"d": 2},
    }


def test_a_home_is_accessible_to_its_owner_only(home):
    for folder in (home.path, home.datasets, home.models, home.runs, home.logs, home.ray):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "value",
    [
        "",
        "..",
        "job_",
        "job_A",
        "job_a/..",
        "job_a.log",
        "_a",
        "job_" + "a" * 41,
        "job_a\n",
        "job_\u0661",
    ],
)
def test_only_ids_become_paths(home, value):
    for door in (check_id, home.run, home.log, home.dataset):
        with pytest.raises(ParameterError):
            door(value)


def test_a_name_in_rays_dashboard_is_harmless_and_readable(store):
    job, _ = store.jobs.submit(JobSubmission({}, name="../../My Model; rm -rf $HOME" + "x" * 100))
    name = submission_id(job)
    assert name.startswith("xcray-my-model-rm-rf-home")
    assert name.endswith(f"-{job.id}-a0")
    assert len(name) < 90
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
