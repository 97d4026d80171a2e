"""Models of the API: versions, aliases, labels, label sets and downloads."""

from __future__ import annotations

import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xcray.api.model_replies import (
    FeedbackView,
    LabelSummaryView,
    LabelView,
    ModelView,
    NewFeedbackView,
    SetSummary,
    SetView,
    VersionView,
)
from xcray.client.resources import Resource, quote_part, quote_reference
from xcray.errors import Conflict, Corrupt, excerpt
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
)


class Models(Resource):
    """/v1/models."""

    def list(self) -> list[ModelView]:
        """Return all models, by name."""
        return self._connection.request("GET", "/v1/models")["models"]

    def get(self, name: str) -> ModelView:
        """Return one model."""
        return self._connection.request("GET", f"/v1/models/{quote_part(name)}")

    def version(self, name: str, version: int) -> VersionView:
        """Return one version."""
        return self._connection.request("GET", self._path(name, version))

    def card(self, name: str, version: int) -> str:
        """Return the model card, in Markdown."""
        return str(self._connection.request("GET", f"{self._path(name, version)}/card"))

    def report(self, name: str, version: int) -> dict[str, Any]:
        """Return the training of a version as a report: by label frequency, calibration, gaps."""
        return dict(self._connection.request("GET", f"{self._path(name, version)}/report"))

    def picture(self, name: str, version: int, picture: str, width: int = 960) -> str:
        """Return a picture of a version's training as SVG; `report` lists their names.

        width: in pixels.
        """
        place = f"{self._path(name, version)}/pictures/{quote_part(picture)}"
        return str(self._connection.request("GET", place, query={"width": width}))

    def diff(self, name: str, start: int | None = None, to: int | None = None) -> dict[str, Any]:
        """Return the differences between two versions: sizes, measures, parameters, labels.

        start: by default the version before `to`; to: by default the latest.
        """
        query = {
            key: value for key, value in {"from": start, "to": to}.items() if value is not None
        }
        place = f"/v1/models/{quote_part(name)}:diff"
        return dict(self._connection.request("GET", place, query=query))

    def compare(
        self, models: Sequence[str], dataset: str, *, gate: str | None = None
    ) -> dict[str, Any]:
        """Return measures of models on the held-out rows of a data set, with paired differences.

        models: two to five references; the differences are to the first. dataset: id or name. gate:
        such as "P@1 >= -0.2, PSP@5 >= 0", the least differences in points; see "passed".
        """
        body = {"models": [*models], "dataset": dataset, "gate": gate}
        return dict(self._connection.request("POST", "/v1/models:compare", body=body))

    def download(self, name: str, version: int, folder: str | Path) -> Path:
        """Download a version to a new model directory, which appears when it is complete.

        `xcray` checks the checksums when it opens the directory. Raises Conflict if it exists.
        """
        target = Path(folder)
        if target.exists():
            raise Conflict(f"{target.name} exists already; choose another directory")
        staged = create_staging_directory(target)
        try:
            archive = staged / "archive.tar"
            self._connection.download(f"{self._path(name, version)}/archive", archive)
            extract(archive, complete := staged / "model")
            publish_directory(complete, target)
        finally:
            discard_directory(staged)
        return target

    def delete_version(self, name: str, version: int) -> None:
        """Delete a version that no alias points to."""
        self._connection.request("DELETE", self._path(name, version))

    def set_alias(self, name: str, alias: str, version: int) -> ModelView:
        """Point an alias to a version."""
        return self._put_alias(name, alias, {"version": version})

    def split_alias(
        self,
        name: str,
        alias: str,
        split: Mapping[int, float],
        *,
        shadow: int | None = None,
        share: float = 1.0,
    ) -> ModelView:
        """Point an alias to several versions with weights that sum to 1.

        Example: `split_alias("news", "prod", {3: 0.9, 4: 0.1}, shadow=5)`. shadow: a version that
        receives copies of a `share` of the requests; its responses are only compared, see `shadow`.
        """
        body: dict[str, Any] = {
            "split": [{"version": version, "weight": weight} for version, weight in split.items()]
        }
        return self._put_alias(
            name,
            alias,
            body if shadow is None else {**body, "shadow": {"version": shadow, "share": share}},
        )

    def shadow(self, name: str, alias: str) -> dict[str, Any]:
        """Return the shadow of an alias, and its agreement with the served version (`pairs`)."""
        return dict(
            self._connection.request(
                "GET", f"/v1/models/{quote_part(name)}/aliases/{quote_part(alias)}/shadow"
            )
        )

    def load(self, model: str) -> dict[str, Any]:
        """Load name, name@alias or name:version in every process, and keep it loaded."""
        return dict(
            self._connection.request(
                "POST", f"/v1/models/{quote_reference(model)}:load", is_repeatable=True
            )
        )

    def unload(self, model: str) -> None:
        """Unload the model in all processes (a bare name unloads all versions).

        It is loaded again on the next request.
        """
        self._connection.request(
            "POST", f"/v1/models/{quote_reference(model)}:unload", is_repeatable=True
        )

    def delete_alias(self, name: str, alias: str) -> None:
        """Delete an alias."""
        self._connection.request(
            "DELETE", f"/v1/models/{quote_part(name)}/aliases/{quote_part(alias)}"
        )

    def labels(self, model: str, *, contains: str | None = None) -> Iterator[LabelSummaryView]:
        """Yield the labels of name, name@alias or name:version, by number.

        contains: only names that contain this text, in any case.
        """
        place = f"/v1/models/{quote_reference(model)}/labels"
        return self._pages(place, "labels", {"contains": contains, "limit": 1000})

    def label(self, model: str, label: str, *, features: int = 10, similar: int = 10) -> LabelView:
        """Return one label: training rows, gap, largest weights, most similar labels."""
        place = f"/v1/models/{quote_reference(model)}/labels/{quote_part(label)}"
        query = {"features": features, "similar": similar}
        return self._connection.request("GET", place, query=query)

    def sets(self, name: str) -> Sequence[SetSummary]:
        """Return the label sets."""
        return self._connection.request("GET", f"/v1/models/{quote_part(name)}/label-sets")["sets"]

    def get_set(self, name: str, set: str, *, version: int | None = None) -> SetView:
        """Return one label set, with the labels that a version (default: the latest) lacks."""
        return self._connection.request(
            "GET", self._set_path(name, set), query={"version": version}
        )

    def put_set(self, name: str, set: str, labels: Sequence[str]) -> SetView:
        """Create or replace a label set; predictions can allow or deny "set:NAME"."""
        return self._connection.request(
            "PUT", self._set_path(name, set), body={"labels": [*labels]}
        )

    def delete_set(self, name: str, set: str) -> None:
        """Delete a label set."""
        self._connection.request("DELETE", self._set_path(name, set))

    def give_feedback(
        self,
        model: str,
        instance: str | Mapping[str, Any],
        *,
        right: Sequence[str] = (),
        wrong: Sequence[str] = (),
        id: str | None = None,
    ) -> NewFeedbackView:
        """Store the right and wrong labels of an instance, as `Client.predict` takes it.

        id: of a document of the model's data set, whose labels are then corrected; by default a new
        one. See `Client.datasets.from_feedback`.
        """
        content = {"text": instance} if isinstance(instance, str) else instance
        # an id, so that it can be sent again
        id = id or f"fb_{secrets.token_hex(10)}"
        body = {"id": id, "instance": content, "right": [*right], "wrong": [*wrong]}
        path = f"/v1/models/{quote_reference(model)}/feedback"
        return self._connection.request("POST", path, body=body, is_repeatable=True)

    def feedback(self, name: str) -> Iterator[FeedbackView]:
        """Yield the feedback of a model, newest first."""
        return self._pages(f"/v1/models/{quote_part(name)}/feedback", "feedback", {"limit": 100})

    def delete_feedback(self, name: str, id: str) -> None:
        """Delete an entry of feedback and its text."""
        path = f"/v1/models/{quote_part(name)}/feedback/{quote_part(id)}"
        self._connection.request("DELETE", path)

    def _put_alias(self, name: str, alias: str, body: dict[str, Any]) -> ModelView:
        """Change the target of an alias."""
        return self._connection.request(
            "PUT", f"/v1/models/{quote_part(name)}/aliases/{quote_part(alias)}", body=body
        )

    def _set_path(self, name: str, set: str) -> str:
        """Return the path of a label set."""
        return f"/v1/models/{quote_part(name)}/label-sets/{quote_part(set)}"

    def _path(self, name: str, version: int) -> str:
        """Return the path of a version."""
        return f"/v1/models/{quote_part(name)}/versions/{int(version)}"


def extract(archive: Path, folder: Path) -> None:
    """Write the files of an archive, without the first part of their names, to a new folder.

    Raises Corrupt for anything but files in a folder.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            parts, content = member.name.split("/")[1:], tar.extractfile(member)
            if content is None or not member.isfile() or not parts or {"", ".", ".."} & {*parts}:
                raise Corrupt(f"the archive has {excerpt(member.name)}, which is not a file of it")
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("xb") as out:
                shutil.copyfileobj(content, out)
                out.flush()
                os.fsync(out.fileno())
