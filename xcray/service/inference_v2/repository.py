"""Model repository extension: listing models, and loading or unloading them ahead of requests.

Models need not be loaded explicitly, because the first request loads them. Loading ahead saves that
request the wait. Unloading frees memory until the next request. Every process of the home follows
within seconds.
"""

from __future__ import annotations

from xcray.service.app_state import AppState
from xcray.service.schemas.inference import IndexEntry

NOT_LOADED_REASON = "not loaded: the first request loads it"


def list_versions(app_state: AppState, tenant: str, ready: bool) -> list[IndexEntry]:
    """Return all model versions of a tenant, by name and number.

    ready: return only the loaded ones.
    """
    entries = [
        IndexEntry(name=name, version=str(version), state="READY", reason="")
        if state == "LOADED"
        else IndexEntry(
            name=name, version=str(version), state="UNAVAILABLE", reason=reason or NOT_LOADED_REASON
        )
        for name, version, state, reason in app_state.prediction.model_cache.index(tenant)
    ]
    return [entry for entry in entries if not ready or entry.state == "READY"]


def load(app_state: AppState, tenant: str, name: str, version: int | None) -> None:
    """Load and pin a version; None means the latest, whichever it becomes.

    Raises NotFound, Corrupt or Refused.
    """
    app_state.prediction.model_cache.load(tenant, name if version is None else f"{name}:{version}")


def unload(app_state: AppState, tenant: str, name: str, version: int | None) -> None:
    """Unload a version, or all versions of a name. Raises NotFound if there is none.

    Requests in flight finish with the version they hold.
    """
    app_state.prediction.model_cache.unload(
        tenant, name if version is None else f"{name}:{version}"
    )
