"""Figures of the store for Prometheus: jobs, queue, and what runs told. The same from whoever is asked.

They are read when somebody asks, by a thread that may wait for the store; whoever asks gets those of a moment ago and waits for
nothing long. `xcray_store_figures_age_seconds` says how old they are, so that a store that does not answer shows.
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
from xcray.jobs.store import metric_deltas as tally
from xcray.jobs.store.statistics import StoreFigures
from xcray.service.observability.metrics import REPLICA
from xcray.service.observability.probe import Lately
from xcray.telemetry.progress import (
    ANSWERED,
    CLASSES,
    COPIED,
    EPOCHS,
    NODES_LOST,
    ROWS,
    SECONDS,
    WORKERS_LOST,
)
from xcray.workers.timeline import DONE, OUTCOMES

STORE: Final = "Of the store: "
FRESH_SECONDS: Final = 2.0  # figures younger than that are shown again
PATIENCE: Final = 0.1  # seconds that a scrape waits for newer ones
COUNTERS: Final = {  # name without _total -> what, labels
    tally.ENDED: (
        "jobs that ended, by kind, status and class of reason",
        ("kind", "status", "reason"),
    ),
    tally.LOST: ("attempts whose runner vanished or could not be launched", ()),
    tally.LOOKS: ("looks of runners at the queue, every few seconds", ()),
    tally.DONE[CLASSES]: ("classes whose solving was finished", ()),
    tally.DONE[SECONDS]: ("seconds of workers for work that counted, by kind of job", ("kind",)),
    tally.DONE[EPOCHS]: ("epochs and rounds of trainings that go in such", ()),
    tally.DONE[ROWS]: ("rows that these passed", ()),
    tally.DONE[ANSWERED]: ("rows answered by batch predictions", ()),
    tally.BATCHES: (
        "batches of labels or rows, and visits of blocks, by how they ended: done, duplicate, lost or stopped",
        ("outcome",),
    ),
    tally.WASTED: ("seconds of workers for work that did not count, by how it ended", ("outcome",)),
    tally.DONE[COPIED]: ("batches begun a second time beside the first, whose worker was late", ()),
    tally.DONE[WORKERS_LOST]: ("workers that died or fell silent while they worked for a job", ()),
    tally.DONE[NODES_LOST]: (
        "machines that vanished from the Ray of a running job; each such job counts them",
        (),
    ),
}

FROM_THE_START: Final[
    dict[str, list[tuple[str, ...]]]
] = {  # labels that are shown as 0: what shows first as 1 has never risen
    tally.ENDED: [
        (kind, status, reason)
        for kind in KINDS
        for status in sorted(TERMINAL)
        for reason in (sorted(tally.REASONS | {"INPUT"}) if status == FAILED else ["NONE"])
    ],
    tally.DONE[SECONDS]: [(kind,) for kind in sorted(tally.KINDS_OF_PHASE.values())],
    tally.BATCHES: [(outcome,) for outcome in OUTCOMES],
    tally.WASTED: [(outcome,) for outcome in OUTCOMES if outcome != DONE],
}


class StoreCollector(Collector):
    """Shows what `ask` finds, see `xcray.jobs.store.statistics`."""

    def __init__(
        self,
        ask: Callable[[], StoreFigures],
        fresh: float = FRESH_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        self._lately = Lately("xcray-figures", ask)
        self._fresh = fresh
        self._patience = patience

    def collect(self) -> Iterator[Metric]:
        """The newest figures; none but their age while there are none."""
        found = self._lately.soon(self._fresh, self._patience)
        what = f"{REPLICA}seconds since figures of the store were read."
        yield GaugeMetricFamily("xcray_store_figures_age_seconds", what, found.age)
        if found.value is not None:
            yield from families(found.value)

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of the store when this is registered."""
        yield from families(StoreFigures({}, 0.0, ()))


def families(at: StoreFigures) -> Iterator[Metric]:
    """All figures of a look at the store."""
    yield _by_status(at.jobs)
    yield _gauge(
        "xcray_jobs_waiting_oldest_seconds",
        "seconds that the oldest waiting job has been waiting",
        at.waiting,
    )
    yield _waits(at)
    for name, (what, labels) in COUNTERS.items():
        yield _counter(name, what, labels, at)
    yield from _running([each.get("vitals", {}) for each in at.running])
    what = "seconds until the last of the running jobs is foreseen to have done its main phase; 0 when none says"
    yield _gauge(
        "xcray_jobs_remaining_seconds",
        what,
        max((each.get("eta") or 0.0 for each in at.running), default=0.0),
    )


def _running(vitals: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """How the runs under way are doing, together."""
    workers = sum(each.get("workers", 0) for each in vitals)
    busy = sum(each.get("workers", 0) * (each.get("busy_share") or 0.0) for each in vitals)
    yield _gauge("xcray_workers", "workers of running jobs that are there", workers)
    wanted = sum(each.get("workers_wanted", 0) for each in vitals)
    yield _gauge(
        "xcray_workers_wanted",
        "workers that running jobs could use; more than there are: the cluster is full",
        wanted,
    )
    yield _gauge(
        "xcray_workers_busy_share",
        "share of their time in which these worked, lately; 0 to 1",
        busy / max(1, workers),
    )
    gaps = (each.get("largest_gap") or 0.0 for each in vitals)
    what = "largest duality gap of the classes that running jobs have solved, by its null objective"
    yield _gauge("xcray_certified_gap_ratio", what, max(gaps, default=0.0))
    stored = max(
        (each.get("object_store_bytes") or 0 for each in vitals), default=0
    )  # jobs on one cluster see the same stores
    yield _gauge(
        "xcray_object_store_bytes",
        "bytes of first copies in the object stores of the Ray that running jobs use; others may be dropped",
        stored,
    )


def _waits(at: StoreFigures) -> Metric:
    """The histogram of how long jobs waited."""
    found = {labels["le"]: value for name, labels, value in at.counted if name == tally.WAIT}
    bounds = [str(seconds) for seconds in tally.WAIT_SECONDS] + ["+Inf"]
    counts = accumulate(found.get(bound, 0.0) for bound in bounds)
    buckets = list(zip(bounds, counts, strict=True))
    what = "seconds from submitting or resuming a job to the start of an attempt"
    return HistogramMetricFamily(
        tally.WAIT, f"{STORE}{what}.", buckets=buckets, sum_value=at.counter(tally.WAIT_SUM)
    )


def _counter(name: str, what: str, labels: Iterable[str], at: StoreFigures) -> Metric:
    """A counter by its labels; 0 for those that are known and were not counted yet."""
    names = list(labels)
    family = CounterMetricFamily(name.removesuffix("_total"), f"{STORE}{what}.", labels=names)
    found = {
        tuple(told.get(label, "") for label in names): value
        for each, told, value in at.counted
        if each == name
    }
    for values, value in (
        dict.fromkeys(FROM_THE_START.get(name, [()] if not names else []), 0.0) | found
    ).items():
        family.add_metric(values, value)
    return family


def _gauge(name: str, what: str, value: float) -> Metric:
    """One figure."""
    return GaugeMetricFamily(name, f"{STORE}{what}.", value)


def _by_status(jobs: Mapping[str, float]) -> Metric:
    """How many jobs have each status."""
    family = GaugeMetricFamily("xcray_jobs", f"{STORE}jobs by status.", labels=["status"])
    for status, count in jobs.items():
        family.add_metric([status], count)
    return family
