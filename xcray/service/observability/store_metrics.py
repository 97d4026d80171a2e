"""Prometheus metrics of the store: jobs, queue and run metrics. Every process returns the same.

A background thread reads them at each scrape and can wait for the store. Callers get slightly stale
values and never wait long. `xcray_store_metrics_age_seconds` is their age, which shows when the
store does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from xcray.jobs.job import KINDS
from xcray.jobs.states import FAILED, TERMINAL
from xcray.jobs.store import metric_deltas
from xcray.jobs.store.statistics import StoreStatistics
from xcray.service.observability.metrics import REPLICA_PREFIX
from xcray.service.observability.probe import BackgroundProbe
from xcray.telemetry.progress import (
    BATCHES_COPIED,
    EPOCHS,
    LABELS_SOLVED,
    NODES_LOST,
    ROWS_ANSWERED,
    ROWS_TRAINED,
    WORKER_SECONDS,
    WORKERS_LOST,
)
from xcray.workers.timeline import DONE, OUTCOMES

STORE_PREFIX: Final = "Of the store: "
MAX_AGE_SECONDS: Final = 2.0  # younger values are exported again
SCRAPE_TIMEOUT_SECONDS: Final = 0.1  # a scrape waits at most that long for newer values
COUNTERS: Final = {  # stored name -> description, labels
    metric_deltas.JOBS_COMPLETED: (
        "completed jobs, by kind, status and class of reason",
        ("kind", "status", "reason"),
    ),
    metric_deltas.ATTEMPTS_LOST: ("attempts whose runner disappeared or could not be launched", ()),
    metric_deltas.QUEUE_POLLS: ("queue polls by runners", ()),
    metric_deltas.ATTEMPT_COUNTERS[LABELS_SOLVED]: ("labels solved", ()),
    metric_deltas.ATTEMPT_COUNTERS[WORKER_SECONDS]: (
        "worker seconds of committed work, by kind of job",
        ("kind",),
    ),
    metric_deltas.ATTEMPT_COUNTERS[EPOCHS]: ("epochs and rounds of iterative trainings", ()),
    metric_deltas.ATTEMPT_COUNTERS[ROWS_TRAINED]: ("rows processed by these epochs and rounds", ()),
    metric_deltas.ATTEMPT_COUNTERS[ROWS_ANSWERED]: ("rows predicted by batch predictions", ()),
    metric_deltas.BATCHES_BY_OUTCOME: (
        "batches of labels or rows and block passes, by outcome: done, duplicate, lost or stopped",
        ("outcome",),
    ),
    metric_deltas.WASTED_SECONDS: ("worker seconds of discarded work, by outcome", ("outcome",)),
    metric_deltas.ATTEMPT_COUNTERS[BATCHES_COPIED]: (
        "batches started a second time because their worker was late",
        (),
    ),
    metric_deltas.ATTEMPT_COUNTERS[WORKERS_LOST]: (
        "workers that died or stopped responding while working for a job",
        (),
    ),
    metric_deltas.ATTEMPT_COUNTERS[NODES_LOST]: (
        "nodes that disappeared from the Ray cluster of a running job; each affected job counts "
        "them",
        (),
    ),
}

# Labels exported as 0 from the start: a series that first appears as 1 shows no increase.
INITIAL_LABELS: Final[dict[str, list[tuple[str, ...]]]] = {
    metric_deltas.JOBS_COMPLETED: [
        (kind, status, reason)
        for kind in KINDS
        for status in sorted(TERMINAL)
        for reason in (
            sorted(metric_deltas.SYSTEM_REASONS | {"INPUT"}) if status == FAILED else ["NONE"]
        )
    ],
    metric_deltas.ATTEMPT_COUNTERS[WORKER_SECONDS]: [
        (kind,) for kind in sorted(metric_deltas.KIND_BY_PHASE.values())
    ],
    metric_deltas.BATCHES_BY_OUTCOME: [(outcome,) for outcome in OUTCOMES],
    metric_deltas.WASTED_SECONDS: [(outcome,) for outcome in OUTCOMES if outcome != DONE],
}


class StoreCollector(Collector):
    """Collector of the metrics of the store, see `xcray.jobs.store.statistics`."""

    def __init__(
        self,
        read_statistics: Callable[[], StoreStatistics],
        timeout: float = SCRAPE_TIMEOUT_SECONDS,
    ) -> None:
        self._probe = BackgroundProbe("xcray-store-metrics", read_statistics)
        self._timeout = timeout

    def collect(self) -> Iterator[Metric]:
        """Yield the newest metrics, or only their age if there are none yet."""
        result = self._probe.get(MAX_AGE_SECONDS, self._timeout)
        description = f"{REPLICA_PREFIX}seconds since the store metrics were read."
        yield GaugeMetricFamily("xcray_store_metrics_age_seconds", description, result.age_seconds)
        if result.value is not None:
            yield from families(result.value)

    def describe(self) -> Iterator[Metric]:
        """Yield the metric names without a query of the store."""
        yield from families(StoreStatistics({}, 0.0, ()))


def families(statistics: StoreStatistics) -> Iterator[Metric]:
    """Yield all metrics of the store."""
    yield _by_status(statistics.jobs)
    yield _gauge(
        "xcray_jobs_oldest_pending_seconds",
        "waiting time of the oldest pending job in seconds",
        statistics.longest_wait,
    )
    yield _wait_histogram(statistics)
    for name, (description, labels) in COUNTERS.items():
        yield _counter(name, description, labels, statistics)
    yield from _running_job_metrics([each.get("metrics", {}) for each in statistics.running])
    description = (
        "estimated seconds until the last running job finishes its main phase; "
        "0 without an estimate"
    )
    yield _gauge(
        "xcray_jobs_remaining_seconds",
        description,
        max((each.get("eta") or 0.0 for each in statistics.running), default=0.0),
    )


def _running_job_metrics(metrics: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the totals of the running jobs."""
    workers = sum(each.get("workers", 0) for each in metrics)
    busy = sum(each.get("workers", 0) * (each.get("busy_share") or 0.0) for each in metrics)
    yield _gauge("xcray_workers", "active workers of running jobs", workers)
    desired = sum(each.get("workers_wanted", 0) for each in metrics)
    yield _gauge(
        "xcray_workers_desired",
        "workers that running jobs can use; more than xcray_workers: the cluster is full",
        desired,
    )
    yield _gauge(
        "xcray_workers_busy_share",
        "recent share of time in which these workers were busy, 0 to 1",
        busy / max(1, workers),
    )
    gaps = (each.get("largest_gap") or 0.0 for each in metrics)
    description = (
        "largest duality gap of the labels solved by running jobs, relative to the null objective"
    )
    yield _gauge("xcray_max_relative_duality_gap", description, max(gaps, default=0.0))
    # Jobs on one cluster report the same object stores.
    store_bytes = max((each.get("object_store_bytes") or 0 for each in metrics), default=0)
    yield _gauge(
        "xcray_object_store_bytes",
        "bytes of primary copies in the Ray object stores used by running jobs",
        store_bytes,
    )


