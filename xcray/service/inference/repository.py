"""The model repository extension: which models there are, and loading or dropping them ahead of requests.

A model needs no loading: the first request does it. Loading ahead saves that request the wait; unloading frees memory, until the
next request. Both mean the process that answers (`xcray serve --workers N` has N of them).
"""

from __future__ import annotations

from xcray.errors import NotFound
from xcray.service.predictors import Wanted
from xcray.service.schemas.inference import IndexEntry
from xcray.service.state import Rooms

UNLOADED = "not loaded: the first request loads it"


def index(rooms: Rooms, tenant: str, ready: bool) -> list[IndexEntry]:
    """Every version of every model of a tenant, by name and number; `ready`: only the loaded ones."""
    registry, loaded = rooms.registry_of(tenant), rooms.predictors.held(tenant)
    entries = [
        IndexEntry(name=name, version=str(version), state="READY", reason="")
        if (name, version) in loaded
        else IndexEntry(name=name, version=str(version), state="UNAVAILABLE", reason=UNLOADED)
        for name in registry.names()
        for version in registry.versions(name)
    ]
    return [entry for entry in entries if not ready or entry.state == "READY"]


def load(rooms: Rooms, tenant: str, name: str, version: int | None) -> None:
    """Map a version (the latest when None) now. Raises NotFound, Corrupt."""
    rooms.predictors.get(Wanted(tenant, name if version is None else f"{name}:{version}"))


def unload(rooms: Rooms, tenant: str, name: str, version: int | None) -> None:
    """Drop a version, or all of a name; requests that hold one finish with it. Raises NotFound when there is none."""
    versions = rooms.registry_of(tenant).versions(name)
    if not versions or version not in (None, *versions):
        raise NotFound(f"there is no model {name}" + ("" if version is None else f":{version}"))
    for each in versions if version is None else [version]:
        rooms.predictors.forget(tenant, name, each)
