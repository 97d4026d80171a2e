"""Loaded models: mapped on first use, a few at a time, shared by all requests.

A version never changes and its number is never used again, so (tenant, name, version) is the key, and where an alias points is read
anew for each request. A request holds its predictor until it is answered: dropping one from here harms nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from xcray.arrays import csr
from xcray.errors import Corrupt, NotFound, XcrayError
from xcray.index.filters import LabelFilter
from xcray.kernels.lists import NARROW
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.predict.labels import SET
from xcray.service.gauges import Gauges
from xcray.service.logs import LOGGER

Opener: TypeAlias = Callable[[Path], Predictor]

WARM_FEATURES: Final = 64
WARM_KS: Final = (1, 5, 100)
LOADERS: Final = 2  # models that are loaded at the same time
PLACES: Final = 1024  # references whose place is remembered
FILTERS: Final = 8  # label filters that are kept for each model
Key: TypeAlias = tuple[str, str, int]  # tenant, name, version
FilterKey: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]


class Wanted(NamedTuple):
    """What a request asks: a tenant's "name", "name@alias" or "name:3". key: what chooses among the versions of a split."""

    tenant: str
    reference: str
    key: str = ""


class Loaded:
    """A predictor with the version it is. `answerer`: what replies say of it, as JSON."""

    def __init__(self, tenant: str, name: str, version: int, predictor: Predictor) -> None:
        self.tenant, self.name, self.version, self.predictor = tenant, name, version, predictor
        self.key: Key = (tenant, name, version)
        self.answerer = msgspec.json.encode({"name": name, "version": version, "sha256": predictor.model.sha256})
        self._filters: OrderedDict[FilterKey, LabelFilter] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, allow: list[str] | None, deny: list[str] | None, registry: Registry) -> LabelFilter | None:
        """Which labels may be answered, see `Predictor.filter`; the last few are kept, but those of sets, which may change."""
        key = (tuple(allow) if allow is not None else None, tuple(deny) if deny is not None else None)
        with self._lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        found = self.predictor.filter(allow, deny, sets=registry.sets(self.name))
        if found is not None and not any(label.startswith(SET) for label in (*(allow or ()), *(deny or ()))):
            with self._lock:
                self._filters[key] = found
                while len(self._filters) > FILTERS:
                    self._filters.popitem(last=False)
        return found


def open_predictor(path: Path) -> Predictor:
    """Map a model and warm it up: the first real question should not wait for kernels to load."""
    predictor = Predictor(Model.open(path, verify=True))
    model = predictor.model
    features = np.linspace(0, model.n_features, min(WARM_FEATURES, model.n_features), endpoint=False).astype(np.int32)
    row = csr([0, len(features)], features, np.full(len(features), 1.0 / max(1, len(features)) ** 0.5), model.n_features)
    for k in WARM_KS:  # the search chooses its method by k: each is loaded, or compiled, here and not on the event loop
        predictor.predict(row, k)
    if predictor.likely == "softmax" and predictor.index.lists.width == NARROW:  # wide ones turn their weights for it: when asked
        predictor.log_normaliser(row)
    if model.text is not None:
        predictor.predict(["warm up"], 1)
    return predictor


class PredictorCache:
    """The predictors used last, at most `capacity`. Safe for many threads; one model is loaded once, others meanwhile answer."""

    def __init__(
        self, registry_of: Callable[[str], Registry], gauges: Gauges, capacity: int, opener: Opener = open_predictor
    ) -> None:
        """registry_of: the registry of a tenant."""
        self._registry_of = registry_of
        self._gauges = gauges
        self._capacity = capacity
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="xcray-load")
        self._open = opener
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Key, Loaded] = OrderedDict()
        self._loading: dict[Key, threading.Lock] = {}
        self._located: dict[tuple[str, str], tuple[tuple[int, ...], Key]] = {}

    async def find(self, wanted: Wanted) -> Loaded:
        """`get` on the event loop: at once when it is loaded, else a thread loads it."""
        found = self._known(self._locate(wanted))
        if found is None:
            found = await asyncio.get_running_loop().run_in_executor(self._loaders, self.get, wanted)
        return found

    def get(self, wanted: Wanted) -> Loaded:
        """The predictor that a request wants, as it stands now. Raises NotFound, ParameterError, Corrupt."""
        key = self._locate(wanted)
        found = self._known(key)
        if found is not None:
            return found
        with self._lock:
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            return self._known(key) or self._load(key)

    def forget(self, tenant: str, name: str, version: int) -> None:
        """Drop one; requests that hold it finish with it."""
        with self._lock:
            self._loaded.pop((tenant, name, version), None)

    def held(self, tenant: str) -> set[tuple[str, int]]:
        """(name, version) of those of a tenant that are loaded now."""
        with self._lock:
            return {(name, version) for owner, name, version in self._loaded if owner == tenant}

    def forget_deleted(self) -> None:
        """Drop those whose version another process has deleted: while it is mapped, its space is not free."""
        with self._lock:
            held = list(self._loaded)
        for tenant, name, version in held:
            if version not in self._registry_of(tenant).versions(name):
                self.forget(tenant, name, version)

    def close(self) -> None:
        """Drop all; no more are loaded."""
        self._loaders.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._loaded.clear()

    def _locate(self, wanted: Wanted) -> Key:
        """What a reference stands for now: as remembered, while nothing has changed for its name."""
        tenant, reference, _ = wanted
        registry = self._registry_of(tenant)
        stamp = registry.stamp(reference.partition(":")[0].partition("@")[0])
        known = self._located.get((tenant, reference))
        if known is not None and known[0] == stamp:
            return known[1]
        found = (tenant, *registry.locate(reference))
        if stamp is not None:
            if len(self._located) >= PLACES:
                self._located.clear()
            self._located[tenant, reference] = (stamp, found)
        return found

    def _known(self, key: Key) -> Loaded | None:
        """One that is loaded, marked as used."""
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            return self._loaded.get(key)

    def _load(self, key: Key) -> Loaded:
        """Map a model and remember it; the caller has its turn."""
        tenant, name, version = key
        try:
            loaded = Loaded(tenant, name, version, self._open(self._registry_of(tenant).resolve(f"{name}:{version}")))
        except XcrayError as error:
            self._gauges.model_loads.labels("failed").inc()
            LOGGER.error("a model can't be loaded", extra={"model": name, "version": version, "detail": error.message})
            if isinstance(error, NotFound):
                raise
            raise Corrupt(
                f"version {version} of model {name} can't be loaded: its files are not what was written",
                hint="ask for another version (name:N), or train it again",
            ) from error
        self._gauges.model_loads.labels("loaded").inc()
        with self._lock:
            self._loading.pop(key, None)
            self._loaded[key] = loaded
            while len(self._loaded) > self._capacity:
                self._loaded.popitem(last=False)
        return loaded
