"""The checks of KubeRay's operator (1.7) after the schema, and the command that it builds.

The schema does not express these rules: they are in the operator's code (`validation.go`) and in
the CEL rules of its CRDs. The API server accepts a resource that breaks one, but it never becomes a
cluster. What the operator does by itself:

- The head's Service is named NAME-head-svc; RayJob and RayService name their clusters NAME-xxxxx.
- A template can't override the labels ray.io/cluster, ray.io/node-type and ray.io/group; it can
override app.kubernetes.io/name.
- Ray's container is the first. `ulimit -n 65536; ray start ... --block` becomes its command. Bash
replaces itself by the last command of such a line, so Ray is process 1 and receives SIGTERM. Ray
2.60 then marks its node as draining and ends when it is idle.
- /dev/shm and, with the autoscaler, /tmp/ray get volumes without a size if nothing is mounted
there.
- Containers without probes get some: over HTTP from Ray 2.53 on, but with `wget` for workers of a
RayService.
- With autoscaler v2 all pods get restartPolicy Never. The operator does not create a ServiceAccount
that the head's template names; it binds its Role (pods and rayclusters of the namespace) to it.
- If `authOptions.secretName` is not set, the operator creates the token's Secret with the name of
the cluster.
- A changed template replaces the pods of a RayCluster only with upgradeStrategy Recreate; a changed
number of workers is not such a change.
- When a cluster with Redis is deleted, a Job with the head's template cleans Redis.
"""

from __future__ import annotations

import re
from typing import Any

from tests.deployment.chart.templates import cluster_name, cluster_spec

# Maximum characters of a name, so that names of Services fit.
LONGEST = {
    "RayCluster": 53,
    "RayJob": 47,
    "RayService": 47,
}
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NOT_IN_HEAD = ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2")
SET_BY_OPERATOR = ("address", "block", "no-monitor", "redis-password", "redis-username", "labels")
RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: 2.60.0 -> (2, 60, 0)."""
    return tuple(int(part) for part in text.split("."))


def faults(thing: dict[str, Any]) -> list[str]:
    """Return why the operator would reject a Ray resource, or act differently from the chart."""
    name, spec = thing["metadata"]["name"], cluster_spec(thing)
    assert spec is not None
    out = (
        []
        if len(name) <= LONGEST[thing["kind"]]
        else [f"the name has more than {LONGEST[thing['kind']]} characters"]
    )
    out += [] if NAME.fullmatch(name) else ["the name is not a DNS-1035 label"]
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
        out.append("managedBy names another manager")  # a CEL rule
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
        out.append(f"{name}: resources are set twice")
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
    """Return the words of the `ray start` that the operator builds.

    They are the given parameters and the operator's defaults; limits become resources.
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
    """Return the bytes of a quantity: 2Gi -> 2147483648."""
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
