"""Clients of `benchmarks.soak`, each a thread, and the changes of its models.

Labels of every version contain its number, so that a reply that mixes two versions is detected. One
label, `common`, is in all of them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from xcray.arrays import csr_from
from xcray.client import Client
from xcray.data.text.pipeline import TextPipeline
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model

WORDS: Final = [f"word{i}" for i in range(2000)]
LABELS: Final = 200
RETAINED_VERSIONS: Final = 6  # versions of docs that are not deleted
SMALL: Final = {"rows": 300, "features": 100, "labels": 20, "seed": 1}
LARGE: Final = {"rows": 3000, "features": 600, "labels": 200, "seed": 2}
SLOW: Final = 600.0  # seconds after which a job counts as lost


class Record:
    """Results of the clients. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self.mixed = 0
        self.versions: set[int] = set()

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Time one request or scenario; an error is counted with the start of its message."""
        begun = time.perf_counter()
        try:
            yield
        except Exception as error:  # count any error, and let the client continue
            with self._lock:
                self._errors[
                    f"{kind}: {type(error).__name__} {getattr(error, 'code', '')} {str(error)[:160]}"
                ] += 1
            return
        with self._lock:
            self._seconds[kind].append(time.perf_counter() - begun)

    def saw(self, version: int, whole: bool) -> None:
        """Count a reply of a version."""
        with self._lock:
            self.versions.add(version)
            self.mixed += not whole

    def errors(self) -> dict[str, int]:
        """Return the number of errors by kind."""
        return dict(self._errors)

    def counts(self) -> dict[str, int]:
        """Return the successes by kind."""
        return {kind: len(seconds) for kind, seconds in sorted(self._seconds.items())}

    def latencies(self) -> dict[str, dict[str, float]]:
        """Return milliseconds by kind."""
        results = {kind: 1e3 * np.array(seconds) for kind, seconds in sorted(self._seconds.items())}
        return {
            kind: {
                "p50": round(float(np.median(ms)), 2),
                "p99": round(float(np.percentile(ms, 99)), 2),
                "max": round(float(ms.max()), 2),
            }
            for kind, ms in results.items()
        }


class Models:
    """The versions of docs, published into the home by another process, as a runner does."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.registry = Registry(home / "models")
        self._staged = folder / "staged"
        self._pipeline = TextPipeline.fit(
            [" ".join(WORDS[i : i + 20]) for i in range(0, len(WORDS), 5)]
        )
        self.hashes: dict[int, str] = {}
        self.switches = 0

    def prepare(self) -> None:
        """Publish three versions, an alias and a split."""
        for _ in range(3):
            self.publish()
        self.registry.aliases.set("docs", "prod", 1)

    def publish(self) -> int:
        """Publish another version and return its number."""
        number = len(self.hashes) + 1
        rng = np.random.default_rng(number)
        n_features = self._pipeline.n_features
        weights = rng.normal(size=(LABELS, n_features)) * (rng.random((LABELS, n_features)) < 0.05)
        labels = ["common", *(f"v{number}-{i}" for i in range(1, LABELS))]
        names = self._pipeline.terms.to_pylist()
        bias = rng.normal(size=LABELS)
        content = ModelContent(csr_from(weights), bias, labels, names, text=self._pipeline)
        write_model(self._staged, content, TrainingRecord("ppdsparse", {}, "0" * 64))
        self.hashes[number] = Model.open(self._staged, verify=False).sha256
        result = self.registry.publish("docs", self._staged)
        assert result == number
        return number

    def switch(self, client: Client, turn: int) -> None:
        """Change the serving versions once.

        The changes are a new version, a moved alias, a split with a shadow, and deletions.
        """
        versions = self.registry.versions("docs")
        if turn % 3 == 0:
            self.publish()
        elif turn % 3 == 1:
            client.models.set_alias("docs", "prod", versions[-1])
        else:
            client.models.split_alias(
                "docs",
                "prod",
                {versions[-1]: 0.9, versions[-2]: 0.1},
                shadow=versions[-3],
                share=0.5,
            )
        in_use = set(client.models.get("docs")["aliases"].values())
        for version in versions[:-RETAINED_VERSIONS]:
            if version not in in_use:
                client.models.delete_version("docs", version)
        self.switches += 1