def _wait_histogram(statistics: StoreStatistics) -> Metric:
    """Return the histogram of queue waiting times."""
    counts_by_label = {
        labels["le"]: value
        for name, labels, value in statistics.counters
        if name == metric_deltas.QUEUE_WAIT
    }
    bounds = [str(seconds) for seconds in metric_deltas.QUEUE_WAIT_BUCKETS] + ["+Inf"]
    counts = accumulate(counts_by_label.get(bound, 0.0) for bound in bounds)
    buckets = list(zip(bounds, counts, strict=True))
    description = "seconds from submitting or resuming a job to the start of an attempt"
    return HistogramMetricFamily(
        metric_deltas.QUEUE_WAIT,
        f"{STORE_PREFIX}{description}.",
        buckets=buckets,
        sum_value=statistics.counter_total(metric_deltas.QUEUE_WAIT_SUM),
    )


def _counter(
    name: str, description: str, labels: Iterable[str], statistics: StoreStatistics
) -> Metric:
    """Return a counter by its labels; known labels without a count are 0."""
    names = list(labels)
    family = CounterMetricFamily(
        name.removesuffix("_total"), f"{STORE_PREFIX}{description}.", labels=names
    )
    counts_by_label = {
        tuple(labels_of.get(label, "") for label in names): value
        for each, labels_of, value in statistics.counters
        if each == name
    }
    for values, value in (
        dict.fromkeys(INITIAL_LABELS.get(name, [()] if not names else []), 0.0) | counts_by_label
    ).items():
        family.add_metric(values, value)
    return family


def _gauge(name: str, description: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, f"{STORE_PREFIX}{description}.", value)


def _by_status(jobs: Mapping[str, float]) -> Metric:
    """Return the number of jobs per status."""
    family = GaugeMetricFamily("xcray_jobs", f"{STORE_PREFIX}jobs by status.", labels=["status"])
    for status, count in jobs.items():
        family.add_metric([status], count)
    return family
