"""Cluster: Ray's own metrics, and pod metrics from kube-state-metrics."""

from __future__ import annotations

from deploy.dashboards import board
from deploy.dashboards.board import (
    BAD,
    CLUSTER,
    FAIR,
    GOOD,
    Board,
    Row,
    graph,
    number,
    share,
    store,
)


def ray(name: str, *by: str, where: str = "", how: str = "sum") -> str:
    """Return a query for a metric of the selected Ray cluster."""
    return board.ray(name, *by, where=f"{CLUSTER},{where}".rstrip(","), how=how)


def ray_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """Return the rate of a counter of the selected cluster, per second, over its nodes."""
    return board.ray_rate(name, *by, where=f"{CLUSTER},{where}".rstrip(","), window=window)


USED = ray("ray_object_store_used_memory")
USED_BY_NODE = ray("ray_object_store_used_memory", "NodeAddress")
STORE_BY_NODE = f"{USED_BY_NODE} + {ray('ray_object_store_available_memory', 'NodeAddress')}"
DISK_FREE = ray("ray_node_disk_free", "ip", how="min")
DISK_USED = ray("ray_node_disk_usage", "ip", how="max")
# The metric has no series while no node fails.
FAILED = f"{ray('autoscaler_recently_failed_nodes')} or 0 * {ray('autoscaler_pending_nodes')}"
CPUS = ray("ray_resources", "State", where='Name="CPU"')
PARTS = 'Component=~"gcs|raylet|agent|dashboard|ray::IDLE"'
PODS = 'pod=~"$pods"'
VOLUMES = 'persistentvolumeclaim=~"$pods"'
HEALTH_CHECK_LATENCY = ray_rate("ray_health_check_rpc_latency_ms_bucket", "le", window="5m")
RESTARTS = board.ray_rate("kube_pod_container_status_restarts_total", "pod", where=PODS)

