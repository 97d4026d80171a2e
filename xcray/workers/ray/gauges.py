"""Gauges of a training in Ray's metrics: `ray_xcray_training_*`, with the tag run."""

from __future__ import annotations

from math import nan
from typing import Any, Final

from ray.util.metrics import Gauge

from xcray.telemetry.progress import LABELS_SOLVED, ROWS_TRAINED, Progress

EXPORT_SECONDS: Final = 1.0  # at least, between two exports
GAUGES: Final = {
    "objective": "Newest objective, of solvers with one objective for all labels",
    "largest_gap": "Largest duality gap of a finished label, relative to its null objective",
    "certified_share": "Share of the labels finished in this attempt that are certified",
    "epoch": "Finished epochs or rounds of all attempts",
    "done_share": "Finished share of the labels or epochs",
    "remaining_seconds": "Estimated seconds until all labels or epochs are done",
    "labels_per_second": "Labels solved per second since the last export",
    "rows_per_second": "Rows times epochs per second since the last export",
    "workers": "Ready workers",
    "workers_wanted": "Desired workers",
    "busy_share": "Share of time in which the workers were busy, over half a minute",
    "calls_waiting": "Calls in progress beyond one per worker",
    "oldest_call_seconds": "Age of the oldest call in progress, and so of the block it works on",
    "object_store_bytes": "Bytes of blocks and data in the object stores, without second copies",
}
RATES: Final = {"labels_per_second": LABELS_SOLVED, "rows_per_second": ROWS_TRAINED}


def metric_name(gauge: str) -> str:
    """Return the name of a gauge in `ray.util.metrics`, without Ray's prefix `ray_`."""
    return f"xcray_training_{gauge}"


class TrainingGauges:
    """Exports the progress of a training, of any solver, from the process of its driver.

    run: value of the tag, the job of the training. Unknown values are not exported.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._gauges: dict[str, Any] = {}
        self._last: Progress | None = None  # the last one that was exported

    def export(self, step: Progress) -> None:
        """Export a progress report, unless the last export was less than EXPORT_SECONDS ago."""
        last = self._last
        if last is not None and step.seconds < last.seconds + EXPORT_SECONDS:
            return
        self._last = step
        for name, value in gauge_values(step, last).items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(metric_name(name), GAUGES[name], tag_keys=("run",))
                self._gauges[name].set_default_tags({"run": self._run})
            self._gauges[name].set(float(value))

    def clear(self) -> None:
        """Export that no value is known any more: Ray keeps a series as long as its process."""
        for gauge in self._gauges.values():
            gauge.set(nan)
        self._last = None


def gauge_values(step: Progress, last: Progress | None) -> dict[str, float]:
    """Return the known values of GAUGES; last: the report before, for rates."""
    values = {name: step.metrics.get(name) for name in GAUGES} | {
        "objective": step.newest.get("objective"),
        "epoch": step.newest.get("epoch"),
        "remaining_seconds": step.eta,
        "done_share": step.done / step.total if step.total else None,
    }
    if last is not None:
        now, before = step.metrics["counted"], last.metrics["counted"]
        for rate, name in RATES.items():
            if name in now:
                values[rate] = (now[name] - before.get(name, 0)) / (step.seconds - last.seconds)
    return {name: value for name, value in values.items() if value is not None}
