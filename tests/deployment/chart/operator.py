"""What KubeRay's operator (1.7) says of a custom resource after the schema has passed it, and the
command that it builds.

The schema can't say it: these rules are the operator's code (`validation.go`) and the rules in CEL
of its CRDs. A resource that breaks one is accepted by the API server and then never becomes a
cluster. What the operator does by itself:

- The head's Service is called NAME-head-svc; RayJob and RayService call their clusters NAME-xxxxx.
- Labels ray.io/cluster, ray.io/node-type and ray.io/group can't be overridden by a template;
app.kubernetes.io/name can.
- Ray's container is the first. `ulimit -n 65536; ray start ... --block` becomes its command; bash
runs the last command of such a line in its own place, so Ray is process 1 and hears SIGTERM. Ray
2.60 then marks its node as draining and ends when it is idle.
- /dev/shm and, with the autoscaler, /tmp/ray get volumes without a size where nothing is mounted
there.
- Probes are added where a container has none: over HTTP from Ray 2.53 on, but with `wget` for
workers of a RayService.
- With autoscaler v2 all pods get restartPolicy Never. A ServiceAccount that the head's template
names is not made by the operator; its Role (pods and rayclusters of the namespace) is bound to it.
- The token's Secret is made where `authOptions.secretName` names none; it is called as the cluster.
- A RayCluster's pods are replaced for a changed template only with upgradeStrategy Recreate;
numbers of workers are no such change.
- When a cluster with Redis is deleted, a Job with the head's template cleans Redis.
"""

from __future__ import annotations

import re
from typing import Any

from tests.deployment.chart.templates import cluster_name, cluster_spec

LONGEST = {
    "RayCluster": 53,
    "RayJob": 47,
    "RayService": 47,
}  # characters of a name, so that Services fit
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NOT_IN_HEAD = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2")
SET_BY_OPERATOR = ("address", "block", "no-monitor", "redis-password", "redis-username", "labels")
RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")


def version(text: str) -> tuple[int, ...]:
    """2.60.0 -> (2, 60, 0)."""
    return tuple(int(part) for part in text.split("."))


def faults(thing: dict[str, Any]) -> list[str]:
    """Why the operator would refuse a RayCluster, RayJob or RayService, or do something else than
    the chart says.
    """
    name, spec = thing["metadata"]["name"], cluster_spec(thing)
    assert spec is not None
    out = (
        []
        if len(name) <= LONGEST[thing["kind"]]
        else [f"the name has more than {LONGEST[thing['kind']]} characters"]
    )
    out += [] if NAME.fullmatch(name) else ["the name is no DNS-1035 label"]
    out += _cluster_faults(spec) + _group_faults("head", spec["headGroupSpec"], spec)
    for group in spec["workerGroupSpecs"]:
        out += _group_faults(group["groupName"], group, spec)
        if group.get("suspend"):
            out.append(f"{group['groupName']}: groups are suspended behind a feature gate only")
        if group["minReplicas"] > group["maxReplicas"]:
            out.append(f"{group['groupName']}: fewest above most")
        if len(f"{cluster_name(thing)}-{group['groupName']}-worker-") > 63 + 5:
            out.append(f"{group['groupName']}: names of pods are cut")
    if thing["kind"] == "RayJob":
        out += _job_faults(thing["spec"])
    if "managedBy" in thing["spec"] and thing["spec"]["managedBy"] not in (
        "ray.io/kuberay-operator",
        "kueue.x-k8s.io/multikueue",
    ):
        out.append("managedBy names another manager")  # in CEL
    return out


def _cluster_faults(spec: dict[str, Any]) -> list[str]:
    out = []
    ray = version(spec.get("rayVersion") or "0")
    if spec["authOptions"]["mode"] == "token" and ray < (2, 52, 0):
        out.append("a token needs rayVersion 2.52 or newer")
    if any(group.get("priority") for group in spec["workerGroupSpecs"]) and ray < (2, 56, 0):
        out.append("priorities of groups need rayVersion 2.56 or newer")
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    variables = {each["name"] for each in head.get("env", [])}
    out += [
        f"{each} is set in the head: use the field for it"
        for each in NOT_IN_HEAD
        if each in variables
    ]
    options = spec.get("gcsFaultToleranceOptions", {})
    if options.get("backend", "redis") != "redis":
        out.append("the backend rocksdb is behind a feature gate")
    if options and "redisAddress" not in options:
        out.append("GCS fault tolerance has no Redis")
    return out


def _group_faults(name: str, group: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    params = group.get("rayStartParams", {})
    out = [f"{name}: {each} is the operator's to set" for each in SET_BY_OPERATOR if each in params]
    if group.get("resources") and any(each in params for each in RESOURCES):
        out.append(f"{name}: resources are said twice")
    pod = group["template"]["spec"]
    scales = (
        spec.get("enableInTreeAutoscaling") and spec["autoscalerOptions"].get("version") == "v2"
    )
    if scales and pod.get("restartPolicy", "Never") != "Never":
        out.append(f"{name}: with autoscaler v2 pods are never restarted")
    if not pod.get("containers"):
        out.append(f"{name}: no container")
    return out


def _job_faults(spec: dict[str, Any]) -> list[str]:
    out = []
    if spec.get("suspend") and not spec["shutdownAfterJobFinishes"]:
        out.append("a job that keeps its cluster can't be suspended")
    if spec.get("ttlSecondsAfterFinished", 0) and not spec["shutdownAfterJobFinishes"]:
        out.append("a job that keeps its cluster has no time to live")
    if spec["submissionMode"] == "HTTPMode" and "submitterPodTemplate" in spec:
        out.append("HTTPMode has no submitter")
    return out


def start_words(group: dict[str, Any], head: bool) -> list[str]:
    """The `ray start` that the operator builds: the parameters given, and its own where those lack;
    limits become resources.
    """
    params = dict(group.get("rayStartParams", {}))
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    params.setdefault("num-cpus", str(limits["cpu"]))
    params.setdefault("memory", str(bytes_of(limits["memory"])))
    params.setdefault("metrics-export-port", "8080")
    params.setdefault("dashboard-agent-listen-port", "52365")
    if head:
        params.setdefault("dashboard-host", "0.0.0.0")
    else:
        params.setdefault("address", "head-svc.ml.svc.cluster.local:6379")
    return [
        "--block",
        *(["--head"] if head else []),
        *(f"--{name}={value.strip(chr(39))}" for name, value in sorted(params.items())),
    ]


def bytes_of(quantity: str) -> int:
    """2Gi -> 2147483648."""
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
