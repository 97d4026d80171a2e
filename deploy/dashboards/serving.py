"""Serving: rate, latency, what an answer costs, whether it is exact, the cache of models, refusals; in total and by replica."""

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
    share,
)

LATE = ((None, GOOD), (0.1, FAIR), (0.5, BAD))
INSTANCES = replica_rate("xcray_predict_instances_total")
FAILED = replica_rate("xcray_http_requests_total", where='status="5xx"')
ERRORS = share(f"({FAILED} or vector(0))", replica_rate("xcray_http_requests_total"))
EXACT = share(replica_rate("xcray_predict_exact_total"), INSTANCES)
HITS = share(
    replica_rate("xcray_model_finds_total", where='how="mapped"'),
    replica_rate("xcray_model_finds_total"),
)

ROUTES = quantile(
    0.99, "xcray_http_request_seconds", "route", where='route!~".*(events|uploads).*"'
)
OURS = f"and on (instance) {replica('xcray_models_loaded', 'instance')}"  # Ray tells process_* too

NOW = Row(
    "Now",
    (
        number(
            "Predictions",
            "Predict requests answered a second, over all replicas.",
            replica_rate("xcray_predict_seconds_count"),
            "reqps",
        ),
        number(
            "Half are quicker than",
            "Median seconds from a request's body to its reply.",
            quantile(0.5, "xcray_predict_seconds"),
            "s",
            LATE,
        ),
        number(
            "99 % are quicker than",
            "Seconds; an alert fires above 0.5 s.",
            quantile(0.99, "xcray_predict_seconds"),
            "s",
            LATE,
        ),
        number(
            "Failed",
            "Share of all requests answered with a status of 5xx.",
            ERRORS,
            "percentunit",
            ((None, GOOD), (0.01, BAD)),
            decimals=2,
        ),
        number(
            "Exact",
            "Share of answers proved to be exact; below 1 deadlines cut searches short.",
            EXACT,
            "percentunit",
            ((None, BAD), (0.99, FAIR), (0.9999, GOOD)),
        ),
        number(
            "Models mapped",
            "Versions in memory, over all replicas.",
            replica("xcray_models_loaded"),
        ),
    ),
)
RATE = Row(
    "Rate and latency",
    (
        graph(
            "Predict requests",
            "A second, by replica. Very different heights: the balancer does not spread them.",
            (replica_rate("xcray_predict_seconds_count", "instance"), "{{instance}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Latency of predictions",
            "From a request's body to its reply, over all replicas.",
            (quantile(0.5, "xcray_predict_seconds"), "p50"),
            (quantile(0.9, "xcray_predict_seconds"), "p90"),
            (quantile(0.99, "xcray_predict_seconds"), "p99"),
            unit="s",
        ),
        graph(
            "p99 by replica",
            "One that is slower than the others has a slow disk, a busy neighbour, or models that do not fit its memory.",
            (quantile(0.99, "xcray_predict_seconds", "instance"), "{{instance}}"),
            unit="s",
            steps=((None, GOOD), (0.5, BAD)),
        ),
        graph(
            "All requests, by answer",
            "A second, by class of status.",
            (replica_rate("xcray_http_requests_total", "status"), "{{status}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Slowest routes",
            "The five routes whose 99 % take longest; without uploads and event streams, which take long by their nature.",
            (f"topk(5, {ROUTES})", "{{route}}"),
            unit="s",
        ),
        graph(
            "Refused",
            "Requests refused a second, by the code of the problem document: limits of callers, ours, bad keys.",
            (replica_rate("xcray_http_refusals_total", "code"), "{{code}}"),
            unit="reqps",
            stack=True,
        ),
    ),
)
ANSWERS = Row(
    "What an answer takes",
    (
        graph(
            "Instances",
            "Rows or texts predicted a second.",
            (replica_rate("xcray_predict_instances_total", "instance"), "{{instance}}"),
            unit="cps",
            stack=True,
        ),
        graph(
            "Labels scored per instance",
            "Labels whose score was computed in full: the work of an exact search. It grows with top_k.",
            (share(replica_rate("xcray_predict_labels_scored_total"), INSTANCES), "labels"),
        ),
        graph(
            "Postings read per instance",
            "Entries of the index's lists that were read: the other part of the work.",
            (share(replica_rate("xcray_predict_postings_read_total"), INSTANCES), "entries"),
        ),
        graph(
            "Exact share",
            "Of answers, those with a proof.",
            (EXACT, "exact"),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.99, GOOD)),
        ),
        graph(
            "Canaries",
            "Requests to weighted aliases, by who answered.",
            (replica_rate("xcray_predict_routed_total", "to"), "{{to}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Shadows",
            "Requests that a shadow answered too, compared with the answer that went out.",
            (replica_rate("xcray_predict_shadowed_total", "outcome"), "{{outcome}}"),
            unit="reqps",
            stack=True,
        ),
    ),
)
MODELS = Row(
    "Models in memory",
    (
        graph(
            "Found mapped",
            "Share of requests whose model was in memory. Below 1 for long: more versions are asked for than XCRAY_MODELS_LOADED.",
            (HITS, "mapped"),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.9, GOOD)),
        ),
        graph(
            "Loaded, let go, swapped",
            "Versions a minute. Loads that fail are told by an alert.",
            (f"60 * {replica_rate('xcray_model_loads_total', 'outcome')}", "{{outcome}}"),
            (f"60 * {replica_rate('xcray_model_unloads_total')}", "let go"),
            (f"60 * {replica_rate('xcray_model_swaps_total')}", "another version answers"),
            unit="cpm",
        ),
        graph(
            "Mapped",
            "Versions in memory, by replica.",
            (replica("xcray_models_loaded", "instance"), "{{instance}}"),
        ),
        graph(
            "Seconds to load",
            "To map, check and warm a model; nobody waits for it but the first request of a version.",
            (quantile(0.5, "xcray_model_load_seconds"), "p50"),
            (quantile(0.99, "xcray_model_load_seconds"), "p99"),
            unit="s",
        ),
        graph(
            "Memory",
            "Of each process, files that are mapped included. From one process a replica; with --workers N see the container.",
            (f"{replica('process_resident_memory_bytes', 'instance')} {OURS}", "{{instance}}"),
            unit="bytes",
        ),
        graph(
            "Processor",
            "Cores in use, by process.",
            (f"{replica_rate('process_cpu_seconds_total', 'instance')} {OURS}", "{{instance}}"),
        ),
    ),
)
INSIDE = Row(
    "Inside",
    (
        graph(
            "Under way",
            "Requests that are being answered, and event streams that are open.",
            (replica("xcray_http_requests_under_way"), "requests"),
            (replica("xcray_event_streams"), "event streams"),
        ),
        graph(
            "Lag of the event loop",
            "99 % of looks were this late or less. High: something holds the interpreter, and every request waits for it.",
            (quantile(0.99, "xcray_loop_lag_seconds", "instance"), "{{instance}}"),
            unit="s",
            steps=((None, GOOD), (0.25, BAD)),
        ),
        graph(
            "Disk of the home",
            "Free, and what uploads must leave free.",
            (replica("xcray_disk_free_bytes", how="min"), "free"),
            (replica("xcray_disk_reserve_bytes", how="max"), "reserve"),
            unit="bytes",
        ),
        graph(
            "Object storage of models",
            "Versions not in XCRAY_MODELS_MIRROR yet; models of XCRAY_MODELS_FOLLOW that could not be brought; troubles.",
            (replica("xcray_models_unmirrored", how="max"), "not mirrored"),
            (replica("xcray_models_unfollowed", how="max"), "not brought here"),
            (
                f"60 * {replica_rate('xcray_model_transfer_failures_total', 'direction')}",
                "{{direction}}: troubles a minute",
            ),
        ),
        graph(
            "Uploads",
            "Bytes of whole uploads, a second.",
            (replica_rate("xcray_uploaded_bytes_total"), "uploaded"),
            unit="Bps",
        ),
        graph(
            "Label filters",
            "Sets of labels that requests allow or deny, kept ready for the next such request.",
            (replica("xcray_filters_loaded", "instance"), "{{instance}}"),
        ),
    ),
)

BOARD = Board(
    "xcray-serving",
    "Predictions: how many, how quick, how exact, what they cost, and the models in memory; for all replicas and for each.",
    (NOW, RATE, ANSWERS, MODELS, INSIDE),
    by_replica=True,
)
