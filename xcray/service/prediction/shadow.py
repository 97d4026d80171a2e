"""Shadow traffic: copies of requests are answered by a shadow version and compared.

A copy is computed after the reply was sent. One low-priority thread works off a short queue; copies
that do not fit are dropped and counted. Nothing here delays or fails a reply. The statistics are
kept per (alias, primary version, shadow version) and summed in the store over all processes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.jobs.store.counters import Counter, CounterTable, make_counter
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.models.loading import LoadedModel
from xcray.service.observability.metrics import Metrics
from xcray.service.observability.request_log import LOGGER
from xcray.system.processes import lower_thread_priority

MAX_WAITING: Final = 64  # copies in the queue
MAX_WAITING_ROWS: Final = 2048  # rows of these copies
SUM_NAMES: Final = (
    "requests",
    "rows",
    "top1",
    "overlap",
    "answer_seconds",
    "shadow_seconds",
    "failed",
    "dropped",
)
COUNTER_PREFIX: Final = "shadow_"


class ShadowCopy(NamedTuple):
    """A request that was answered.

    encode: model -> its input rows. labels: (n, k), the labels that were answered.
    seconds: duration of the primary answer.
    """

    reference: str
    primary: LoadedModel
    shadow: LoadedModel
    encode: Callable[[Model], Any]
    n_rows: int
    k: int
    allow: list[str] | None
    deny: list[str] | None
    labels: np.ndarray
    seconds: float


class VersionPair(NamedTuple):
    """The version that answered and the shadow that was compared with it."""

    primary: int
    shadow: int


class ShadowRunner:
    """Runs shadow copies and keeps their statistics. `submit` never blocks."""

    def __init__(self, registry_of: Callable[[str], Registry], metrics: Metrics) -> None:
        self._registry_of = registry_of
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-shadow", initializer=lower_thread_priority
        )
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._sums: dict[Counter, float] = defaultdict(float)
        self._waiting = self._rows = 0
        self._closed = False

    def submit(self, copy: ShadowCopy) -> None:
        """Queue a copy, or drop it if the queue is full."""
        with self._lock:
            full = self._waiting >= MAX_WAITING or (
                self._waiting > 0 and self._rows + copy.n_rows > MAX_WAITING_ROWS
            )
            if full or self._closed:
                self._add_sums(copy, dropped=1)
                self._metrics.shadow_requests.labels("dropped").inc()
                return
            self._waiting += 1
            self._rows += copy.n_rows
        self._pool.submit(self._compute, copy)

    def flush(self, counters: CounterTable) -> None:
        """Add the sums since the last flush to the store, after a flush that is running.

        Raises Unavailable; the sums are kept then.
        """
        with self._flush_lock:
            with self._lock:
                sums, self._sums = self._sums, defaultdict(float)
            if not sums:
                return
            try:
                counters.increment_all(sums)
            except BaseException:
                with self._lock:
                    for name, value in sums.items():
                        self._sums[name] += value
                raise

    def close(self) -> None:
        """Stop; queued copies are cancelled."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compute(self, copy: ShadowCopy) -> None:
        """Compute and compare one copy."""
        started = time.perf_counter()
        try:
            top1, overlap = self._compare(copy)
            seconds = time.perf_counter() - started
            outcome = "same" if top1 == copy.n_rows and overlap == copy.n_rows else "different"
            sums = {"requests": 1, "rows": copy.n_rows, "top1": top1, "overlap": overlap}
            sums |= {"answer_seconds": copy.seconds, "shadow_seconds": seconds}
        except Exception as error:  # counted only: a failing shadow affects no reply
            LOGGER.warning(
                "a shadow failed",
                extra={
                    "model": copy.shadow.name,
                    "version": copy.shadow.version,
                    "detail": str(error),
                },
            )
            outcome, sums = "failed", {"failed": 1}
        self._metrics.shadow_requests.labels(outcome).inc()
        with self._lock:
            self._waiting -= 1
            self._rows -= copy.n_rows
            self._add_sums(copy, **sums)

    def _compare(self, copy: ShadowCopy) -> tuple[int, float]:
        """Return the number of rows with the same best label and the sum of label overlaps per row.

        The overlap of a row is the share of labels that both answers have.
        """
        predictor = copy.shadow.predictor
        label_filter = copy.shadow.filter(
            copy.allow, copy.deny, self._registry_of(copy.shadow.tenant)
        )
        labels = predictor.search(copy.encode(predictor.model), copy.k, allow=label_filter).labels
        primary_names = copy.primary.label_names.rows(copy.labels)
        shadow_names = copy.shadow.label_names.rows(labels)
        top1 = sum(a[:1] == b[:1] for a, b in zip(primary_names, shadow_names, strict=True))
        overlap = sum(
            len({*a} & {*b}) / max(1, len(a), len(b))
            for a, b in zip(primary_names, shadow_names, strict=True)
        )
        return top1, overlap

    def _add_sums(self, copy: ShadowCopy, **values: float) -> None:
        """Add values to the sums; the caller holds the lock."""
        labels = counter_labels(
            copy.shadow.tenant,
            copy.reference,
            VersionPair(copy.primary.version, copy.shadow.version),
        )
        for name, value in values.items():
            self._sums[make_counter(COUNTER_PREFIX + name, **labels)] += value


def counter_labels(tenant: str, reference: str, pair: VersionPair) -> dict[str, str]:
    """Return the counter labels of a pair in the store.

    They contain names chosen by users and are therefore shown only to their tenant.
    """
    return {
        "tenant": tenant,
        "reference": reference,
        "answered": str(pair.primary),
        "shadow": str(pair.shadow),
    }


def shadow_statistics(
    counters: CounterTable, tenant: str, reference: str
) -> dict[VersionPair, dict[str, float]]:
    """Return the sums of `SUM_NAMES` of an alias over all processes, by version pair.

    Raises Unavailable.
    """
    statistics: dict[VersionPair, dict[str, float]] = {}
    for name, labels, value in counters.list_all():
        if name.startswith(COUNTER_PREFIX) and (labels.get("tenant"), labels.get("reference")) == (
            tenant,
            reference,
        ):
            pair = VersionPair(int(labels["answered"]), int(labels["shadow"]))
            statistics.setdefault(pair, dict.fromkeys(SUM_NAMES, 0.0))[
                name.removeprefix(COUNTER_PREFIX)
            ] = value
    return statistics
