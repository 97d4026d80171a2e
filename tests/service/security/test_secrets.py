"""Secrets do not leak (T2, T14): a service with keys and a Ray token runs a training."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.postgres import state
from tests.support.service_processes import PATIENCE, process, read_process_file, until
from xcray.cli.main import main
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.supervision import ray_launch
from xcray.jobs.supervision.ray_launch import RayJobLauncher
from xcray.workers.ray.local_cluster import ClusterInfo

CANARY = "canary-b9f1c2d4e6a80735"
LINES = (
    '{"text": "read rows of a csv file", "labels": ["csv"]}\n{"text": "write a json file", "labels": ["json"]}\n'
    * 4
)


class Watch:
    """Records the command lines and environments of a process and its descendants.

    Command lines are visible to all users.
    """

    def __init__(self, root: int) -> None:
        self.texts: set[bytes] = set()
        self.pids: set[int] = set()
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(0.02):
            family = {self._root} | self.pids
            for entry in Path("/proc").iterdir():
                if not entry.name.isdecimal():
                    continue
                try:
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    if parent in family or int(entry.name) in family:
                        self.pids.add(int(entry.name))
                        self.texts |= {
                            (entry / "cmdline").read_bytes(),
                            (entry / "environ").read_bytes(),
                        }
                except (OSError, IndexError):
                    continue  # the process has ended

    def end(self) -> set[bytes]:
        """Stop and return all recorded bytes."""
        self._ended.set()
        self._thread.join(PATIENCE)
        return self.texts


@pytest.mark.drill
def test_keys_and_tokens_do_not_leak(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "--scopes", "admin", "--json"]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    token = tmp_path / "token"
    token.write_text(CANARY)
    variables = {"XCRAY_RAY_TOKEN_PATH": str(token)}
    with process(own_home, "serve", "--log-level", "debug", variables=variables) as serve:
        watch = Watch(serve.pid)
        try:
            replies = work(read_process_file(own_home, serve, "serve")["url"], key, own_home)
        finally:
            serve.send_signal(signal.SIGTERM)
            serve.wait(PATIENCE)
            values = watch.end()
    until(lambda: all(state(pid) == "Z" for pid in watch.pids), own_home)  # and remove no files
    assert len(watch.pids) >= 3, "the service, a build and a runner"
    places = {str(path): path.read_bytes() for path in own_home.rglob("*") if path.is_file()}
    places["replies"] = b"".join(replies)
    places |= {f"process {n}": report for n, report in enumerate(values)}
    assert len(places) > 20
    for secret in (CANARY, key, key.split("_", 2)[2]):
        assert [place for place, content in places.items() if secret.encode() in content] == []


def work(url: str, key: str, home: Path) -> list[bytes]:
    """Build a data set, train a model and call other routes; return all replies."""
    replies: list[bytes] = []
    with httpx.Client(
        base_url=url, trust_env=False, timeout=PATIENCE, headers={"Authorization": f"Bearer {key}"}
    ) as http:

        def ask(method: str, path: str, **how: Any) -> Any:
            answer = http.request(method, path, **how)
            replies.append(answer.content + str(answer.headers).encode())
            assert answer.status_code < 300, answer.text
            return (
                answer.json()
                if answer.headers.get("content-type") == "application/json"
                else answer.text
            )

        octets = {"Content-Type": "application/octet-stream"}
        data = ask("POST", "/v1/datasets?name=docs&format=jsonl", content=LINES, headers=octets)
        until(lambda: ask("GET", f"/v1/datasets/{data['id']}")["status"] == "READY", home)
        job = ask("POST", "/v1/jobs", json={"dataset": "docs", "model": "docs", "pool": "serial"})
        until(lambda: ask("GET", f"/v1/jobs/{job['id']}")["status"] == "SUCCEEDED", home)
        for path in ("logs", "timeline", "events"):
            ask("GET", f"/v1/jobs/{job['id']}/{path}")
        for path in ("/v1/audit", "/v1/keys", "/metrics", "/openapi.json", "/readyz", "/v1/models"):
            ask("GET", path)
    return replies


def test_the_ray_token_is_sent_in_a_header_only(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(CANARY)
    info = ClusterInfo("127.0.0.1:1", "http://127.0.0.1:2", token, 0)
    requests: list[Any] = []

    class Dashboard:
        """The part of Ray's job client that the launcher uses."""

        def submit_job(self, **how: Any) -> None:
            """Record the arguments of a submission."""
            requests.append(how)

    class Joined:
        """A cluster that is available."""

        def ensure(self) -> ClusterInfo:
            """Return the address of the cluster."""
            return info

    monkeypatch.setattr(ray_launch, "_job_client", lambda _: Dashboard())
    store = JobStore(Home(own_home).store_url)
    store.jobs.submit(JobSubmission({"pool": "ray"}, name="n", job_id="job_a"))
    job: Job | None = store.attempts.claim("me", lease_seconds=10)
    assert job is not None
    RayJobLauncher(Home(own_home), Joined()).launch(job)  # type: ignore[arg-type]  # the one method that launching needs
    assert CANARY not in json.dumps(requests, default=str)
    assert CANARY not in json.dumps(vars(job), default=str) + repr(info)
    assert CANARY in info.headers.popitem()[1]
    store.close()
