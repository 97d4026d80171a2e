"""Rolling upgrade without downtime.

The next release changes the schema while older programs serve and train without errors. After a
later release that is incompatible with them they serve predictions for a while.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import publish
from tests.support.next_release import ADDED, FOLLOWING, upgrade_to
from tests.support.service_processes import PATIENCE, process, read_process_file, until
from xcray.data.dataset import Dataset
from xcray.errors import Conflict
from xcray.jobs.database.migrations import HEAD, MigrationStep
from xcray.jobs.home import Home
from xcray.jobs.job import new_id
from xcray.jobs.states import RUNNING, SUCCEEDED, TERMINAL
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.tokens import create_token
from xcray.model.registry import Registry

pytestmark = pytest.mark.drill

# Without this column a revoked key would look valid, so older programs must be cut off.
CUTS = ("ALTER TABLE keys DROP COLUMN revoked",)
CONTRACT = (*ADDED, MigrationStep(FOLLOWING + 1, FOLLOWING + 1, CUTS))
ROWS = {"instances": [{"text": "read rows of a csv file"}]}


class Clients:
    """Threads that send requests continuously; `heard` counts results by path and status."""

    def __init__(self, url: str, token: str) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.http = httpx.Client(
            base_url=url,
            trust_env=False,
            timeout=PATIENCE,
            headers={"Authorization": f"Bearer {token}"},
        )
        self._ending = threading.Event()
        asks = (
            ("POST", "/v1/models/m:predict", ROWS),
            ("GET", "/readyz", None),
            ("GET", "/v1/jobs", None),
        )
        self._threads = [threading.Thread(target=self._ask, args=ask) for ask in asks]

    def _ask(self, method: str, path: str, body: Any) -> None:
        while not self._ending.wait(0.05):
            try:
                answer = self.http.request(method, path, json=body)
            except httpx.HTTPError:
                self.counts[path, 0] += 1
                continue
            # a check of the disk can take too long on a slow machine; the store has a grace period
            is_slow = path == "/readyz" and answer.json()["reasons"] == ["DISK"]
            self.counts[path, 200 if is_slow else answer.status_code] += 1

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Send requests while the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def more(self, path: str, n: int, home: Path) -> None:
        """Wait until a path has been answered `n` more times."""
        before = self.counts[path, 200]
        until(lambda: self.counts[path, 200] >= before + n, home)

    def failed(self) -> dict[tuple[str, int], int]:
        """Return the answers that were not 200."""
        return {what: n for what, n in self.counts.items() if what[1] != 200}


def train(http: httpx.Client, data: str, n: int) -> list[str]:
    """Submit jobs and return their ids."""
    requests = [
        http.post("/v1/jobs", json={"dataset": data, "model": f"t{i}", "pool": "serial"})
        for i in range(n)
    ]
    assert [each.status_code for each in requests] == [201] * n, requests[-1].text
    return [each.json()["id"] for each in requests]


def ended(store: JobStore, jobs: list[str], home: Path) -> list[tuple[str, int]]:
    """Wait until jobs have ended; return their statuses and attempts."""
    until(lambda: all(store.jobs.get(job).status in TERMINAL for job in jobs), home)
    return [(store.jobs.get(job).status, store.jobs.get(job).attempt) for job in jobs]


@pytest.fixture(params=["sqlite", "postgresql"])
def home_and_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str | None]:
    home = tmp_path / "home"
    publish(Registry(Home(home).models), "m", tmp_path / "staged")
    if request.param == "sqlite":
        return home, None
    return home, request.getfixturevalue("postgres").database()


def test_a_schema_is_upgraded_while_programs_serve_and_train(
    home_and_store: tuple[Path, str | None], tmp_path: Path, tiny: Dataset
) -> None:
    home, address = home_and_store
    store, result, data = JobStore(address or Home(home).store_url), create_token(), new_id("ds")
    store.keys.add("default", "clients", ["admin"], result.digest, key_id=result.key_id)
    shutil.copytree(tiny.path, Home(home).dataset(data))
    store.datasets.add("tiny", str(Home(home).dataset(data)), dataset_id=data)
    with (
        process(home, "serve", store=address) as serve,
        closing(Clients(read_process_file(home, serve, "serve")["url"], result.token)) as clients,
    ):
        until(lambda: clients.http.get("/readyz").status_code == 200, home)
        with clients.asking():
            jobs = train(clients.http, data, 2)
            until(lambda: store.jobs.get(jobs[0]).status == RUNNING, home)
            clients.more("/v1/models/m:predict", 5, home)
            assert upgrade_to(ADDED, store.url) == HEAD
            assert ended(store, jobs, home) == [(SUCCEEDED, 1)] * 2
            clients.more("/v1/models/m:predict", 5, home)
            # An older program starts on the upgraded store, as after `helm rollback`.
            JobStore(store.url, upgrade=False).close()
            clients.more("/readyz", 5, home)
        assert clients.failed() == {}
        upgrade_to(CONTRACT, store.url)
        _only_predictions(clients, home)
    with pytest.raises(Conflict, match="supports programs from") as caught:
        JobStore(store.url, upgrade=False)
    assert caught.value.code == "SCHEMA_NEWER"
    store.close()


def _only_predictions(clients: Clients, home: Path) -> None:
    """Check that a cut-off program still answers predictions for cached keys and nothing else."""
    until(lambda: "SCHEMA" in clients.http.get("/readyz").json()["degraded"], home)
    ready = clients.http.get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (200, [])
    assert clients.http.post("/v1/models/m:predict", json=ROWS).status_code == 200
    # Reads use the cached revision for a moment.
    until(lambda: clients.http.get("/v1/jobs").status_code == 503, home)
    for answer in (
        clients.http.get("/v1/jobs"),
        clients.http.post("/v1/jobs", json={"dataset": "ds_1", "model": "m"}),
    ):
        assert (answer.status_code, answer.json().get("code")) == (503, "SCHEMA_NEWER"), answer.text
    unknown_key = {"Authorization": f"Bearer {create_token().token}"}
    assert (
        clients.http.post("/v1/models/m:predict", json=ROWS, headers=unknown_key).status_code == 503
    )
