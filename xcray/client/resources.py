"""Data sets, jobs, models: one class a noun, one method a path."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from xcray.client.connection import Connection
from xcray.client.types import (
    Dataset,
    Event,
    Job,
    LabelSet,
    Model,
    Output,
    SetSummary,
    Timeline,
    Version,
)
from xcray.errors import Conflict, Corrupt, InputError, NotFound, Unavailable
from xcray.storage.atomic import (
    discard_directory,
    publish_directory,
    sha256_file,
    staging_directory,
)


class Noun:
    """Part of a client: the paths of one thing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _upload(self, file: Path) -> str:
        """Send one file; its id."""
        if not file.is_file():
            raise NotFound(f"there is no file {file}")
        query = {"sha256": sha256_file(file)}
        return str(self._connection.create("/v1/uploads", content=file, query=query)["id"])

    def _pages(self, path: str, key: str, query: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """All entries of a list, page after page."""
        token = None
        while True:
            page = self._connection.ask("GET", path, query={**(query or {}), "page_token": token})
            yield from page[key]
            token = page.get("next_page_token")
            if token is None:
                return


class Datasets(Noun):
    """/v1/datasets."""

    def upload(
        self,
        path: str | Path,
        *,
        name: str,
        format: str,
        test: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Send a file (svmlight, xc, jsonl, csv or tsv), and one of held-out rows if there is one; answered while BUILDING."""
        files = {"train": Path(path)} | ({} if test is None else {"test": Path(test)})
        uploads = {part: self._upload(file) for part, file in files.items()}
        return self._create(
            {"name": name, "format": format, "options": dict(options or {}), "uploads": uploads}
        )

    def build(self, name: str, format: str, options: Mapping[str, Any] | None = None) -> Dataset:
        """Make a data set that needs no file: pydocs or synthetic."""
        return self._create({"name": name, "format": format, "options": dict(options or {})})

    def register(
        self,
        path: str | Path,
        *,
        name: str,
        format: str = "dataset",
        options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Use a file or a data set directory of the server, below a folder that its operator opened."""
        return self._create(
            {"name": name, "format": format, "options": dict(options or {}), "path": str(path)}
        )

    def list(self) -> Iterator[Dataset]:
        """All data sets, newest first."""
        return self._pages("/v1/datasets", "datasets")

    def get(self, dataset_id: str) -> Dataset:
        """One data set."""
        return cast(Dataset, self._connection.ask("GET", f"/v1/datasets/{part_of(dataset_id)}"))

    def wait(self, dataset_id: str, *, seconds: float = 3600.0) -> Dataset:
        """The data set once it is READY. Raises InputError with the first bad line when it FAILED, Unavailable after `seconds`."""
        deadline, pause = time.monotonic() + seconds, 0.05
        while True:
            found = self.get(dataset_id)
            if found["status"] == "READY":
                return found
            if found["status"] == "FAILED":
                problem = found["stats"].get("problem", {})
                details = {
                    key: value
                    for key, value in problem.items()
                    if key not in ("message", "code", "hint")
                }
                message = problem.get("message", f"data set {dataset_id} FAILED")
                raise InputError(
                    message, code=problem.get("code"), hint=problem.get("hint"), **details
                )
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"data set {dataset_id} is still {found['status']} after {seconds:g} s",
                    code="TIMEOUT",
                )
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def delete(self, dataset_id: str) -> None:
        """Remove a data set."""
        self._connection.ask("DELETE", f"/v1/datasets/{part_of(dataset_id)}")

    def _create(self, body: Mapping[str, Any]) -> Dataset:
        """POST /v1/datasets."""
        return cast(Dataset, self._connection.create("/v1/datasets", body=body))


ENDED: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
MANIFEST: Final = "_manifest.json"  # of the files of a batch prediction


class Jobs(Noun):
    """/v1/jobs, and batch predictions, which are jobs."""

    def submit(
        self,
        *,
        dataset: str,
        model: str,
        solver: str = "ppdsparse",
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **more: Any,
    ) -> Job:
        """Queue a training.

        dataset: id or name; model: the name to publish under; params: of the solver; more: name, pool, workers, max_seconds,
            memory_limit, calibrate, ks, priority, timeout_seconds, expires_seconds, max_attempts.
        A key is made when none is given, so that a lost answer does not become a second job.
        """
        body = {
            "dataset": dataset,
            "model": model,
            "solver": solver,
            "params": dict(params or {}),
            **more,
        }
        return cast(Job, self._connection.create("/v1/jobs", key=idempotency_key, body=body))

    def predict(
        self,
        model: str,
        *,
        format: str,
        file: str | Path | None = None,
        path: str | None = None,
        idempotency_key: str | None = None,
        **more: Any,
    ) -> Job:
        """Queue a batch prediction of a file that is sent, or of a path of the server that its operator opened.

        model: name, name@alias or name:version; format: parquet, svmlight, xc, jsonl or text; more: top_k, allow, deny,
            probabilities, certificate, text_columns, indices_column, values_column, id_column, zero_based, on_error, part_rows,
            pool, workers, name, priority, timeout_seconds, expires_seconds, max_attempts.
        """
        if (file is None) == (path is None):
            raise InputError(
                "give a file to send, or a path of the server; one of them", code="INPUT"
            )
        given = {"path": path} if file is None else {"upload": self._upload(Path(file))}
        body = {"format": format, **given, **more}
        place = f"/v1/models/{reference_of(model)}:batchPredict"
        return cast(Job, self._connection.create(place, key=idempotency_key, body=body))

    def output(self, job_id: str) -> Output:
        """What a batch prediction made: its files and what was skipped."""
        return cast(Output, self._connection.ask("GET", f"{self._path(job_id)}/output"))

    def download(self, job_id: str, folder: str | Path) -> Path:
        """Fetch all files of a batch prediction into a new directory, which appears whole; each is compared with its checksum.

        Raises Conflict when the directory exists, Corrupt when a file is not what was made.
        """
        target = Path(folder)
        if target.exists():
            raise Conflict(
                f"{target.name} exists already; choose another directory, or remove it first"
            )
        parts, staged = self.output(job_id)["parts"], staging_directory(target)
        try:
            for part in [*parts, {"file": MANIFEST}]:
                to = staged / part_of(str(part["file"]))
                self._connection.fetch(f"{self._path(job_id)}/output/{to.name}", to)
                if "sha256" in part and sha256_file(to) != part["sha256"]:
                    raise Corrupt(
                        f"{to.name} is not what the job made (its checksum differs); fetch it again",
                        file=to.name,
                    )
            publish_directory(staged, target)
        finally:
            discard_directory(staged)
        return target

    def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | None = None,
        name: str | None = None,
        model: str | None = None,
        dataset: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        page: int = 100,
    ) -> Iterator[Job]:
        """Jobs, newest first: those that fit all that is given; fetched so many at a time.

        status: one or several; kind: train or predict; dataset: an id; created_after, created_before: as 2026-01-31T12:00:00Z.
        """
        wanted = {"status": status, "kind": kind, "name": name, "model": model, "dataset": dataset}
        times = {"created_after": created_after, "created_before": created_before}
        return self._pages("/v1/jobs", "jobs", {**wanted, **times, "limit": page})

    def get(self, job_id: str) -> Job:
        """One job."""
        return cast(Job, self._connection.ask("GET", self._path(job_id)))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """What happened since event number `after` and happens, each event once, until the job has ended."""
        return self._connection.stream(f"{self._path(job_id)}/events", after)

    def wait(self, job_id: str, *, on_event: Callable[[Event], object] | None = None) -> Job:
        """The job once it has ended, however it did; `on_event` hears each of its events."""
        for event in self.events(job_id):
            if on_event is not None:
                on_event(event)
        return self.get(job_id)

    def logs(self, job_id: str, *, tail: int = 200) -> str:
        """The last lines of its log."""
        return self._connection.ask("GET", f"{self._path(job_id)}/logs", query={"tail": tail}) or ""

    def follow_logs(self, job_id: str, *, tail: int = 200, pause: float = 1.0) -> Iterator[str]:
        """Its log from the last lines on, in pieces as they are written, until it has ended. pause: seconds between two looks."""
        path = f"{self._path(job_id)}/logs"
        text, headers = self._connection.text(path, {"tail": tail})
        while True:
            if text:
                yield text
            ended = (
                self.get(job_id)["status"] in ENDED
            )  # before the look: what was written until then is seen
            text, headers = self._connection.text(path, {"offset": headers["log-next-offset"]})
            if ended and not text:
                return
            if not text:
                time.sleep(pause)

    def timeline(self, job_id: str, *, limit: int = 5000) -> Timeline:
        """Which worker did what when, in at most `limit` entries (neighbours of a worker become one); so far, while it runs."""
        return cast(
            Timeline,
            self._connection.ask("GET", f"{self._path(job_id)}/timeline", query={"limit": limit}),
        )

    def classes(self, job_id: str) -> Iterator[dict[str, Any]]:
        """The model's report, a class at a time: label, positives, rounds, gap, seconds, worker and what else the solver tells."""
        return self._pages(f"{self._path(job_id)}/classes", "classes", {"limit": 1000})

    def stop(self, job_id: str) -> Job:
        """Ask it to stop; finished work is kept."""
        return cast(Job, self._connection.ask("POST", f"{self._path(job_id)}/stop", again=True))

    def resume(self, job_id: str) -> Job:
        """Queue a stopped or failed job again."""
        return cast(Job, self._connection.ask("POST", f"{self._path(job_id)}/resume", again=True))

    def delete(self, job_id: str) -> None:
        """Forget an ended job."""
        self._connection.ask("DELETE", self._path(job_id))

    def _path(self, job_id: str) -> str:
        """The path of a job."""
        return f"/v1/jobs/{part_of(job_id)}"


