"""Memory budget of the model cache: which loaded versions are dropped, and when."""

from __future__ import annotations

import time
from collections.abc import Callable

from xcray.service.models.endpoints import Endpoint, EndpointTable
from xcray.service.models.loading import ModelKey, ModelLoader
from xcray.service.observability.metrics import Metrics


class MemoryBudget:
    """Drops versions that nothing uses, and those beyond `capacity` versions. Thread-safe."""

    def __init__(
        self,
        endpoints: EndpointTable,
        loader: ModelLoader,
        metrics: Metrics,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self._endpoints = endpoints
        self._loader = loader
        self._registry_of = loader.registry_of
        self._metrics = metrics
        self._clock = clock
        self._idle_since: dict[ModelKey, float] = {}

    def evict_idle(self, linger: float) -> None:
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

    def evict_excess(self, endpoint: Endpoint) -> None:
        """Drop versions beyond the capacity: unused first, then least recently used.

        Pinned versions are never dropped.
        """
        while len(self._loader.loaded_models) > self.capacity:
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
