"""Prometheus metrics. Labels are routes, methods, states and codes, not names chosen by users.

So the time series are few and fixed; only drift has series per loaded version. The first words of
each help text give its scope. "Of this replica": counted by the processes of one service; sum over
replicas. "Of the store" (`store_metrics`): shared by all, the same from every replica and runner;
take one of them, not the sum.
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

from xcray.index.search_result import Bools, SearchResult
from xcray.predict.drift import Drift
from xcray.service import constants

# prometheus_client sums the metrics of all processes through files in this folder.
MULTIPROCESS_DIR_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
DURATION_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)
LONG_DURATION_BUCKETS: Final = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
REPLICA_PREFIX: Final = "Of this replica: "
PROCESS_PREFIX: Final = f"{REPLICA_PREFIX}(one process) "
# Statuses whose problem codes are counted.
REJECTION_STATUSES: Final = frozenset({401, 403, 408, 413, 429, 431, 503, 507})
# Limits the number of time series. The codes are constants, so this is only a safeguard.
MAX_CODES: Final = 40

# Otherwise each series has a second one with only its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Metrics of one app in its own registry. Exported counter names end in _total."""

    def __init__(self, *collectors: Collector) -> None:
        """Create the metrics.

        collectors: their metrics are read at each scrape, see `store_metrics` and `DiskCollector`.
        """
        self._registry = CollectorRegistry()
        self._collectors = list(collectors)
        self._codes: set[str] = set()
        self.labels: dict[str, tuple[str, ...]] = {}  # label names by metric
        self._add_request_metrics()
        self._add_prediction_metrics()
        self._add_model_metrics()
        self._add_internal_metrics()
        for collector in collectors:
            self._registry.register(collector)
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            register_process_metrics(self._registry)

    def _add_request_metrics(self) -> None:
        """Add the metrics of HTTP requests."""
        self.requests = self._counter(
            "xcray_http_requests", "HTTP requests completed", "route", "method", "status"
        )
        self.request_seconds = self._histogram(
            "xcray_http_request_duration_seconds",
            "seconds from the request head to the last byte of the response",
            "route",
        )
        self.requests_in_progress = self._gauge(
            "xcray_http_requests_in_progress", "HTTP requests in progress"
        )
        self.rejected_requests = self._counter(
            "xcray_http_rejected_requests",
            "requests rejected by limits of the caller or the service, by problem code",
            "code",
        )
        self.uploaded = self._counter("xcray_uploaded_bytes", "bytes of complete uploads")
        self.streams = self._gauge("xcray_event_streams", "open event streams")

    def _add_prediction_metrics(self) -> None:
        """Add the metrics of predictions."""
        self.instances = self._counter("xcray_predict_instances", "instances predicted")
        self.empty_instances = self._counter(
            "xcray_predict_empty_instances",
            "instances without a feature of the model: empty, or only unknown words",
        )
        self.predict_seconds = self._histogram(
            "xcray_predict_duration_seconds",
            "seconds from the body of a predict request to its response",
        )
        self.labels_scored = self._counter(
            "xcray_predict_labels_scored", "labels whose score was computed in full"
        )
        self.postings_read = self._counter(
            "xcray_predict_postings_read", "posting list entries read"
        )
        self.certified_instances = self._counter(
            "xcray_predict_certified_instances", "instances whose prediction is proven exact"
        )
        self.routed_requests = self._counter(
            "xcray_predict_requests_routed",
            "requests to a weighted alias, by track: stable or canary",
            "track",
            values=("stable", "canary"),
        )
        self.shadow_requests = self._counter(
            "xcray_predict_shadowed",
            "requests repeated on a shadow version, by outcome: same, different, failed or dropped",
            "outcome",
            values=("same", "different", "failed", "dropped"),
        )

    def _add_model_metrics(self) -> None:
        """Add the metrics of models."""
        loads = "model loads, by outcome: loaded or failed"
        self.model_loads = self._counter(
            "xcray_model_loads", loads, "outcome", values=("loaded", "failed")
        )
        self.model_load_seconds = self._histogram(
            "xcray_model_load_duration_seconds",
            "seconds to map, verify and warm a model",
            long_running=True,
        )
        self.model_unloads = self._counter("xcray_model_unloads", "models unloaded")
        self.models_loaded = self._gauge("xcray_models_loaded", "models in memory")
        self.filters_loaded = self._gauge("xcray_label_filters_cached", "cached label filters")
        finds = self._counter(
            "xcray_model_cache_requests",
            "model lookups of requests: hit, or miss when the request waited for the model to load",
            "result",
            values=("hit", "miss"),
        )
        self.cache_hits, self.cache_misses = finds.labels("hit"), finds.labels("miss")
        self.version_switches = self._counter(
            "xcray_version_switches", "version switches of a name or an alias"
        )

    def _add_internal_metrics(self) -> None:
        """Add the metrics of data set builds, the store and the event loop."""
        built = "data set builds, by outcome"
        self.builds = self._counter(
            "xcray_dataset_builds", built, "outcome", values=("ready", "failed")
        )
        self.store_seconds = self._histogram(
            "xcray_store_transaction_duration_seconds",
            "seconds per store transaction",
            "mode",
        )
        errors = "failed store transactions"
        self.store_errors = self._counter(
            "xcray_store_errors", errors, "mode", values=("read", "write")
        )
        self.event_loop_lag = self._histogram(
            "xcray_event_loop_lag_seconds", "seconds by which the event loop was delayed"
        )

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        With several worker processes, any of them returns the sum.
        """
        if MULTIPROCESS_DIR_VARIABLE not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        for collector in self._collectors:
            registry.register(collector)
        return generate_latest(registry)

    def add_collector(self, collector: Collector) -> None:
        """Register a further collector."""
        self._collectors.append(collector)
        self._registry.register(collector)

    def families(self) -> Iterator[Metric]:
        """Return all metrics with their current values, for the documentation."""
        yield from self._registry.collect()

    def count_rejection(self, status: int, code: str) -> None:
        """Count a rejected request. code: of its problem document."""
        if status not in REJECTION_STATUSES:
            return
        if code not in self._codes and len(self._codes) >= MAX_CODES:
            code = "OTHER"
        self._codes.add(code)
        self.rejected_requests.labels(code).inc()

    def count_search(self, result: SearchResult, empty: Bools) -> None:
        """Count a search over instances. empty: (n,), those without a feature."""
        self.instances.inc(len(result.labels))
        # faster than sums of NumPy for one row, and as fast for a thousand
        self.labels_scored.inc(sum(result.labels_scored.tolist()))
        self.postings_read.inc(sum(result.postings_read.tolist()))
        self.certified_instances.inc(sum(result.exact.tolist()))
        self.empty_instances.inc(sum(empty.tolist()))

    def observe_transaction(self, mode: str, seconds: float, answered: bool) -> None:
        """Record a transaction of the store. mode: read or write."""
        self.store_seconds.labels(mode).observe(seconds)
        if not answered:
            self.store_errors.labels(mode).inc()

    def _counter(
        self, name: str, description: str, *labels: str, values: Iterable[str] = ()
    ) -> Counter:
        """Return a counter.

        values: of its only label, if they are known. They are exported as 0 from the start, because
        a series that first appears as 1 shows no increase.
        """
        self.labels[name] = labels
        counter = Counter(name, f"{REPLICA_PREFIX}{description}.", labels, registry=self._registry)
        for value in values:
            counter.labels(value)
        return counter

    def _gauge(self, name: str, description: str) -> Gauge:
        """Return a gauge, summed over the live processes."""
        self.labels[name] = ()
        return Gauge(
            name,
            f"{REPLICA_PREFIX}{description}.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )

    def _histogram(
        self, name: str, description: str, *labels: str, long_running: bool = False
    ) -> Histogram:
        """Return a histogram of durations. long_running: of tasks that can take minutes."""
        self.labels[name] = labels
        buckets = LONG_DURATION_BUCKETS if long_running else DURATION_BUCKETS
        return Histogram(
            name,
            f"{REPLICA_PREFIX}{description}.",
            labels,
            buckets=buckets,
            registry=self._registry,
        )


class FailingChecksCollector(Collector):
    """Collector of failing readiness checks."""

    def __init__(self, failing_checks: Callable[[], Mapping[str, bool]]) -> None:
        self._failing_checks = failing_checks

    def collect(self) -> Iterable[Metric]:
        """Return one value per check."""
        family = GaugeMetricFamily(
            "xcray_readiness_check_failing",
            f"{REPLICA_PREFIX}1 while a readiness check fails.",
            labels=["check"],
        )
        for code, fails in self._failing_checks().items():
            family.add_metric([code], fails)
        return [family]

    def describe(self) -> Iterable[Metric]:
        """Return the name only: the checks are known later."""
        return [GaugeMetricFamily("xcray_readiness_check_failing", "")]


class DriftCollector(Collector):
    """Collector of the drift of the loaded versions of the process that responds.

    There are as many series as versions that it can load.
    """

    labels: Final = {
        "xcray_predict_drift": ("tenant", "model", "version", "kind"),
        "xcray_predict_unknown_share": ("tenant", "model", "version", "kind", "of"),
    }

    def __init__(self, drift: Callable[[], Iterable[tuple[tuple[str, str, int], Drift]]]) -> None:
        self._drift = drift

    def collect(self) -> Iterable[Metric]:
        """Return the figures of the last thousand rows or more per version."""
        index, share = self.describe()
        for (tenant, model, version), drift in self._drift():
            named = [tenant, model, str(version)]
            for kind, value in drift.indices.items():
                index.add_metric([*named, kind], value)
            for kind, pair in (("empty", drift.empty), ("unknown", drift.unknown)):
                for of, value in zip(("recent", "training"), pair or (), strict=False):
                    share.add_metric([*named, kind, of], value)
        return [index, share]

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metrics without values: the versions are known later."""
        texts = {
            "xcray_predict_drift": "population stability index of recent rows against held-out rows"
            " of the training, by kind: score, label, empty (rows) or unknown (words)",
            "xcray_predict_unknown_share": "share of rows without a feature (empty) or of unknown "
            "words (unknown), of recent rows or of the training",
        }
        return [
            GaugeMetricFamily(name, f"{PROCESS_PREFIX}{texts[name]}.", labels=labels)
            for name, labels in self.labels.items()
        ]


class DiskCollector(Collector):
    """Collector of disk usage of the home."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterable[Metric]:
        """Return free, total and reserved bytes."""
        disk = shutil.disk_usage(self._path)
        for name, description, value in (
            ("free", "free bytes on the disk of the home directory", disk.free),
            ("size", "size of the disk of the home directory", disk.total),
            ("reserve", "bytes that uploads must leave free", constants.disk_reserve(disk.total)),
        ):
            yield GaugeMetricFamily(
                f"xcray_disk_{name}_bytes", f"{REPLICA_PREFIX}{description}.", value
            )

    def describe(self) -> Iterable[Metric]:
        """Return the same as `collect`, which is cheap."""
        return self.collect()


def register_process_metrics(registry: CollectorRegistry) -> None:
    """Register the usual metrics of this process.

    They are memory, CPU seconds, file descriptors and garbage collections.
    """
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
