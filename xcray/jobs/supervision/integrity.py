"""Integrity check after a restore: whether the files that the store and the registries name exist.

It covers data sets, model versions and the targets of aliases. A home and a store that were copied
at different moments can differ. If the home was copied after the store, all files are there; files
without a record are orphans that are swept later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, NotFound, XcrayError
from xcray.jobs.home import Home
from xcray.jobs.job import TRAIN
from xcray.jobs.states import PENDING, RUNNING, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter
from xcray.jobs.store.paging import all_rows
from xcray.model.aliases import LATEST
from xcray.model.manifest import read_manifest
from xcray.model.registry import Registry
from xcray.storage.atomic import NAME_PATTERN, verify_files

READY: Final = "READY"


class DanglingReference(NamedTuple):
    """A reference to something that is missing or not what was recorded.

    kind: dataset, version, alias or job. what: its id or name.
    """

    kind: str
    what: str
    why: str


class IntegrityReport(NamedTuple):
    """The number of checked references per kind, and those that dangle."""

    looked: dict[str, int]
    dangling: list[DanglingReference]


def verify_references(
    store: JobStore, home: Home, *, check_content: bool = False
) -> IntegrityReport:
    """Check every record and version.

    check_content: also compare every file with its SHA-256, which reads all bytes.
    """
    looked = {"dataset": 0, "version": 0, "alias": 0, "job": 0}
    dangling: list[DanglingReference] = []
    for kind, what, why in _iter_references(store, home, check_content):
        looked[kind] += 1
        if why:
            dangling.append(DanglingReference(kind, what, why))
    return IntegrityReport(looked, dangling)


def _iter_references(
    store: JobStore, home: Home, check_content: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield every reference as (kind, what, why it dangles or "")."""
    yield from _iter_datasets(store, home, check_content)
    highest_versions: dict[tuple[str, str], int] = {}
    for tenant in home.tenants():
        registry = Registry(home.models_of(tenant))
        # also names without a version: all of them can be missing
        folders = registry.root.glob("*")
        for name in sorted(each.name for each in folders if NAME_PATTERN.fullmatch(each.name)):
            versions, highest = _expected_versions(registry, name)
            highest_versions[tenant, name] = highest
            for version, sha256 in versions.items():
                yield (
                    "version",
                    f"{tenant} {name}:{version}",
                    _version_fault(registry, name, version, sha256, check_content),
                )
            for alias in sorted(set(registry.aliases.of(name)) - {LATEST}):
                yield "alias", f"{tenant} {name}@{alias}", _alias_fault(registry, name, alias)
    yield from _iter_jobs(store, highest_versions)


def _iter_datasets(
    store: JobStore, home: Home, check_content: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield the ready data sets of all tenants."""
    for record in all_rows(store.datasets.list_page, None):
        if record.status == READY:
            fault = _dataset_fault(Path(record.path), home.dataset(record.id), check_content)
            yield "dataset", record.id, fault


def _dataset_fault(path: Path, here: Path, check_content: bool) -> str:
    """Return why a data set cannot be used, or ""."""
    try:
        Dataset.open(path, verify=check_content)
    except NotFound:
        moved = path != here and (here / "manifest.json").is_file()
        return (
            "lies in another home than recorded: mount the home at its old path"
            if moved
            else "its files are missing"
        )
    except XcrayError as error:
        return error.message
    return ""


def _expected_versions(registry: Registry, name: str) -> tuple[dict[int, str], int]:
    """Return the versions that should exist with their SHA-256, and the highest version.

    They come from the name's history: all versions that were published and not deleted.
    """
    out: dict[int, str] = {}
    highest = 0
    for event in registry.history(name):
        if event["action"] == "publish":
            out[int(event["version"])] = str(event["sha256"])
            highest = max(highest, int(event["version"]))
        elif event["action"] == "delete":
            out.pop(int(event["version"]), None)
    for version in registry.versions(name):
        out.setdefault(version, "")
        highest = max(highest, version)
    return out, highest


def _version_fault(
    registry: Registry, name: str, version: int, sha256: str, check_content: bool
) -> str:
    """Return why a version of a model cannot be used, or ""."""
    path = registry.root / name / "versions" / str(version)
    try:
        manifest = read_manifest(path)
        if sha256 and manifest["sha256"] != sha256:
            return (
                "is not the model that was published:"
                f" SHA-256 {manifest['sha256'][:16]}, not {sha256[:16]}"
            )
        if check_content:
            verify_files(path, manifest["files"])
    except NotFound:
        return "its files are missing"
    except Corrupt as error:
        return error.message
    return ""


def _alias_fault(registry: Registry, name: str, alias: str) -> str:
    """Return why an alias is invalid, or "" if all its versions exist."""
    try:
        lost = set(registry.resolve_split(f"{name}@{alias}")[1].versions) - set(
            registry.versions(name)
        )
    except Corrupt as error:
        return error.message
    return f"points to version {min(lost)}, which is missing" if lost else ""


def _iter_jobs(
    store: JobStore, highest_versions: dict[tuple[str, str], int]
) -> Iterator[tuple[str, str, str]]:
    """Yield jobs with their faults: a missing data set, or a model version that is unknown.

    A training's version is unknown if the registry is older than the store.
    """
    for job in all_rows(store.jobs.list_page, JobFilter(None)):
        source, result = job.spec.get("dataset"), job.result or {}
        if job.status in (PENDING, RUNNING) and isinstance(source, str):
            lost = not (Path(source) / "manifest.json").is_file()
            yield "job", job.id, f"its data set {Path(source).name} is missing" if lost else ""
        elif job.kind == TRAIN and job.status == SUCCEEDED and "version" in result:
            name, version = str(result["model"]), int(result["version"])
            lost = version > highest_versions.get((job.tenant, name), 0)
            fault = f"published {name}:{version}, which is unknown to the registry in the home"
            yield "job", job.id, fault if lost else ""
