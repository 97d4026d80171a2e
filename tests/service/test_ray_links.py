"""The link from a job to its page in Ray's dashboard."""

from __future__ import annotations

from pathlib import Path

from tests.support.live_service import client_of, settings_for
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision.ray_launch import submission_id
from xcray.service.app import create_app


def test_a_job_on_ray_links_to_the_dashboard_of_its_cluster(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path / "home", ray_address="10.0.0.1:6379", ray_dashboard="http://ray.example:8265/"
    )
    app = create_app(settings)
    store = app.state.app_state.store
    for pool in ("ray", "threads"):
        store.jobs.submit(JobSubmission({"pool": pool}, f"On {pool}"))
    with client_of(app) as http:
        waiting = http.get("/v1/jobs").json()["jobs"]
        assert [http.get(f"/v1/jobs/{job['id']}").json()["ray_job"] for job in waiting] == [
            None
        ] * 2
        claimed = [store.attempts.claim("me", lease_seconds=3600) for _ in waiting]
        listed = {job["name"]: job["ray_job"] for job in http.get("/v1/jobs").json()["jobs"]}
        shown = {job.name: http.get(f"/v1/jobs/{job.id}").json()["ray_job"] for job in claimed}
    on_ray = next(job for job in claimed if job.name == "On ray")
    assert (
        shown
        == listed
        == {
            "On ray": f"http://ray.example:8265/#/jobs/{submission_id(on_ray)}",
            "On threads": None,
        }
    )


def test_without_a_running_local_ray_there_is_no_link(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    store = app.state.app_state.store
    store.jobs.submit(JobSubmission({"pool": "ray"}, "news"))
    job = store.attempts.claim("me", lease_seconds=3600)
    with client_of(app) as http:
        assert http.get(f"/v1/jobs/{job.id}").json()["ray_job"] is None
