"""Trainings on Ray one by one, from the gauges of their drivers: no service is needed."""

from __future__ import annotations

from deploy.dashboards.board import Board, Panel, Row, graph, ray, ray_rate


def gauge(
    title: str, name: str, what: str, unit: str = "short", most: float | None = None
) -> Panel:
    """Return a graph of a gauge, one line per training."""
    query = ray(f"ray_xcray_training_{name}", "run", how="max")
    return graph(title, what, (query, "{{run}}"), unit=unit, most=most)


STATE = Row(
    "State",
    (
        gauge("Done", "done_share", "Finished share of the labels or epochs.", "percentunit", 1),
        gauge("Time left", "remaining_seconds", "Estimated time until all of them are done.", "s"),
        gauge("Epoch", "epoch", "Finished epochs or rounds, of solvers that have them."),
        gauge("Objective", "objective", "Newest objective, of solvers with one for all labels."),
        gauge(
            "Largest gap",
            "largest_gap",
            "Largest duality gap of a finished label, relative to its null objective.",
            "percentunit",
        ),
        gauge(
            "Certified labels",
            "certified_share",
            "Share of the finished labels whose gap is within eps.",
            "percentunit",
            1,
        ),
    ),
)
WORK = Row(
    "Work",
    (
        gauge("Labels per second", "labels_per_second", "Labels that are committed.", "cps"),
        gauge("Rows per second", "rows_per_second", "Rows times epochs or rounds.", "cps"),
        gauge(
            "Busy share",
            "busy_share",
            "Share of time in which the workers were busy, over half a minute.",
            "percentunit",
            1,
        ),
        graph(
            "Workers",
            "Ready and desired workers.",
            (ray("ray_xcray_training_workers", "run", how="max"), "{{run}}"),
            (ray("ray_xcray_training_workers_wanted", "run", how="max"), "{{run}} desired"),
        ),
        graph(
            "Work by worker",
            "Seconds of work per second; 1 is a busy worker.",
            (ray_rate("ray_xcray_busy_seconds_total", "run", "worker"), "{{run}} {{worker}}"),
        ),
    ),
)
BLOCKS = Row(
    "Blocks and calls",
    (
        gauge(
            "Calls waiting",
            "calls_waiting",
            "Calls beyond one per worker: the next batch or block of a worker is there in time.",
        ),
        gauge(
            "Oldest call",
            "oldest_call_seconds",
            "Age of the oldest call in progress, and so of the block that it works on.",
            "s",
        ),
        gauge(
            "Object stores",
            "object_store_bytes",
            "Blocks and data in the object stores of the cluster, without second copies.",
            "bytes",
        ),
    ),
)

BOARD = Board(
    "xcray-ray",
    "Trainings on Ray one by one: state, speed, workers and blocks, from Ray's metrics alone.",
    (STATE, WORK, BLOCKS),
)
