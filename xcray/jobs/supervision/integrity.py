"""Whether what the store and the registries name is there: data sets, versions of models, what aliases lead to. For restores.

A home and a store that were copied at different moments may differ; what was copied after the store has its files, what lies
there beyond the records is an orphan and swept in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, NotFound, XcrayError
from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.job import TRAIN
from xcray.jobs.states import PENDING, RUNNING, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.model.directory import read_manifest
from xcray.model.registry import LATEST, Registry
from xcray.storage.atomic import NAME, verify_files

PAGE: Final = 1000
READY: Final = "READY"


class Dangling(NamedTuple):
    """Something that is named and is not there, or not as it was. kind: dataset, version, alias or job; what: its id or name."""

    kind: str
    what: str
    why: str


class Verified(NamedTuple):
    """What was looked at: counts by kind; and what dangles."""

    looked: dict[str, int]
    dangling: list[Dangling]


def verified(store: JobStore, home: Home, *, whole: bool = False) -> Verified:
    """Look at every record and version. whole: compare every file with its SHA-256 too, which reads all bytes."""
    looked = {"dataset": 0, "version": 0, "alias": 0, "job": 0}
    dangling: list[Dangling] = []
    for kind, what, why in _all(store, home, whole):
        looked[kind] += 1
        if why:
            dangling.append(Dangling(kind, what, why))
    return Verified(looked, dangling)


def _all(store: JobStore, home: Home, whole: bool) -> Iterator[tuple[str, str, str]]:
    """Everything that is named: (kind, what, why it dangles or "")."""
    yield from _datasets(store, home, whole)
    given_out: dict[tuple[str, str], int] = {}
    for tenant, root in _roots(home):
        registry = Registry(root)
        for name in sorted(path.name for path in root.iterdir() if NAME.fullmatch(path.name)):
            versions, highest = _expected(registry, name)
            given_out[tenant, name] = highest
            for version, sha256 in versions.items():
                yield (
                    "version",
                    f"{tenant} {name}:{version}",
                    _version_fault(registry, name, version, sha256, whole),
                )
            for alias in sorted(set(registry.aliases(name)) - {LATEST}):
                yield "alias", f"{tenant} {name}@{alias}", _alias_fault(registry, name, alias)
    yield from _jobs(store, given_out)


def _datasets(store: JobStore, home: Home, whole: bool) -> Iterator[tuple[str, str, str]]:
    """Data sets that are ready, of all tenants."""
    token = None
    while True:
        records, token = store.list_datasets(None, limit=PAGE, page_token=token)
        for record in records:
            if record.status == READY:
                yield (
                    "dataset",
                    record.id,
                    _dataset_fault(Path(record.path), home.dataset(record.id), whole),
                )
        if token is None:
            return


def _dataset_fault(path: Path, here: Path, whole: bool) -> str:
    """Why a data set can't be used; "" when it can."""
    try:
        Dataset.open(path, verify=whole)
    except NotFound:
        moved = path != here and (here / "manifest.json").is_file()
        return (
            "lies in another home than its record says: mount the home at its old path"
            if moved
            else "its files are not there"
        )
    except XcrayError as error:
        return error.message
    return ""


def _expected(registry: Registry, name: str) -> tuple[dict[int, str], int]:
    """Versions that were published and not deleted with their SHA-256, and the highest number given out, by the name's history."""
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


def _version_fault(registry: Registry, name: str, version: int, sha256: str, whole: bool) -> str:
    """Why a version of a model can't be answered from; "" when it can."""
    path = registry.root / name / "versions" / str(version)
    try:
        manifest = read_manifest(path)
        if sha256 and manifest["sha256"] != sha256:
            return f"is another model than was published: SHA-256 {manifest['sha256'][:16]}, not {sha256[:16]}"
        if whole:
            verify_files(path, manifest["files"])
    except NotFound:
        return "its files are not there"
    except Corrupt as error:
        return error.message
    return ""


def _alias_fault(registry: Registry, name: str, alias: str) -> str:
    """Why an alias leads nowhere; "" when all its versions are there."""
    try:
        lost = set(registry.route(f"{name}@{alias}")[1].versions) - set(registry.versions(name))
    except Corrupt as error:
        return error.message
    return f"leads to version {min(lost)}, which is not there" if lost else ""


def _jobs(store: JobStore, given_out: dict[tuple[str, str], int]) -> Iterator[tuple[str, str, str]]:
    """Jobs that need a data set still, and trainings whose version the registry never had: it is older than the store."""
    token = None
    while True:
        jobs, token = store.list(None, limit=PAGE, page_token=token)
        for job in jobs:
            source, result = job.spec.get("dataset"), job.result or {}
            if job.status in (PENDING, RUNNING) and isinstance(source, str):
                lost = not (Path(source) / "manifest.json").is_file()
                yield (
                    "job",
                    job.id,
                    f"its data set {Path(source).name} is not there" if lost else "",
                )
            elif job.kind == TRAIN and job.status == SUCCEEDED and "version" in result:
                name, version = str(result["model"]), int(result["version"])
                lost = version > given_out.get((job.tenant, name), 0)
                yield (
                    "job",
                    job.id,
                    f"made {name}:{version}, which the models in the home do not know"
                    if lost
                    else "",
                )
        if token is None:
            return


def _roots(home: Home) -> Iterator[tuple[str, Path]]:
    """Folders of registries by tenant."""
    others = home.path / "tenants"
    names = (
        sorted(path.name for path in others.iterdir() if NAME.fullmatch(path.name))
        if others.is_dir()
        else []
    )
    for tenant in (DEFAULT_TENANT, *(name for name in names if name != DEFAULT_TENANT)):
        root = home.models_of(tenant)
        if root.is_dir():
            yield tenant, root
