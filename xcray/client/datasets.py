"""Data sets of the API: one method per path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xcray.api.job_replies import DatasetView
from xcray.client.resources import Resource, quote_part
from xcray.errors import InputError, Unavailable


class Datasets(Resource):
    """/v1/datasets."""

    def upload(
        self,
        path: str | Path,
        *,
        name: str,
        format: str,
        test: str | Path | None = None,
        labels: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> DatasetView:
        """Upload a file (svmlight, xc, jsonl, csv, tsv or fasttext) and build a data set from it.

        test: a file of held-out rows. labels: a vocabulary with the names of labels. Returns while
        the data set is BUILDING; see `wait`.
        """
        files = {"train": path, "test": test, "labels": labels}
        uploads = {
            part: self._upload(Path(file)) for part, file in files.items() if file is not None
        }
        return self._create(
            {"name": name, "format": format, "options": dict(options or {}), "uploads": uploads}
        )

    def change(
        self,
        base: str,
        *,
        name: str,
        format: str = "jsonl",
        add: str | Path | None = None,
        remove: str | Path | None = None,
        relabel: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> DatasetView:
        """Build a data set from another one, with training rows added, removed and relabelled.

        base: id or name. add: a file of rows, in `format`. remove, relabel: files as of `xcray data
        delta`. Returns while the data set is BUILDING; see `wait`.
        """
        files = {"train": add, "remove": remove, "relabel": relabel}
        uploads = {
            part: self._upload(Path(file)) for part, file in files.items() if file is not None
        }
        named = {"name": name, "format": format, "base": base, "uploads": uploads}
        return self._create({**named, "options": dict(options or {})})

    def from_feedback(self, model: str, *, name: str, base: str | None = None) -> DatasetView:
        """Build a data set from that of a model and the feedback that it does not have yet.

        model: name, name@alias or name:version. base: id or name of another data set to change.
        Returns while the data set is BUILDING; see `wait`.
        """
        based = {} if base is None else {"base": base}
        return self._create({"name": name, "format": "feedback", "model": model, **based})

    def build(
        self, name: str, format: str, options: Mapping[str, Any] | None = None
    ) -> DatasetView:
        """Build a data set that needs no file: pydocs or synthetic."""
        return self._create({"name": name, "format": format, "options": dict(options or {})})

    def register(
        self,
        path: str | Path,
        *,
        name: str,
        format: str = "dataset",
        options: Mapping[str, Any] | None = None,
    ) -> DatasetView:
        """Build a data set from a file or directory on the server.

        The path must be below a folder that the operator allows.
        """
        return self._create(
            {"name": name, "format": format, "options": dict(options or {}), "path": str(path)}
        )

    def list(self) -> Iterator[DatasetView]:
        """Iterate over all data sets, newest first."""
        return self._pages("/v1/datasets", "datasets")

    def get(self, dataset_id: str) -> DatasetView:
        """Return one data set."""
        return self._connection.request("GET", f"/v1/datasets/{quote_part(dataset_id)}")

    def wait(self, dataset_id: str, *, seconds: float = 3600.0) -> DatasetView:
        """Wait until the data set is READY and return it.

        Raises InputError with the first invalid lines if it FAILED, Unavailable after `seconds`.
        """
        deadline, pause = time.monotonic() + seconds, 0.05
        while True:
            record = self.get(dataset_id)
            if record["status"] == "READY":
                return record
            if record["status"] == "FAILED":
                problem = record["stats"].get("problem", {})
                details = {
                    key: value
                    for key, value in problem.items()
                    if key not in ("message", "code", "hint")
                }
                details["errors"] = record["stats"].get("errors", [])  # the first invalid lines
                message = problem.get("message", f"data set {dataset_id} FAILED")
                raise InputError(
                    message, code=problem.get("code"), hint=problem.get("hint"), **details
                )
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"data set {dataset_id} is still {record['status']} after {seconds:g} s",
                    code="TIMEOUT",
                )
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def histograms(self, dataset_id: str, examples: int = 5) -> dict[str, Any]:
        """Return histograms of a READY data set, and at most 100 example rows per part."""
        place = f"/v1/datasets/{quote_part(dataset_id)}/histograms"
        return dict(self._connection.request("GET", place, query={"examples": examples}))

    def picture(self, dataset_id: str, width: int = 960) -> str:
        """Return the histograms of a READY data set as SVG. width: in pixels."""
        place = f"/v1/datasets/{quote_part(dataset_id)}/picture"
        return str(self._connection.request("GET", place, query={"width": width}))

    def delete(self, dataset_id: str) -> None:
        """Delete a data set."""
        self._connection.request("DELETE", f"/v1/datasets/{quote_part(dataset_id)}")

    def _create(self, body: Mapping[str, Any]) -> DatasetView:
        """Send POST /v1/datasets."""
        return self._connection.create("/v1/datasets", body=body)
