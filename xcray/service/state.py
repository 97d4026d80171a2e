"""What the routes work with: one record on the app, everything in it handed in or made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request

from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.store import JobStore
from xcray.model.registry import Registry
from xcray.service.building import Builder
from xcray.service.desk import Desk
from xcray.service.gauges import Gauges
from xcray.service.mirroring import Carrier
from xcray.service.predictors import PredictorCache
from xcray.service.preloading import Preloading
from xcray.service.readiness import Check, Readiness
from xcray.service.registries import Registries
from xcray.service.settings import Settings
from xcray.service.shadow import Shadows
from xcray.service.uploads import UploadDesk


class Supervising(Protocol):
    """What the service needs of a supervisor."""

    def start(self) -> None:
        """Begin to claim and launch jobs."""

    def stop(self) -> None:
        """Claim no more."""


@dataclass
class Rooms:
    """The rooms of a running service. Only `draining` changes. checks: by code, what makes it degraded; needs: what makes it
    unready (see `xcray.service.checks`)."""

    settings: Settings
    home: Home
    store: JobStore
    registries: Registries
    uploads: UploadDesk
    builder: Builder
    predictors: PredictorCache
    desk: Desk
    shadows: Shadows
    gauges: Gauges
    check_spec: Callable[[dict[str, Any]], dict[str, Any]]
    supervisor: Supervising | None = None
    checks: dict[str, Check] = field(default_factory=dict)
    needs: dict[str, Check] = field(default_factory=dict)
    preloading: Preloading = field(default_factory=Preloading)
    carriers: list[Carrier] = field(default_factory=list)
    readiness: Readiness = field(init=False)
    draining: bool = False

    @property
    def registry(self) -> Registry:
        """The models of the tenant default."""
        return self.registry_of(DEFAULT_TENANT)

    def registry_of(self, tenant: str) -> Registry:
        """A tenant's models."""
        return self.registries.of(tenant)


def rooms_of(request: Request) -> Rooms:
    """The rooms of the app that serves this request."""
    rooms: Rooms = request.app.state.rooms
    return rooms
