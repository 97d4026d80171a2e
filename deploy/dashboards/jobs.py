"""Jobs and queue: pending work, job outcomes, and the health of the store and the service."""

from __future__ import annotations

from deploy.dashboards.board import (
    BAD,
    FAIR,
    GOOD,
    Board,
    Row,
    graph,
    number,
    quantile,
    replica,
    replica_rate,
    store,
    store_rate,
    store_rise,
)

STEP = "$__rate_interval"
FAILED_BY_KIND = store_rise(
    "xcray_jobs_completed_total", "kind", "reason", where='status="FAILED"', window=STEP
)
FAILED_BY_REASON = store_rise(
    "xcray_jobs_completed_total", "reason", where='status="FAILED"', window=STEP
)
FAILING = replica("xcray_readiness_check_failing", "check", how="max")
FAULTS = 'status="FAILED",reason!="INPUT"'

NOW = Row(
    "Now",
    (
        number(
            "Pending",
            "Jobs that no runner has started yet.",
            store("xcray_jobs", where='status="PENDING"'),
            steps=((None, GOOD), (100, FAIR)),
        ),
        number(
            "Running",
            "Jobs that a runner is executing.",
            store("xcray_jobs", where='status="RUNNING"'),
        ),
        number(
            "Oldest pending",
            "Waiting time of the oldest pending job. An alert fires above one hour.",
            store("xcray_jobs_oldest_pending_seconds"),
            "s",
            ((None, GOOD), (600, FAIR), (3600, BAD)),
        ),
        number(
            "Estimated time left",
            "Estimated time until the last running job finishes its main phase. 0: no estimate "
            "yet.",
            store("xcray_jobs_remaining_seconds"),
            "s",
        ),
        number(
            "Internal failures",
            "Jobs that FAILED in the selected time range although their input was valid.",
            f"sum({store_rise('xcray_jobs_completed_total', 'kind', 'reason', where=FAULTS)})",
            steps=((None, GOOD), (0.5, BAD)),
            decimals=0,
        ),
        number(
            "Queue polls",
            "Polls of the queue by runners, per minute. Without polls no job is started.",
            f"60 * {store_rate('xcray_runner_queue_polls_total', window='5m')}",
            "cpm",
            ((None, BAD), (0.5, GOOD)),
            decimals=1,
        ),
    ),
)
QUEUE = Row(
    "Queue",
    (
        graph(
            "Pending and running jobs",
            "If pending jobs grow while all runners are busy, add runners or workers.",
            (store("xcray_jobs", "status", where='status=~"PENDING|RUNNING"'), "{{status}}"),
            stack=True,
        ),
        graph(
            "Queue wait time",
            "Time from submitting or resuming a job to the start of an attempt, for recently "
            "started attempts.",
            (quantile(0.5, "xcray_job_queue_wait_seconds", of_store=True), "p50"),
            (quantile(0.9, "xcray_job_queue_wait_seconds", of_store=True), "p90"),
            (quantile(0.99, "xcray_job_queue_wait_seconds", of_store=True), "p99"),
            unit="s",
        ),
        graph(
            "Oldest pending job",
            "Grows by one second per second while no runner claims the job.",
            (store("xcray_jobs_oldest_pending_seconds"), "oldest"),
            unit="s",
            steps=((None, GOOD), (3600, BAD)),
        ),
    ),
)
ENDS = Row(
    "Job outcomes",
    (
        graph(
            "Completed jobs",
            "Completed jobs by kind and status, per step of the graph.",
            (
                store_rise(
                    "xcray_jobs_completed_total",
                    "kind",
                    "status",
                    where='status!="FAILED"',
                    window="$__rate_interval",
                ),
                "{{kind}} {{status}}",
            ),
            (
                f"sum by (kind) ({FAILED_BY_KIND})",
                "{{kind}} FAILED",
            ),
            bars=True,
            stack=True,
        ),
        graph(
            "Failure reasons",
            "Failed jobs by class of reason. INPUT: invalid data set or parameter. All other "
            "reasons are internal; the job has a hint.",
            (
                f"{FAILED_BY_REASON} > 0",
                "{{reason}}",
            ),
            bars=True,
            stack=True,
        ),
        graph(
            "Attempts lost",
            "Runners that disappeared or could not be launched. The job continues from its "
            "finished parts.",
            (store_rise("xcray_job_attempts_lost_total", window="$__rate_interval"), "attempts"),
            bars=True,
        ),
    ),
)
WORK = Row(
    "Work done",
    (
        graph(
            "Busy workers",
            "Mean number of busy workers: worker seconds of committed work per second.",
            (store_rate("xcray_worker_seconds_total", "kind"), "{{kind}}"),
            stack=True,
        ),
        graph(
            "Rows of batch predictions",
            "Rows per second over all batch predictions.",
            (store_rate("xcray_rows_answered_total"), "rows"),
            unit="cps",
        ),
        graph(
            "Data sets built",
            "Builds per minute, by outcome.",
            (
                f"60 * {replica_rate('xcray_dataset_builds_total', 'outcome')}",
                "{{outcome}}",
            ),
            bars=True,
            stack=True,
        ),
    ),
)
BEHIND = Row(
    "Store and service",
    (
        graph(
            "Failing readiness checks",
            "1 while a readiness check fails. DRAINING, STORE, SCHEMA, DISK and MODELS make a "
            "replica unready.",
            (
                f'{FAILING} > 0 or label_replace(max({FAILING}) * 0, "check", "none", "", "")',
                "{{check}}",
            ),
            most=1,
        ),
        graph(
            "Transaction duration",
            "p99 duration of store transactions, by mode (read or write).",
            (quantile(0.99, "xcray_store_transaction_duration_seconds", "mode"), "{{mode}}"),
            unit="s",
            steps=((None, GOOD), (1, BAD)),
        ),
        graph(
            "Store errors",
            "Failed transactions per second, and the age of the store metrics.",
            (replica_rate("xcray_store_errors_total", "mode"), "{{mode}} errors"),
            (replica("xcray_store_metrics_age_seconds", how="max"), "age of metrics (s)"),
        ),
    ),
)

BOARD = Board(
    "xcray-jobs",
    "Jobs and their queue: pending and running jobs, outcomes, and the health of the job store.",
    (NOW, QUEUE, ENDS, WORK, BEHIND),
    by_replica=True,
)
