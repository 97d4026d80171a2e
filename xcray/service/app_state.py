"""What the routes work with: one record on the app, everything in it handed in or made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request

from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.store.job_store import JobStore
from xcray.model.registry import Registry
from xcray.service.datasets.builds import Builder
from xcray.service.datasets.uploads import UploadDesk
from xcray.service.models.cache import PredictorCache
from xcray.service.models.preloading import Preloading
from xcray.service.models.registries import Registries
from xcray.service.models.sync import Carrier
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.readiness import Check, Readiness
from xcray.service.prediction.batcher import Desk
from xcray.service.prediction.shadow import Shadows
from xcray.service.settings import Settings


class Supervising(Protocol):
    """What the service needs of a supervisor."""

    def start(self) -> None:
        """Begin to claim and launch jobs."""

    def stop(self) -> None:
        """Claim no more."""


@dataclass
class Rooms:
    """The rooms of a running service. Only `draining` changes. checks: by code, what makes it degraded; needs: what makes it
    unready (see `xcray.service.observability.checks`)."""

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
