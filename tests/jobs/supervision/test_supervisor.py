"""The supervisor: first with a simulated launcher, then with real processes and Ray jobs."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tests.support.launches import Launches
from tests.support.waiting import until
from xcray.errors import Unavailable
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision.launch import STORE_VARIABLE, ProcessLauncher, RunnerId, runner_command
from xcray.jobs.supervision.ray_launch import RayJobLauncher
from xcray.jobs.supervision.supervisor import Supervisor, SupervisorOptions
from xcray.model.registry import Registry
from xcray.workers.ray.local_cluster import ExternalRay, ManagedLocalRay


@pytest.fixture
def launcher():
    return Launches()


@pytest.fixture
def supervise(store, launcher):
    """Return a function that makes supervisors; they are stopped after the test."""
    results = []

    def make(**options):
        results.append(
            Supervisor(
                options.pop("store", store),
                options.pop("launcher", launcher),
                has_space=options.pop("has_space", lambda: True),
                options=SupervisorOptions(**options),
            )
        )
        return results[-1]

    yield make
    for supervisor in results:
        supervisor.stop()


def submit(store, spec=None, **more):
    return store.jobs.submit(JobSubmission(spec or {"dataset": "/x"}, name="a", **more))[0].id


# --- with a simulated launcher


def test_jobs_are_launched_up_to_the_cap_and_the_next_when_one_ends(store, launcher, supervise):
    ids = [submit(store) for _ in range(3)]
    supervisor = supervise(max_running=2)
    supervisor.step()
    until(lambda: len(launcher.launched) == 2)
    supervisor.step()
    assert set(launcher.launched) == {(ids[0], 1), (ids[1], 1)}  # two launch threads: any order
    assert len(launcher.launched) == 2
    store.attempts.finish(ids[0], 1, SUCCEEDED, result={})
    supervisor.step()
    until(lambda: launcher.launched[2:] == [(ids[2], 1)])


def test_nothing_is_launched_on_a_full_disk(store, launcher, supervise):
    job, space = submit(store), SimpleNamespace(left=False)
    supervisor = supervise(has_space=lambda: space.left)
    supervisor.step()
    assert (launcher.launched, store.jobs.get(job).status) == ([], PENDING)
    space.left = True
    supervisor.step()
    until(lambda: launcher.launched == [(job, 1)])


def test_two_supervisors_share_one_cap_and_launch_no_job_twice(
    store, launcher, supervise, home, clock
):
    ids = {submit(store) for _ in range(12)}
    other = JobStore(home.store_url, now=clock, monotonic=clock)
    pair = [
        supervise(max_running=3, tick_seconds=0.01),
        supervise(store=other, max_running=3, tick_seconds=0.01),
    ]
    for supervisor in pair:
        supervisor.start()
    most = 0
    deadline = time.monotonic() + 300
    while store.statistics.read().jobs[SUCCEEDED] < 12:
        assert time.monotonic() < deadline
        running = store.attempts.list_running()
        most = max(most, len(running))
        for job in running:
            if (job.id, job.attempt) in launcher.launched:
                store.attempts.finish(job.id, job.attempt, SUCCEEDED, result={})
    for supervisor in pair:
        supervisor.stop()
    other.close()
    assert sorted(launcher.launched) == sorted((job_id, 1) for job_id in ids)
    assert most <= 3


def test_a_failed_launch_is_retried_and_fails_with_its_message(store, launcher, supervise, clock):
    job_id = submit(store)
    launcher.trouble = Unavailable("Ray did not start: see ray.log")
    supervisor = supervise(max_attempts=2, max_launch_attempts=2)
    supervisor.step()
    until(lambda: store.jobs.get(job_id).status == PENDING, tick=supervisor.step)
    supervisor.step()
    # There is a pause before the next attempt.
    assert (store.jobs.get(job_id).status, store.jobs.get(job_id).reason) == (
        PENDING,
        "LAUNCH",
    )
    clock.ahead += 10
    until(lambda: store.jobs.get(job_id).status == FAILED, tick=supervisor.step)
    failed = store.jobs.get(job_id)
    assert (failed.reason, failed.message, failed.attempt) == (
        "LAUNCH",
        "Ray did not start: see ray.log",
        2,
    )


def test_a_system_error_does_not_show_paths(store, launcher, supervise):
    job_id = submit(store)
    launcher.trouble = FileNotFoundError(2, "no such file", "/secret/python")
    supervisor = supervise(max_attempts=1, max_launch_attempts=1)
    supervisor.step()
    until(lambda: store.jobs.get(job_id).status == FAILED, tick=supervisor.step)
    assert "secret" not in store.jobs.get(job_id).message


def test_a_slow_launch_keeps_its_lease_for_a_limited_time(
    store, launcher, supervise, clock, monkeypatch
):
    monkeypatch.setattr("xcray.jobs.supervision.supervisor.time", SimpleNamespace(monotonic=clock))
    job_id = submit(store)
    launcher.slow = threading.Event()
    supervisor = supervise(start_seconds=600.0, launch_seconds=2000.0)
    supervisor.step()
    for _ in range(4):
        clock.ahead += 400
        supervisor.step()
        assert (store.jobs.get(job_id).status, store.jobs.get(job_id).attempt) == (RUNNING, 1)
    clock.ahead += 500  # after the launch limit, before the end of the lease
    supervisor.step()
    assert store.jobs.get(job_id).attempt == 1
    clock.ahead += 601
    supervisor.step()
    assert store.jobs.get(job_id).attempt == 2  # lost, and claimed again
    launcher.slow.set()


def test_a_launch_that_fails_after_its_limit_is_reported(
    store, launcher, supervise, clock, monkeypatch
):
    monkeypatch.setattr("xcray.jobs.supervision.supervisor.time", SimpleNamespace(monotonic=clock))
    job_id = submit(store)
    launcher.slow, launcher.trouble = threading.Event(), Unavailable("Ray was not ready in time")
    supervisor = supervise(start_seconds=600.0, launch_seconds=180.0)
    supervisor.step()
    clock.ahead += 200
    supervisor.step()
    launcher.slow.set()
    until(lambda: store.jobs.get(job_id).status == PENDING, tick=supervisor.step)
    assert store.jobs.get(job_id).message == "Ray was not ready in time"


def test_a_runner_that_exits_silently_is_detected_before_its_lease_ends(store, launcher, supervise):
    job_id = submit(store)
    supervisor = supervise(max_attempts=2, max_launch_attempts=2)
    supervisor.step()
    launcher.exited = [RunnerId(job_id, 1)]
    supervisor.step()
    until(lambda: (job_id, 2) in launcher.launched)
    # The exit of the old runner does not affect the new one.
    launcher.exited = [
        RunnerId(job_id, 1),
        RunnerId(job_id, 2),
    ]
    supervisor.step()
    assert (store.jobs.get(job_id).status, store.jobs.get(job_id).reason) == (FAILED, "CRASH_LOOP")


def test_the_exit_of_a_succeeded_runner_changes_nothing(store, launcher, supervise):
    job_id = submit(store)
    supervisor = supervise()
    supervisor.step()
    store.attempts.finish(job_id, 1, SUCCEEDED, result={})
    launcher.exited = [RunnerId(job_id, 1)]
    supervisor.step()
    assert store.jobs.get(job_id).status == SUCCEEDED


def test_the_supervisor_thread_survives_errors(store, launcher, supervise, monkeypatch, caplog):
    troubles = [ZeroDivisionError("odd"), Unavailable("locked")]
    real = store.attempts.expire
    monkeypatch.setattr(
        store.attempts,
        "expire",
        lambda **more: (_ for _ in ()).throw(troubles.pop()) if troubles else real(**more),
    )
    supervisor = supervise(tick_seconds=0.01)
    supervisor.start()
    job_id = submit(store)
    until(lambda: (job_id, 1) in launcher.launched)
    assert "locked" in caplog.text
    assert "odd" in caplog.text


# --- with real runners


@pytest.fixture
def spec(tiny):
    return {"dataset": str(tiny.path), "name": "tiny", "pool": "serial"}


def test_a_killed_runner_is_replaced_by_another_process(store, home, supervise, spec):
    """The second attempt publishes the only version, with a log of its own."""
    job_id = submit(store, spec)
    launcher = ProcessLauncher(home)
    supervisor = supervise(launcher=launcher, tick_seconds=0.05, start_seconds=600.0)
    supervisor.start()
    process = until(lambda: launcher._runners.get(RunnerId(job_id, 1)))
    os.kill(process.pid, signal.SIGKILL)
    job = until(lambda: (job := store.jobs.get(job_id)).status in TERMINAL and job)
    assert (job.status, job.attempt) == (SUCCEEDED, 2), home.log(job_id).read_text()
    assert Registry(home.models).versions("tiny") == [1]
    assert job.result["sha256"] == Registry(home.models).describe("tiny", 1).sha256
    assert job.result["measures"]["P@1"] > 0.1
    phases = [e.data["phase"] for e in store.jobs.list_events(job_id) if e.kind == "phase"]
    assert {"LOADING", "TRAINING"} <= set(phases)
    assert "published tiny version 1" in home.log(job_id).read_text()
    assert home.log(job_id).stat().st_mode & 0o777 == 0o600


API = """
import sys, time
from xcray.jobs.home import Home
from xcray.jobs.supervision.launch import ProcessLauncher
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.supervisor import Supervisor, SupervisorOptions
home = Home(sys.argv[1])
options = SupervisorOptions(tick_seconds=0.05, start_seconds=600.0)
launcher = ProcessLauncher(home, options=("--lease", "600"))
Supervisor(JobStore(home.store_url), launcher, options).start()
time.sleep(600)
"""


def test_a_running_job_survives_kill_9_of_the_service(store, home, spec):
    job_id = submit(store, spec)
    service = subprocess.Popen([sys.executable, "-c", API, str(home.path)])
    # The runner is alive: it has reported a phase.
    until(lambda: [e for e in store.jobs.list_events(job_id) if e.kind == "phase"])
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    job = until(lambda: (job := store.jobs.get(job_id)).status in TERMINAL and job)
    assert (job.status, job.attempt) == (SUCCEEDED, 1), home.log(job_id).read_text()


def test_sigterm_makes_a_runner_release_its_job(store, home, spec, tiny, tmp_path):
    """A runner that gets SIGTERM while it reads the data set releases its job.

    The manifest of the data set is a pipe, so the training blocks at its beginning until the test
    has sent the signal.
    """
    data = tmp_path / "data"
    shutil.copytree(tiny.path, data)
    manifest = (data / "manifest.json").read_bytes()
    (data / "manifest.json").unlink()
    os.mkfifo(data / "manifest.json")
    job_id = submit(store, {**spec, "dataset": str(data)})
    launcher = ProcessLauncher(home, options=("--patience", "600"))
    launcher.launch(store.attempts.claim("test", lease_seconds=60))
    process = launcher._runners[RunnerId(job_id, 1)]
    pipe = os.open(data / "manifest.json", os.O_WRONLY)  # returns when the training opens it
    os.kill(process.pid, signal.SIGTERM)
    os.write(pipe, manifest)
    os.close(pipe)
    until(lambda: process.poll() is not None)
    assert process.returncode == 0, home.log(job_id).read_text()
    assert store.jobs.get(job_id).status == PENDING
    assert launcher.poll() == [RunnerId(job_id, 1)]


def test_a_store_url_with_a_password_is_not_on_the_command_line(store, home):
    submit(store)
    job = store.attempts.claim("test", lease_seconds=60)
    url = "postgresql://xcray:secret@db/xcray"
    assert "secret" not in " ".join(runner_command(home, url, job))
    assert STORE_VARIABLE == "XCRAY_STORE"
    assert home.store_url in runner_command(home, home.store_url, job)


@pytest.mark.ray
def test_an_unreachable_cluster_is_named_in_the_message(store, home, supervise):
    job_id = submit(store)
    launcher = RayJobLauncher(home, ExternalRay("127.0.0.1:1", "http://127.0.0.1:1"))
    supervisor = supervise(launcher=launcher, max_launch_attempts=1)
    supervisor.step()
    until(lambda: store.jobs.get(job_id).status == FAILED, tick=supervisor.step)
    assert "is the cluster up?" in store.jobs.get(job_id).message


@pytest.mark.drill
@pytest.mark.ray
def test_jobs_run_on_ray_under_readable_names_and_this_process_is_not_a_driver(
    store, home, supervise, spec
):
    import ray
    from ray.job_submission import JobSubmissionClient

    was_connected = ray.is_initialized()
    store.attempts._now = time.time  # pauses after a failed launch end, leases do not
    good = submit(store, {**spec, "pool": "ray", "workers": 1})
    bad = submit(store, {**spec, "dataset": "/nowhere"})
    waiting = submit(store, spec, priority=-1)
    cluster = ManagedLocalRay(home.ray, num_cpus=2, object_store_memory=100 << 20)
    try:
        supervisor = supervise(
            launcher=RayJobLauncher(home, cluster), tick_seconds=0.1, start_seconds=600.0
        )
        supervisor.start()
        # On a busy machine, Ray takes minutes to start.
        job = until(lambda: (job := store.jobs.get(good)).status in TERMINAL and job, 1800.0)
        assert job.status == SUCCEEDED, home.log(good).read_text()
        assert (
            until(lambda: (job := store.jobs.get(bad)).status in TERMINAL and job).reason
            == "NOT_FOUND"
        )
        store.jobs.request_stop(waiting)
        assert until(
            lambda: (job := store.jobs.get(waiting)).status in TERMINAL and job
        ).status in (
            STOPPED,
            SUCCEEDED,
        )
        info = cluster.info()
        client = JobSubmissionClient(info.dashboard, headers=info.headers)
        entries = {
            details.submission_id: details
            for details in client.list_jobs()
            if details.submission_id
        }
        last = str(job.attempt)  # a slow dashboard can cost an attempt
        assert entries[f"xcray-a-{good}-a{last}"].metadata == {
            "job": good,
            "name": "a",
            "attempt": last,
            "tenant": "default",
        }
        assert "published tiny version 1" in home.log(good).read_text()
        assert info.token_path.read_text() not in home.log(good).read_text()
        assert ray.is_initialized() == was_connected  # by a test before this one
    finally:
        cluster.stop()
