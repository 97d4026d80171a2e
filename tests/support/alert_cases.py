"""For each alert of rules.yaml, metrics at which it must fire and metrics at which it must not.

Metrics of the store come from two replicas, so that a sum would count them twice.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LOOK: Final = 100  # minute at which an alert is evaluated; series are a little longer
FLAT: Final = f"x{LOOK + 20}"


class Case(NamedTuple):
    """Series with their values: one set with which the alert fires, one with which it does not."""

    fires: dict[str, str]
    silent: dict[str, str]


def values_of(kind: str, value: str, minutes: str = "0") -> str:
    """Return values in Prometheus' notation: `0+1x9` is 0, 1, .. 9, one value per minute."""
    if kind == "late":
        return f"0x{LOOK - int(minutes)} {value}x{int(minutes) + 20}"
    return f"{'0+' if kind == 'rise' else ''}{value}{FLAT}"


def series_of(source: str, name: str, labels: str, numbers: list[str]) -> dict[str, str]:
    """Return the series of one line of the table."""
    if source == "histogram":
        quick, total = numbers[0], str(sum(map(int, numbers)))
        result: dict[str, str] = {}
        for bound, by in {"0.1": quick, "5.0": total, "+Inf": total}.items():
            bucket = f'le="{bound}"' + (f",{labels}" if labels else "")
            result |= series_of("replica", f"{name}_bucket", bucket, ["rise", by])
        return result
    more = f",{labels}" if labels else ""
    return {
        f'{name}{{namespace="n",instance="{replica}"{more}}}': values_of(*numbers)
        for replica in ("ab" if source == "store" else "a")
    }