class Models(Noun):
    """/v1/models."""

    def list(self) -> list[Model]:
        """All models, by name."""
        return cast("list[Model]", self._connection.ask("GET", "/v1/models")["models"])

    def get(self, name: str) -> Model:
        """One model."""
        return cast(Model, self._connection.ask("GET", f"/v1/models/{part_of(name)}"))

    def version(self, name: str, version: int) -> Version:
        """One version."""
        return cast(Version, self._connection.ask("GET", self._path(name, version)))

    def card(self, name: str, version: int) -> str:
        """Its card, in Markdown."""
        return str(self._connection.ask("GET", f"{self._path(name, version)}/card"))

    def delete_version(self, name: str, version: int) -> None:
        """Delete a version that no alias names."""
        self._connection.ask("DELETE", self._path(name, version))

    def set_alias(self, name: str, alias: str, version: int) -> Model:
        """Point an alias at a version."""
        return self._lead(name, alias, {"version": version})

    def split_alias(
        self,
        name: str,
        alias: str,
        split: Mapping[int, float],
        *,
        shadow: int | None = None,
        share: float = 1.0,
    ) -> Model:
        """Lead an alias to several versions by weights that sum to 1: `split_alias("news", "prod", {3: 0.9, 4: 0.1}, shadow=5)`.

        shadow: a version that gets copies of a `share` of the requests, and is not heard; see `shadow`.
        """
        body: dict[str, Any] = {
            "split": [{"version": version, "weight": weight} for version, weight in split.items()]
        }
        return self._lead(
            name,
            alias,
            body if shadow is None else {**body, "shadow": {"version": shadow, "share": share}},
        )

    def shadow(self, name: str, alias: str) -> dict[str, Any]:
        """The shadow of an alias, and how often it agreed with who answered (`pairs`)."""
        return dict(
            self._connection.ask(
                "GET", f"/v1/models/{part_of(name)}/aliases/{part_of(alias)}/shadow"
            )
        )

    def load(self, model: str) -> dict[str, Any]:
        """Load name, name@alias or name:version ahead of requests, and hold it in every process of the service."""
        return dict(
            self._connection.ask("POST", f"/v1/models/{reference_of(model)}:load", again=True)
        )

    def unload(self, model: str) -> None:
        """Let go of it in every process; of a bare name all its versions. The next request loads it again."""
        self._connection.ask("POST", f"/v1/models/{reference_of(model)}:unload", again=True)

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias."""
        self._connection.ask("DELETE", f"/v1/models/{part_of(name)}/aliases/{part_of(alias)}")

    def sets(self, name: str) -> Sequence[SetSummary]:
        """Its sets of labels."""
        return cast(
            "list[SetSummary]",
            self._connection.ask("GET", f"/v1/models/{part_of(name)}/sets")["sets"],
        )

    def get_set(self, name: str, set: str, *, version: int | None = None) -> LabelSet:
        """One set, and which of its labels a version (the latest when None) lacks."""
        return cast(
            LabelSet, self._connection.ask("GET", self._set(name, set), query={"version": version})
        )

    def put_set(self, name: str, set: str, labels: Sequence[str]) -> LabelSet:
        """Keep labels under a name: predictions may then allow or deny "set:NAME"."""
        return cast(
            LabelSet, self._connection.ask("PUT", self._set(name, set), body={"labels": [*labels]})
        )

    def delete_set(self, name: str, set: str) -> None:
        """Remove a set."""
        self._connection.ask("DELETE", self._set(name, set))

    def _lead(self, name: str, alias: str, body: dict[str, Any]) -> Model:
        """Change where an alias leads."""
        return cast(
            Model,
            self._connection.ask(
                "PUT", f"/v1/models/{part_of(name)}/aliases/{part_of(alias)}", body=body
            ),
        )

    def _set(self, name: str, set: str) -> str:
        """The path of a set."""
        return f"/v1/models/{part_of(name)}/sets/{part_of(set)}"

    def _path(self, name: str, version: int) -> str:
        """The path of a version."""
        return f"/v1/models/{part_of(name)}/versions/{int(version)}"


def reference_of(model: str) -> str:
    """name, name@alias or name:version as part of a path. Raises InputError when it can't be one."""
    part_of(model)
    return quote(model, safe="@:")


def part_of(name: str) -> str:
    """A name as one part of a path. Raises InputError when it can't be one."""
    if not name or name in (".", ".."):
        raise InputError(f"{name!r} is not a name or id", code="BAD_NAME")
    return quote(name, safe="")
