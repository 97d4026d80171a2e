"""A version from its directory to an answering predictor: verified, mapped, warmed; and what is known of those that failed.

What can't be loaded is not tried again for a while: verifying reads the whole model. A version whose files are not what was
written is marked in the registry, for every process and reader to see, and cleared when it loads again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from xcray.arrays import csr
from xcray.errors import Corrupt, NotFound, XcrayError
from xcray.index.filters import LabelFilter
from xcray.kernels.search.lists import NARROW
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.predict.labels import SET
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER
from xcray.telemetry.tracing import span

Opener: TypeAlias = Callable[[Path], Predictor]
Key: TypeAlias = tuple[str, str, int]  # tenant, name, version
FilterKey: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]

WARM_FEATURES: Final = 64
WARM_KS: Final = (1, 5, 100)
FILTERS: Final = 8  # label filters that are kept for each model
FIRST_PAUSE, LONGEST_PAUSE = (
    5.0,
    300.0,
)  # seconds before a version that failed is tried again: twice as long each time
FAILURES: Final = 256  # that are remembered


class Wanted(NamedTuple):
    """What a request asks: a tenant's "name", "name@alias" or "name:3". key: what chooses among the versions of a split."""

    tenant: str
    reference: str
    key: str = ""


class Loaded:
    """A predictor with the version it is. `answerer`: what replies say of it, as JSON."""

    def __init__(self, tenant: str, name: str, version: int, predictor: Predictor) -> None:
        self.tenant = tenant
        self.name = name
        self.version = version
        self.predictor = predictor
        self.key: Key = (tenant, name, version)
        self.answerer = msgspec.json.encode(
            {"name": name, "version": version, "sha256": predictor.model.sha256}
        )
        self._filters: OrderedDict[FilterKey, LabelFilter] = OrderedDict()
        self._lock = threading.Lock()

    def filter(
        self, allow: list[str] | None, deny: list[str] | None, registry: Registry
    ) -> LabelFilter | None:
        """Which labels may be answered, see `Predictor.filter`; the last few are kept, but those of sets, which may change."""
        key = (
            tuple(allow) if allow is not None else None,
            tuple(deny) if deny is not None else None,
        )
        with self._lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        found = self.predictor.filter(allow, deny, sets=registry.sets(self.name))
        if found is not None and not any(
            label.startswith(SET) for label in (*(allow or ()), *(deny or ()))
        ):
            with self._lock:
                self._filters[key] = found
                while len(self._filters) > FILTERS:
                    self._filters.popitem(last=False)
        return found

    @property
    def n_filters(self) -> int:
        """How many label filters it keeps."""
        return len(self._filters)


def open_predictor(path: Path) -> Predictor:
    """Map a model, compare every byte with its checksum, and warm it up: no real question shall wait for kernels to load."""
    predictor = Predictor(Model.open(path, verify=True))
    model = predictor.model
    features = np.linspace(
        0, model.n_features, min(WARM_FEATURES, model.n_features), endpoint=False
    ).astype(np.int32)
    row = csr(
        [0, len(features)],
        features,
        np.full(len(features), 1.0 / max(1, len(features)) ** 0.5),
        model.n_features,
    )
    for k in WARM_KS:  # the search chooses its method by k: each is loaded, or compiled, here and not on the event loop
        predictor.predict(row, k)
    predictor.explain(row, 0, 1)
    if (
        predictor.likely == "softmax" and predictor.index.lists.width == NARROW
    ):  # wide ones turn their weights for it: when asked
        predictor.log_normaliser(row)
    if model.text is not None:
        predictor.predict(["warm up"], 1)
    return predictor


class Failure(NamedTuple):
    """A version that could not be loaded: why, when it may be tried again (monotonic), and how long the pause was."""

    error: Corrupt
    again: float
    pause: float