class Traffic:
    """The clients of one run."""

    def __init__(
        self, url: str, folder: Path, models: Models, record: Record, ending: threading.Event
    ) -> None:
        self.url = url
        self.folder = folder
        self.models = models
        self.record = record
        self.ending = ending

    def client(self) -> Client:
        """Return a client without retries, so that failures count."""
        return Client(self.url, retries=0, timeout=120.0)

    def check(self, reply: Any) -> None:
        """Record the version of a reply, and whether the reply is consistent."""
        version = reply["model"]["version"]
        labels = {label for one in reply["predictions"] for label in one["labels"]}
        whole = all(label == "common" or label.startswith(f"v{version}-") for label in labels)
        self.record.saw(version, whole and reply["model"]["sha256"] == self.models.hashes[version])

    def ask(self, http: httpx.Client, kind: str, path: str, body: dict[str, Any]) -> Any:
        """Send one timed request; return None if it failed."""
        with self.record.of(kind):
            answer = http.post(path, json=body)
            assert answer.status_code == 200, f"{answer.status_code} {answer.text[:200]}"
            return answer.json()
        return None

    def predict(self, rng: random.Random, http: httpx.Client) -> None:
        """Send predict requests of one to 32 rows, with and without a filter."""
        reference = rng.choice(("docs", "docs@prod", "docs@prod", "docs@latest"))
        rows = rng.choice((1, 1, 1, 1, 1, 8, 32))
        body: dict[str, Any] = {
            "instances": [{"text": text(rng)} for _ in range(rows)],
            "top_k": rng.choice((1, 5, 20)),
        }
        kind = "single" if rows == 1 else "batch"
        if rng.random() < 0.1:
            kind, body["allow" if rng.random() < 0.5 else "deny"] = "filter", ["common"]
        reply = self.ask(http, kind, f"/v1/models/{reference}:predict", body)
        if reply is not None:
            self.check(reply)
        self.ending.wait(rng.expovariate(1 / 0.02))

    def explain(self, rng: random.Random, http: httpx.Client) -> None:
        """Send explain requests, and requests of the other protocol."""
        self.ask(http, "explain", "/v1/models/docs@prod:explain", {"instance": {"text": text(rng)}})
        inputs = [
            {"name": "text", "shape": [2], "datatype": "BYTES", "data": [text(rng), text(rng)]}
        ]
        self.ask(
            http, "oip", "/v2/models/docs/infer", {"inputs": inputs, "parameters": {"top_k": 3}}
        )
        self.ending.wait(0.1)

    def lists(self, rng: random.Random, http: httpx.Client) -> None:
        """Send the requests of consoles and monitors."""
        paths = (
            "/v1/jobs",
            "/v1/datasets",
            "/v1/models",
            "/v1/models/docs",
            "/readyz",
            "/metrics",
            "/healthz",
        )
        for path in (*paths, "/v1/models/docs/aliases/prod/shadow", "/openapi.json"):
            with self.record.of("list"):
                answer = http.get(path)
                assert answer.status_code == 200, f"{path} {answer.status_code} {answer.text[:200]}"
        self.ending.wait(1.0)

    def sets(self, rng: random.Random, http: httpx.Client) -> None:
        """Upload, build and delete a data set."""
        path = self.folder / f"rows-{threading.get_ident()}.jsonl"
        path.write_text(
            "".join(f'{{"text": "{text(rng)}", "labels": ["l{i % 7}"]}}\n' for i in range(200))
        )
        with self.record.of("data set"), self.client() as client:
            dataset = client.datasets.upload(path, name="soak", format="jsonl")
            client.datasets.wait(dataset["id"], seconds=SLOW)
            client.datasets.delete(dataset["id"])
        self.ending.wait(2.0)

    def trains(self, rng: random.Random, http: httpx.Client) -> None:
        """Run a training and follow its events to its end; some are stopped and resumed."""
        stops = rng.random() < 0.4
        with self.record.of("stop, resume" if stops else "training"), self.client() as client:
            data = self._data(client, LARGE if stops else SMALL)
            job = client.jobs.submit(dataset=data, model="trained", pool="serial", params={})
            if stops:
                self.ending.wait(rng.uniform(0.5, 4.0))
                client.jobs.stop(job["id"])
                ended = client.jobs.wait(job["id"])
                if ended["status"] == "STOPPED":
                    client.jobs.resume(job["id"])
            reports: list[str] = []
            ended = client.jobs.wait(
                job["id"], on_event=lambda event: reports.append(event["kind"])
            )
            assert ended["status"] == "SUCCEEDED", (
                f"{ended['status']} {ended.get('reason')} {ended.get('message')}"
            )
            assert reports, "no event was received"
            client.jobs.timeline(job["id"])
            client.jobs.delete(job["id"])
            versions = client.models.get("trained")["versions"]
            for version in versions[:-3]:
                client.models.delete_version("trained", version)
        self.ending.wait(1.0)

    def bulk(self, rng: random.Random, http: httpx.Client) -> None:
        """Run a batch prediction job."""
        path = self.folder / "ask.txt"
        path.write_text("".join(text(rng) + "\n" for _ in range(300)))
        with self.record.of("batch job"), self.client() as client:
            job = client.jobs.predict("docs@prod", format="text", file=path, top_k=3, pool="serial")
            ended = client.jobs.wait(job["id"])
            gone = (
                ended["status"] == "FAILED" and ended.get("reason") == "NOT_FOUND"
            )  # the version was deleted before the job began
            assert gone or ended["status"] == "SUCCEEDED", (
                f"{ended['status']} {ended.get('reason')} {ended.get('message')}"
            )
            if not gone:
                assert client.jobs.output(job["id"])["answered"] == 300
            client.jobs.delete(job["id"])
        self.ending.wait(5.0)

    def _data(self, client: Client, options: dict[str, int]) -> str:
        """Return the id of a synthetic data set, created if missing."""
        name = f"made-{options['seed']}"
        for known in client.datasets.list():
            if known["name"] == name and known["status"] == "READY":
                return str(known["id"])
        dataset = client.datasets.build(
            name, "synthetic", {"synthetic": options, "test_fraction": 0.2}
        )
        return str(client.datasets.wait(dataset["id"], seconds=SLOW)["id"])

    def repeat(self, seed: int, story: Callable[[random.Random, httpx.Client], None]) -> None:
        """Run one client's scenario until the time is up."""
        rng = random.Random(seed)
        with httpx.Client(base_url=self.url, trust_env=False, timeout=120.0) as http:
            while not self.ending.is_set():
                story(rng, http)

    def switching(self, seconds: float, switches: int) -> None:
        """Run all changes, evenly spread."""
        begun = time.monotonic()
        with self.client() as client:
            for turn in range(switches):
                if self.ending.wait(
                    max(0.0, begun + seconds * (turn + 0.5) / switches - time.monotonic())
                ):
                    return
                with self.record.of("switch"):
                    self.models.switch(client, turn)


def text(rng: random.Random) -> str:
    """Return some words."""
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 30)))


def clients(
    url: str,
    folder: Path,
    models: Models,
    record: Record,
    ending: threading.Event,
    *,
    seconds: float,
    switches: int,
) -> list[threading.Thread]:
    """Return the threads of all clients, not yet started."""
    traffic = Traffic(url, folder, models, record, ending)
    stories = [traffic.predict] * 4 + [
        traffic.explain,
        traffic.lists,
        traffic.sets,
        traffic.trains,
        traffic.bulk,
    ]
    threads = [
        threading.Thread(
            target=traffic.repeat, args=(seed, story), name=f"{story.__name__}-{seed}", daemon=True
        )
        for seed, story in enumerate(stories)
    ]
    return [
        *threads,
        threading.Thread(
            target=traffic.switching, args=(seconds, switches), name="switches", daemon=True
        ),
    ]
