"""The link from a job to Ray's dashboard, opened in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.browser import Browsing, expect
from tests.support.console_service import Live, wait_for
from tests.support.service_processes import until
from xcray.workers.ray.local_cluster import ManagedLocalRay

pytestmark = [pytest.mark.drill, pytest.mark.ray]


@pytest.fixture
def local_ray(live: Live) -> Iterator[ManagedLocalRay]:
    """Yield the local Ray of the service, which its first job on Ray starts; stop it at the end."""
    cluster = ManagedLocalRay(live.home / "ray")
    yield cluster
    cluster.stop()


def test_the_link_of_a_job_opens_its_page_in_the_dashboard(
    live: Live, pages: Browsing | None, local_ray: ManagedLocalRay
) -> None:
    body = {"dataset": "topics", "model": "on-ray", "pool": "ray", "workers": 1}
    job = live.http.post("/v1/jobs", json=body).raise_for_status().json()
    wait_for(live, f"/v1/jobs/{job['id']}", "SUCCEEDED")
    info = local_ray.info()
    assert info is not None
    link = live.http.get(f"/v1/jobs/{job['id']}").json()["ray_job"]
    page, _, submission = link.partition("/#/jobs/")
    with httpx.Client(headers=info.headers, trust_env=False, timeout=600) as ray:
        assert ray.get(page).is_success
        details = f"{page}/api/jobs/{submission}"
        assert ray.get(details).raise_for_status().json()["metadata"]["job"] == job["id"]
        # Ray notices the end of the process some time after the job has ended.
        until(lambda: ray.get(details).json()["status"] == "SUCCEEDED", live.home)
    if pages is None:
        return
    shown = pages.open(f"/#/jobs/{job['id']}", key=live.keys["read"])
    shown_link = shown.get_by_role("link", name="job in Ray's dashboard")
    expect(shown_link).to_have_attribute("href", link)
    dashboard = pages.open_other_site(link, info.headers)
    dashboard.get_by_text(submission).first.wait_for()
    dashboard.get_by_text("SUCCEEDED").first.wait_for()
