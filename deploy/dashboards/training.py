"""Training: how fast, how busy the workers are, what was lost or done twice, how good the certificate is, what travels."""

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
            "Classes per second",
            "Classes whose solving was finished, over all trainings.",
            store_rate("xcray_classes_solved_total"),
            "cps",
        ),
        number("Workers", "Workers of running jobs that are there.", store("xcray_workers")),
        number(
            "Busy share",
            "Share of their time in which workers worked, lately. Below 0.8 for long: too many workers for so few labels.",
            f"{store('xcray_workers_busy_share')} and {store('xcray_workers')} > 0",
            "percentunit",
            BUSY,
            most=1,
        ),
        number(
            "Time foreseen",
            "Until the last of the running jobs should have done its main phase.",
            store("xcray_jobs_remaining_seconds"),
            "s",
        ),
        number(
            "Largest gap",
            "The largest duality gap of classes solved by running jobs, by the null objective. The promise is the solver's eps.",
            store("xcray_certified_gap_ratio"),
            "percentunit",
            decimals=2,
        ),
        number(
            "Workers lost",
            "Workers that died or fell silent, in the time shown. Their work was done again; results are the same bits.",
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
            "Classes per second",
            "As the store counts them (work that counted), and as the Ray workers count them (also what was done twice).",
            (store_rate("xcray_classes_solved_total"), "counted"),
            (ray_rate("ray_xcray_classes_solved_total"), "by Ray's workers"),
            unit="cps",
        ),
        graph(
            "Rows per second",
            "Rows that epochs or rounds passed (solvers that go in such), and rows that batch predictions answered.",
            (store_rate("xcray_training_rows_total"), "passed by epochs"),
            (store_rate("xcray_rows_answered_total"), "answered"),
            unit="cps",
        ),
        graph(
            "Epochs per minute",
            "Epochs and rounds of solvers that go in such, as DS-MLR.",
            (f"60 * {store_rate('xcray_training_epochs_total')}", "epochs"),
            unit="cpm",
        ),
    ),
)
WORKERS = Row(
    "Workers",
    (
        graph(
            "Wanted and there",
            "How many workers running jobs could use, and how many there are. Fewer for long: the cluster is full, or cannot grow.",
            (store("xcray_workers_wanted"), "wanted"),
            (store("xcray_workers"), "there"),
        ),
        graph(
            "Busy share",
            "Of the last half minute. The dashed line is what a training with labels enough reaches.",
            (f"{store('xcray_workers_busy_share')} and {store('xcray_workers')} > 0", "busy"),
            unit="percentunit",
            steps=((None, BAD), (0.8, GOOD)),
            most=1,
        ),
        graph(
            "Lost",
            "Workers that died or fell silent, and machines that vanished, in each step of the graph.",
            (store_rise("xcray_workers_lost_total", window="$__rate_interval"), "workers"),
            (store_rise("xcray_nodes_lost_total", window="$__rate_interval"), "machines"),
            bars=True,
        ),
    ),
)
BATCHES = Row(
    "Batches and stragglers",
    (
        graph(
            "Batches by how they ended",
            "done counts; duplicate: a copy was quicker; stopped: given up for a copy, or with the job; lost: with its worker.",
            (store_rate("xcray_batches_total", "outcome"), "{{outcome}}"),
            unit="cps",
            stack=True,
        ),
        graph(
            "Copied for stragglers",
            "Batches begun a second time beside the first, because its worker was late, in each step of the graph.",
            (store_rise("xcray_batches_copied_total", window="$__rate_interval"), "copies"),
            bars=True,
        ),
        graph(
            "Wasted share",
            "Of all seconds of workers, those for work that did not count. A few percent are the price of not waiting.",
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
            "The largest duality gap of classes solved by running jobs, as a share of the null objective.",
            (f"{store('xcray_certified_gap_ratio')} > 0", "largest gap"),
            unit="percentunit",
        ),
        graph(
            "Object store",
            "First copies, as running jobs see them; and all that Ray has in memory, with copies that it may drop.",
            (store("xcray_object_store_bytes"), "first copies (xcray)"),
            (ray("ray_object_store_used_memory"), "in memory (Ray)"),
            unit="bytes",
        ),
        graph(
            "Spilled to disk",
            "What did not fit the object store. Correct, but slow: a larger object store, or fewer workers a node.",
            (SPILLED, "spilled"),
            unit="bytes",
        ),
    ),
)

BOARD = Board(
    "xcray-training",
    "Trainings and batch predictions under way, over all jobs: speed, workers, stragglers, losses, certificate, object store.",
    (NOW, SPEED, WORKERS, BATCHES, QUALITY),
)
