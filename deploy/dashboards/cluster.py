"""Cluster: the Ray that trains (its own figures), and the pods where Kubernetes tells of them (kube-state-metrics)."""

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
    """A figure of the Ray cluster that is chosen above the panels."""
    return board.ray(name, *by, where=f"{CLUSTER},{where}".rstrip(","), how=how)


def ray_rate(name: str, *by: str, where: str = "", window: str = "$__rate_interval") -> str:
    """How fast a counter of that cluster rises, over its nodes, a second."""
    return board.ray_rate(name, *by, where=f"{CLUSTER},{where}".rstrip(","), window=window)


USED = ray("ray_object_store_used_memory")
USED_BY_NODE = ray("ray_object_store_used_memory", "NodeAddress")
STORE_BY_NODE = f"{USED_BY_NODE} + {ray('ray_object_store_available_memory', 'NodeAddress')}"
DISK_FREE = ray("ray_node_disk_free", "ip", how="min")
DISK_USED = ray("ray_node_disk_usage", "ip", how="max")
FAILED = f"{ray('autoscaler_recently_failed_nodes')} or 0 * {ray('autoscaler_pending_nodes')}"  # it has no series while none fails
CPUS = ray("ray_resources", "State", where='Name="CPU"')
PARTS = 'Component=~"gcs|raylet|agent|dashboard|ray::IDLE"'
PODS = 'pod=~"$pods"'
VOLUMES = 'persistentvolumeclaim=~"$pods"'

NOW = Row(
    "Now",
    (
        number(
            "Nodes",
            "Ray nodes that report, the head included.",
            f"count({ray('ray_node_cpu_count', 'ip', how='max')})",
            steps=((None, BAD), (1, GOOD)),
        ),
        number(
            "Nodes failed",
            "Nodes that failed lately, as Ray's autoscaler tells. Spot machines that were taken back are among them.",
            FAILED,
            steps=((None, GOOD), (1, FAIR)),
        ),
        number(
            "Nodes on their way",
            "Asked for by the autoscaler, and not there yet.",
            ray("autoscaler_pending_nodes"),
        ),
        number(
            "CPUs in use",
            "Share of Ray's CPUs that actors and tasks hold; a worker holds one.",
            share(
                ray("ray_resources", where='Name="CPU",State="USED"'),
                ray("ray_resources", where='Name="CPU"'),
            ),
            "percentunit",
            most=1,
        ),
        number(
            "Object store in use",
            "Of the shared memory that Ray has for objects, over all nodes. Full is not wrong, but then it writes to disk.",
            share(USED, f"{USED} + {ray('ray_object_store_available_memory')}"),
            "percentunit",
            ((None, GOOD), (0.9, FAIR)),
            most=1,
        ),
        number(
            "Spilled",
            "Objects on disk because the object store was full.",
            ray("ray_object_store_memory", where='Location="SPILLED"'),
            "bytes",
            ((None, GOOD), (1, FAIR)),
        ),
    ),
)
NODES = Row(
    "Ray's nodes",
    (
        graph(
            "Nodes",
            "As the autoscaler counts them: there, on their way, and failed lately.",
            (ray("autoscaler_active_nodes"), "there"),
            (ray("autoscaler_pending_nodes"), "on their way"),
            (FAILED, "failed lately"),
        ),
        graph(
            "CPUs", "What actors and tasks hold, and what is free.", (CPUS, "{{State}}"), stack=True
        ),
        graph(
            "Workers wanted and there",
            "What xcray's running jobs could use, and have. The autoscaler is asked for the difference.",
            (store("xcray_workers_wanted"), "wanted"),
            (store("xcray_workers"), "there"),
        ),
        graph(
            "Processors",
            "Use of each machine's processors, whoever uses them.",
            (f"{ray('ray_node_cpu_utilization', 'ip', how='max')} / 100", "{{ip}}"),
            unit="percentunit",
            most=1,
        ),
        graph(
            "Memory",
            "Use of each node's memory (of its pod, in Kubernetes). Near 1 the kernel ends processes.",
            (
                f"{ray('ray_node_mem_used', 'ip', how='max')} / {ray('ray_node_mem_total', 'ip', how='max')}",
                "{{ip}}",
            ),
            unit="percentunit",
            most=1,
            steps=((None, GOOD), (0.95, BAD)),
        ),
        graph(
            "Disk",
            "Free share of the disk of Ray's temporary folder. Ray stops taking objects when 5 % are left.",
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
            "In use by node",
            "Share of each node's object store.",
            (share(USED_BY_NODE, STORE_BY_NODE), "{{NodeAddress}}"),
            unit="percentunit",
            most=1,
        ),
        graph(
            "Where objects are",
            "In shared memory, on disk because it was full (spilled), or in mapped files because it was too small.",
            (ray("ray_object_store_memory", "Location"), "{{Location}}"),
            unit="bytes",
            stack=True,
        ),
        graph(
            "Between nodes",
            "Bytes a second that nodes pushed or received: blocks of DS-MLR, data sets where a node does not see the files.",
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
            "By state; each of xcray's workers is one. PENDING_CREATION for long: no node has a free CPU.",
            (ray("ray_actors", "State", where='Source="gcs",State!="DEAD"'), "{{State}}"),
            stack=True,
        ),
        graph(
            "Health checks",
            "Milliseconds in which 99 % of nodes answered the head. No answer makes a node dead after a few seconds.",
            (
                f"histogram_quantile(0.99, {ray_rate('ray_health_check_rpc_latency_ms_bucket', 'le', window='5m')})",
                "p99",
            ),
            unit="ms",
        ),
        graph(
            "Memory of Ray itself",
            "Resident bytes by kind of process. gcs and dashboard are the head's; ray::IDLE are workers kept ready.",
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
            "Of the release. Pending for long: no machine has room.",
            (board.ray("kube_pod_status_phase", "phase", where=PODS), "{{phase}}"),
            stack=True,
        ),
        graph(
            "Restarts",
            "Containers that were started again, a minute.",
            (
                f"60 * {board.ray_rate('kube_pod_container_status_restarts_total', 'pod', where=PODS)} > 0",
                "{{pod}}",
            ),
            bars=True,
        ),
        graph(
            "Room on volumes",
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
    "The Ray cluster that trains: nodes, CPUs, memory, object store, disk, the head; and the release's pods in Kubernetes.",
    (NOW, NODES, OBJECTS, HEAD, KUBERNETES),
    pods=True,
)
