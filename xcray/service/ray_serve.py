"""Ray Serve application for KubeRay's RayService.

The import path is `xcray.service.ray_serve:application`.

Each replica is the whole app of `xcray serve --no-runner`, including keys and limits. The proxies
of Ray Serve route requests to it, and they handle slow connections and TLS. Plain processes serve
several times more requests (docs/serving.md); use this for the autoscaling and rollouts of Serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from xcray.errors import Unavailable
from xcray.jobs.home import DEFAULT_TENANT, Home
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import AppParts, AppRole, create_app
from xcray.service.app_state import AppState
from xcray.service.models.cache import ModelTarget
from xcray.service.observability.request_log import configure_logging
from xcray.service.settings import Settings, check_address
from xcray.service.supervision import cluster_checks
from xcray.system.malloc import limit_arenas

# Failures that another replica in the same place would have, too.
SHARED_FAILURES: Final = frozenset({"STORE", "SCHEMA", "DISK"})
POLL_SECONDS: Final = 0.1
MAX_ONGOING_REQUESTS: Final = 256  # per replica; further requests wait at the proxies


def application(args: Mapping[str, Any]) -> Application:
    """Return the application for the `args` of serveConfigV2, which are settings by name.

    Environment variables XCRAY_... apply, too. Raises ValueError that names the invalid setting.
    """
    # Errors are visible at deployment; each replica reads its own environment again.
    replica_settings(args)
    # The decorator makes Xcray a deployment.
    return Xcray.bind(dict(args))  # type: ignore[attr-defined,no-any-return]


def replica_settings(args: Mapping[str, Any]) -> Settings:
    """Return the settings of a replica.

    Its proxy is publicly reachable, so a key is required unless insecure_dev is set.
    """
    return Settings(**{"host": "0.0.0.0", "behind_proxy": True, **args, "processes": 1})


@serve.deployment(
    name="Xcray",
    max_ongoing_requests=MAX_ONGOING_REQUESTS,
    user_config={},
    graceful_shutdown_timeout_s=40.0,
)
@serve.ingress()
class Xcray:
    """A replica.

    user_config, which can change without a restart: {"preload": [...]}, further models to load and
    keep.
    """

    def __init__(self, args: dict[str, Any]) -> None:
        """Create the app of the replica.

        Raises ParameterError if the store has no key yet, Conflict if it is newer than this
        program.
        """
        settings = replica_settings(args)
        limit_arenas()
        configure_logging(None, settings.log_level, settings.log_format)
        home = Home(settings.home)
        self._store = JobStore(settings.store_url, upgrade=settings.store_upgrade)
        check_address(settings, self._store.keys.has_any)
        self._app = create_app(
            settings,
            parts=AppParts(store=self._store, checks=cluster_checks(settings, home)),
            role=AppRole(leader_eligible=False, exclusive_home=False),
        )
        self._app_state: AppState = self._app.state.app_state

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the app for Serve."""
        return self._app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the configured models; Serve routes no requests here until they are loaded.

        Raises the errors of loading a model.
        """
        while not self._has_preloaded():
            await asyncio.sleep(POLL_SECONDS)
        for reference in user_config.get("preload", ()):
            await self._app_state.prediction.model_cache.find(
                ModelTarget(DEFAULT_TENANT, str(reference))
            )
            self._app_state.registry.pins.add(str(reference))

    async def check_health(self) -> None:
        """Raise Unavailable for failures that a new replica could fix.

        An unavailable store is not a reason to drop loaded models.
        """
        reasons = set((await self._app_state.readiness.refresh()).reasons) - SHARED_FAILURES
        if reasons:
            raise Unavailable(
                f"the replica is unhealthy: {', '.join(sorted(reasons))}", code="REPLICA"
            )

    def _has_preloaded(self) -> bool:
        """Return whether the models of the settings are loaded."""
        try:
            self._app_state.preloading.check()
        except Unavailable:
            return False
        return True
