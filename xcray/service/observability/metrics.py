"""Figures for Prometheus. Labels are routes, methods, states, codes: never a name somebody chose, so the series are few and fixed.

Two kinds, told apart by the first words of each help text. "Of this replica": counted by the processes of one service; sum them
over replicas. "Of the store" (`store_figures`): what all share, the same from every replica and runner; take one, never the sum.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

METRICS: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client adds the figures of all processes up by files in this folder
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG_SECONDS: Final = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
REPLICA: Final = "Of this replica: "
REFUSED: Final = frozenset(
    {401, 403, 408, 413, 429, 431, 503, 507}
)  # statuses whose reasons are counted
MOST_CODES: Final = 40  # codes of refusals that are told apart; they are constants of this program, and still: no more

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, that says only when a process began


class Gauges:
    """The figures of one app; each app has its own registry. Counters end in _total when they are shown."""

    def __init__(self, *more: Collector) -> None:
        """more: collectors whose figures are read when somebody asks, see `store_figures` and `Disk`."""
        self._registry = CollectorRegistry()
        self._more = list(more)
        self._codes: set[str] = set()
        self.labels: dict[str, tuple[str, ...]] = {}  # of each figure, by its name
        self._requests()
        self._predictions()
        self._models()
        self._inside()
        for collector in more:
            self._registry.register(collector)
        if METRICS not in os.environ:
            process_figures(self._registry)

    def _requests(self) -> None:
        """What came in over HTTP."""
        self.requests = self._counter(
            "xcray_http_requests", "requests answered", "route", "method", "status"
        )
        self.seconds = self._histogram(
            "xcray_http_request_seconds", "seconds from a request's head to its last byte", "route"
        )
        self.under_way = self._gauge(
            "xcray_http_requests_under_way", "requests that are being answered"
        )
        self.refusals = self._counter(
            "xcray_http_refusals",
            "requests refused for their sender's or our limits, by code",
            "code",
        )
        self.uploaded = self._counter("xcray_uploaded_bytes", "bytes of whole uploads")
        self.streams = self._gauge("xcray_event_streams", "event streams that are open")

    def _predictions(self) -> None:
        """What was answered."""
        self.instances = self._counter("xcray_predict_instances", "instances predicted")
        self.predict_seconds = self._histogram(
            "xcray_predict_seconds", "seconds from a predict request's body to its reply"
        )
        self.labels_scored = self._counter(
            "xcray_predict_labels_scored", "labels whose score was computed in full"
        )
        self.postings_read = self._counter(
            "xcray_predict_postings_read", "entries of the index's lists that were read"
        )
        self.exact = self._counter(
            "xcray_predict_exact", "instances whose answer is proved to be exact"
        )
        self.routed = self._counter(
            "xcray_predict_routed",
            "requests to a weighted alias, by who answered: stable or canary",
            "to",
            values=("stable", "canary"),
        )
        self.shadowed = self._counter(
            "xcray_predict_shadowed",
            "requests answered by a shadow too: same, different, failed or dropped",
            "outcome",
            values=("same", "different", "failed", "dropped"),
        )
        self.shadow_seconds = self._histogram(
            "xcray_predict_shadow_seconds", "seconds that a shadow took"
        )

    def _models(self) -> None:
        """What is mapped."""
        loads = "models mapped: loaded or failed"
        self.model_loads = self._counter(
            "xcray_model_loads", loads, "outcome", values=("loaded", "failed")
        )
        self.model_load_seconds = self._histogram(
            "xcray_model_load_seconds", "seconds to map, check and warm a model", long=True
        )
        self.model_unloads = self._counter("xcray_model_unloads", "models let go")
        self.models_loaded = self._gauge("xcray_models_loaded", "models that are mapped")
        self.filters_loaded = self._gauge("xcray_filters_loaded", "label filters that are kept")
        finds = self._counter(
            "xcray_model_finds",
            "requests that asked for a model, by whether it was mapped or had to be waited for",
            "how",
        )
        self.found_mapped, self.found_waited = finds.labels("mapped"), finds.labels("waited")
        self.swaps = self._counter(
            "xcray_model_swaps", "times that a name or an alias came to mean another version"
        )
        self.models_unmirrored = self._gauge(
            "xcray_models_unmirrored", "published versions not in XCRAY_MODELS_MIRROR yet"
        )
        self.models_unfollowed = self._gauge(
            "xcray_models_unfollowed",
            "models of XCRAY_MODELS_FOLLOW that could not be brought here",
        )
        self.model_transfer_failures = self._counter(
            "xcray_model_transfer_failures",
            "turns of mirror or follow that had trouble",
            "direction",
            values=("mirror", "follow"),
        )

    def _inside(self) -> None:
        """What the service does for itself."""
        built = "data sets built, by how it ended"
        self.builds = self._counter(
            "xcray_dataset_builds", built, "outcome", values=("ready", "failed")
        )
        self.build_seconds = self._histogram(
            "xcray_dataset_build_seconds", "seconds to build a data set", long=True
        )
        self.store_seconds = self._histogram(
            "xcray_store_seconds", "seconds of a transaction of the store", "door"
        )
        errors = "transactions that the store did not answer"
        self.store_errors = self._counter(
            "xcray_store_errors", errors, "door", values=("read", "write")
        )
        self.loop_lag = self._histogram(
            "xcray_loop_lag_seconds", "seconds that the event loop was late"
        )

    def text(self) -> bytes:
        """All figures in Prometheus' text format; those of several workers added up, whichever is asked."""
        if METRICS not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        for collector in self._more:
            together.register(collector)
        return generate_latest(together)

    def add(self, collector: Collector) -> None:
        """Show one more collector's figures."""
        self._more.append(collector)
        self._registry.register(collector)

    def families(self) -> Iterator[Metric]:
        """All figures, as they are now: what a page of documentation lists."""
        yield from self._registry.collect()

    def refused(self, status: int, code: str) -> None:
        """Count an answer that says no. code: of its problem document."""
        if status not in REFUSED:
            return
        if code not in self._codes and len(self._codes) >= MOST_CODES:
            code = "OTHER"
        self._codes.add(code)
        self.refusals.labels(code).inc()

    def searched(self, rows: int, labels_scored: int, postings_read: int, exact: int) -> None:
        """Count what one search took: so many rows, of which `exact` are proved."""
        self.instances.inc(rows)
        self.labels_scored.inc(labels_scored)
        self.postings_read.inc(postings_read)
        self.exact.inc(exact)

    def stored(self, door: str, seconds: float, answered: bool) -> None:
        """Note a transaction of the store; door: read or write."""
        self.store_seconds.labels(door).observe(seconds)
        if not answered:
            self.store_errors.labels(door).inc()

    def _counter(self, name: str, what: str, *labels: str, values: Iterable[str] = ()) -> Counter:
        """A figure that only rises. values: of its one label, where they are known: shown from the start, as 0, for what shows
        first as 1 has never risen."""
        self.labels[name] = labels
        counter = Counter(name, f"{REPLICA}{what}.", labels, registry=self._registry)
        for value in values:
            counter.labels(value)
        return counter

    def _gauge(self, name: str, what: str) -> Gauge:
        """A figure as it is now; of several processes, those that live are added up."""
        return Gauge(
            name, f"{REPLICA}{what}.", registry=self._registry, multiprocess_mode="livesum"
        )

    def _histogram(self, name: str, what: str, *labels: str, long: bool = False) -> Histogram:
        """How long things take; `long`: those that may take minutes."""
        self.labels[name] = labels
        buckets = LONG_SECONDS if long else SECONDS
        return Histogram(
            name, f"{REPLICA}{what}.", labels, buckets=buckets, registry=self._registry
        )


