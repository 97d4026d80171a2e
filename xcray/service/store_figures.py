"""Figures of the store for Prometheus: jobs, queue, and what trainings told. The same from whoever is asked.

They are read when somebody asks, by a thread that may wait for the store; whoever asks gets those of a moment ago and waits for
nothing long. `xcray_store_figures_age_seconds` says how old they are, so that a store that does not answer shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from xcray.jobs.figures import StoreFigures
from xcray.service.lately import Lately

STORE: Final = "Of the store: "
FRESH_SECONDS: Final = 2.0  # figures younger than that are shown again
PATIENCE: Final = 0.1  # seconds that a scrape waits for newer ones


class StoreCollector(Collector):
    """Shows what `ask` finds, see `xcray.jobs.figures`."""

    def __init__(self, ask: Callable[[], StoreFigures], fresh: float = FRESH_SECONDS, patience: float = PATIENCE) -> None:
        self._lately, self._fresh, self._patience = Lately("xcray-figures", ask), fresh, patience

    def collect(self) -> Iterator[Metric]:
        """The newest figures; none but their age while there are none."""
        found = self._lately.soon(self._fresh, self._patience)
        yield _gauge("xcray_store_figures_age_seconds", "seconds since these figures were read", found.age)
        if found.value is not None:
            yield from families(found.value)

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of the store when this is registered."""
        yield from families(StoreFigures({}, 0.0, ()))


def families(at: StoreFigures) -> Iterator[Metric]:
    """All figures of a look at the store."""
    yield _by("xcray_jobs", "jobs by status", "status", at.jobs)
    yield _gauge("xcray_jobs_waiting_oldest_seconds", "seconds that the oldest waiting job has been waiting", at.waiting)


def _gauge(name: str, what: str, value: float) -> Metric:
    """One figure."""
    return GaugeMetricFamily(name, f"{STORE}{what}.", value)


def _by(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    """One figure for each value of a label."""
    family = GaugeMetricFamily(name, f"{STORE}{what}.", labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
