"""Model cache: the versions that answer each reference, and how traffic moves between versions.

A version never changes and its number is never reused, so (tenant, name, version) is the key. The
route of a reference is checked on each request (two file system calls while nothing changes). When
a route changes, the new version is loaded, verified and warmed up while the old one answers, and
takes over between two requests. That is bounded by `switch_timeout_seconds`: later requests wait
for the new version. A version that can't be loaded does not take over: the old one continues to
answer, and readiness reports MODEL. Versions without a reference are dropped after
`unload_delay_seconds`, so that a rollback is quick; a request holds its predictor until it is
answered. Each process does this independently, on requests and once per second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from xcray.errors import Refused, Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.predict.drift import Drift
from xcray.service.models.endpoints import ActiveVersions, Endpoint, EndpointTable
from xcray.service.models.loading import (
    LoadedModel,
    ModelKey,
    ModelLoader,
    ModelTarget,
    Opener,
    open_predictor,
    open_predictor_soon,
)
from xcray.service.models.version_switch import VersionSwitch
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER

__all__ = [
    "LoadedModel",
    "ModelCache",
    "ModelTarget",
    "Opener",
    "VersionState",
    "open_predictor",
    "open_predictor_soon",
]

LOADER_THREADS: Final = 2  # threads that load models for waiting requests; switches have their own
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
        opener: Opener = open_predictor_soon,
        *,
        tenants: Callable[[], Iterable[str]] = lambda: (DEFAULT_TENANT,),
        switch_timeout_seconds: float = 300.0,
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
        self._clock = clock
        self._switch_seconds = switch_timeout_seconds
        self._linger_seconds = unload_delay_seconds
        self._loader = ModelLoader(registry_of, metrics, opener, clock)
        self._endpoints = EndpointTable(registry_of, clock)
        self._switch = VersionSwitch(self._endpoints, self._loader, self._evict_excess, metrics)
        self._load_pool = ThreadPoolExecutor(LOADER_THREADS, thread_name_prefix="xcray-load")
        self._poll_count = 0
        self._idle_since: dict[ModelKey, float] = {}  # versions without an endpoint

    async def find(self, target: ModelTarget) -> LoadedModel:
        """Return the version that answers a request; for use on the event loop.

        If no version is loaded, a thread loads one. Raises as `get`.
        """
        endpoint = self._endpoints.find(target.tenant, target.reference)
        loop = asyncio.get_running_loop()
        active = (
            endpoint.active
            if endpoint is not None and endpoint.is_current(loop.time())
            else self._current_versions(target)
        )
        (self._metrics.cache_misses if active is None else self._metrics.cache_hits).inc()
        if active is None:
            return await loop.run_in_executor(self._load_pool, self.get, target)
        return self._pick(target, active)

    def get(self, target: ModelTarget) -> LoadedModel:
        """Return the version that answers a request.

        Raises NotFound, ParameterError, or Corrupt if no version can answer.
        """
        return self._pick(
            target,
            self._current_versions(target)
            or self._switch.load_and_switch(self._endpoints.of(target.tenant, target.reference)),
        )

    def shadow_for(self, target: ModelTarget) -> LoadedModel | None:
        """Return the version that gets a copy of a request, if any. Does no I/O."""
        endpoint = self._endpoints.find(target.tenant, target.reference)
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
        if self._endpoints.find(tenant, f"{name}@{alias}") is not None:
            for version in route.versions:
                self._loader.get((tenant, name, version))

    def refresh_name(self, tenant: str, name: str) -> None:
        """Apply a change of a name at once, so that the next request uses it.

        A version that must be loaded first takes over as soon as it is loaded.
        """
        for endpoint in self._endpoints.of_name(tenant, name):
            self._switch.refresh(endpoint)
        self._evict_idle(self._linger_seconds)

    def load(self, tenant: str, reference: str) -> LoadedModel:
        """Load the version of a reference and pin the reference in every process until `unload`.

        Raises NotFound, ParameterError, Corrupt, and Refused if no capacity would be left for
        others.
        """
        pinned = self._endpoints.pinned
        if (tenant, reference) not in pinned and len(pinned) >= self._capacity:
            raise Refused(
                f"{len(pinned)} models are already pinned: unload one, or raise "
                "XCRAY_MODELS_LOADED",
                code="MODELS_LOADED",
            )
        loaded = self.get(ModelTarget(tenant, reference))
        self._registry_of(tenant).pins.add(reference)
        self._endpoints.pinned.add((tenant, reference))
        return loaded

    def unload(self, tenant: str, reference: str) -> None:
        """Unload a reference in every process; a bare name unloads all its versions.

        The next request loads the version again. Requests in flight finish. Raises NotFound or
        ParameterError.
        """
        self._registry_of(tenant).pins.unload(reference)
        name = reference.partition(":")[0].partition("@")[0]
        for endpoint in self._endpoints.of_name(tenant, name):
            if reference in endpoint.references():
                self._endpoints.remove(endpoint)
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
            self._version_state(tenant, name, version, registry.corrupt.versions(name))
            for version in registry.versions(name)
        ]

    def loaded_versions(self, tenant: str) -> set[tuple[str, int]]:
        """Return (name, version) of the loaded versions of a tenant."""
        return {
            (name, version)
            for owner, name, version in list(self._loader.loaded_models)
            if owner == tenant
        }

    def drift(self) -> Iterator[tuple[ModelKey, Drift]]:
        """Yield the drift of the loaded versions that answered enough rows."""
        for key, loaded in list(self._loader.loaded_models.items()):
            drift = None if loaded.drift is None else loaded.drift.drift()
            if drift is not None:
                yield key, drift

    def check(self) -> None:
        """Raise Unavailable MODEL while a reference in use can't be resolved or loaded."""
        troubled = [
            endpoint
            for endpoint in self._endpoints.all()
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
        for endpoint in self._endpoints.all():
            if endpoint.active is not None and not endpoint.switching:
                self._switch.refresh(endpoint)
        if self._poll_count % POLLS_PER_PIN_CHECK == 0:
            self._load_pinned()
        self._poll_count += 1
        self._evict_idle(self._linger_seconds)
        loaded = list(self._loader.loaded_models.values())
        self._metrics.models_loaded.set(len(loaded))
        self._metrics.filters_loaded.set(sum(loaded_model.n_filters for loaded_model in loaded))

    def close(self) -> None:
        """Stop loading and drop all versions."""
        self._switch.close()
        self._load_pool.shutdown(wait=True, cancel_futures=True)
        self._loader.close()
        self._endpoints.clear()

    def _pick(self, target: ModelTarget, active: ActiveVersions) -> LoadedModel:
        """Return the active version that answers this target."""
        endpoint = self._endpoints.find(target.tenant, target.reference)
        if endpoint is not None:
            self._endpoints.touch(endpoint)
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
        endpoint = self._endpoints.of(target.tenant, target.reference)
        try:
            endpoint.resolve_route()
        except XcrayError:
            self._endpoints.remove(endpoint)
            raise
        if endpoint.active is None or (
            endpoint.stale_since is not None and endpoint.is_overdue(self._switch_seconds)
        ):
            return None
        if endpoint.stale_since is not None:
            self._switch.start(endpoint)
        return endpoint.active

    def _load_pinned(self) -> None:
        """Load the pinned references before requests need them."""
        pinned = set()
        for tenant in self._tenants():
            registry = self._registry_of(tenant)
            for name in registry.names():
                pinned |= {(tenant, reference) for reference in registry.pins.read(name)[0]}
        self._endpoints.pinned = pinned
        for tenant, reference in pinned:
            if self._endpoints.find(tenant, reference) is None:
                try:
                    self.get(ModelTarget(tenant, reference))
                except XcrayError as error:
                    LOGGER.warning(
                        "a pinned model can't be loaded",
                        extra={"model": reference, "detail": error.message},
                    )

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

    def _evict_idle(self, linger: float) -> None:
        """Drop versions that were unused for `linger` seconds or are deleted.

        Requests that hold one finish with it.
        """
        now = self._clock()
        with self._endpoints.lock:
            needed = {
                key
                for endpoint in self._endpoints.all()
                for key in (*endpoint.active_keys(), *endpoint.target_keys())
            }
            idle = [key for key in list(self._loader.loaded_models) if key not in needed]
            self._idle_since = {key: self._idle_since.get(key, now) for key in idle}
            idle_since = dict(self._idle_since)
        for key, since in idle_since.items():
            tenant, name, version = key
            if now - since >= linger or version not in self._registry_of(tenant).versions(name):
                self._drop_version(key)

    def _evict_excess(self, endpoint: Endpoint) -> None:
        """Drop versions beyond the capacity: unused first, then least recently used.

        Pinned versions are never dropped.
        """
        while len(self._loader.loaded_models) > self._capacity:
            with self._endpoints.lock:
                others = [other for other in self._endpoints.all() if other.active is not None]
                last_uses: dict[ModelKey, float] = dict.fromkeys(self._loader.loaded_models, -1.0)
                for other in others:
                    is_pinned = (
                        other is endpoint
                        or (other.tenant, other.reference) in self._endpoints.pinned
                    )
                    for key in other.active_keys() & set(last_uses):
                        last_uses[key] = max(
                            last_uses[key], float("inf") if is_pinned else other.last_used
                        )
                victim = min(last_uses, key=lambda key: last_uses[key], default=None)
                if victim is None or last_uses[victim] == float("inf"):
                    return
                for other in [other for other in others if victim in other.active_keys()]:
                    self._endpoints.pop(other)
            self._drop_version(victim)

    def _drop_version(self, key: ModelKey) -> None:
        """Drop a loaded version."""
        self._idle_since.pop(key, None)
        if self._loader.drop(key) is not None:
            self._metrics.model_unloads.inc()
