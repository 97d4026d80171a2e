"""Loaded models: mapped on first use, a few at a time, shared by all requests.

A version never changes and its number is never used again, so (name, version) is the key, and where an alias points is read
anew for each request. A request holds its predictor until it is answered: dropping one from here harms nobody.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from xcray.errors import Corrupt, NotFound, Unavailable, XcrayError
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.service.gauges import Gauges
from xcray.service.logs import LOGGER

Opener: TypeAlias = Callable[[Path], Predictor]


WAITING = 32  # requests per thread that may wait; more are told to come again, which is kinder than a queue without end


class Loaded(NamedTuple):
    """A predictor with the version it is."""

    name: str
    version: int
    predictor: Predictor


def open_predictor(path: Path) -> Predictor:
    """Map a model and warm it up: the first real question should not wait for kernels to load."""
    predictor = Predictor(Model.open(path, verify=True))
    if predictor.model.text is not None:
        predictor.predict(["warm up"], 1)
    return predictor


class PredictorCache:
    """The predictors used last, at most `capacity`. Safe for many threads; one model is loaded once, others meanwhile answer."""

    def __init__(
        self, registry: Registry, gauges: Gauges, capacity: int, opener: Opener = open_predictor, *, threads: int = 1
    ) -> None:
        self._registry = registry
        self._gauges = gauges
        self._capacity = capacity
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="xcray-predict")
        self._places = threading.Semaphore(threads * (1 + WAITING))
        self._open = opener
        self._lock = threading.Lock()
        self._loaded: OrderedDict[tuple[str, int], Loaded] = OrderedDict()
        self._loading: dict[tuple[str, int], threading.Lock] = {}

    def get(self, reference: str) -> Loaded:
        """The predictor of "name", "name@alias" or "name:3", as it stands now. Raises NotFound, ParameterError, Corrupt."""
        key = self._registry.locate(reference)
        found = self._known(key)
        if found is not None:
            return found
        with self._lock:
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            return self._known(key) or self._load(key)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among those that compute or wait. Raises Unavailable BUSY when there is none."""
        if not self._places.acquire(blocking=False):
            raise Unavailable("too many predictions are waiting: try again in a second", code="BUSY", retry_after=1)
        try:
            yield
        finally:
            self._places.release()

    def forget(self, name: str, version: int) -> None:
        """Drop one; requests that hold it finish with it."""
        with self._lock:
            self._loaded.pop((name, version), None)

    def close(self) -> None:
        """Drop all; no more are computed."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._loaded.clear()

    def _known(self, key: tuple[str, int]) -> Loaded | None:
        """One that is loaded, marked as used."""
        with self._lock:
            if key in self._loaded:
                self._loaded.move_to_end(key)
            return self._loaded.get(key)

    def _load(self, key: tuple[str, int]) -> Loaded:
        """Map a model and remember it; the caller has its turn."""
        name, version = key
        try:
            loaded = Loaded(name, version, self._open(self._registry.resolve(f"{name}:{version}")))
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
