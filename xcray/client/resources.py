"""Jobs of the API: one class per resource, one method per path."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from xcray.api.job_replies import (
    EstimateView,
    EventInfo,
    JobView,
    OutputView,
    TimelineView,
)
from xcray.api.options import (
    BatchOptions,
    ChangeOptions,
    JobOptions,
    LocalPoolOptions,
    TrainingOptions,
)
from xcray.client.connection import Connection
from xcray.errors import Conflict, Corrupt, InputError, NotFound, excerpt
from xcray.parameters import takes
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    sha256_file,
)


class Resource:
    """Base class of the resources of a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _upload(self, file: Path) -> str:
        """Upload one file; return its id."""
        if not file.is_file():
            raise NotFound(f"file {file} does not exist")
        query = {"sha256": sha256_file(file)}
        return str(self._connection.create("/v1/uploads", content=file, query=query)["id"])

    def _pages(self, path: str, key: str, query: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Yield all entries of a list, page by page."""
        token = None
        while True:
            page = self._connection.request(
                "GET", path, query={**(query or {}), "page_token": token}
            )
            yield from page[key]
            token = page.get("next_page_token")
            if token is None:
                return


FINAL_STATUSES: Final = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
MANIFEST: Final = "_manifest.json"  # of the files of a batch prediction


class Jobs(Resource):
    """/v1/jobs, batch predictions included."""

    @takes(TrainingOptions, JobOptions)
    def submit(
        self,
        *,
        dataset: str,
        model: str,
        solver: str = "ppdsparse",
        params: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> JobView:
        """Submit a training.

        dataset: id or name. model: the name to publish under. params: solver parameters. By default
        an idempotency key is generated, so that a lost response does not create a second job.
        """
        named = {"dataset": dataset, "model": model, "solver": solver, "params": dict(params or {})}
        body = {**named, **options}
        return self._connection.create("/v1/jobs", key=idempotency_key, body=body)

    @takes(ChangeOptions, LocalPoolOptions, JobOptions)
    def update(
        self,
        version: str,
        *,
        dataset: str,
        model: str | None = None,
        gate: str | None = None,
        alias: str | None = None,
        weight: float | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> JobView:
        """Submit a change of a version: by default, of its rows to a data set changed from its own.

        version: name, name@alias or name:version. dataset: id or name. model: the name to publish
        under, by default that of the version. alias: points to the new version, if that passes the
        gate, see `Client.models.compare`; the result of the job has the comparison. weight: share
        of the requests to the alias that the new version gets, by default all.
        """
        named = {"model": model, "gate": gate, "alias": alias, "weight": weight}
        given = {name: value for name, value in named.items() if value is not None}
        body = {"dataset": dataset, **options, **given}
        path = f"/v1/models/{quote_reference(version)}:update"
        return self._connection.create(path, key=idempotency_key, body=body)

    @takes(TrainingOptions)
    def estimate(
        self,
        *,
        dataset: str,
        model: str,
        solver: str = "ppdsparse",
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> EstimateView:
        """Estimate memory, disk and time of a training without submitting it; see `submit`."""
        named = {"dataset": dataset, "model": model, "solver": solver, "params": dict(params or {})}
        body, path = {**named, **options}, "/v1/jobs:estimate"
        return self._connection.request("POST", path, body=body, is_repeatable=True)

    @takes(BatchOptions, JobOptions)
    def predict(
        self,
        model: str,
        *,
        format: str,
        file: str | Path | None = None,
        path: str | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> JobView:
        """Submit a batch prediction of an uploaded file, or of a path on the server.

        model: name, name@alias or name:version. format: parquet, svmlight, xc, jsonl, csv, tsv,
        fasttext or text. path: below a folder that the operator allows.
        """
        if (file is None) == (path is None):
            raise InputError("give either a file to upload or a path on the server", code="INPUT")
        source = {"path": path} if file is None else {"upload": self._upload(Path(file))}
        body = {"format": format, **source, **options}
        place = f"/v1/models/{quote_reference(model)}:batchPredict"
        return self._connection.create(place, key=idempotency_key, body=body)

    def output(self, job_id: str) -> OutputView:
        """Return the output of a batch prediction: its files and skipped rows."""
        return self._connection.request("GET", f"{self._path(job_id)}/output")

    def download(self, job_id: str, folder: str | Path) -> Path:
        """Download the files of a batch prediction to a new directory and verify checksums.

        The directory appears when it is complete. Raises Conflict if it exists, Corrupt if a
        checksum differs.
        """
        target = Path(folder)
        if target.exists():
            raise Conflict(
                f"{target.name} exists already; choose another directory, or remove it first"
            )
        parts, staged = self.output(job_id)["parts"], create_staging_directory(target)
        try:
            for part in [*parts, {"file": MANIFEST}]:
                to = staged / quote_part(str(part["file"]))
                self._connection.download(f"{self._path(job_id)}/output/{to.name}", to)
                if "sha256" in part and sha256_file(to) != part["sha256"]:
                    raise Corrupt(
                        f"{to.name} is corrupt (its checksum differs); download it again",
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
    ) -> Iterator[JobView]:
        """Iterate over jobs that match all given filters, newest first.

        status: one or several. kind: train or predict. dataset: an id. created_after,
        created_before: like 2026-01-31T12:00:00Z. page: jobs per request.
        """
        filters = {"status": status, "kind": kind, "name": name, "model": model, "dataset": dataset}
        times = {"created_after": created_after, "created_before": created_before}
        return self._pages("/v1/jobs", "jobs", {**filters, **times, "limit": page})

    def get(self, job_id: str) -> JobView:
        """Return one job."""
        return self._connection.request("GET", self._path(job_id))

    def events(self, job_id: str, *, after: int = 0) -> Iterator[EventInfo]:
        """Yield the events after number `after`, each once, until the job has ended."""
        return self._connection.stream(f"{self._path(job_id)}/events", after)

    def wait(
        self, job_id: str, *, on_event: Callable[[EventInfo], object] | None = None
    ) -> JobView:
        """Wait until the job has ended and return it; `on_event` is called with each event."""
        for event in self.events(job_id):
            if on_event is not None:
                on_event(event)
        return self.get(job_id)

    def logs(self, job_id: str, *, tail: int = 200) -> str:
        """Return the last lines of the log."""
        return (
            self._connection.request("GET", f"{self._path(job_id)}/logs", query={"tail": tail})
            or ""
        )

    def follow_logs(self, job_id: str, *, tail: int = 200, pause: float = 1.0) -> Iterator[str]:
        """Yield the log from the last lines on as it is written, until the job has ended.

        pause: seconds between two requests.
        """
        path = f"{self._path(job_id)}/logs"
        text, headers = self._connection.get_text(path, {"tail": tail})
        while True:
            if text:
                yield text
            ended = (
                self.get(job_id)["status"] in FINAL_STATUSES
            )  # checked before reading, so that nothing is missed
            text, headers = self._connection.get_text(path, {"offset": headers["log-next-offset"]})
            if ended and not text:
                return
            if not text:
                time.sleep(pause)

    def timeline(self, job_id: str, *, limit: int = 5000) -> TimelineView:
        """Return which worker did what and when, in at most `limit` entries.

        Adjacent entries of a worker are merged. A running job returns the timeline so far.
        """
        return self._connection.request(
            "GET", f"{self._path(job_id)}/timeline", query={"limit": limit}
        )

    def picture(self, job_id: str, picture: str, width: int = 960) -> str:
        """Return the "timeline" or "objective" of a training so far as SVG. width: in pixels."""
        place = f"{self._path(job_id)}/pictures/{quote_part(picture)}"
        return str(self._connection.request("GET", place, query={"width": width}))

    def labels(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the model's report, one label at a time.

        Fields: label, positives, rounds, gap, seconds, worker, and others of the solver.
        """
        return self._pages(f"{self._path(job_id)}/labels", "labels", {"limit": 1000})

    def stop(self, job_id: str) -> JobView:
        """Request a stop. Finished work is kept."""
        return self._connection.request("POST", f"{self._path(job_id)}/stop", is_repeatable=True)

    def resume(self, job_id: str) -> JobView:
        """Queue a stopped or failed job again."""
        return self._connection.request("POST", f"{self._path(job_id)}/resume", is_repeatable=True)

    def delete(self, job_id: str) -> None:
        """Delete an ended job."""
        self._connection.request("DELETE", self._path(job_id))

    def _path(self, job_id: str) -> str:
        """Return the path of a job."""
        return f"/v1/jobs/{quote_part(job_id)}"


def quote_reference(model: str) -> str:
    """Quote name, name@alias or name:version as part of a path. Raises InputError if invalid."""
    quote_part(model)
    name, colon, version = model.partition(":")
    if colon and not (version.isascii() and version.isdecimal()):
        raise InputError(
            f"version {excerpt(version)!r} is not a number; write {excerpt(name)}:1",
            code="BAD_NAME",
        )
    return quote(model, safe="@:")


def quote_part(name: str) -> str:
    """Quote a name as one part of a path. Raises InputError if invalid."""
    if not name or name in (".", ".."):
        raise InputError(f"{name!r} is not a name or id", code="BAD_NAME")
    return quote(name, safe="")