class Loader:
    """Loads versions, each once however many ask at the same time. Safe for many threads."""

    def __init__(
        self,
        registry_of: Callable[[str], Registry],
        gauges: Gauges,
        opener: Opener = open_predictor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """registry_of: the registry of a tenant."""
        self.registry_of = registry_of
        self._gauges = gauges
        self._clock = clock
        self.open = opener
        self.loaded: dict[Key, Loaded] = {}
        self._failed: OrderedDict[Key, Failure] = OrderedDict()
        self._turns: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Loaded:
        """A version, loaded now when it is not yet. Raises NotFound when it is gone, Corrupt when it can't be loaded."""
        found = self.loaded.get(key)
        if found is not None:
            return found
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            found = self.loaded.get(key)
            if found is None:
                self.raise_failure(key)
                found = self._load(key)
        return found

    def failure(self, key: Key) -> Corrupt | None:
        """Why a version can't be had, while it is not to be tried again."""
        found = self._failed.get(key)
        return None if found is None or self._clock() >= found.again else found.error

    def raise_failure(self, key: Key) -> None:
        """Raise why a version can't be had, if so."""
        error = self.failure(key)
        if error is not None:
            raise Corrupt(error.message, code=error.code, hint=error.hint, **error.details)

    def drop(self, key: Key) -> Loaded | None:
        """Let go of a version; whoever holds it finishes with it."""
        return self.loaded.pop(key, None)

    def close(self) -> None:
        """Let go of all."""
        self.loaded.clear()

    def _load(self, key: Key) -> Loaded:
        """Map a model and remember it; the caller has its turn."""
        tenant, name, version = key
        registry = self.registry_of(tenant)
        begun = time.perf_counter()
        try:
            with span("model load", model=name, version=version):
                loaded = self._opened(registry, key)
        except NotFound:
            raise
        except Exception as error:  # whatever is wrong with a model: it is this version's trouble, told and kept from the others
            raise self._failure_of(registry, key, error) from error
        self._gauges.model_loads.labels("loaded").inc()
        self._gauges.model_load_seconds.observe(time.perf_counter() - begun)
        with self._lock:
            self._turns.pop(key, None)
            known = self._failed.pop(key, None)
            self.loaded[key] = loaded
        if known is not None or version in registry.corrupt(name):
            self._mark(registry, name, version, None)
        return loaded

    def _opened(self, registry: Registry, key: Key) -> Loaded:
        """A version, which must be the one that was published under its number."""
        tenant, name, version = key
        loaded = Loaded(tenant, name, version, self.open(registry.resolve(f"{name}:{version}")))
        published = registry.digest(name, version)
        if published is not None and published != loaded.predictor.model.sha256:
            raise Corrupt(
                "it is another model than was published under this number", file="manifest.json"
            )
        return loaded

    def _failure_of(self, registry: Registry, key: Key, error: Exception) -> Corrupt:
        """Remember, count, tell and mark a failure; the error for those who asked."""
        _, name, version = key
        self._gauges.model_loads.labels("failed").inc()
        foreseen = isinstance(error, XcrayError | OSError | MemoryError)
        detail = (
            error.message if isinstance(error, XcrayError) else f"{type(error).__name__}: {error}"
        )
        LOGGER.error(
            "a model can't be loaded",
            exc_info=None if foreseen else error,
            extra={"model": name, "version": version, "detail": detail},
        )
        corrupt = isinstance(error, Corrupt)
        why = (
            "its files are not what was written"
            if corrupt
            else f"its files can't be read ({type(error).__name__})"
        )
        told = Corrupt(
            f"version {version} of model {name} can't be loaded: {why}",
            code="CORRUPT" if corrupt else "UNREADABLE",
            hint="ask for another version (name:N), restore its files, or train it again",
            **(
                {"file": error.details["file"]}
                if isinstance(error, XcrayError) and "file" in error.details
                else {}
            ),
        )
        with self._lock:
            before = self._failed.pop(key, None)
            pause = FIRST_PAUSE if before is None else min(LONGEST_PAUSE, 2.0 * before.pause)
            self._failed[key] = Failure(told, self._clock() + pause, pause)
            while len(self._failed) > FAILURES:
                self._failed.popitem(last=False)
        if corrupt:
            self._mark(registry, name, version, detail)
        return told

    def _mark(self, registry: Registry, name: str, version: int, reason: str | None) -> None:
        """Write down whether a version is corrupt; a registry that can't be written only keeps others from reading it there."""
        try:
            registry.mark_corrupt(name, version, reason)
        except (XcrayError, OSError) as error:
            LOGGER.warning(
                "a version can't be marked",
                extra={"model": name, "version": version, "detail": str(error)},
            )
