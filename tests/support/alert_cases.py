"""For each alert of rules.yaml, metrics at which it must fire and metrics at which it must not.

The values use Prometheus' notation: `0+1x9` is 0, 1, .. 9, one value per minute. Metrics of the
store come from two replicas, so that a sum would count them twice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOOK: Final = 100  # minute at which an alert is evaluated; series are a little longer
FLAT: Final = f"x{LOOK + 20}"


class Case(NamedTuple):
    """Series with their values: one set with which the alert fires, one with which it does not."""

    fires: dict[str, str]
    silent: dict[str, str]


def flat(value: float) -> str:
    """Return a series that stays at `value`."""
    return f"{value}{FLAT}"


def rising(by: float) -> str:
    """Return a series that grows by `by` per minute."""
    return f"0+{by}{FLAT}"


def late(value: float, minutes: int) -> str:
    """Return a series that is 0 until `minutes` before the evaluation, and `value` afterwards."""
    return f"0x{LOOK - minutes} {value}x{minutes + 20}"


def both(figure: str, values: str, **labels: str) -> dict[str, str]:
    """Return a metric of the store, as exported by two replicas."""
    text = "".join(f',{label}="{value}"' for label, value in labels.items())
    return {f'{figure}{{namespace="n",instance="{replica}"{text}}}': values for replica in "ab"}


def one(figure: str, values: str, **labels: str) -> dict[str, str]:
    """Return a metric of one replica or node."""
    text = "".join(f',{label}="{value}"' for label, value in labels.items())
    return {f'{figure}{{namespace="n",instance="a"{text}}}': values}


def histogram(name: str, quick: float, slow: float, **labels: str) -> dict[str, str]:
    """Return a histogram that gains per minute `quick` events up to 0.1 s and `slow` up to 5 s."""
    counts = {"0.1": quick, "5.0": quick + slow, "+Inf": quick + slow}
    return {
        key: value
        for le, by in counts.items()
        for key, value in one(f"{name}_bucket", rising(by), le=le, **labels).items()
    }


CASES: Final[dict[str, Case]] = {
    "XcrayNoRunner": Case(
        both("xcray_readiness_check_failing", late(1, 3), check="RUNNER"),
        both("xcray_readiness_check_failing", late(1, 1), check="RUNNER"),
    ),
    "XcrayJobQueueSlow": Case(
        both("xcray_jobs_oldest_pending_seconds", flat(3700)),
        both("xcray_jobs_oldest_pending_seconds", flat(3500)),
    ),
    "XcrayRunnerCrashes": Case(
        both("xcray_job_attempts_lost_total", rising(0.2)),
        both("xcray_job_attempts_lost_total", rising(0.08)),
    ),
    "XcrayJobsFail": Case(
        both(
            "xcray_jobs_completed_total",
            late(1, 30),
            kind="train",
            status="FAILED",
            reason="DISK_FULL",
        ),
        {
            **both(
                "xcray_jobs_completed_total",
                rising(5),
                kind="train",
                status="FAILED",
                reason="INPUT",
            ),
            **both(
                "xcray_jobs_completed_total",
                rising(5),
                kind="train",
                status="SUCCEEDED",
                reason="NONE",
            ),
            **both(
                "xcray_jobs_completed_total",
                flat(7),
                kind="train",
                status="FAILED",
                reason="DISK_FULL",
            ),
        },
    ),
    "XcrayTrainingStalled": Case(
        {
            **both("xcray_workers", flat(4)),
            **both("xcray_worker_seconds_total", flat(99), kind="train"),
        },
        {
            **both("xcray_workers", flat(4)),
            **both("xcray_worker_seconds_total", rising(1), kind="train"),
        },
    ),
    "XcrayWorkersMissing": Case(
        {**both("xcray_workers_desired", flat(8)), **both("xcray_workers", flat(5))},
        {**both("xcray_workers_desired", flat(8)), **both("xcray_workers", flat(8))},
    ),
    "XcrayWorkersIdle": Case(
        {**both("xcray_workers_busy_share", flat(0.4)), **both("xcray_workers", flat(8))},
        {**both("xcray_workers_busy_share", flat(0.0)), **both("xcray_workers", flat(0))},
    ),
    "XcrayWorkersLost": Case(
        both("xcray_workers_lost_total", rising(0.2)),
        both("xcray_workers_lost_total", rising(0.08)),
    ),
    "XcrayNodesLost": Case(
        both("xcray_nodes_lost_total", late(1, 10)), both("xcray_nodes_lost_total", late(1, 60))
    ),
    "XcrayWorkWasted": Case(
        {
            **both("xcray_worker_seconds_wasted_total", rising(10), outcome="lost"),
            **both("xcray_worker_seconds_wasted_total", rising(10), outcome="stopped"),
            **both("xcray_worker_seconds_total", rising(50), kind="train"),
        },
        {
            **both("xcray_worker_seconds_wasted_total", rising(10), outcome="lost"),
            **both("xcray_worker_seconds_total", rising(90), kind="train"),
        },
    ),
    "XcrayAbsent": Case(one("up", flat(0)), both("xcray_store_metrics_age_seconds", flat(1))),
    "XcrayNotReady": Case(
        one("xcray_readiness_check_failing", flat(1), check="DISK"),
        one("xcray_readiness_check_failing", flat(1), check="DRAINING"),
    ),
    "XcrayDegraded": Case(
        one("xcray_readiness_check_failing", flat(1), check="RAY"),
        one("xcray_readiness_check_failing", flat(0), check="RAY"),
    ),
    "XcrayPredictionsSlow": Case(
        histogram("xcray_predict_duration_seconds", 90, 10),
        histogram("xcray_predict_duration_seconds", 1000, 1),
    ),
    "XcrayRequestsFail": Case(
        {
            **one("xcray_http_requests_total", rising(97), status="2xx"),
            **one("xcray_http_requests_total", rising(3), status="5xx"),
        },
        {
            **one("xcray_http_requests_total", rising(97), status="2xx"),
            **one("xcray_http_requests_total", rising(3), status="4xx"),
        },
    ),
    "XcrayRequestsRejected": Case(
        one("xcray_http_rejected_requests_total", rising(90), code="RATE"),
        one("xcray_http_rejected_requests_total", rising(30), code="RATE"),
    ),
    "XcrayModelNotLoaded": Case(
        one("xcray_model_loads_total", late(1, 5), outcome="failed"),
        one("xcray_model_loads_total", rising(5), outcome="loaded"),
    ),
    "XcrayModelSyncFailing": Case(
        one("xcray_model_sync_pending", late(1, 40), direction="follow"),
        one("xcray_model_sync_pending", late(1, 20), direction="mirror"),
    ),
    "XcrayModelCacheThrashing": Case(
        {
            **one("xcray_model_cache_requests_total", rising(10), result="miss"),
            **one("xcray_model_cache_requests_total", rising(90), result="hit"),
        },
        {
            **one("xcray_model_cache_requests_total", rising(1), result="miss"),
            **one("xcray_model_cache_requests_total", rising(99), result="hit"),
        },
    ),
    "XcraySearchDeadlineExceeded": Case(
        {
            **one("xcray_predict_certified_instances_total", rising(95)),
            **one("xcray_predict_instances_total", rising(100)),
        },
        {
            **one("xcray_predict_certified_instances_total", rising(100)),
            **one("xcray_predict_instances_total", rising(100)),
        },
    ),
    "XcrayEventLoopLag": Case(
        histogram("xcray_event_loop_lag_seconds", 90, 10),
        histogram("xcray_event_loop_lag_seconds", 1000, 1),
    ),
    "XcrayStoreSlow": Case(
        histogram("xcray_store_transaction_duration_seconds", 10, 90, mode="write"),
        {
            **histogram("xcray_store_transaction_duration_seconds", 1000, 1, mode="write"),
            **histogram("xcray_store_transaction_duration_seconds", 90, 0, mode="read"),
        },
    ),
    "XcrayStoreDown": Case(
        {
            **one("xcray_store_errors_total", flat(0), mode="read"),
            **one("xcray_store_metrics_age_seconds", late(300, 4)),
        },
        {
            **one("xcray_store_errors_total", flat(3), mode="read"),
            **one("xcray_store_metrics_age_seconds", flat(2)),
        },
    ),
    "XcrayDiskFilling": Case(
        {**one("xcray_disk_free_bytes", flat(15e9)), **one("xcray_disk_reserve_bytes", flat(10e9))},
        {**one("xcray_disk_free_bytes", flat(25e9)), **one("xcray_disk_reserve_bytes", flat(10e9))},
    ),
    "RayHeadGone": Case(
        {  # with the head of another cluster in the namespace, as for a RayJob
            **one("ray_node_cpu_count", flat(4), IsHeadNode="false", ip="w", ray_io_cluster="a"),
            **one("ray_node_cpu_count", flat(2), IsHeadNode="true", ip="h", ray_io_cluster="b"),
        },
        {
            **one("ray_node_cpu_count", flat(4), IsHeadNode="false", ip="w"),
            **one("ray_node_cpu_count", flat(2), IsHeadNode="true", ip="h"),
        },
    ),
    "RayGcsDown": Case(
        {
            **one("ray_node_cpu_count", flat(2), IsHeadNode="true", ip="h", ray_io_cluster="a"),
            **one("ray_running_jobs", flat(0), ray_io_cluster="b"),
        },
        {
            **one("ray_node_cpu_count", flat(2), IsHeadNode="true", ip="h"),
            **one("ray_running_jobs", flat(0)),
        },
    ),
    "RayNodesFail": Case(
        one("autoscaler_recently_failed_nodes", flat(1), NodeType="w"),
        one("autoscaler_recently_failed_nodes", flat(0)),
    ),
    "RayNodesPending": Case(
        one("autoscaler_pending_nodes", late(2, 20), NodeType="w"),
        one("autoscaler_pending_nodes", late(2, 10)),
    ),
    "RayObjectStoreSpills": Case(
        one("ray_object_store_memory", flat(1e9), Location="SPILLED"),
        one("ray_object_store_memory", flat(1e9), Location="MMAP_SHM"),
    ),
    "RayDiskFilling": Case(
        {
            **one("ray_node_disk_free", flat(8), ip="w"),
            **one("ray_node_disk_usage", flat(92), ip="w"),
        },
        {
            **one("ray_node_disk_free", flat(12), ip="w"),
            **one("ray_node_disk_usage", flat(88), ip="w"),
        },
    ),
    "RayMemoryFull": Case(
        {
            **one("ray_node_mem_used", flat(97), ip="w"),
            **one("ray_node_mem_total", flat(100), ip="w"),
        },
        {
            **one("ray_node_mem_used", flat(90), ip="w"),
            **one("ray_node_mem_total", flat(100), ip="w"),
        },
    ),
    "XcrayPodCrashLooping": Case(
        one("kube_pod_container_status_restarts_total", rising(0.1), pod="r-xcray-api-0"),
        one("kube_pod_container_status_restarts_total", rising(0.1), pod="another-0"),
    ),
    "XcrayPodPending": Case(
        one("kube_pod_status_phase", flat(1), phase="Pending", pod="r-xcray-api-0"),
        one("kube_pod_status_phase", flat(1), phase="Running", pod="r-xcray-api-0"),
    ),
    "XcrayReplicasMissing": Case(
        {
            **one("kube_deployment_status_replicas_available", flat(1), deployment="r-xcray-api"),
            **one("kube_deployment_spec_replicas", flat(2), deployment="r-xcray-api"),
        },
        {
            **one("kube_deployment_status_replicas_available", flat(2), deployment="r-xcray-api"),
            **one("kube_deployment_spec_replicas", flat(2), deployment="r-xcray-api"),
        },
    ),
    "XcrayVolumeFilling": Case(
        {
            **one(
                "kubelet_volume_stats_available_bytes",
                flat(5),
                persistentvolumeclaim="r-xcray-home",
            ),
            **one(
                "kubelet_volume_stats_capacity_bytes",
                flat(100),
                persistentvolumeclaim="r-xcray-home",
            ),
        },
        {
            **one(
                "kubelet_volume_stats_available_bytes",
                flat(50),
                persistentvolumeclaim="r-xcray-home",
            ),
            **one(
                "kubelet_volume_stats_capacity_bytes",
                flat(100),
                persistentvolumeclaim="r-xcray-home",
            ),
        },
    ),
    "XcrayCertificateExpires": Case(
        one(
            "certmanager_certificate_expiration_timestamp_seconds",
            flat(7 * 86400),
            name="r-xcray-tls",
        ),
        one(
            "certmanager_certificate_expiration_timestamp_seconds",
            flat(60 * 86400),
            name="r-xcray-tls",
        ),
    ),
}
