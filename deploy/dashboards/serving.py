"""Serving: rate, latency, search cost, exactness, model cache and rejected requests."""

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
EXACT = share(replica_rate("xcray_predict_certified_instances_total"), INSTANCES)
HITS = share(
    replica_rate("xcray_model_cache_requests_total", where='result="hit"'),
    replica_rate("xcray_model_cache_requests_total"),
)

ROUTES = quantile(
    0.99, "xcray_http_request_duration_seconds", "route", where='route!~".*(events|uploads).*"'
)
OURS = (
    f"and on (instance) {replica('xcray_models_loaded', 'instance')}"  # Ray exports process_* too
)

NOW = Row(
    "Now",
    (
        number(
            "Predictions",
            "Predict requests per second over all replicas.",
            replica_rate("xcray_predict_duration_seconds_count"),
            "reqps",
        ),
        number(
            "Median latency",
            "Median time from the request body to the response.",
            quantile(0.5, "xcray_predict_duration_seconds"),
            "s",
            LATE,
        ),
        number(
            "p99 latency",
            "An alert fires above 0.5 s.",
            quantile(0.99, "xcray_predict_duration_seconds"),
            "s",
            LATE,
        ),
        number(
            "Error rate",
            "Share of all requests with a 5xx status.",
            ERRORS,
            "percentunit",
            ((None, GOOD), (0.01, BAD)),
            decimals=2,
        ),
        number(
            "Certified",
            "Share of predictions proven exact. Below 1, request deadlines cut searches short.",
            EXACT,
            "percentunit",
            ((None, BAD), (0.99, FAIR), (0.9999, GOOD)),
        ),
        number(
            "Models loaded",
            "Model versions in memory over all replicas.",
            replica("xcray_models_loaded"),
        ),
    ),
)
RATE = Row(
    "Rate and latency",
    (
        graph(
            "Predict requests",
            "Per second and replica. Large differences mean that the load balancer distributes "
            "requests unevenly.",
            (replica_rate("xcray_predict_duration_seconds_count", "instance"), "{{instance}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Latency of predictions",
            "Time from the request body to the response, over all replicas.",
            (quantile(0.5, "xcray_predict_duration_seconds"), "p50"),
            (quantile(0.9, "xcray_predict_duration_seconds"), "p90"),
            (quantile(0.99, "xcray_predict_duration_seconds"), "p99"),
            unit="s",
        ),
        graph(
            "p99 by replica",
            "A slower replica has a slow disk, a busy node, or models that do not fit in memory.",
            (quantile(0.99, "xcray_predict_duration_seconds", "instance"), "{{instance}}"),
            unit="s",
            steps=((None, GOOD), (0.5, BAD)),
        ),
        graph(
            "All requests by status",
            "Requests per second, by status class.",
            (replica_rate("xcray_http_requests_total", "status"), "{{status}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Slowest routes",
            "The five routes with the highest p99 latency, without uploads and event streams.",
            (f"topk(5, {ROUTES})", "{{route}}"),
            unit="s",
        ),
        graph(
            "Rejected requests",
            "Rejected requests per second, by problem code: limits of callers, limits of the "
            "service, invalid keys.",
            (replica_rate("xcray_http_rejected_requests_total", "code"), "{{code}}"),
            unit="reqps",
            stack=True,
        ),
    ),
)
ANSWERS = Row(
    "Search cost",
    (
        graph(
            "Instances",
            "Rows or texts predicted per second.",
            (replica_rate("xcray_predict_instances_total", "instance"), "{{instance}}"),
            unit="cps",
            stack=True,
        ),
        graph(
            "Labels scored per instance",
            "Labels whose score was computed in full. This is the main cost of an exact search "
            "and grows with top_k.",
            (share(replica_rate("xcray_predict_labels_scored_total"), INSTANCES), "labels"),
        ),
        graph(
            "Postings read per instance",
            "Posting list entries read: the other part of the search cost.",
            (share(replica_rate("xcray_predict_postings_read_total"), INSTANCES), "entries"),
        ),
        graph(
            "Certified share",
            "Share of predictions proven exact.",
            (EXACT, "certified"),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.99, GOOD)),
        ),
        graph(
            "Canaries",
            "Requests to weighted aliases, by track (stable or canary).",
            (replica_rate("xcray_predict_requests_routed_total", "track"), "{{track}}"),
            unit="reqps",
            stack=True,
        ),
        graph(
            "Shadows",
            "Requests repeated on a shadow version, by comparison with the response that was sent.",
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
            "Model cache hit rate",
            "Share of requests whose model was in memory. Below 1 for long: more versions are in "
            "use than XCRAY_MODELS_LOADED.",
            (HITS, "hits"),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.9, GOOD)),
        ),
        graph(
            "Model loads, unloads and version switches",
            "Versions per minute. Failed loads raise an alert.",
            (f"60 * {replica_rate('xcray_model_loads_total', 'outcome')}", "{{outcome}}"),
            (f"60 * {replica_rate('xcray_model_unloads_total')}", "unloaded"),
            (f"60 * {replica_rate('xcray_version_switches_total')}", "version switches"),
            unit="cpm",
        ),
        graph(
            "Loaded models",
            "Model versions in memory, by replica.",
            (replica("xcray_models_loaded", "instance"), "{{instance}}"),
        ),
        graph(
            "Model load time",
            "Time to map, verify and warm a model. Only the first request of a version waits for "
            "it.",
            (quantile(0.5, "xcray_model_load_duration_seconds"), "p50"),
            (quantile(0.99, "xcray_model_load_duration_seconds"), "p99"),
            unit="s",
        ),
        graph(
            "Memory",
            "Resident memory per process, including mapped files. With --processes N use the "
            "container metrics.",
            (f"{replica('process_resident_memory_bytes', 'instance')} {OURS}", "{{instance}}"),
            unit="bytes",
        ),
        graph(
            "Processor",
            "Cores in use per process.",
            (f"{replica_rate('process_cpu_seconds_total', 'instance')} {OURS}", "{{instance}}"),
        ),
    ),
)
INSIDE = Row(
    "Internals",
    (
        graph(
            "In progress",
            "Requests in progress and open event streams.",
            (replica("xcray_http_requests_in_progress"), "requests"),
            (replica("xcray_event_streams"), "event streams"),
        ),
        graph(
            "Event loop lag",
            "p99 delay of the event loop. A high value means that a computation holds the "
            "interpreter and delays every request.",
            (quantile(0.99, "xcray_event_loop_lag_seconds", "instance"), "{{instance}}"),
            unit="s",
            steps=((None, GOOD), (0.25, BAD)),
        ),
        graph(
            "Disk of the home",
            "Free space, and the reserve that uploads must leave free.",
            (replica("xcray_disk_free_bytes", how="min"), "free"),
            (replica("xcray_disk_reserve_bytes", how="max"), "reserve"),
            unit="bytes",
        ),
        graph(
            "Uploads",
            "Bytes of complete uploads per second.",
            (replica_rate("xcray_uploaded_bytes_total"), "uploaded"),
            unit="Bps",
        ),
        graph(
            "Label filters",
            "Cached allow and deny label filters.",
            (replica("xcray_label_filters_cached", "instance"), "{{instance}}"),
        ),
    ),
)

BOARD = Board(
    "xcray-serving",
    "Predictions: rate, latency, exactness, search cost and models in memory, in total and per "
    "replica.",
    (NOW, RATE, ANSWERS, MODELS, INSIDE),
    by_replica=True,
)
