"""Metrics of other programs that dashboards and alerts query, with their labels.

Those of Ray were exported by Ray 2.60.0 to a Prometheus in `python -m
benchmarks.monitoring.dashboards`, and a test looks for their names in the installed Ray. Those of
Kubernetes are documented by kube-state-metrics (docs/metrics/workload, 2.13), the kubelet (metrics
reference 1.30) and cert-manager (docs/devops-tips/prometheus-metrics, 1.15).
"""

from __future__ import annotations

from typing import Final

from xcray.workers.ray.gauges import GAUGES, metric_name

scraped_with: Final = "Ray 2.60.0"
RAY: Final[dict[str, set[str]]] = {
    "autoscaler_active_nodes": {"NodeType"},
    "autoscaler_pending_nodes": {"NodeType"},
    "autoscaler_recently_failed_nodes": {"NodeType"},
    "ray_actors": {"State", "Source", "Name"},
    "ray_component_rss_bytes": {"Component", "ip"},
    "ray_health_check_rpc_latency_ms_bucket": {"NodeAddress"},
    "ray_node_cpu_count": {"ip", "IsHeadNode"},
    "ray_node_cpu_utilization": {"ip", "IsHeadNode"},
    "ray_node_disk_free": {"ip", "IsHeadNode"},
    "ray_node_disk_usage": {"ip", "IsHeadNode"},
    "ray_node_mem_total": {"ip", "IsHeadNode"},
    "ray_node_mem_used": {"ip", "IsHeadNode"},
    "ray_object_manager_bytes": {"Type", "NodeAddress"},
    "ray_object_store_available_memory": {"NodeAddress"},
    "ray_object_store_memory": {"Location", "ObjectState", "NodeAddress"},
    "ray_object_store_used_memory": {"NodeAddress"},
    "ray_resources": {"Name", "State", "NodeAddress"},
    "ray_running_jobs": {"NodeAddress"},
    # from xcray's actors and drivers, exported by Ray
    "ray_xcray_busy_seconds_total": {"run", "worker", "NodeAddress"},
    "ray_xcray_labels_solved_total": {"run", "worker", "NodeAddress"},
    **{f"ray_{metric_name(gauge)}": {"run", "NodeAddress"} for gauge in GAUGES},
}
KUBERNETES: Final[dict[str, set[str]]] = {
    "certmanager_certificate_expiration_timestamp_seconds": {"name"},
    "kube_deployment_spec_replicas": {"deployment"},
    "kube_deployment_status_replicas_available": {"deployment"},
    "kube_pod_container_status_restarts_total": {"container"},
    "kube_pod_status_phase": {"phase"},
    "kubelet_volume_stats_available_bytes": {"persistentvolumeclaim"},
    "kubelet_volume_stats_capacity_bytes": {"persistentvolumeclaim"},
}
