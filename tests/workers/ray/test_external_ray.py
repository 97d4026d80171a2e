"""External Ray with a simulated dashboard: availability, and its jobs during an outage."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from tests.support.launches import Launches
from tests.support.waiting import until
from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.states import FAILED, PENDING, RUNNING
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision import ray_launch
from xcray.jobs.supervision.launch import RunnerId
from xcray.jobs.supervision.ray_launch import RayJobLauncher
from xcray.jobs.supervision.supervisor import Supervisor, SupervisorOptions
from xcray.workers.ray import session as ray_session
from xcray.workers.ray.local_cluster import ExternalRay
from xcray.workers.ray.session import check_dashboard, connect, free_port

# a lease outlives a stall of the machine
OPTIONS = SupervisorOptions(start_seconds=3600.0)
ON_RAY, HERE = {"dataset": "/x", "pool": "ray"}, {"dataset": "/x", "pool": "threads"}


class Dashboard(http.server.BaseHTTPRequestHandler):
    """A dashboard that sends the stored answer of a path once `gate` is set."""

    def do_GET(self):
        self.server.gate.wait(300)
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        status, body = self.server.answers.get(self.path, (404, b"{}"))
        with contextlib.suppress(ConnectionError):  # the client can be gone
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        """Log nothing."""


@contextmanager
def dashboard(answers):
    """Yield a dashboard server and its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        server.answers, server.requests, server.gate = {**answers}, [], threading.Event()
        server.gate.set()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()


