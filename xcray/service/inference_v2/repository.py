"""The model repository extension: which models there are, and loading or dropping them ahead of requests.

A model needs no loading: the first request does it. Loading ahead saves that request the wait; unloading frees memory, until the
next request. Every process of the home follows within seconds.
"""

from __future__ import annotations

from xcray.service.app_state import Rooms
from xcray.service.schemas.inference import IndexEntry

UNLOADED = "not loaded: the first request loads it"


def index(rooms: Rooms, tenant: str, ready: bool) -> list[IndexEntry]:
    """Every version of every model of a tenant, by name and number; `ready`: only the loaded ones."""
    entries = [
        IndexEntry(name=name, version=str(version), state="READY", reason="")
        if state == "LOADED"
        else IndexEntry(
            name=name, version=str(version), state="UNAVAILABLE", reason=reason or UNLOADED
        )
        for name, version, state, reason in rooms.predictors.index(tenant)
    ]
    return [entry for entry in entries if not ready or entry.state == "READY"]


def load(rooms: Rooms, tenant: str, name: str, version: int | None) -> None:
    """Map a version (the latest, whichever that comes to be, when None) and hold it. Raises NotFound, Corrupt, Refused."""
    rooms.predictors.load(tenant, name if version is None else f"{name}:{version}")


def unload(rooms: Rooms, tenant: str, name: str, version: int | None) -> None:
    """Drop a version, or all of a name; requests that hold one finish with it. Raises NotFound when there is none."""
    rooms.predictors.unload(tenant, name if version is None else f"{name}:{version}")
