"""Jobs and queue: does work wait, does it end well, and is the service behind it in order?"""

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
    "xcray_jobs_ended_total", "kind", "reason", where='status="FAILED"', window=STEP
)
FAILED_BY_REASON = store_rise(
    "xcray_jobs_ended_total", "reason", where='status="FAILED"', window=STEP
)
FAILING = replica("xcray_check_failing", "check", how="max")
FAULTS = 'status="FAILED",reason!="INPUT"'

NOW = Row(
    "Now",
    (
        number(
            "Waiting",
            "Jobs that nobody runs yet.",
            store("xcray_jobs", where='status="PENDING"'),
            steps=((None, GOOD), (100, FAIR)),
        ),
        number(
            "Running", "Jobs that a runner is at.", store("xcray_jobs", where='status="RUNNING"')
        ),
        number(
            "Oldest waits",
            "How long the job that waits longest has been waiting. An alert fires above an hour.",
            store("xcray_jobs_waiting_oldest_seconds"),
            "s",
            ((None, GOOD), (600, FAIR), (3600, BAD)),
        ),
        number(
            "Time foreseen",
            "Until the last of the running jobs should have done its main phase. 0: none says yet.",
            store("xcray_jobs_remaining_seconds"),
            "s",
        ),
        number(
            "Failed through our fault",
            "Jobs of the time shown that ended FAILED though nothing was wrong with what was submitted.",
            f"sum({store_rise('xcray_jobs_ended_total', 'kind', 'reason', where=FAULTS)})",
            steps=((None, GOOD), (0.5, BAD)),
            decimals=0,
        ),
        number(
            "Looks at the queue",
            "How often runners look whether a job waits, a minute. None means that nobody would run it.",
            f"60 * {store_rate('xcray_runner_looks_total', window='5m')}",
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
            "Jobs that wait and run",
            "Waiting work that grows while all runners are at work means: more runners, or more workers.",
            (store("xcray_jobs", "status", where='status=~"PENDING|RUNNING"'), "{{status}}"),
            stack=True,
        ),
        graph(
            "Seconds in the queue",
            "From submitting or resuming a job to the start of an attempt, of those that began lately.",
            (quantile(0.5, "xcray_job_queue_wait_seconds", of_store=True), "half of them, at most"),
            (quantile(0.9, "xcray_job_queue_wait_seconds", of_store=True), "90 %"),
            (quantile(0.99, "xcray_job_queue_wait_seconds", of_store=True), "99 %"),
            unit="s",
        ),
        graph(
            "Oldest job that waits",
            "Grows by a second a second while nobody takes it.",
            (store("xcray_jobs_waiting_oldest_seconds"), "oldest"),
            unit="s",
            steps=((None, GOOD), (3600, BAD)),
        ),
    ),
)
ENDS = Row(
    "How jobs end",
    (
        graph(
            "Ends",
            "Jobs that ended, by kind and status, in each step of the graph.",
            (
                store_rise(
                    "xcray_jobs_ended_total",
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
            "Why jobs failed",
            "By class of reason. INPUT is the sender's: a data set, a parameter. All others are ours; each has a hint in the job.",
            (
                f"{FAILED_BY_REASON} > 0",
                "{{reason}}",
            ),
            bars=True,
            stack=True,
        ),
        graph(
            "Attempts lost",
            "Runners that vanished or could not be launched. The job goes on from its finished parts.",
            (store_rise("xcray_job_attempts_lost_total", window="$__rate_interval"), "attempts"),
            bars=True,
        ),
    ),
)
WORK = Row(
    "What was done",
    (
        graph(
            "Workers at work",
            "Seconds of workers a second, for work that counted: as many workers were busy, on average.",
            (store_rate("xcray_worker_seconds_total", "kind"), "{{kind}}"),
            stack=True,
        ),
        graph(
            "Rows answered by batch predictions",
            "Rows a second, over all batch predictions.",
            (store_rate("xcray_rows_answered_total"), "rows"),
            unit="cps",
        ),
        graph(
            "Data sets built",
            "By how it ended, a minute.",
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
    "The store and the service",
    (
        graph(
            "Checks that fail",
            "1 while a check of readiness fails. DRAINING, STORE, SCHEMA, DISK, MODELS make a replica unready.",
            (
                f'{FAILING} > 0 or label_replace(max({FAILING}) * 0, "check", "none", "", "")',
                "{{check}}",
            ),
            most=1,
        ),
        graph(
            "Seconds of a transaction",
            "99 % of transactions of the store were quicker, by reading and writing.",
            (quantile(0.99, "xcray_store_seconds", "door"), "{{door}}"),
            unit="s",
            steps=((None, GOOD), (1, BAD)),
        ),
        graph(
            "Store that does not answer",
            "Transactions a second without an answer; and how old the figures of the store are.",
            (replica_rate("xcray_store_errors_total", "door"), "{{door}} without an answer"),
            (replica("xcray_store_figures_age_seconds", how="max"), "age of figures (s)"),
        ),
    ),
)

BOARD = Board(
    "xcray-jobs",
    "Jobs and their queue: what waits, what runs, how it ends, and whether the store behind it answers.",
    (NOW, QUEUE, ENDS, WORK, BEHIND),
    by_replica=True,
)
