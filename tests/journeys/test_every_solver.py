"""Each solver over REST: a job in a process of its own, and answers of the model it publishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xcray.client import Client
from xcray.solvers import SOLVERS

TOPICS = {"fruit": "apple pear plum", "tool": "hammer saw drill", "bird": "owl robin crow"}
# parameters that make trainings of so few rows short
SMALL: dict[str, dict[str, Any]] = {
    "stagewise": {"stages": 2, "block_size": 40},
    "calibrated-least-squares": {"rounds": 2},
    "dsmlr": {"epochs": 20},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield a client of a service on this machine that has the data set `topics`."""
    home = tmp_path_factory.mktemp("served")
    words = [sys.executable, "-m", "xcray", "serve", "--port", "0", "--pool", "threads", "--json"]
    env = {**os.environ, "XCRAY_HOME": str(home), "XCRAY_LOG_LEVEL": "error"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as service:
        try:
            assert service.stdout is not None
            line = next(line for line in service.stdout if '"url"' in line)
            with Client(line.split('"')[3]) as connected:
                upload(connected, home / "texts.jsonl")
                yield connected
        finally:
            service.terminate()


def upload(client: Client, file: Path) -> None:
    """Upload texts with one label each, and wait for the data set."""
    rows = [
        {"text": f"{word} {other} {topic}", "labels": [topic]}
        for topic, words in TOPICS.items()
        for word in words.split()
        for other in words.split()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = client.datasets.upload(
        file, name="topics", format="jsonl", options={"test_fraction": 0.2}
    )
    assert client.datasets.wait(data["id"])["status"] == "READY"


@pytest.mark.drill
@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_job_publishes_a_model_that_answers(client: Client, solver: str) -> None:
    job = client.jobs.submit(
        dataset="topics", model=solver, solver=solver, params=SMALL.get(solver, {}), workers=1
    )
    ended = client.jobs.wait(job["id"])
    assert ended["status"] == "SUCCEEDED", ended
    for topic, words in TOPICS.items():
        [answer] = client.predict(solver, [f"{words} {topic}"], top_k=1)["predictions"]
        assert answer["labels"] == [topic]
