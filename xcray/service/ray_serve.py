"""The service as a Ray Serve application, for KubeRay's RayService: `import_path: xcray.service.ray_serve:application`.

Each replica is the whole app as `xcray serve --no-runner` has it, keys and limits included; Serve's proxies carry requests to it.
What uvicorn's protocol does for `xcray serve` (connections that dawdle, TLS) is the proxies' business here. Plain processes answer
several times faster (docs/serving.md): this is for those who want Serve's autoscaling and rollouts.
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
from xcray.service.app import create_app
from xcray.service.app_state import Rooms
from xcray.service.models.cache import Wanted
from xcray.service.observability.request_log import log_to
from xcray.service.processes.supervision import checks_of
from xcray.service.settings import Settings, check_address
from xcray.system.malloc import share_arenas

ELSEWHERE: Final = frozenset(
    {"STORE", "SCHEMA", "DISK"}
)  # what another replica in our place would miss as well
STEP: Final = 0.1
REQUESTS: Final = 256  # under way in a replica; more wait at the proxies


def application(args: Mapping[str, Any]) -> Application:
    """The application, by the `args` of serveConfigV2: settings of the service by name; the environment's XCRAY_... hold too.

    Raises ValueError naming the setting that is wrong.
    """
    settings_of(
        args
    )  # here, where who deploys sees it; each replica reads its own environment again
    return Xcray.bind(dict(args))  # type: ignore[attr-defined,no-any-return]  # a deployment, by its decorator


def settings_of(args: Mapping[str, Any]) -> Settings:
    """Settings of a replica: strangers can reach its proxy, so without a key nobody comes in, unless insecure_dev is set."""
    return Settings(**{"host": "0.0.0.0", "behind_proxy": True, **args, "workers": 1})


@serve.deployment(
    name="Xcray", max_ongoing_requests=REQUESTS, user_config={}, graceful_shutdown_timeout_s=40.0
)
@serve.ingress()
class Xcray:
    """A replica. user_config, which changes without a restart: {"preload": [...]}, more models that it loads and holds."""

    def __init__(self, args: dict[str, Any]) -> None:
        """Raises ParameterError where nobody has made a key yet, Conflict when the store is newer than this program."""
        settings = settings_of(args)
        share_arenas()
        log_to(None, settings.log_level, settings.log_format)
        home = Home(settings.home)
        self._store = JobStore(settings.store_url, upgrade=settings.store_upgrade)
        check_address(settings, self._store.has_keys)
        self._app = create_app(
            settings, store=self._store, checks=checks_of(settings, home), leads=False, alone=False
        )
        self._rooms: Rooms = self._app.state.rooms

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The app that Serve runs."""
        return self._app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load what is to be loaded; until then Serve sends no requests here. Raises what loading a model does."""
        while not self._preloaded():
            await asyncio.sleep(STEP)
        for reference in user_config.get("preload", ()):
            await self._rooms.predictors.find(Wanted(DEFAULT_TENANT, str(reference)))
            self._rooms.registry.keep(str(reference))

    async def check_health(self) -> None:
        """Raise Unavailable for what a new replica could mend: a store that is away is no reason to lose the models that answer."""
        reasons = set((await self._rooms.readiness.look()).reasons) - ELSEWHERE
        if reasons:
            raise Unavailable(
                f"the replica is not well: {', '.join(sorted(reasons))}", code="REPLICA"
            )

    def _preloaded(self) -> bool:
        """Whether the models of the settings are there."""
        try:
            self._rooms.preloading.check()
        except Unavailable:
            return False
        return True
