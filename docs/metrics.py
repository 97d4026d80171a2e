"""The table of figures in observing.md, from the code: `python docs/metrics.py` rewrites it; a test
compares.

The figures of a replica are those of `xcray.service.observability.metrics`, those of the store
`xcray.service.observability.store_metrics`.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import Metric

from xcray.jobs.store.statistics import StoreStatistics
from xcray.service.observability.metrics import (
    REPLICA_PREFIX,
    DiskCollector,
    FailingChecksCollector,
    Metrics,
)
from xcray.service.observability.store_metrics import (
    COUNTERS,
    STORE_PREFIX,
    StoreCollector,
    exposed_name,
    families,
)

PAGE = Path(__file__).parent / "observing.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
PROCESS = ("process_", "python_")


def figures() -> list[tuple[Metric, tuple[str, ...]]]:
    """All figures of xcray's own with their labels, in the order in which they are shown."""
    empty = StoreStatistics({}, 0.0, ())
    gauges = Metrics(DiskCollector(Path("/"), 0), FailingChecksCollector(dict))
    labels = {
        **gauges.labels,
        **{exposed_name(name): of for name, (_, of) in COUNTERS.items()},
        "xcray_jobs": ("status",),
    }
    labels["xcray_readiness_check_failing"] = ("check",)
    replica = [each for each in gauges.families() if not each.name.startswith(PROCESS)]
    age = next(iter(StoreCollector(lambda: empty).collect()))
    shown = [*replica, age, *families(empty)]
    return [(each, labels.get(each.name, labels.get(f"{each.name}_total", ()))) for each in shown]


def table() -> str:
    """The table, in Markdown."""
    lines = ["| figure | kind | of | what |", "|---|---|---|---|"]
    for metric, labels in figures():
        scope = "store" if metric.documentation.startswith(STORE_PREFIX) else "replica"
        what = (
            metric.documentation.removeprefix(REPLICA_PREFIX)
            .removeprefix(STORE_PREFIX)
            .removesuffix(".")
        )
        name = (
            metric.name
            + ("_total" if metric.type == "counter" else "")
            + (f"{{{','.join(labels)}}}" if labels else "")
        )
        lines.append(f"| `{name}` | {metric.type} | {scope} | {what} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + table() + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