NOW = Row(
    "Now",
    (
        number(
            "Nodes",
            "Ray nodes that report metrics, including the head.",
            f"count({ray('ray_node_cpu_count', 'ip', how='max')})",
            steps=((None, BAD), (1, GOOD)),
        ),
        number(
            "Failed nodes",
            "Nodes that failed recently, reported by Ray's autoscaler. Reclaimed spot nodes are "
            "included.",
            FAILED,
            steps=((None, GOOD), (1, FAIR)),
        ),
        number(
            "Pending nodes",
            "Nodes requested by the autoscaler that have not joined yet.",
            ray("autoscaler_pending_nodes"),
        ),
        number(
            "CPUs in use",
            "Share of Ray's CPUs held by actors and tasks; one worker holds one CPU.",
            share(
                ray("ray_resources", where='Name="CPU",State="USED"'),
                ray("ray_resources", where='Name="CPU"'),
            ),
            "percentunit",
            most=1,
        ),
        number(
            "Object store in use",
            "Share of Ray's shared memory for objects, over all nodes. When it is full, Ray "
            "spills objects to disk.",
            share(USED, f"{USED} + {ray('ray_object_store_available_memory')}"),
            "percentunit",
            ((None, GOOD), (0.9, FAIR)),
            most=1,
        ),
        number(
            "Spilled",
            "Bytes of objects on disk because the object store was full.",
            ray("ray_object_store_memory", where='Location="SPILLED"'),
            "bytes",
            ((None, GOOD), (1, FAIR)),
        ),
    ),
)
NODES = Row(
    "Ray nodes",
    (
        graph(
            "Nodes",
            "Counted by the autoscaler: active, pending and recently failed.",
            (ray("autoscaler_active_nodes"), "active"),
            (ray("autoscaler_pending_nodes"), "pending"),
            (FAILED, "failed recently"),
        ),
        graph(
            "CPUs", "CPUs held by actors and tasks, and free CPUs.", (CPUS, "{{State}}"), stack=True
        ),
        graph(
            "Desired and active workers",
            "Workers that running jobs can use, and workers they have. The difference is "
            "requested from the autoscaler.",
            (store("xcray_workers_desired"), "desired"),
            (store("xcray_workers"), "active"),
        ),
        graph(
            "Processors",
            "CPU utilisation of each node by all processes.",
            (f"{ray('ray_node_cpu_utilization', 'ip', how='max')} / 100", "{{ip}}"),
            unit="percentunit",
            most=1,
        ),
        graph(
            "Memory",
            "Memory use of each node (of its pod in Kubernetes). Near 1 the kernel kills "
            "processes.",
            (
                f"{ray('ray_node_mem_used', 'ip', how='max')} / "
                f"{ray('ray_node_mem_total', 'ip', how='max')}",
                "{{ip}}",
            ),
            unit="percentunit",
            most=1,
            steps=((None, GOOD), (0.95, BAD)),
        ),
        graph(
            "Disk",
            "Free share of the disk with Ray's temporary folder. Below 5 % Ray rejects new "
            "objects.",
            (
                share(DISK_FREE, f"{DISK_FREE} + {DISK_USED}"),
                "{{ip}}",
            ),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.1, GOOD)),
        ),
    ),
)
OBJECTS = Row(
    "Object store",
    (
        graph(
            "Object store use by node",
            "Used share of each node's object store.",
            (share(USED_BY_NODE, STORE_BY_NODE), "{{NodeAddress}}"),
            unit="percentunit",
            most=1,
        ),
        graph(
            "Object location",
            "In shared memory, spilled to disk because it was full, or in mapped files because it "
            "was too small.",
            (ray("ray_object_store_memory", "Location"), "{{Location}}"),
            unit="bytes",
            stack=True,
        ),
        graph(
            "Transfer between nodes",
            "Bytes per second pushed or received by nodes: DS-MLR blocks, and data sets on nodes "
            "without access to the files.",
            (ray_rate("ray_object_manager_bytes", "Type"), "{{Type}}"),
            unit="Bps",
        ),
    ),
)
HEAD = Row(
    "Actors and the head",
    (
        graph(
            "Actors",
            "Actors by state; one per xcray worker. PENDING_CREATION for long: no node has a free "
            "CPU.",
            (ray("ray_actors", "State", where='Source="gcs",State!="DEAD"'), "{{State}}"),
            stack=True,
        ),
        graph(
            "Health checks",
            "p99 latency of the head's health checks. A node that does not respond is declared "
            "dead after a few seconds.",
            (
                f"histogram_quantile(0.99, {HEALTH_CHECK_LATENCY})",
                "p99",
            ),
            unit="ms",
        ),
        graph(
            "Memory of Ray itself",
            "Resident memory by process type. gcs and dashboard run on the head; ray::IDLE are "
            "idle workers.",
            (ray("ray_component_rss_bytes", "Component", where=PARTS), "{{Component}}"),
            unit="bytes",
        ),
    ),
)
KUBERNETES = Row(
    "Pods (where kube-state-metrics is scraped)",
    (
        graph(
            "Pods by phase",
            "Pods of the release. Pending for long: no node has enough free resources.",
            (board.ray("kube_pod_status_phase", "phase", where=PODS), "{{phase}}"),
            stack=True,
        ),
        graph(
            "Restarts",
            "Container restarts per minute.",
            (
                f"60 * {RESTARTS} > 0",
                "{{pod}}",
            ),
            bars=True,
        ),
        graph(
            "Free space on volumes",
            "Free share of the release's persistent volumes.",
            (
                share(
                    board.ray(
                        "kubelet_volume_stats_available_bytes",
                        "persistentvolumeclaim",
                        where=VOLUMES,
                        how="min",
                    ),
                    board.ray(
                        "kubelet_volume_stats_capacity_bytes",
                        "persistentvolumeclaim",
                        where=VOLUMES,
                        how="min",
                    ),
                ),
                "{{persistentvolumeclaim}}",
            ),
            unit="percentunit",
            most=1,
            steps=((None, BAD), (0.1, GOOD)),
        ),
    ),
)

BOARD = Board(
    "xcray-cluster",
    "Ray cluster: nodes, CPUs, memory, object store, disk and head; and the release's pods in "
    "Kubernetes.",
    (NOW, NODES, OBJECTS, HEAD, KUBERNETES),
    pods=True,
)
