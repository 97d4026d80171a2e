"""Loading of model versions: verification, memory mapping, warm-up, and a record of failures.

A version that failed to load is not tried again for a while, because verification reads the whole
model. A version whose files do not match their checksums is marked corrupt in the registry, visible
to every process and reader. The mark is removed when the version loads again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from xcray.arrays import csr
from xcray.errors import Corrupt, NotFound, XcrayError
from xcray.index.filters import LabelFilter
from xcray.kernels.canonical import first_fault
from xcray.kernels.search.lists import NARROW_BYTES
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.predict.drift import drift_counter
from xcray.predict.labels import SET_PREFIX
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.storage.verified import VerifiedFiles
from xcray.system.file_lock import exclusive_lock
from xcray.telemetry.tracing import span

Opener: TypeAlias = Callable[[Path], Predictor]
ModelKey: TypeAlias = tuple[str, str, int]  # tenant, name, version
FilterKey: TypeAlias = tuple[tuple[str, ...] | None, tuple[str, ...] | None]

WARM_UP: Final = "xcray-warm-up"  # threads that compile kernels
WARM_FEATURES: Final = 64
WARM_KS: Final = (1, 5, 100)
MAX_FILTERS: Final = 8  # cached label filters per model
# delay before a failed version is tried again; it doubles with each failure
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
MAX_FAILURES: Final = 256  # failures that are remembered


class ModelTarget(NamedTuple):
    """Target of a request: a tenant's reference "name", "name@alias" or "name:3".

    key: sticky key that selects a version of a traffic split.
    """

    tenant: str
    reference: str
    key: str = ""


class LoadedModel:
    """A predictor with the version that it is.

    served_by: the `model` object of replies, as JSON. label_names: the names of its labels;
    display_names: those of its label texts, or None. is_in_shards: whether other services hold its
    weights. drift: counts its answers; None if its training kept none to compare them with.
    """

    def __init__(self, tenant: str, name: str, version: int, predictor: Predictor) -> None:
        self.tenant = tenant
        self.name = name
        self.version = version
        self.predictor = predictor
        self.key: ModelKey = (tenant, name, version)
        self.label_names = predictor.model.answer_names
        self.display_names = predictor.model.display_names
        self.is_in_shards = bool(predictor.model.ranges)
        self.drift = drift_counter(predictor.model)
        self.served_by = msgspec.json.encode(
            {"name": name, "version": version, "sha256": predictor.model.sha256}
        )
        self._filters: OrderedDict[FilterKey, LabelFilter] = OrderedDict()
        self._lock = threading.Lock()

    def filter(
        self, allow: list[str] | None, deny: list[str] | None, registry: Registry
    ) -> LabelFilter | None:
        """Return the filter of the allowed labels, see `Predictor.filter`.

        The last `MAX_FILTERS` filters are cached, except those with label sets, which can change.
        """
        key = (
            tuple(allow) if allow is not None else None,
            tuple(deny) if deny is not None else None,
        )
        with self._lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        label_filter = self.predictor.filter(allow, deny, sets=registry.label_sets(self.name))
        if label_filter is not None and not any(
            label.startswith(SET_PREFIX) for label in (*(allow or ()), *(deny or ()))
        ):
            with self._lock:
                self._filters[key] = label_filter
                while len(self._filters) > MAX_FILTERS:
                    self._filters.popitem(last=False)
        return label_filter

    @property
    def n_filters(self) -> int:
        """Return the number of cached label filters."""
        return len(self._filters)


class _SharedVerifiedFiles(VerifiedFiles):
    """Verified checksums that processes share: one hashes a model while the others wait."""

    def verify(self, directory: Path, digests: Mapping[str, Mapping[str, Any]]) -> bool:
        """Compare the files that no process has verified, see the base class."""
        with exclusive_lock(self.memory.with_suffix(".lock")):
            return super().verify(directory, digests)


def open_predictor(path: Path) -> Predictor:
    """Map a model, verify all checksums, and warm it up.

    After the warm-up, no request has to wait for kernels to load.
    """
    predictor = Predictor(Model.open(path, verify=True))
    _warm_up_input(predictor)
    _warm_up_search(predictor)
    return predictor


def open_predictor_soon(path: Path, verified: Path | None = None) -> Predictor:
    """Do the same, but compile kernels for the search in a thread, if it can do without them.

    Until they are compiled, as after installation, requests are answered with NumPy. verified: a
    JSON file with the checksums that a process of this service has verified.
    """
    files = True if verified is None else _SharedVerifiedFiles(verified)
    predictor = Predictor(Model.open(path, verify=files))
    _warm_up_input(predictor)
    if predictor.scorer.answers_while_compiling:
        LOGGER.info("compiling kernels, once; predictions use NumPy until then")
        threading.Thread(target=_warm_up_search, args=(predictor,), name=WARM_UP).start()
    else:
        _warm_up_search(predictor)
    return predictor


def _warm_up_input(predictor: Predictor) -> None:
    """Load or compile the kernels that check rows and encode texts."""
    first_fault(csr([0], [], [], predictor.model.n_features))
    if predictor.model.text is not None:
        predictor.features(["warm up"])
        if predictor.model.ranker is not None:
            for k in WARM_KS:
                predictor.predict("warm up", k)


def _warm_up_search(predictor: Predictor) -> None:
    """Load or compile the kernels that search and explain."""
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
    predictor.scorer.compile()
    # the search strategy depends on k: load or compile each here and not on the event loop
    for k in WARM_KS:
        predictor.predict(row, k)
    if model.linear is not None:
        predictor.explain(row, 0, 1)
    # wide lists need a transposed copy of the weights for it, made on demand
    if (
        predictor.probability_source == "softmax"
        and model.linear is not None
        and predictor.model.search.lists.width == NARROW_BYTES
    ):
        predictor.log_normaliser(row)


class LoadFailure(NamedTuple):
    """A version that failed to load: the error, the time of the next try (monotonic), the delay."""

    error: Corrupt
    retry_at: float
    pause: float


class ModelLoader:
    """Loads versions, each once regardless of the number of concurrent requests. Thread-safe."""

    def __init__(
        self,
        registry_of: Callable[[str], Registry],
        metrics: Metrics,
        opener: Opener = open_predictor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty loader. registry_of: returns the registry of a tenant."""
        self.registry_of = registry_of
        self._metrics = metrics
        self._clock = clock
        self.opener = opener
        self.loaded_models: dict[ModelKey, LoadedModel] = {}
        self._failures: OrderedDict[ModelKey, LoadFailure] = OrderedDict()
        self._key_locks: dict[ModelKey, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: ModelKey) -> LoadedModel:
        """Return a version, loading it if necessary.

        Raises NotFound if it was deleted and Corrupt if it can't be loaded.
        """
        loaded = self.loaded_models.get(key)
        if loaded is not None:
            return loaded
        with self._lock:
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            loaded = self.loaded_models.get(key)
            if loaded is None:
                self.raise_failure(key)
                loaded = self._load(key)
        return loaded

    def failure(self, key: ModelKey) -> Corrupt | None:
        """Return the error of a version that failed to load, until it can be tried again."""
        failure = self._failures.get(key)
        return None if failure is None or self._clock() >= failure.retry_at else failure.error

    def raise_failure(self, key: ModelKey) -> None:
        """Raise the error of a version that failed to load and can't be tried again yet."""
        error = self.failure(key)
        if error is not None:
            raise Corrupt(error.message, code=error.code, hint=error.hint, **error.details)

    def drop(self, key: ModelKey) -> LoadedModel | None:
        """Remove and return a version; requests that hold it finish with it."""
        return self.loaded_models.pop(key, None)

    def close(self) -> None:
        """Remove all versions, and wait for warm-ups, as the end of the process would."""
        self.loaded_models.clear()
        for thread in threading.enumerate():
            if thread.name == WARM_UP:
                thread.join()

    def _load(self, key: ModelKey) -> LoadedModel:
        """Load a version and add it; the caller holds the lock of the key."""
        tenant, name, version = key
        registry = self.registry_of(tenant)
        started = time.perf_counter()
        try:
            with span("model load", model=name, version=version):
                loaded = self._open_version(registry, key)
        except NotFound:
            raise
        except Exception as error:
            # any error of a model is recorded for this version and does not affect others
            raise self._record_failure(registry, key, error) from error
        self._metrics.model_loads.labels("loaded").inc()
        self._metrics.model_load_seconds.observe(time.perf_counter() - started)
        with self._lock:
            self._key_locks.pop(key, None)
            earlier = self._failures.pop(key, None)
            self.loaded_models[key] = loaded
        if earlier is not None or version in registry.corrupt.versions(name):
            self._mark_corrupt(registry, name, version, None)
        return loaded

    def _open_version(self, registry: Registry, key: ModelKey) -> LoadedModel:
        """Open a version and check that its hash is the published one."""
        tenant, name, version = key
        loaded = LoadedModel(
            tenant, name, version, self.opener(registry.resolve(f"{name}:{version}"))
        )
        published = registry.published_sha256(name, version)
        if published is not None and published != loaded.predictor.model.sha256:
            raise Corrupt(
                "the model differs from the one published under this number", file="manifest.json"
            )
        return loaded

    def _record_failure(self, registry: Registry, key: ModelKey, error: Exception) -> Corrupt:
        """Log, count and remember a failure, and return the error for the callers."""
        _, name, version = key
        self._metrics.model_loads.labels("failed").inc()
        expected = isinstance(error, XcrayError | OSError | MemoryError)
        detail = (
            error.message if isinstance(error, XcrayError) else f"{type(error).__name__}: {error}"
        )
        LOGGER.error(
            "a model can't be loaded",
            exc_info=None if expected else error,
            extra={"model": name, "version": version, "detail": detail},
        )
        corrupt = isinstance(error, Corrupt)
        reason = (
            "its files differ from what was written"
            if corrupt
            else f"its files can't be read ({type(error).__name__})"
        )
        reported = Corrupt(
            f"version {version} of model {name} can't be loaded: {reason}",
            code="CORRUPT" if corrupt else "UNREADABLE",
            hint="use another version (name:N), restore its files, or train it again",
            **(
                {"file": error.details["file"]}
                if isinstance(error, XcrayError) and "file" in error.details
                else {}
            ),
        )
        with self._lock:
            earlier = self._failures.pop(key, None)
            pause = (
                FIRST_RETRY_SECONDS
                if earlier is None
                else min(MAX_RETRY_SECONDS, 2.0 * earlier.pause)
            )
            self._failures[key] = LoadFailure(reported, self._clock() + pause, pause)
            while len(self._failures) > MAX_FAILURES:
                self._failures.popitem(last=False)
        if corrupt:
            self._mark_corrupt(registry, name, version, detail)
        return reported

    def _mark_corrupt(
        self, registry: Registry, name: str, version: int, reason: str | None
    ) -> None:
        """Set or clear the corrupt mark of a version.

        If the registry can't be written, only the mark for other processes is lost.
        """
        try:
            registry.corrupt.mark(name, version, reason)
        except (XcrayError, OSError) as error:
            LOGGER.warning(
                "a version can't be marked",
                extra={"model": name, "version": version, "detail": str(error)},
            )
