"""Model cache: the versions that answer each reference, and how traffic moves between versions.

A version never changes and its number is never reused, so (tenant, name, version) is the key. The
route of a reference is checked on each request (two file system calls while nothing changes). When
a route changes, the new version is loaded, verified and warmed up while the old one answers, and
takes over between two requests. That is bounded by `swap_timeout_seconds`: later requests wait for
the new version. A version that can't be loaded does not take over: the old one continues to answer,
and readiness reports MODEL. Versions without a reference are dropped after `unload_delay_seconds`,
so that a rollback is quick; a request holds its predictor until it is answered. Each process does
this independently, on requests and once per second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from xcray.errors import Corrupt, NotFound, ParameterError, Refused, Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.service.models.endpoints import ActiveVersions, Endpoint
from xcray.service.models.loading import (
    LoadedModel,
    ModelKey,
    ModelLoader,
    ModelTarget,
    Opener,
    open_predictor,
)
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.system.processes import lower_thread_priority

__all__ = ["LoadedModel", "ModelCache", "ModelTarget", "Opener", "VersionState", "open_predictor"]

LOADER_THREADS: Final = 2  # threads that load models for waiting requests; swaps have their own
MAX_ENDPOINTS: Final = 1024  # references that are remembered
MAX_LOAD_ATTEMPTS: Final = 5  # a version can be deleted between resolving and opening it
POLLS_PER_PIN_CHECK: Final = 5  # polls per check for pinned references


class VersionState(NamedTuple):
    """A version as seen by this process.

    state: LOADED, AVAILABLE (the first request loads it) or CORRUPT, with the reason.
    """

    name: str
    version: int
    state: str
    reason: str = ""


class ModelCache:
    """Maps references to loaded versions; at most `capacity` versions are loaded. Thread-safe."""

    def __init__(
        self,
        registry_of: Callable[[str], Registry],
        metrics: Metrics,
        capacity: int,
        opener: Opener = open_predictor,
        *,
        tenants: Callable[[], Iterable[str]] = lambda: (DEFAULT_TENANT,),
        swap_timeout_seconds: float = 300.0,
        unload_delay_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty cache.

        registry_of: returns the registry of a tenant. tenants: returns all tenants.
        clock: monotonic seconds.
        """
        self._registry_of = registry_of
        self._tenants = tenants
        self._metrics = metrics
        self._capacity = capacity
        self._swap_seconds = swap_timeout_seconds
        self._linger_seconds = unload_delay_seconds
        self._clock = clock
        self._loader = ModelLoader(registry_of, metrics, opener, clock)
        self._load_pool = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="xcray-load")
        self._swap_pool = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-swap", initializer=lower_thread_priority
        )
        self._lock = threading.Lock()
        self._endpoints: OrderedDict[tuple[str, str], Endpoint] = OrderedDict()
        self._pinned: set[tuple[str, str]] = set()
        self._idle_since: dict[ModelKey, float] = {}
        self._use_count = self._poll_count = 0
        self._closed = False

    async def find(self, target: ModelTarget) -> LoadedModel:
        """Return the version that answers a request; for use on the event loop.

        If no version is loaded, a thread loads one. Raises as `get`.
        """
        endpoint = self._endpoints.get((target.tenant, target.reference))
        active = (
            endpoint.active
            if endpoint is not None and endpoint.is_current()
            else self._current_versions(target)
        )
        (self._metrics.cache_misses if active is None else self._metrics.cache_hits).inc()
        if active is None:
            return await asyncio.get_running_loop().run_in_executor(
                self._load_pool, self.get, target
            )
        return self._pick(target, active)

    def get(self, target: ModelTarget) -> LoadedModel:
        """Return the version that answers a request.

        Raises NotFound, ParameterError, or Corrupt if no version can answer.
        """
        return self._pick(
            target, self._current_versions(target) or self._load_and_switch(self._endpoint(target))
        )

    def shadow_for(self, target: ModelTarget) -> LoadedModel | None:
        """Return the version that gets a copy of a request, if any. Does no I/O."""
        endpoint = self._endpoints.get((target.tenant, target.reference))
        active = None if endpoint is None else endpoint.active
        return (
            None
            if active is None or active.shadow is None
            else active.pick_shadow(target.reference, target.key)
        )

    def prepare(self, tenant: str, name: str, alias: str, route: TrafficSplit) -> None:
        """Load the versions of a new route if the alias is in use, so that no request has to wait.

        Raises Corrupt or NotFound.
        """
        if (tenant, f"{name}@{alias}") in self._endpoints:
            for version in route.versions:
                self._loader.get((tenant, name, version))

    def refresh_name(self, tenant: str, name: str) -> None:
        """Apply a change of a name at once, so that the next request uses it.

        A version that must be loaded first takes over as soon as it is loaded.
        """
        for endpoint in self._endpoints_of(tenant, name):
            self._refresh(endpoint)
        self._evict_idle(self._linger_seconds)

    def load(self, tenant: str, reference: str) -> LoadedModel:
        """Load the version of a reference and pin the reference in every process until `unload`.

        Raises NotFound, ParameterError, Corrupt, and Refused if no capacity would be left for
        others.
        """
        if (tenant, reference) not in self._pinned and len(self._pinned) >= self._capacity:
            raise Refused(
                f"{len(self._pinned)} models are already pinned: unload one, or raise "
                "XCRAY_MODELS_LOADED",
                code="MODELS_LOADED",
            )
        loaded = self.get(ModelTarget(tenant, reference))
        self._registry_of(tenant).pin(reference)
        self._pinned.add((tenant, reference))
        return loaded

    def unload(self, tenant: str, reference: str) -> None:
        """Unload a reference in every process; a bare name unloads all its versions.

        The next request loads the version again. Requests in flight finish. Raises NotFound or
        ParameterError.
        """
        self._registry_of(tenant).unload(reference)
        for endpoint in self._endpoints_of(tenant, reference.partition(":")[0].partition("@")[0]):
            if reference in endpoint.references():
                self._remove_endpoint(endpoint)
        self._evict_idle(0.0)

    def index(self, tenant: str) -> list[VersionState]:
        """Return all versions of a tenant, by name and number."""
        return [
            state
            for name in self._registry_of(tenant).names()
            for state in self.states(tenant, name)
        ]

    def states(self, tenant: str, name: str) -> list[VersionState]:
        """Return the versions of a name, by number."""
        registry = self._registry_of(tenant)
        return [
            self._version_state(tenant, name, version, registry.corrupt_versions(name))
            for version in registry.versions(name)
        ]

    def loaded_versions(self, tenant: str) -> set[tuple[str, int]]:
        """Return (name, version) of the loaded versions of a tenant."""
        return {
            (name, version)
            for owner, name, version in list(self._loader.loaded_models)
            if owner == tenant
        }

    def check(self) -> None:
        """Raise Unavailable MODEL while a reference in use can't be resolved or loaded."""
        troubled = [
            endpoint
            for endpoint in list(self._endpoints.values())
            if endpoint.load_error is not None or endpoint.registry_error is not None
        ]
        if troubled:
            first = troubled[0].load_error or troubled[0].registry_error
            raise Unavailable(
                f"{len(troubled)} of the models in use can't be updated: {first}",
                code="MODEL",
            )

    def poll(self) -> None:
        """Apply changes by other processes, retry failed loads and drop unused versions.

        Called once per second.
        """
        for endpoint in list(self._endpoints.values()):
            if endpoint.active is not None and not endpoint.swapping:
                self._refresh(endpoint)
        if self._poll_count % POLLS_PER_PIN_CHECK == 0:
            self._load_pinned()
        self._poll_count += 1
        self._evict_idle(self._linger_seconds)
        loaded = list(self._loader.loaded_models.values())
        self._metrics.models_loaded.set(len(loaded))
        self._metrics.filters_loaded.set(sum(loaded_model.n_filters for loaded_model in loaded))

    def close(self) -> None:
        """Stop loading and drop all versions."""
        self._closed = True
        for pool in (self._swap_pool, self._load_pool):
            pool.shutdown(wait=True, cancel_futures=True)
        self._loader.close()
        self._endpoints.clear()

    def _pick(self, target: ModelTarget, active: ActiveVersions) -> LoadedModel:
        """Return the active version that answers this target."""
        endpoint = self._endpoints.get((target.tenant, target.reference))
        if endpoint is not None:
            self._use_count += 1
            endpoint.last_used = self._use_count
        if len(active.members) == 1:
            return active.members[0]
        loaded = active.pick(target.reference, target.key)
        self._metrics.routed_requests.labels(
            "stable" if loaded.version == active.route.primary else "canary"
        ).inc()
        return loaded

    def _current_versions(self, target: ModelTarget) -> ActiveVersions | None:
        """Return the versions that answer now; None if the caller has to load them.

        Raises NotFound, ParameterError or Corrupt.
        """
        endpoint = self._endpoint(target)
        try:
            endpoint.resolve_route()
        except XcrayError:
            self._remove_endpoint(endpoint)
            raise
        if endpoint.active is None or (
            endpoint.stale_since is not None and endpoint.is_overdue(self._swap_seconds)
        ):
            return None
        if endpoint.stale_since is not None:
            self._start_swap(endpoint)
        return endpoint.active

    def _endpoint(self, target: ModelTarget) -> Endpoint:
        """Return the endpoint of a reference, creating it if necessary."""
        key = (target.tenant, target.reference)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            with self._lock:
                endpoint = self._endpoints.setdefault(
                    key, Endpoint(*key, self._registry_of(target.tenant), self._clock)
                )
                endpoint.last_used = self._use_count = self._use_count + 1
                while len(self._endpoints) > MAX_ENDPOINTS:
                    self._endpoints.pop(
                        min(self._endpoints, key=lambda each: self._endpoints[each].last_used)
                    )
        return endpoint

    def _start_swap(self, endpoint: Endpoint) -> None:
        """Switch to the new versions, now if they are loaded, else after loading in a thread."""
        if endpoint.target_keys() <= set(self._loader.loaded_models):
            self._load_and_switch(endpoint)
        elif not (endpoint.swapping or self._closed):
            endpoint.swapping = True
            self._swap_pool.submit(self._swap_in_thread, endpoint)

    def _swap_in_thread(self, endpoint: Endpoint) -> None:
        """Run `_load_and_switch` in a thread."""
        try:
            self._load_and_switch(endpoint)
        except XcrayError as error:
            endpoint.load_error = None if isinstance(error, NotFound) else error
            LOGGER.warning(
                "a model was not swapped",
                extra={"model": endpoint.reference, "detail": error.message},
            )
        finally:
            endpoint.swapping = False

    def _load_and_switch(self, endpoint: Endpoint) -> ActiveVersions:
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
                self._remove_endpoint(endpoint)
            raise
        assert deleted is not None
        if endpoint.active is None:
            self._remove_endpoint(endpoint)
            raise deleted
        endpoint.load_error = deleted
        return endpoint.active

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
        with self._lock:
            self._loader.loaded_models.update({model.key: model for model in active.all_versions})
            if endpoint.activate(active, failed[0] if failed else None):
                self._metrics.model_swaps.inc()
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

    def _refresh(self, endpoint: Endpoint) -> None:
        """Apply a changed route of an endpoint; remove the endpoint if it no longer has one."""
        try:
            if endpoint.stamp is None or not endpoint.is_current():
                endpoint.resolve_route()
                if self._unload_requested(endpoint):
                    self._remove_endpoint(endpoint)
                    return
        except (NotFound, ParameterError):
            self._remove_endpoint(endpoint)
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
            self._start_swap(endpoint)

    def _unload_requested(self, endpoint: Endpoint) -> bool:
        """Return whether an unload of the endpoint was requested since the last check."""
        _, unloads = endpoint.registry.pinned(endpoint.name)
        previous, endpoint.unload_counts = (
            endpoint.unload_counts,
            {reference: unloads.get(reference, 0) for reference in endpoint.references()},
        )
        return previous is not None and any(
            count > previous.get(reference, count)
            for reference, count in endpoint.unload_counts.items()
        )

    def _load_pinned(self) -> None:
        """Load the pinned references before requests need them."""
        pinned = set()
        for tenant in self._tenants():
            registry = self._registry_of(tenant)
            for name in registry.names():
                pinned |= {(tenant, reference) for reference in registry.pinned(name)[0]}
        self._pinned = pinned
        for tenant, reference in pinned:
            if (tenant, reference) not in self._endpoints:
                try:
                    self.get(ModelTarget(tenant, reference))
                except XcrayError as error:
                    LOGGER.warning(
                        "a pinned model can't be loaded",
                        extra={"model": reference, "detail": error.message},
                    )

    def _endpoints_of(self, tenant: str, name: str) -> list[Endpoint]:
        """Return the endpoints of a name."""
        return [
            endpoint
            for endpoint in list(self._endpoints.values())
            if (endpoint.tenant, endpoint.name) == (tenant, name)
        ]

    def _remove_endpoint(self, endpoint: Endpoint) -> None:
        """Remove an endpoint."""
        with self._lock:
            if self._endpoints.get((endpoint.tenant, endpoint.reference)) is endpoint:
                del self._endpoints[endpoint.tenant, endpoint.reference]

    def _evict_idle(self, linger: float) -> None:
        """Drop versions that were unused for `linger` seconds or are deleted.

        Requests that hold one finish with it.
        """
        now = self._clock()
        with self._lock:
            needed = {
                key
                for endpoint in self._endpoints.values()
                for key in (*endpoint.active_keys(), *endpoint.target_keys())
            }
            idle = [key for key in list(self._loader.loaded_models) if key not in needed]
            self._idle_since = {key: self._idle_since.get(key, now) for key in idle}
            idle_since = dict(self._idle_since)
        for key, since in idle_since.items():
            if now - since >= linger or key[2] not in self._registry_of(key[0]).versions(key[1]):
                self._drop_version(key)

    def _evict_excess(self, endpoint: Endpoint) -> None:
        """Drop versions beyond the capacity: unused first, then least recently used.

        Pinned versions are never dropped.
        """
        while len(self._loader.loaded_models) > self._capacity:
            with self._lock:
                others = [other for other in self._endpoints.values() if other.active is not None]
                last_uses: dict[ModelKey, float] = dict.fromkeys(self._loader.loaded_models, -1.0)
                for other in others:
                    is_pinned = other is endpoint or (other.tenant, other.reference) in self._pinned
                    for key in other.active_keys() & set(last_uses):
                        last_uses[key] = max(
                            last_uses[key], float("inf") if is_pinned else other.last_used
                        )
                victim = min(last_uses, key=lambda key: last_uses[key], default=None)
                if victim is None or last_uses[victim] == float("inf"):
                    return
                for other in [other for other in others if victim in other.active_keys()]:
                    self._endpoints.pop((other.tenant, other.reference), None)
            self._drop_version(victim)

    def _drop_version(self, key: ModelKey) -> None:
        """Drop a loaded version."""
        self._idle_since.pop(key, None)
        if self._loader.drop(key) is not None:
            self._metrics.model_unloads.inc()

    def _version_state(
        self, tenant: str, name: str, version: int, corrupt: dict[int, str]
    ) -> VersionState:
        """Return the state of one version."""
        key = (tenant, name, version)
        failure = self._loader.failure(key)
        if key in self._loader.loaded_models:
            return VersionState(name, version, "LOADED")
        if failure is not None or version in corrupt:
            return VersionState(name, version, "CORRUPT", corrupt.get(version) or str(failure))
        return VersionState(name, version, "AVAILABLE")
