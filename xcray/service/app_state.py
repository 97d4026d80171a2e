"""Application state of the service: one record on the app that the routes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.model.registry import Registry
from xcray.service.datasets.builds import Builder
from xcray.service.datasets.uploads import UploadStore
from xcray.service.http.tenant_queue import TenantQueue
from xcray.service.models.preloading import Preloading
from xcray.service.models.registries import Registries
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.readiness import Check, Readiness
from xcray.service.prediction.services import PredictionServices
from xcray.service.settings import Settings


@dataclass
class AppState:
    """Application state of a running service. Only `draining` changes after the start.

    estimates, loads: requests that take seconds; one estimate or comparison runs at a time, because
    it measures.

    checks: by reason code, the checks whose failure makes the service degraded.
    """

    settings: Settings
    home: Home
    store: JobStore
    registries: Registries
    uploads: UploadStore
    builder: Builder
    prediction: PredictionServices
    metrics: Metrics
    check_spec: Callable[[dict[str, Any]], dict[str, Any]]
    supervisor: Supervisor | None = None
    checks: dict[str, Check] = field(default_factory=dict)
    preloading: Preloading = field(default_factory=Preloading)
    estimates: TenantQueue = field(
        default_factory=lambda: TenantQueue(
            "estimates and comparisons", threads=1, max_per_tenant=2, retry_after=5
        )
    )
    loads: TenantQueue = field(
        default_factory=lambda: TenantQueue("loads", threads=4, max_per_tenant=4, retry_after=5)
    )
    readiness: Readiness = field(init=False)
    draining: bool = False

    @property
    def registry(self) -> Registry:
        """Return the model registry of the default tenant."""
        return self.registry_of(DEFAULT_TENANT)

    def registry_of(self, tenant: str) -> Registry:
        """Return the model registry of a tenant."""
        return self.registries.of(tenant)


def app_state_of(request: Request) -> AppState:
    """Return the state of the app that serves this request."""
    app_state: AppState = request.app.state.app_state
    return app_state