# An alert, then its series: when it fires or is silent; where the metric comes from (the store, or
# one replica or node); name and labels; its values: `flat` stays, `rise` grows by a number per
# minute, `late` is 0 until some minutes before the evaluation. A histogram has the events per
# minute up to 0.1 s and up to 5 s.
TABLE: Final = """
XcrayNoRunner
    fires store xcray_readiness_check_failing{check="RUNNER"} late 1 3
    silent store xcray_readiness_check_failing{check="RUNNER"} late 1 1
XcrayJobQueueSlow
    fires store xcray_jobs_oldest_pending_seconds flat 3700
    silent store xcray_jobs_oldest_pending_seconds flat 3500
XcrayRunnerCrashes
    fires store xcray_job_attempts_lost_total rise 0.2
    silent store xcray_job_attempts_lost_total rise 0.08
XcrayJobsFail
    fires store xcray_jobs_completed_total{kind="train",status="FAILED",reason="DISK_FULL"} late 1 30
    silent store xcray_jobs_completed_total{kind="train",status="FAILED",reason="INPUT"} rise 5
    silent store xcray_jobs_completed_total{kind="train",status="SUCCEEDED",reason="NONE"} rise 5
    silent store xcray_jobs_completed_total{kind="train",status="FAILED",reason="DISK_FULL"} flat 7
XcrayTrainingStalled
    fires store xcray_workers flat 4
    fires store xcray_worker_seconds_total{kind="train"} flat 99
    silent store xcray_workers flat 4
    silent store xcray_worker_seconds_total{kind="train"} rise 1
XcrayWorkersMissing
    fires store xcray_workers_desired flat 8
    fires store xcray_workers flat 5
    silent store xcray_workers_desired flat 8
    silent store xcray_workers flat 8
XcrayWorkersIdle
    fires store xcray_workers_busy_share flat 0.4
    fires store xcray_workers flat 8
    silent store xcray_workers_busy_share flat 0.0
    silent store xcray_workers flat 0
XcrayWorkersLost
    fires store xcray_workers_lost_total rise 0.2
    silent store xcray_workers_lost_total rise 0.08
XcrayNodesLost
    fires store xcray_nodes_lost_total late 1 10
    silent store xcray_nodes_lost_total late 1 60
XcrayWorkWasted
    fires store xcray_worker_seconds_wasted_total{outcome="lost"} rise 10
    fires store xcray_worker_seconds_wasted_total{outcome="stopped"} rise 10
    fires store xcray_worker_seconds_total{kind="train"} rise 50
    silent store xcray_worker_seconds_wasted_total{outcome="lost"} rise 10
    silent store xcray_worker_seconds_total{kind="train"} rise 90
XcrayAbsent
    fires replica up flat 0
    silent store xcray_store_metrics_age_seconds flat 1
XcrayNotReady
    fires replica xcray_readiness_check_failing{check="DISK"} flat 1
    silent replica xcray_readiness_check_failing{check="DRAINING"} flat 1
XcrayDegraded
    fires replica xcray_readiness_check_failing{check="RAY"} flat 1
    silent replica xcray_readiness_check_failing{check="RAY"} flat 0
XcrayPredictionsSlow
    fires histogram xcray_predict_duration_seconds 90 10
    silent histogram xcray_predict_duration_seconds 1000 1
XcrayRequestsFail
    fires replica xcray_http_requests_total{status="2xx"} rise 97
    fires replica xcray_http_requests_total{status="5xx"} rise 3
    silent replica xcray_http_requests_total{status="2xx"} rise 97
    silent replica xcray_http_requests_total{status="4xx"} rise 3
XcrayRequestsRejected
    fires replica xcray_http_rejected_requests_total{code="RATE"} rise 90
    silent replica xcray_http_rejected_requests_total{code="RATE"} rise 30
XcrayModelNotLoaded
    fires replica xcray_model_loads_total{outcome="failed"} late 1 5
    silent replica xcray_model_loads_total{outcome="loaded"} rise 5
XcrayModelCacheThrashing
    fires replica xcray_model_cache_requests_total{result="miss"} rise 10
    fires replica xcray_model_cache_requests_total{result="hit"} rise 90
    silent replica xcray_model_cache_requests_total{result="miss"} rise 1
    silent replica xcray_model_cache_requests_total{result="hit"} rise 99
XcraySearchDeadlineExceeded
    fires replica xcray_predict_certified_instances_total rise 95
    fires replica xcray_predict_instances_total rise 100
    silent replica xcray_predict_certified_instances_total rise 100
    silent replica xcray_predict_instances_total rise 100
XcrayAnswersDrifted
    fires replica xcray_predict_drift{tenant="t",model="m",version="3",kind="score"} flat 0.3
    silent replica xcray_predict_drift{tenant="t",model="m",version="3",kind="score"} flat 0.2
XcrayInputsUnknown
    fires replica xcray_predict_empty_instances_total rise 30
    fires replica xcray_predict_instances_total rise 100
    silent replica xcray_predict_empty_instances_total rise 10
    silent replica xcray_predict_instances_total rise 100
XcrayEventLoopLag
    fires histogram xcray_event_loop_lag_seconds 90 10
    silent histogram xcray_event_loop_lag_seconds 1000 1
XcrayStoreSlow
    fires histogram xcray_store_transaction_duration_seconds{mode="write"} 10 90
    silent histogram xcray_store_transaction_duration_seconds{mode="write"} 1000 1
    silent histogram xcray_store_transaction_duration_seconds{mode="read"} 90 0
XcrayStoreDown
    fires replica xcray_store_errors_total{mode="read"} flat 0
    fires replica xcray_store_metrics_age_seconds late 300 4
    silent replica xcray_store_errors_total{mode="read"} flat 3
    silent replica xcray_store_metrics_age_seconds flat 2
XcrayDiskFilling
    fires replica xcray_disk_free_bytes flat 15000000000.0
    fires replica xcray_disk_reserve_bytes flat 10000000000.0
    silent replica xcray_disk_free_bytes flat 25000000000.0
    silent replica xcray_disk_reserve_bytes flat 10000000000.0
RayHeadGone
    fires replica ray_node_cpu_count{IsHeadNode="false",ip="w",ray_io_cluster="a"} flat 4
    fires replica ray_node_cpu_count{IsHeadNode="true",ip="h",ray_io_cluster="b"} flat 2
    silent replica ray_node_cpu_count{IsHeadNode="false",ip="w"} flat 4
    silent replica ray_node_cpu_count{IsHeadNode="true",ip="h"} flat 2
RayGcsDown
    fires replica ray_node_cpu_count{IsHeadNode="true",ip="h",ray_io_cluster="a"} flat 2
    fires replica ray_running_jobs{ray_io_cluster="b"} flat 0
    silent replica ray_node_cpu_count{IsHeadNode="true",ip="h"} flat 2
    silent replica ray_running_jobs flat 0
RayNodesFail
    fires replica autoscaler_recently_failed_nodes{NodeType="w"} flat 1
    silent replica autoscaler_recently_failed_nodes flat 0
RayNodesPending
    fires replica autoscaler_pending_nodes{NodeType="w"} late 2 20
    silent replica autoscaler_pending_nodes late 2 10
RayObjectStoreSpills
    fires replica ray_object_store_memory{Location="SPILLED"} flat 1000000000.0
    silent replica ray_object_store_memory{Location="MMAP_SHM"} flat 1000000000.0
RayDiskFilling
    fires replica ray_node_disk_free{ip="w"} flat 8
    fires replica ray_node_disk_usage{ip="w"} flat 92
    silent replica ray_node_disk_free{ip="w"} flat 12
    silent replica ray_node_disk_usage{ip="w"} flat 88
RayMemoryFull
    fires replica ray_node_mem_used{ip="w"} flat 97
    fires replica ray_node_mem_total{ip="w"} flat 100
    silent replica ray_node_mem_used{ip="w"} flat 90
    silent replica ray_node_mem_total{ip="w"} flat 100
XcrayPodCrashLooping
    fires replica kube_pod_container_status_restarts_total{pod="r-xcray-api-0"} rise 0.1
    silent replica kube_pod_container_status_restarts_total{pod="another-0"} rise 0.1
XcrayPodPending
    fires replica kube_pod_status_phase{phase="Pending",pod="r-xcray-api-0"} flat 1
    silent replica kube_pod_status_phase{phase="Running",pod="r-xcray-api-0"} flat 1
XcrayReplicasMissing
    fires replica kube_deployment_status_replicas_available{deployment="r-xcray-api"} flat 1
    fires replica kube_deployment_spec_replicas{deployment="r-xcray-api"} flat 2
    silent replica kube_deployment_status_replicas_available{deployment="r-xcray-api"} flat 2
    silent replica kube_deployment_spec_replicas{deployment="r-xcray-api"} flat 2
XcrayVolumeFilling
    fires replica kubelet_volume_stats_available_bytes{persistentvolumeclaim="r-xcray-home"} flat 5
    fires replica kubelet_volume_stats_capacity_bytes{persistentvolumeclaim="r-xcray-home"} flat 100
    silent replica kubelet_volume_stats_available_bytes{persistentvolumeclaim="r-xcray-home"} flat 50
    silent replica kubelet_volume_stats_capacity_bytes{persistentvolumeclaim="r-xcray-home"} flat 100
XcrayCertificateExpires
    fires replica certmanager_certificate_expiration_timestamp_seconds{name="r-xcray-tls"} flat 604800
    silent replica certmanager_certificate_expiration_timestamp_seconds{name="r-xcray-tls"} flat 5184000
"""
LINE: Final = re.compile(r"    (fires|silent) (\w+) (\w+)(?:\{(.*)\})? ([a-z0-9].*)")


def cases_of(table: str) -> dict[str, Case]:
    """Return the cases by alert."""
    cases: dict[str, Case] = {}
    case = Case({}, {})
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            case = cases[line] = Case({}, {})
            continue
        found = LINE.fullmatch(line)
        assert found, line
        when, source, name, labels, numbers = found.groups()
        getattr(case, when).update(series_of(source, name, labels or "", numbers.split()))
    return cases


CASES: Final = cases_of(TABLE)
