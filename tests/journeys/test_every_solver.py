"""Each solver over REST: a job, and answers of the model that it publishes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_service import serving, settings_for
from xcray.client import Client
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.states import SUCCEEDED
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.solvers import SOLVERS

pytestmark = pytest.mark.drill

TOPICS = {"fruit": "apple pear plum", "tool": "hammer saw drill", "bird": "owl robin crow"}
# parameters that make trainings of so few rows short
SMALL: dict[str, dict[str, Any]] = {
    "stagewise": {"stages": 2, "block_size": 40},
    "calibrated-least-squares": {"rounds": 2},
    "dsmlr": {"epochs": 20},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, AppState]]:
    """Yield a client of a service with the data set `topics`; the test runs the jobs."""
    home = tmp_path_factory.mktemp("served") / "home"
    app = create_app(settings_for(home))
    rows = [
        {"text": f"{word} {other} {topic}", "labels": [topic]}
        for topic, words in TOPICS.items()
        for word in words.split()
        for other in words.split()
    ]
    file = home.parent / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(app) as url, Client(url, timeout=600.0) as client:
        options = {"test_fraction": 0.2}
        data = client.datasets.upload(file, name="topics", format="jsonl", options=options)
        assert client.datasets.wait(data["id"])["status"] == "READY"
        yield client, app.state.app_state


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_job_publishes_a_model_that_answers(
    service: tuple[Client, AppState], solver: str
) -> None:
    client, state = service
    params = SMALL.get(solver, {})
    how: dict[str, Any] = {"solver": solver, "params": params, "pool": "threads", "workers": 1}
    client.jobs.submit(dataset="topics", model=solver, **how)
    job = state.store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    assert run_attempt(state.store, state.home, job.id, job.attempt) == SUCCEEDED
    for topic, words in TOPICS.items():
        [answer] = client.predict(solver, [f"{words} {topic}"], top_k=1)["predictions"]
        assert answer["labels"] == [topic]