class Failing(Collector):
    """Which checks of readiness fail."""

    def __init__(self, failing: Callable[[], Mapping[str, bool]]) -> None:
        self._failing = failing

    def collect(self) -> Iterable[Metric]:
        """One figure for each check."""
        family = GaugeMetricFamily(
            "xcray_check_failing", f"{REPLICA}1 while a check of readiness fails.", labels=["check"]
        )
        for code, fails in self._failing().items():
            family.add_metric([code], fails)
        return [family]

    def describe(self) -> Iterable[Metric]:
        """Its name: which checks there are is known later."""
        return [GaugeMetricFamily("xcray_check_failing", "")]


class Disk(Collector):
    """How full the disk of a home is."""

    def __init__(self, path: Path, reserve: int) -> None:
        """reserve: bytes that uploads must leave."""
        self._path = path
        self._reserve = reserve

    def collect(self) -> Iterable[Metric]:
        """Free, all, reserved."""
        disk = shutil.disk_usage(self._path)
        for name, what, value in (
            ("free", "free on the disk of the home", disk.free),
            ("size", "size of the disk of the home", disk.total),
            ("reserve", "bytes that uploads must leave free there", self._reserve),
        ):
            yield GaugeMetricFamily(f"xcray_disk_{name}_bytes", f"{REPLICA}{what}.", value)

    def describe(self) -> Iterable[Metric]:
        """The same: looking costs nothing."""
        return self.collect()


def process_figures(registry: CollectorRegistry) -> None:
    """Memory, processor seconds, file descriptors and garbage collections of this process, by their usual names."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
