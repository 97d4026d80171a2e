"""A service with a trained model, for drills of the console."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.support.service_processes import no_jobs_left, process, until

WORDS = {
    "csv": ("csv", "rows", "columns", "delimiter"),
    "json": ("json", "parse", "dump", "object"),
    "socket": ("socket", "listen", "connect", "port"),
}
OTHER_WORDS = [f"word{i}" for i in range(300)]


def question_lines() -> str:
    """Return 2,000 rows of text with one label each, as JSON lines; one of ten labels is wrong."""
    rng = random.Random(1)
    lines = []
    for _ in range(2000):
        topic = rng.choice(list(WORDS))
        label = topic if rng.random() < 0.9 else rng.choice(list(WORDS))
        words = rng.choices(WORDS[topic], k=3) + rng.choices(OTHER_WORDS, k=4)
        lines.append({"text": " ".join(words), "labels": [label]})
    return "".join(json.dumps(line) + "\n" for line in lines)


class Live(NamedTuple):
    """A running service that requires keys: one per scope."""

    url: str
    http: httpx.Client
    keys: dict[str, str]
    home: Path


@contextmanager
def served(folder: Path) -> Iterator[Live]:
    """Yield a service with the model `topics`, trained over REST, and the data set `topics`."""
    home = folder / "home"
    with process(home, "serve"), no_jobs_left(home):
        until((home / "serve.json").is_file, home)
        url = json.loads((home / "serve.json").read_text())["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=600) as http:
            keys = {}
            for scope in ("admin", "submit", "read", "predict"):
                scopes = ["submit", "predict"] if scope == "submit" else [scope]
                body = {"name": scope, "scopes": scopes}
                keys[scope] = http.post("/v1/keys", json=body).json()["key"]
                http.headers["authorization"] = f"Bearer {keys['admin']}"
            live = Live(url, http, keys, home)
            _train(live)
            yield live


def _train(live: Live) -> None:
    """Upload the rows and train the model `topics`."""
    binary = {"content-type": "application/octet-stream"}
    upload = live.http.post("/v1/uploads", content=question_lines(), headers=binary).json()["id"]
    body = {"name": "topics", "format": "jsonl", "options": {"test_fraction": 0.1}}
    answer = live.http.post("/v1/datasets", json={**body, "uploads": {"train": upload}})
    wait_for(live, answer.headers["location"], "READY")
    job = live.http.post("/v1/jobs", json={"dataset": "topics", "model": "topics"})
    wait_for(live, job.headers["location"], "SUCCEEDED")


def wait_for(live: Live, path: str, status: str) -> dict[str, Any]:
    """Wait until a data set or job has a status, and return it."""

    def look() -> dict[str, Any] | None:
        body: dict[str, Any] = live.http.get(path).json()
        assert body["status"] in (status, "BUILDING", "PENDING", "RUNNING"), body
        return body if body["status"] == status else None

    result: dict[str, Any] = until(look, live.home)
    return result


def upload(page: Any, path: Path, name: str) -> None:
    """Upload a file on the page of data sets."""
    page.get_by_role("link", name="Data sets").click()
    page.get_by_role("button", name="Upload a file").click()
    page.get_by_label("File").set_input_files(path)
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Upload", exact=True).click()
