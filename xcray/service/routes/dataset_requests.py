"""Requests for data sets: uploads, generated and fetched ones, their options and quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xcray.data.build import BuildOptions
from xcray.data.dataset import Dataset
from xcray.data.delta.feedback import last_feedback
from xcray.data.delta.files import check_delta_options
from xcray.data.readers.formats import GENERATED_FORMATS, UPLOAD_FORMATS
from xcray.errors import (
    Conflict,
    InputError,
    NotFound,
    ParameterError,
    XcrayError,
    excerpt,
    suggestion,
)
from xcray.jobs.job import DatasetRecord, body_digest, new_id
from xcray.jobs.store.paging import all_rows
from xcray.model.manifest import read_manifest
from xcray.service.app_state import AppState
from xcray.service.datasets import builds as building
from xcray.service.datasets.builds import NewDataset
from xcray.service.datasets.fetching import fetch
from xcray.service.datasets.statistics import statistics
from xcray.service.datasets.uploads import Upload
from xcray.service.http.auth import Caller
from xcray.service.http.etags import to_json
from xcray.service.schemas.datasets import DatasetRequest
from xcray.storage.run_directory import REBUILT

RAW_CONTENT_TYPES = (
    "application/octet-stream",
    "application/x-ndjson",
    "text/csv",
    "text/plain",
    "text/tab-separated-values",
)
# server paths, patterns that could run for hours in the service, and the name of the record
CLOSED_OPTIONS = frozenset(
    {
        "label_names_file",
        "labels_file",
        "name",
        "test_rows_file",
        "token_pattern",
    }
)


def accept_request(
    app_state: AppState, caller: Caller, body: DatasetRequest, key: str | None
) -> tuple[DatasetRecord, bool]:
    """Accept the data set of a JSON request; return whether it is new."""
    digest = body_digest(body.model_dump(mode="json", exclude_unset=True)) if key else None
    find = partial(app_state.store.datasets.find_by_key, caller.tenant, key, digest)
    if existing := find():  # a repeated request: its uploads are already used
        return existing, False
    try:
        return _accept_new(app_state, caller, body, key, digest)
    except NotFound:
        if existing := find():  # a concurrent request with this key used the uploads
            return existing, False
        raise


def _accept_new(
    app_state: AppState, caller: Caller, body: DatasetRequest, key: str | None, digest: str | None
) -> tuple[DatasetRecord, bool]:
    """Accept the data set of a JSON request that is not a repeated one."""
    tenant = caller.tenant
    if body.format == "feedback" or body.model is not None:
        return accept_feedback(app_state, tenant, body, key, digest)
    base = None if body.base is None else find_ready(app_state, tenant, body.base).path
    options = check_options(body.format, body.options, body.uploads or ())
    new = NewDataset(tenant, body.name, body.format, options, key, digest, base)
    if base is not None:
        _check_changes(body)
    elif body.format in GENERATED_FORMATS:
        if body.uploads or body.path or body.uri:
            raise ParameterError(
                f"format {body.format} takes neither uploads nor a path", code="FORMAT"
            )
        return app_state.builder.accept(new, {})
    if body.uri is not None:
        return accept_uri(app_state, caller, body, new)
    if body.path is not None and body.uploads is None:
        path = building.allowed_path(body.path, app_state.settings.dataset_roots)
        if body.format == "dataset":
            return register_folder(app_state, new, path)
        return app_state.builder.accept(new, {"train": path}, link=False)
    uploads = {str(part): upload_id for part, upload_id in (body.uploads or {}).items()}
    if base is None and (
        not {"train"} <= set(uploads) <= {"train", "test", "labels"}
        or body.path is not None
        or body.format not in UPLOAD_FORMATS
    ):
        raise ParameterError(
            f"format {body.format} needs uploads {{'train': id}} from POST /v1/uploads, or a path; "
            "'remove' and 'relabel' need a `base`",
            code="FORMAT",
        )
    sources = {
        part: app_state.uploads.path(upload_id, tenant) for part, upload_id in uploads.items()
    }
    if len(set(sources.values())) < len(sources):
        raise ParameterError("two parts are the same upload: send one file each", code="FORMAT")
    record, created = app_state.builder.accept(new, sources)
    for upload_id in uploads.values():
        app_state.uploads.remove(upload_id)
    return record, created


def _check_changes(body: DatasetRequest) -> None:
    """Raise ParameterError unless a base is changed by uploads, with options of reading alone."""
    parts = set(body.uploads or ())
    check_delta_options(body.options, adds="train" in parts)
    is_upload = body.format in UPLOAD_FORMATS and not (body.path or body.uri)
    if not is_upload or not parts or not parts <= {"train", "remove", "relabel"}:
        raise ParameterError(
            "a `base` is changed by uploads from POST /v1/uploads: {'train': id} has rows to "
            "add in a format of files, 'remove' and 'relabel' name rows of the base",
            code="FORMAT",
        )


def accept_feedback(
    app_state: AppState, tenant: str, body: DatasetRequest, key: str | None, digest: str | None
) -> tuple[DatasetRecord, bool]:
    """Accept a data set that is changed by the feedback that it does not have yet."""
    others = body.uploads or body.path or body.uri or body.options
    if body.format != "feedback" or body.model is None or others:
        raise ParameterError(
            "format feedback needs a `model`, and takes only a `base` with it", code="FORMAT"
        )
    registry = app_state.registry_of(tenant)
    name, version = registry.resolve_version(body.model)
    if body.base is not None:
        base = find_ready(app_state, tenant, body.base).path
    else:
        manifest = read_manifest(registry.resolve(f"{name}:{version}"))
        base = _find_content(app_state, tenant, manifest["dataset_hash"], f"{name}:{version}")
    last = last_feedback(Dataset.open(base), name)
    new = NewDataset(tenant, body.name, body.format, {"model": name}, key, digest, base)
    folder = app_state.home.path / "builds"
    with TemporaryDirectory(prefix=".feedback-", suffix=".part", dir=folder) as staged:
        path = Path(staged, "feedback")
        with open(path, "wb") as out:
            for entry in app_state.store.feedback.all_after(tenant, name, last):
                fields = ("instance", "right", "wrong")
                content = {field: entry.content[field] for field in fields}
                out.write(to_json({"seq": entry.seq, "id": entry.id, **content}) + b"\n")
        if not path.stat().st_size:
            raise Conflict(
                f"the data set has all feedback of {name}: send some first",
                code="NO_FEEDBACK",
            )
        return app_state.builder.accept(new, {"feedback": path})


def _find_content(app_state: AppState, tenant: str, content_hash: str, version: str) -> str:
    """Return the folder of the newest READY data set with this content. Raises NotFound.

    It can be the one that a training made with the text options that `auto` chose.
    """
    for record in all_rows(app_state.store.datasets.list_page, tenant):
        if record.status == building.READY and record.stats.get("content_hash") == content_hash:
            return record.path
    for path in app_state.home.runs.glob(f"*/{REBUILT}"):
        with suppress(XcrayError):  # a job of another tenant, or a data set that is not complete
            app_state.store.jobs.get(path.parent.name, tenant)
            if Dataset.open(path).content_hash == content_hash:
                return str(path)
    raise NotFound(f"the data set of {version} is not there any more: give a `base`")


def accept_uri(
    app_state: AppState, caller: Caller, body: DatasetRequest, new: NewDataset
) -> tuple[DatasetRecord, bool]:
    """Download a file from an allowed URI and accept it as the training file."""
    if body.uploads is not None or body.path is not None or body.format not in UPLOAD_FORMATS:
        raise ParameterError(
            f"set one of uri, uploads and path, and a format of {', '.join(UPLOAD_FORMATS)}",
            code="FORMAT",
        )
    received = app_state.uploads.receive_blocks(
        caller, fetch(str(body.uri), app_state.settings), body.sha256
    )
    return accept_received(app_state, new, received)


def accept_received(
    app_state: AppState, new: NewDataset, received: Upload
) -> tuple[DatasetRecord, bool]:
    """Accept a file that was just received as the training file."""
    app_state.metrics.uploaded.inc(received.n_bytes)
    try:
        return app_state.builder.accept(new, {"train": received.path})
    finally:
        app_state.uploads.remove(received.id)


def register_folder(app_state: AppState, new: NewDataset, path: Path) -> tuple[DatasetRecord, bool]:
    """Record an existing data set directory without copying it."""
    dataset_id = new_id("ds")
    record = app_state.store.datasets.add(
        new.name,
        str(path),
        tenant=new.tenant,
        status=building.READY,
        stats={"format": "dataset", **statistics(Dataset.open(path))},
        dataset_id=dataset_id,
        idempotency_key=new.key,
        digest=new.digest,
        limit=app_state.settings.tenant_datasets,
    )
    return record, record.id == dataset_id


def require_ready(record: DatasetRecord, reference: str) -> None:
    """Raise Conflict unless a data set is READY."""
    if record.status != building.READY:
        building_now = record.status == building.BUILDING
        fix = (
            "wait until it is READY"
            if building_now
            else f"see GET /v1/datasets/{record.id} for the reason"
        )
        raise Conflict(
            f"data set {reference} is {record.status}: {fix}",
            code="DATASET_NOT_READY",
            dataset=record.id,
        )


def find_ready(app_state: AppState, tenant: str, reference: str) -> DatasetRecord:
    """Return a data set by id, or the newest one of a name whose build has not failed.

    Raises NotFound, or Conflict if it is not READY: an older one of that name is not taken instead.
    """
    records = list(all_rows(app_state.store.datasets.list_page, tenant))
    candidates = [record for record in records if record.name == reference] or [
        record for record in records if record.id == reference
    ]
    if not candidates:
        similar = suggestion(reference, [record.name for record in records])
        raise NotFound(
            f"there is no data set {excerpt(reference)!r}"
            f"{similar or ': GET /v1/datasets lists them'}"
        )
    usable = [record for record in candidates if record.status != building.FAILED] or candidates
    ready = next((each for each in usable if each.status == building.READY), usable[0])
    if ready is not usable[0]:
        raise Conflict(
            f"data set {usable[0].id} of the name {reference} is {usable[0].status}: wait until it "
            f"is READY, or give the id of an older one, {ready.id}",
            code="DATASET_NOT_READY",
            dataset=usable[0].id,
        )
    require_ready(ready, reference)
    return ready


def check_options(format: str, options: Any, parts: Collection[str] = ()) -> Mapping[str, Any]:
    """Return options after checking that the format has them and a remote caller can set them.

    parts: that have an upload. Raises ParameterError.
    """
    if not isinstance(options, dict):
        raise InputError("options must be a JSON object", code="TYPE")
    closed = CLOSED_OPTIONS & (
        set(options)
        | {name for value in options.values() if isinstance(value, dict) for name in value}
    )
    if closed:
        raise ParameterError(f"option {min(closed)!r} can't be set over HTTP", code="FORBIDDEN")
    BuildOptions.from_dict(options).check(format, parts)
    return options
