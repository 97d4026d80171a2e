"""Copies of requests for a version that is tried out unheard: computed after the reply was sent, compared, added up.

One thread, nicer than those that answer, works off a short queue; what does not fit is dropped and counted. Nothing that happens
here delays or fails a reply. Figures are by (alias, who answered, shadow), added up in the store over all processes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.errors import XcrayError
from xcray.jobs.store.counters import Counter, counter
from xcray.jobs.store.job_store import JobStore
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.models.loading import Loaded
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER
from xcray.service.prediction.encode import names_of
from xcray.system.processes import lower_thread_priority

MOST: Final = 64  # copies that wait
MOST_ROWS: Final = 2048  # rows of these together
SUMS: Final = (
    "requests",
    "rows",
    "top1",
    "overlap",
    "answer_seconds",
    "shadow_seconds",
    "failed",
    "dropped",
)
PREFIX: Final = "shadow_"


class Copy(NamedTuple):
    """A request that was answered. take: a model -> its rows; labels: (n, k), what was answered; seconds: how long that took."""

    reference: str
    answered: Loaded
    shadow: Loaded
    take: Callable[[Model], Any]
    n_rows: int
    k: int
    allow: list[str] | None
    deny: list[str] | None
    labels: np.ndarray
    seconds: float


class Pair(NamedTuple):
    """Who answered, and which shadow was compared with it."""

    answered: int
    shadow: int


class Shadows:
    """Computes copies and keeps figures of them. `offer` never waits."""

    def __init__(self, registry_of: Callable[[str], Registry], gauges: Gauges) -> None:
        self._registry_of = registry_of
        self._gauges = gauges
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-shadow", initializer=lower_thread_priority
        )
        self._lock = threading.Lock()
        self._sums: dict[Counter, float] = defaultdict(float)
        self._waiting = self._rows = 0
        self._closed = False

    def offer(self, copy: Copy) -> None:
        """Compute a copy soon, or drop it when too many wait."""
        with self._lock:
            full = self._waiting >= MOST or (
                self._waiting > 0 and self._rows + copy.n_rows > MOST_ROWS
            )
            if full or self._closed:
                self._add(copy, dropped=1)
                self._gauges.shadowed.labels("dropped").inc()
                return
            self._waiting += 1
            self._rows += copy.n_rows
        self._pool.submit(self._compute, copy)

    def flush(self, store: JobStore) -> None:
        """Add what was counted since to the store. Raises Unavailable; nothing is lost then."""
        with self._lock:
            found, self._sums = self._sums, defaultdict(float)
        if not found:
            return
        try:
            store.count_all(found)
        except BaseException:
            with self._lock:
                for name, value in found.items():
                    self._sums[name] += value
            raise

    def settle(self) -> None:
        """Wait until all copies so far are computed."""
        self._pool.submit(lambda: None).result()

    def close(self) -> None:
        """Compute no more."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compute(self, copy: Copy) -> None:
        """One copy."""
        begun = time.perf_counter()
        try:
            top1, overlap = self._compared(copy)
            seconds = time.perf_counter() - begun
            outcome = "same" if top1 == copy.n_rows and overlap == copy.n_rows else "different"
            told = {"requests": 1, "rows": copy.n_rows, "top1": top1, "overlap": overlap}
            told |= {"answer_seconds": copy.seconds, "shadow_seconds": seconds}
            self._gauges.shadow_seconds.observe(seconds)
        except Exception as error:  # the shadow's own trouble: it is counted, and harms nobody
            LOGGER.warning(
                "a shadow failed",
                extra={
                    "model": copy.shadow.name,
                    "version": copy.shadow.version,
                    "detail": str(error),
                },
            )
            outcome, told = "failed", {"failed": 1}
        self._gauges.shadowed.labels(outcome).inc()
        with self._lock:
            self._waiting -= 1
            self._rows -= copy.n_rows
            self._add(copy, **told)

    def _compared(self, copy: Copy) -> tuple[int, float]:
        """In how many rows the best label is the same, and the sum over rows of the share of labels that both have."""
        predictor = copy.shadow.predictor
        among = copy.shadow.filter(copy.allow, copy.deny, self._registry_of(copy.shadow.tenant))
        found = predictor.answer(copy.take(predictor.model), copy.k, allow=among).labels
        ours = names_of(copy.answered.predictor.model.label_names, copy.labels)
        theirs = names_of(predictor.model.label_names, found)
        top1 = sum(a[:1] == b[:1] for a, b in zip(ours, theirs, strict=True))
        overlap = sum(
            len({*a} & {*b}) / max(1, len(a), len(b)) for a, b in zip(ours, theirs, strict=True)
        )
        return top1, overlap

    def _add(self, copy: Copy, **values: float) -> None:
        """Count; the caller holds the lock."""
        named = labels_of(
            copy.shadow.tenant, copy.reference, Pair(copy.answered.version, copy.shadow.version)
        )
        for name, value in values.items():
            self._sums[counter(PREFIX + name, **named)] += value


def labels_of(tenant: str, reference: str, pair: Pair) -> dict[str, str]:
    """The labels of the counters of a pair in the store. These are names somebody chose: they are shown to their tenant only."""
    return {
        "tenant": tenant,
        "reference": reference,
        "answered": str(pair.answered),
        "shadow": str(pair.shadow),
    }


def figures(store: JobStore, tenant: str, reference: str) -> dict[Pair, dict[str, float]]:
    """What is known of an alias over all processes: by who answered and which shadow, the sums of `SUMS`. Raises Unavailable."""
    found: dict[Pair, dict[str, float]] = {}
    for name, labels, value in store.counters():
        if name.startswith(PREFIX) and (labels.get("tenant"), labels.get("reference")) == (
            tenant,
            reference,
        ):
            pair = Pair(int(labels["answered"]), int(labels["shadow"]))
            found.setdefault(pair, dict.fromkeys(SUMS, 0.0))[name.removeprefix(PREFIX)] = value
    return found


def flushed(shadows: Shadows, store: JobStore) -> None:
    """`flush`, when the store answers; else what was counted waits."""
    try:
        shadows.flush(store)
    except XcrayError as error:
        LOGGER.warning("figures of shadows wait for the store", extra={"detail": error.message})
