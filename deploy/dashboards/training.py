"""Training: speed, busy share of workers, lost and repeated work, certificates, object store."""

from __future__ import annotations

from deploy.dashboards.board import (
    BAD,
    FAIR,
    GOOD,
    Board,
    Row,
    graph,
    number,
    ray,
    ray_rate,
    share,
    store,
    store_rate,
    store_rise,
)

BUSY = ((None, BAD), (0.5, FAIR), (0.8, GOOD))
FUTILE = f"sum({store_rate('xcray_worker_seconds_wasted_total', 'outcome')})"
WASTED = share(FUTILE, f"{FUTILE} + sum({store_rate('xcray_worker_seconds_total', 'kind')})")
SPILLED = ray("ray_object_store_memory", where='Location="SPILLED"')

NOW = Row(
    "Now",
    (
        number(
            "Labels per second",
            "Solved labels per second over all trainings.",
            store_rate("xcray_labels_solved_total"),
            "cps",
        ),
        number("Workers", "Active workers of running jobs.", store("xcray_workers")),
        number(
            "Busy share",
            "Recent share of time in which workers were busy. Below 0.8 for long: too many "
            "workers for the number of labels.",
            f"{store('xcray_workers_busy_share')} and {store('xcray_workers')} > 0",
            "percentunit",
            BUSY,
            most=1,
        ),
        number(
            "Estimated time left",
            "Estimated time until the last running job finishes its main phase.",
            store("xcray_jobs_remaining_seconds"),
            "s",
        ),
        number(
            "Largest gap",
            "Largest duality gap of the labels solved by running jobs, relative to the null "
            "objective. The solver guarantees its eps.",
            store("xcray_max_relative_duality_gap"),
            "percentunit",
            decimals=2,
        ),
        number(
            "Workers lost",
            "Workers that died or stopped responding in the selected time range. Their work was "
            "repeated with bit-identical results.",
            store_rise("xcray_workers_lost_total"),
            steps=((None, GOOD), (0.5, FAIR), (10, BAD)),
            decimals=0,
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        graph(
            "Labels per second",
            "Counted by the store (committed work) and by the Ray workers (repeated work "
            "included).",
            (store_rate("xcray_labels_solved_total"), "committed"),
            (ray_rate("ray_xcray_labels_solved_total"), "by Ray workers"),
            unit="cps",
        ),
        graph(
            "Rows per second",
            "Rows processed by epochs or rounds of iterative solvers, and rows of batch "
            "predictions.",
            (store_rate("xcray_training_rows_total"), "training"),
            (store_rate("xcray_rows_answered_total"), "batch prediction"),
            unit="cps",
        ),
        graph(
            "Epochs per minute",
            "Epochs and rounds of iterative solvers such as DS-MLR.",
            (f"60 * {store_rate('xcray_training_epochs_total')}", "epochs"),
            unit="cpm",
        ),
    ),
)
WORKERS = Row(
    "Workers",
    (
        graph(
            "Desired and active workers",
            "Workers that running jobs can use, and workers they have. Fewer for long: the "
            "cluster is full or cannot grow.",
            (store("xcray_workers_desired"), "desired"),
            (store("xcray_workers"), "active"),
        ),
        graph(
            "Busy share",
            "Over the last 30 seconds. The dashed line is the level of a training with enough "
            "labels.",
            (f"{store('xcray_workers_busy_share')} and {store('xcray_workers')} > 0", "busy"),
            unit="percentunit",
            steps=((None, BAD), (0.8, GOOD)),
            most=1,
        ),
        graph(
            "Losses",
            "Lost workers and lost nodes, per step of the graph.",
            (store_rise("xcray_workers_lost_total", window="$__rate_interval"), "workers"),
            (store_rise("xcray_nodes_lost_total", window="$__rate_interval"), "nodes"),
            bars=True,
        ),
    ),
)
BATCHES = Row(
    "Batches and stragglers",
    (
        graph(
            "Batches by outcome",
            "done: committed; duplicate: a copy was faster; stopped: cancelled for a copy or with "
            "the job; lost: with its worker.",
            (store_rate("xcray_batches_total", "outcome"), "{{outcome}}"),
            unit="cps",
            stack=True,
        ),
        graph(
            "Speculative batches",
            "Batches started a second time because their worker was late, per step of the graph.",
            (store_rise("xcray_batches_speculative_total", window="$__rate_interval"), "copies"),
            bars=True,
        ),
        graph(
            "Wasted share",
            "Share of worker seconds whose work was discarded. A few percent are normal with "
            "speculative execution.",
            (WASTED, "wasted"),
            unit="percentunit",
            steps=((None, GOOD), (0.2, BAD)),
        ),
    ),
)
QUALITY = Row(
    "Certificate and object store",
    (
        graph(
            "Largest gap",
            "Largest duality gap of the labels solved by running jobs, relative to the null "
            "objective.",
            (f"{store('xcray_max_relative_duality_gap')} > 0", "largest gap"),
            unit="percentunit",
        ),
        graph(
            "Object store",
            "Primary copies as reported by running jobs, and all objects in Ray's memory, "
            "including evictable copies.",
            (store("xcray_object_store_bytes"), "primary copies (xcray)"),
            (ray("ray_object_store_used_memory"), "in memory (Ray)"),
            unit="bytes",
        ),
        graph(
            "Spilled to disk",
            "Objects that did not fit in the object store. Correct but slow: enlarge the object "
            "store or run fewer workers per node.",
            (SPILLED, "spilled"),
            unit="bytes",
        ),
    ),
)

BOARD = Board(
    "xcray-training",
    "Running trainings and batch predictions over all jobs: speed, workers, stragglers, losses, "
    "certificates, object store.",
    (NOW, SPEED, WORKERS, BATCHES, QUALITY),
)