WELL = {"/api/version": (200, b'{"ray_version": "2.60.0"}'), "/api/gcs_healthz": (200, b"success")}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Let a dashboard of this process answer late, as on a slow machine."""
    monkeypatch.setattr(check_dashboard, "__defaults__", (600.0,))


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def store(home):
    with closing(JobStore(home.store_url)) as store:
        yield store


def submit(store, spec):
    return store.jobs.submit(JobSubmission(spec, name="a"))[0].id


def test_a_healthy_dashboard_receives_the_token():
    with dashboard(WELL) as (server, url):
        check_dashboard(url, {"Authorization": "Bearer t"})
    assert server.requests == [("/api/version", "Bearer t"), ("/api/gcs_healthz", "Bearer t")]


@pytest.mark.parametrize(
    ("answers", "code", "says"),
    [
        ({"/api/version": (401, b"")}, "RAY_REFUSED", "refuses our token"),
        ({"/api/version": (403, b"")}, "RAY_REFUSED", "refuses our token"),
        ({**WELL, "/api/gcs_healthz": (503, b"")}, "RAY_UNREACHABLE", "is its head healthy"),
        ({}, "RAY_UNREACHABLE", "answers with status 404"),
    ],
)
def test_problems_of_a_dashboard_are_reported(answers, code, says):
    with dashboard(answers) as (_, url), pytest.raises(Unavailable, match=says) as caught:
        check_dashboard(url, {})
    assert caught.value.code == code


def test_a_missing_or_hanging_dashboard_is_reported():
    with dashboard(WELL) as (server, url):
        server.gate.clear()
        with pytest.raises(Unavailable, match="does not answer"):
            check_dashboard(url, {}, seconds=0.1)
    with pytest.raises(Unavailable, match="does not answer"):
        check_dashboard(f"http://127.0.0.1:{free_port()}", {})


def test_an_external_cluster_needs_its_head_dashboard_and_token(tmp_path):
    with dashboard(WELL) as (_, url):
        head = url.removeprefix("http://")
        cluster = ExternalRay(head, url)
        assert cluster.ensure() == cluster.info()
        with pytest.raises(Unavailable, match="no Ray answers at"):
            ExternalRay(f"127.0.0.1:{free_port()}", url).ensure()
        with pytest.raises(Unavailable, match="does not answer"):
            ExternalRay(head, f"http://127.0.0.1:{free_port()}").ensure()
        with pytest.raises(Unavailable, match="is the Secret mounted") as caught:
            ExternalRay(head, url, tmp_path / "nothing").ensure()
    assert caught.value.code == "RAY_REFUSED"


def test_the_cluster_that_a_process_is_in_is_named_by_its_environment(monkeypatch):
    where = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", where)
    with pytest.raises(Unavailable, match=f"no Ray answers at {where}"):
        with connect("auto"):
            pass
    assert ray_session.AUTO == "auto"


def test_jobs_on_ray_wait_in_order_while_ray_is_unavailable(store):
    first, other, second = (submit(store, spec) for spec in (ON_RAY, HERE, ON_RAY))
    bare = submit(store, {"dataset": "/x"})  # a job that names no pool does not need Ray
    launcher = Launches()
    supervisor = Supervisor(store, launcher, replace(OPTIONS, max_running=9))
    launcher.pools_away = {"ray"}
    supervisor.step()
    until(lambda: len(launcher.launched) == 2)
    supervisor.step()
    assert sorted(launcher.launched) == sorted([(other, 1), (bare, 1)])
    assert [store.jobs.get(each).attempt for each in (first, second)] == [0, 0]
    launcher.pools_away = frozenset()
    supervisor.step()
    until(lambda: len(launcher.launched) == 4)
    assert [store.jobs.get(each).status for each in (first, second)] == [RUNNING, RUNNING]
    events = [
        next(
            event.seq
            for event in store.jobs.list_events(each)
            if event.data.get("status") == RUNNING
        )
        for each in (first, second)
    ]
    assert events == sorted(events)
    supervisor.stop()


def test_a_launch_without_a_cluster_returns_the_job_to_its_place(store):
    first, second = submit(store, ON_RAY), submit(store, ON_RAY)
    launcher = Launches()
    launcher.trouble = Unavailable("no Ray answers", code="RAY_UNREACHABLE")
    supervisor = Supervisor(store, launcher, OPTIONS)
    supervisor.step()
    launcher.pools_away = {"ray"}  # as the launch has detected
    until(lambda: store.jobs.get(first).status == PENDING, tick=supervisor.step)
    assert store.jobs.get(first).attempt == 1
    launcher.trouble, launcher.pools_away = None, frozenset()
    until(lambda: len(launcher.launched) == 2, tick=supervisor.step)
    assert launcher.launched == [(first, 1), (first, 2)]  # at once, before the second job
    assert store.jobs.get(second).status == PENDING
    supervisor.stop()


def test_losses_with_the_cluster_cost_no_attempt_and_are_limited(store, monkeypatch):
    """Four losses with the cluster use none of two attempts, but a separate loss does.

    A job that brings down each cluster ends, too.
    """
    job, launcher = submit(store, ON_RAY), Launches()
    supervisor = Supervisor(store, launcher, replace(OPTIONS, max_attempts=2))
    launcher.pools_shaken = {"ray"}
    for attempt in range(1, 5):
        supervisor.step()
        until(lambda attempt=attempt: (job, attempt) in launcher.launched)
        launcher.exited = [RunnerId(job, attempt)]
        supervisor._ended_runners += launcher.poll()
        supervisor._handle_exit(job, attempt)
        supervisor._ended_runners.clear()
        record = store.jobs.get(job)
        assert (record.status, record.reason) == (PENDING, "LAUNCH")
    supervisor.step()
    assert (
        store.attempts.mark_lost(job, 5, max_attempts=2).status == PENDING
    )  # its first separate loss
    assert store.attempts.claim("me", lease_seconds=60).attempt == 6
    monkeypatch.setattr("xcray.jobs.store.attempts.MAX_LAUNCH_ATTEMPTS", 5)
    assert store.attempts.mark_lost(job, 6, max_attempts=2, unstable_pools={"ray"}).status == FAILED
    supervisor.stop()


def test_a_lease_that_expires_while_ray_is_unstable_costs_no_attempt(tmp_path):
    ahead = [0.0]
    store = JobStore(
        f"sqlite:///{tmp_path / 'a.db'}",
        now=lambda: time.time() + ahead[0],
        monotonic=lambda: time.monotonic() + ahead[0],
    )
    with closing(store):
        here, there = submit(store, HERE), submit(store, ON_RAY)
        for _ in range(2):
            store.attempts.claim("me", lease_seconds=5)
        store.attempts.expire(max_attempts=1, unstable_pools={"ray"})
        ahead[0] += 10
        store.attempts.expire(max_attempts=1, unstable_pools={"ray"})
        assert [store.jobs.get(job).status for job in (here, there)] == [FAILED, PENDING]


def test_an_outage_of_an_external_cluster_is_detected_without_a_job(home, monkeypatch):
    monkeypatch.setattr(ray_launch, "POLL_SECONDS", 0.0)
    with dashboard(WELL) as (server, url):
        launcher = RayJobLauncher(home, ExternalRay(url.removeprefix("http://"), url))

        def availability_is(unavailable):
            return lambda: (launcher.poll(), bool(launcher.unavailable_pools()) == unavailable)[1]

        until(availability_is(False))
        assert not launcher.unstable_pools()
        server.answers["/api/gcs_healthz"] = (503, b"")
        until(availability_is(True))
        server.answers["/api/gcs_healthz"] = (200, b"success")
        until(availability_is(False))
        # The leases of its jobs have not expired yet.
        assert launcher.unstable_pools() == {"ray"}
        monkeypatch.setattr(ray_launch, "UNSTABLE_SECONDS", 0.0)
        assert not launcher.unstable_pools()


@pytest.mark.ray
def test_a_job_that_a_new_cluster_does_not_list_has_ended(home, store, monkeypatch):
    monkeypatch.setattr(ray_launch, "POLL_SECONDS", 0.0)
    submit(store, ON_RAY)
    job = store.attempts.claim("me", lease_seconds=60)
    fields = {"/api/jobs/": (200, b'{"job_id": "x", "submission_id": "x"}')}
    with dashboard({**WELL, **fields}) as (server, url):
        launcher = RayJobLauncher(home, ExternalRay(url.removeprefix("http://"), url))
        launcher.launch(job)
        assert launcher.list_runners() == [RunnerId(job.id, 1)]
        del server.answers["/api/jobs/"]  # another cluster: 404
        assert until(lambda: launcher.poll()) == [RunnerId(job.id, 1)]
        assert launcher.list_runners() == []


@pytest.mark.ray
def test_a_launch_does_not_wait_forever_for_a_dashboard(home, store, monkeypatch):
    monkeypatch.setattr(ray_launch, "REQUEST_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(ray_launch, "SUBMIT_SECONDS", 0.0)
    submit(store, ON_RAY)
    job = store.attempts.claim("me", lease_seconds=60)
    with dashboard(WELL) as (server, url):
        cluster = ExternalRay(url.removeprefix("http://"), url)
        monkeypatch.setattr(cluster, "ensure", cluster.info)  # the last check succeeded
        server.gate.clear()
        with pytest.raises(Unavailable, match="did not accept the job") as caught:
            RayJobLauncher(home, cluster).launch(job)
        assert caught.value.code == "RAY_SUBMIT"


@pytest.mark.ray
def test_a_submission_is_retried_and_a_lost_answer_is_detected(home, store, monkeypatch):
    """Submissions are retried; if the answer is lost, as for the second job, Ray's state counts."""
    monkeypatch.setattr(ray_launch, "SUBMIT_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(ray_launch, "SUBMIT_SECONDS", 600.0)  # the first one imports Ray
    for _ in range(2):
        submit(store, ON_RAY)
    first, second = (store.attempts.claim("me", lease_seconds=60) for _ in range(2))
    refuses, takes = (500, b"no agent yet"), (200, b'{"job_id": "x", "submission_id": "x"}')
    known = json.dumps(
        {
            "type": "SUBMISSION",
            "entrypoint": "x",
            "status": "RUNNING",
            "submission_id": "x",
            "job_id": None,
        }
    ).encode()
    with dashboard({**WELL, "/api/jobs/": refuses}) as (server, url):
        cluster = ExternalRay(url.removeprefix("http://"), url)
        launcher, tries = RayJobLauncher(home, cluster), []
        client = ray_launch._job_client

        def flaky_client(info):
            tries.append(1)
            if len(tries) > 4:
                server.answers["/api/jobs/"] = takes
            return client(info)

        monkeypatch.setattr(ray_launch, "_job_client", flaky_client)
        launcher.launch(first)
        assert len(tries) > 4
        tries.clear()
        server.answers |= {
            "/api/jobs/": refuses,
            f"/api/jobs/{ray_launch.submission_id(second)}": (200, known),
        }
        launcher.launch(second)
        assert launcher.list_runners() == [RunnerId(first.id, 1), RunnerId(second.id, 1)]
