"""Figures for Prometheus. Labels are routes, methods, states: never a name somebody chose, so the number of series is fixed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from xcray.errors import Unavailable

METRICS = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client adds the figures of all processes up by files in this folder
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Gauges:
    """The figures of one app; each app has its own registry."""

    def __init__(self, count_jobs: Callable[[], dict[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("xcray_http_requests", "Requests answered.", ("route", "method", "status"), registry=self._registry)
        self.seconds = Histogram(
            "xcray_http_request_seconds", "Seconds to the last byte.", ("route",), buckets=SECONDS, registry=self._registry
        )
        self.instances = Counter("xcray_predict_instances", "Instances predicted.", registry=self._registry)
        self.predict_seconds = Histogram(
            "xcray_predict_seconds", "Seconds of computing per request.", buckets=SECONDS, registry=self._registry
        )
        self.model_loads = Counter("xcray_model_loads", "Models mapped.", ("outcome",), registry=self._registry)
        self.uploaded = Counter("xcray_uploaded_bytes", "Bytes of whole uploads.", registry=self._registry)
        self.builds = Counter("xcray_dataset_builds", "Data sets built.", ("outcome",), registry=self._registry)
        self.streams = Gauge(
            "xcray_event_streams", "Event streams that are open.", registry=self._registry, multiprocess_mode="livesum"
        )
        self._jobs = _Jobs(count_jobs)
        self._registry.register(self._jobs)

    def text(self) -> bytes:
        """All figures in Prometheus' text format; those of several workers added up, whichever is asked."""
        if METRICS not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        together.register(self._jobs)
        return generate_latest(together)


class _Jobs(Collector):
    """Jobs by status, counted when they are asked for."""

    def __init__(self, count: Callable[[], dict[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        """One gauge a status; none while the store does not answer."""
        family = GaugeMetricFamily("xcray_jobs", "Jobs by status.", labels=["status"])
        try:
            for status, number in self._count().items():
                family.add_metric([status], number)
        except Unavailable:
            return
        yield family

    def describe(self) -> Iterator[Metric]:
        """Name without counting, so that registering asks nothing of the store."""
        yield GaugeMetricFamily("xcray_jobs", "Jobs by status.", labels=["status"])
