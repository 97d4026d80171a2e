"""Switching of endpoints to the versions of their routes, now or after loading in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from xcray.errors import Corrupt, NotFound, ParameterError, XcrayError
from xcray.model.traffic_split import TrafficSplit
from xcray.service.models.endpoints import ActiveVersions, Endpoint, EndpointTable
from xcray.service.models.loading import LoadedModel, ModelLoader
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.system.processes import lower_thread_priority

MAX_LOAD_ATTEMPTS: Final = 5  # a version can be deleted between resolving and opening it


class VersionSwitch:
    """Loads the versions of changed routes and activates them. Thread-safe."""

    def __init__(
        self,
        endpoints: EndpointTable,
        loader: ModelLoader,
        evict_excess: Callable[[Endpoint], None],
        metrics: Metrics,
    ) -> None:
        """Create it. evict_excess: called after each switch of an endpoint."""
        self._endpoints = endpoints
        self._loader = loader
        self._evict_excess = evict_excess
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-switch", initializer=lower_thread_priority
        )
        self._closed = False

    def start(self, endpoint: Endpoint) -> None:
        """Switch to the new versions, now if they are loaded, else after loading in a thread."""
        if endpoint.target_keys() <= set(self._loader.loaded_models):
            self.load_and_switch(endpoint)
        elif not (endpoint.switching or self._closed):
            endpoint.switching = True
            self._pool.submit(self._switch_in_thread, endpoint)

    def load_and_switch(self, endpoint: Endpoint) -> ActiveVersions:
        """Load the versions of an endpoint's route and activate them.

        Raises NotFound or Corrupt if no version can answer.
        """
        deleted: NotFound | None = None
        try:
            for attempt in range(MAX_LOAD_ATTEMPTS):
                route = endpoint.resolve_route(force=attempt > 0)
                loaded: dict[int, LoadedModel] = {}
                failed: list[Corrupt] = []
                try:
                    for version in route.versions:
                        try:
                            loaded[version] = self._loader.get(
                                (endpoint.tenant, endpoint.name, version)
                            )
                        except Corrupt as error:
                            failed.append(error)
                except NotFound as error:  # deleted meanwhile: resolve the route again
                    deleted = error
                    continue
                return self._switch(endpoint, route, loaded, failed)
        except XcrayError:
            if endpoint.active is None:
                self._endpoints.remove(endpoint)
            raise
        assert deleted is not None
        if endpoint.active is None:
            self._endpoints.remove(endpoint)
            raise deleted
        endpoint.load_error = deleted
        return endpoint.active

    def refresh(self, endpoint: Endpoint) -> None:
        """Apply a changed route of an endpoint; remove the endpoint if it no longer has one."""
        try:
            if endpoint.stamp is None or not endpoint.is_current():
                endpoint.resolve_route()
                if self._unload_requested(endpoint):
                    self._endpoints.remove(endpoint)
                    return
        except (NotFound, ParameterError):
            self._endpoints.remove(endpoint)
            return
        except (XcrayError, OSError) as error:  # reported by `check`; the next poll retries
            LOGGER.warning(
                "the route of a reference can't be read",
                extra={"model": endpoint.reference, "detail": str(error)},
            )
            return
        retry = endpoint.load_error is not None and any(
            self._loader.failure(key) is None
            for key in endpoint.target_keys() - endpoint.active_keys()
        )
        if endpoint.stale_since is not None or retry:
            self.start(endpoint)

    def close(self) -> None:
        """Stop switching; queued switches are cancelled."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _switch_in_thread(self, endpoint: Endpoint) -> None:
        """Run `load_and_switch` in a thread."""
        try:
            self.load_and_switch(endpoint)
        except XcrayError as error:
            endpoint.load_error = None if isinstance(error, NotFound) else error
            LOGGER.warning(
                "a version was not switched",
                extra={"model": endpoint.reference, "detail": error.message},
            )
        finally:
            endpoint.switching = False

    def _switch(
        self,
        endpoint: Endpoint,
        route: TrafficSplit,
        loaded: dict[int, LoadedModel],
        failed: list[Corrupt],
    ) -> ActiveVersions:
        """Activate a route of which some versions may have failed to load.

        The loaded versions of the route answer. If there are none, the previously active ones
        continue; if there are none of these either, an earlier version is loaded.
        """
        if any(version in loaded for version in route.serving):
            active = ActiveVersions.of(route, loaded)
        elif endpoint.active is not None:
            active = endpoint.active._replace(route=route, shadow=None)
        else:
            active = ActiveVersions.fallback(route, self._load_previous(endpoint, failed[0]))
        with self._endpoints.lock:
            self._loader.loaded_models.update({model.key: model for model in active.all_versions})
            if endpoint.activate(active, failed[0] if failed else None):
                self._metrics.version_switches.inc()
                versions = {
                    "model": endpoint.reference,
                    "versions": [model.version for model in active.members],
                }
                LOGGER.info("another version is active", extra=versions)
        self._evict_excess(endpoint)
        return active

    def _load_previous(self, endpoint: Endpoint, error: Corrupt) -> LoadedModel:
        """Return a loadable version that the endpoint used before.

        Raises `error` if there is none.
        """
        for version in (
            []
            if endpoint.fixed
            else endpoint.registry.previous_versions(endpoint.name, endpoint.alias)
        ):
            try:
                return self._loader.get((endpoint.tenant, endpoint.name, version))
            except (Corrupt, NotFound) as another:
                LOGGER.warning(
                    "an earlier version can't be loaded either",
                    extra={"model": endpoint.name, "detail": another.message},
                )
        raise error

    def _unload_requested(self, endpoint: Endpoint) -> bool:
        """Return whether an unload of the endpoint was requested since the last check."""
        _, unloads = endpoint.registry.pins.read(endpoint.name)
        previous, endpoint.unload_counts = (
            endpoint.unload_counts,
            {reference: unloads.get(reference, 0) for reference in endpoint.references()},
        )
        return previous is not None and any(
            count > previous.get(reference, count)
            for reference, count in endpoint.unload_counts.items()
        )
