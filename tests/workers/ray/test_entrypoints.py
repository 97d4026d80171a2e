"""Entry points of a Ray cluster: a training as a submitted job, the service on Ray Serve."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve
from ray.job_submission import JobSubmissionClient

from tests.support.live_service import client_of, publish, settings_for
from xcray.data.dataset import Dataset
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.tokens import create_token
from xcray.model.objectstore.remote_registry import pull_to_directory
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.ray_serve import application, replica_settings
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.versions import list_versions
from xcray.workers.ray.local_cluster import ClusterInfo, ManagedLocalRay, connect
from xcray.workers.ray.session import environment, free_port

pytestmark = pytest.mark.drill

PATIENCE = 600.0  # seconds: a slow machine may need to compile kernels
# Serve replaces a proxy that takes longer to start or to answer
SERVE_SECONDS = {
    f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": str(PATIENCE) for check in ("READY", "HEALTH")
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterInfo]:
    """Yield a local Ray with a dashboard and token authentication."""
    with tempfile.TemporaryDirectory(prefix="xr-") as folder, environment(SERVE_SECONDS):
        selection = ManagedLocalRay(
            folder, num_cpus=2, object_store_memory=100 << 20, grace=10 * PATIENCE
        )
        try:
            yield selection.ensure(PATIENCE)
        finally:
            selection.stop()


def ended(client: Any, job: str) -> str:
    """Wait for the end of a job and return its status."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        status = str(client.get_job_status(job))
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            return status
        time.sleep(0.1)
    raise AssertionError(client.get_job_logs(job))


@pytest.mark.ray
def test_a_training_job_is_stopped_resumed_and_pushed_once(
    cluster: ClusterInfo, tiny: Dataset, tmp_path: Path
) -> None:
    out, store, run_dir = tmp_path / "news", f"file://{tmp_path / 'store'}", tmp_path / "run"
    words = [
        sys.executable,
        "-m",
        "xcray",
        "train",
        str(tiny.path),
        "--pool",
        "ray",
        "--ray-address",
        "auto",
        "--workers",
        "1",
    ]
    words += ["--run-dir", str(run_dir), "--out", str(out)]
    push = shlex.join([sys.executable, "-m", "xcray", "models", "push", str(out), store])
    client = JobSubmissionClient(cluster.dashboard, headers=cluster.headers)
    client.submit_job(entrypoint=f"{shlex.join(words)} && {push}", submission_id="first")
    until = time.monotonic() + PATIENCE
    while not run_dir.exists() and time.monotonic() < until:
        time.sleep(0.02)
    client.stop_job("first")
    # SUCCEEDED if the job was faster than the stop.
    assert ended(client, "first") in (
        "STOPPED",
        "SUCCEEDED",
    )
    client.submit_job(entrypoint=f"{shlex.join(words)} && {push}", submission_id="second")
    assert ended(client, "second") == "SUCCEEDED", client.get_job_logs("second")
    (remote,) = list_versions(StoragePath.parse(store) / "news")
    client.submit_job(entrypoint=f"{shlex.join(words)} && {push}", submission_id="third")
    client.submit_job(entrypoint=shlex.join([*words, "-p", "lam=0.5"]), submission_id="fourth")
    assert ended(client, "third") == "SUCCEEDED", client.get_job_logs("third")
    assert "nothing to train" in client.get_job_logs("third")
    assert list_versions(StoragePath.parse(store) / "news") == [remote]
    assert ended(client, "fourth") == "FAILED"
    assert "exit code 1" in client.get_job_info("fourth").message
    assert pull_to_directory(tmp_path / "pulled", f"{store}/news").sha256


@pytest.mark.ray
def test_serve_answers_with_the_same_bytes(
    cluster: ClusterInfo, tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.serve._private.api.HTTP_PROXY_TIMEOUT", PATIENCE)
    home = Home(own_home)
    publish(Registry(home.models), "news", tmp_path / "staged")
    token = create_token()
    with closing(JobStore(home.store_url)) as store:
        store.keys.add("default", "reader", ["predict"], token.digest, key_id=token.key_id)
    port = free_port()
    args = {
        "home": str(own_home),
        "preload": ["news"],
        "allowed_hosts": ["127.0.0.1"],
    }
    body = {"instances": [{"text": "read a csv file"}, {"text": "open a socket"}], "top_k": 3}
    headers = {"Authorization": f"Bearer {token.token}"}

    def responses_of(client: httpx.Client) -> list[tuple[int, bytes]]:
        answers = [
            client.post("/v1/models/news:predict", json=body, headers=headers),
            client.post("/v1/models/news:predict", json=body),
        ]
        answers.append(client.post("/v1/models/nws:predict", json=body, headers=headers))
        answers.append(
            client.post("/v1/models/news:predict", json={"instances": []}, headers=headers)
        )
        return [
            (
                answer.status_code,
                answer.content.replace(answer.headers.get("x-request-id", "-").encode(), b"-"),
            )
            for answer in answers
        ]

    with client_of(create_app(settings_for(**{**args, "home": own_home}))) as client:
        plain = responses_of(client)
    with connect(cluster.address, token_path=cluster.token_path):
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(application(args), name="xcray", route_prefix="/")
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE
            ) as client:
                # Slow readiness checks report their last result.
                until = time.monotonic() + PATIENCE
                while client.get("/readyz").status_code != 200:
                    assert time.monotonic() < until, client.get("/readyz").text
                    time.sleep(0.1)
                served = responses_of(client)
        finally:
            serve.shutdown()
    assert [status for status, _ in served] == [200, 401, 404, 422]
    assert served[0] == plain[0]
    assert [status for status, _ in plain] == [200, 401, 404, 422]


def test_a_replica_is_closed_without_keys(own_home: Path) -> None:
    settings = replica_settings({"home": own_home})
    assert not settings.admits_everyone
    with pytest.raises(ValueError, match="preload"):
        application({"preload": 3})
