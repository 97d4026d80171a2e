"""The checks of KubeRay's operator (1.7) after the schema, and the command that it builds.

The schema does not express these rules: they are in the operator's code (`validation.go`). The API
server accepts a resource that breaks one, but it never becomes a cluster. The operator names the
head's Service NAME-head-svc, and the clusters of RayJob and RayService NAME-xxxxx.
"""

from __future__ import annotations

import re
from typing import Any

from tests.deployment.chart.templates import cluster_name, cluster_spec

# Maximum characters of a name, so that names of Services fit.
LONGEST = {"RayCluster": 53, "RayJob": 47, "RayService": 47}
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
NOT_IN_HEAD = {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"}
SET_BY_OPERATOR = {"address", "block", "no-monitor", "redis-password", "redis-username", "labels"}


def faults(thing: dict[str, Any]) -> list[str]:
    """Return why the operator would reject a Ray resource, or act differently from the chart."""
    name, spec = thing["metadata"]["name"], cluster_spec(thing)
    assert spec is not None
    head = spec["headGroupSpec"]
    variables = {each["name"] for each in head["template"]["spec"]["containers"][0]["env"]}
    version = tuple(map(int, spec["rayVersion"].split(".")))
    groups = spec["workerGroupSpecs"]
    prioritised = any(group.get("priority") for group in groups)
    scales = spec.get("enableInTreeAutoscaling", False)
    rules = {
        "the name is too long": len(name) > LONGEST[thing["kind"]],
        "the name is not a DNS-1035 label": not NAME.fullmatch(name),
        "a token needs rayVersion 2.52 or newer": version < (2, 52, 0),
        "priorities of groups need rayVersion 2.56 or newer": prioritised and version < (2, 56, 0),
        "a variable of the head has a field": bool(variables & NOT_IN_HEAD),
        "a backend of GCS fault tolerance is behind a feature gate": "backend"
        in spec.get("gcsFaultToleranceOptions", {}),
        "the resource has a manager": "managedBy" in thing["spec"],
        "a job that keeps its cluster has no time to live": thing["kind"] == "RayJob"
        and thing["spec"].get("ttlSecondsAfterFinished", 0) > 0
        and not thing["spec"]["shutdownAfterJobFinishes"],
    }
    for group in (head, *groups):
        where = group.get("groupName", "head")
        restart = group["template"]["spec"].get("restartPolicy", "Never")
        rules |= {
            f"{where}: a parameter is the operator's to set": bool(
                SET_BY_OPERATOR & set(group["rayStartParams"])
            ),
            f"{where}: resources are set twice": "resources" in group,
            f"{where}: with autoscaler v2 pods are never restarted": scales and restart != "Never",
        }
    for group in groups:
        where = group["groupName"]
        rules |= {
            f"{where}: fewest above most": group["minReplicas"] > group["maxReplicas"],
            f"{where}: suspended behind a feature gate": "suspend" in group,
            f"{where}: names of pods are cut": len(f"{cluster_name(thing)}-{where}-worker-") > 68,
        }
    return [reason for reason, broken in rules.items() if broken]


def start_words(group: dict[str, Any], head: bool) -> list[str]:
    """Return the words of the `ray start` that the operator builds.

    They are the given parameters and the operator's defaults; limits become resources.
    """
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    params = {
        "num-cpus": str(limits["cpu"]),
        "memory": str(bytes_of(limits["memory"])),
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        **({"dashboard-host": "0.0.0.0"} if head else {"address": "head-svc:6379"}),
        **group["rayStartParams"],
    }
    words = [f"--{name}={value.strip(chr(39))}" for name, value in sorted(params.items())]
    return ["--block", *(["--head"] if head else []), *words]


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity: 2Gi -> 2147483648."""
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
