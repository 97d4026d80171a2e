"""Every pod that a release creates, as a plain Pod.

They come from Deployments, Jobs, hooks, tests, and Ray nodes as KubeRay builds them. This module
simulates what KubeRay 1.7 does to a template, as far as the checks depend on it: labels that can't
be overridden, the autoscaler next to the head, the init container that waits for the head, and the
job that cleans Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.deployment.chart.helm import NAMESPACE, Objects, plain

CLUSTER_SPECS = {
    "RayCluster": (),
    "RayJob": ("rayClusterSpec",),
    "RayService": ("rayClusterConfig",),
}
AUTOSCALER = "autoscaler"
WAIT_RESOURCES = {"cpu": "200m", "memory": "256Mi"}


class Owner(NamedTuple):
    """A pod and the object that creates it."""

    name: str  # of the owner, with its kind: Deployment/xcray-api
    pod: dict[str, Any]
    role: str  # the label of the component: api, runner, head, worker, ...
    hook: bool  # whether helm creates and deletes it


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a pod, init containers first."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def planted(thing: Any, path: tuple[Any, ...], value: Any) -> None:
    """Put a value at a path."""
    for step in path[:-1]:
        thing = thing[step]
    thing[path[-1]] = value


def variables(container: dict[str, Any]) -> dict[str, str | None]:
    """Return the environment of a container; None for values from other objects."""
    return {each["name"]: each.get("value") for each in container["env"]}


def cluster_spec(thing: dict[str, Any]) -> dict[str, Any] | None:
    """Return the spec of the Ray cluster in a resource of KubeRay; None for other objects."""
    if thing["kind"] not in CLUSTER_SPECS:
        return None
    spec = thing["spec"]
    for step in CLUSTER_SPECS[thing["kind"]]:
        spec = spec[step]
    result: dict[str, Any] = spec
    return result


def cluster_name(thing: dict[str, Any]) -> str:
    """Return the RayCluster's name; KubeRay adds five characters for RayJob and RayService."""
    name: str = thing["metadata"]["name"]
    return name if thing["kind"] == "RayCluster" else f"{name}-abcde"


def as_pod(template: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a pod of a template."""
    metadata = {"name": name, "namespace": NAMESPACE, **plain(template.get("metadata", {}))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": plain(template["spec"]),
    }


def ray_labels(thing: dict[str, Any], node: str, group: str) -> dict[str, str]:
    """Return the labels that KubeRay always sets on a pod."""
    return {
        "ray.io/cluster": cluster_name(thing),
        "ray.io/node-type": node,
        "ray.io/group": group,
        "ray.io/is-ray-node": "yes",
    }


def head_pod(thing: dict[str, Any]) -> dict[str, Any]:
    """Return the head pod as KubeRay builds it.

    With in-tree autoscaling it has a second container, built from `autoscalerOptions`.
    """
    spec = cluster_spec(thing)
    assert spec is not None
    pod = as_pod(spec["headGroupSpec"]["template"], f"{cluster_name(thing)}-head")
    pod["metadata"]["labels"] |= ray_labels(thing, "head", "headgroup")
    _authenticate(thing, spec, pod["spec"]["containers"][0])
    if spec.get("enableInTreeAutoscaling"):
        options = plain(spec["autoscalerOptions"])
        entries = {
            name: options[name]
            for name in ("imagePullPolicy", "env", "resources", "securityContext", "volumeMounts")
            if name in options
        }
        words = "ray kuberay-autoscaler --cluster-name $(RAY_CLUSTER_NAME) --cluster-namespace $(RAY_CLUSTER_NAMESPACE)"
        started = {"command": ["/bin/bash", "-c", "--"], "args": [words]}
        sidecar = {
            "name": AUTOSCALER,
            "image": pod["spec"]["containers"][0]["image"],
            **started,
            **entries,
        }
        pod["spec"]["containers"].append(sidecar)
        pod["spec"]["restartPolicy"] = "Never"
    return pod


def worker_pods(thing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one pod per group.

    An init container, with the security and mounts of the first container, waits for the head.
    """
    spec = cluster_spec(thing)
    assert spec is not None
    for group in spec["workerGroupSpecs"]:
        pod = as_pod(group["template"], f"{cluster_name(thing)}-{group['groupName']}-worker-abcde")
        pod["metadata"].setdefault("labels", {}).update(
            ray_labels(thing, "worker", group["groupName"])
        )
        pod["metadata"]["labels"] |= group.get("labels", {})
        first = pod["spec"]["containers"][0]
        _authenticate(thing, spec, first)
        entries = {
            name: plain(first[name])
            for name in ("image", "imagePullPolicy", "env", "volumeMounts", "securityContext")
            if name in first
        }
        wait = {
            "name": "wait-gcs-ready",
            "resources": {"requests": WAIT_RESOURCES, "limits": WAIT_RESOURCES},
            **entries,
        }
        pod["spec"].setdefault("initContainers", []).append(wait)
        yield pod


def cleanup_pod(thing: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod that cleans Redis when a cluster with GCS fault tolerance is deleted.

    It has the head's template with one container.
    """
    spec = cluster_spec(thing)
    assert spec is not None
    if "gcsFaultToleranceOptions" not in spec:
        return None
    pod = head_pod(thing)
    pod["metadata"]["name"] = f"{cluster_name(thing)}-redis-cleanup"
    pod["metadata"]["labels"]["ray.io/node-type"] = "redis-cleanup"
    pod["spec"]["containers"] = pod["spec"]["containers"][:1]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        pod["spec"]["containers"][0].pop(probe, None)
    pod["spec"]["restartPolicy"] = "Never"
    return pod


def _authenticate(thing: dict[str, Any], spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Set the token as a variable from the named Secret, or from KubeRay's.

    KubeRay's Secret has the name of the cluster.
    """
    secret = {
        "name": spec["authOptions"].get("secretName", cluster_name(thing)),
        "key": "auth_token",
    }
    token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}}
    container.setdefault("env", []).extend([{"name": "RAY_AUTH_MODE", "value": "token"}, token])


def _template_of(thing: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod template of an object of Kubernetes; None if it has none."""
    if thing["kind"] == "Pod":
        return thing
    if thing["kind"] == "CronJob":
        result = thing["spec"]["jobTemplate"]["spec"]["template"]
    else:
        result = (
            thing["spec"].get("template")
            if thing["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job", "ReplicaSet")
            else None
        )
    return result


def pods(objects: Objects) -> list[Owner]:
    """Return every pod of a release."""
    out: list[Owner] = []
    for thing in objects:
        name = f"{thing['kind']}/{thing['metadata']['name']}"
        hook = "helm.sh/hook" in thing["metadata"].get("annotations", {})
        if thing["kind"] in CLUSTER_SPECS:
            results = [
                head_pod(thing),
                *worker_pods(thing),
                *([each] if (each := cleanup_pod(thing)) else []),
            ]
        else:
            template = _template_of(thing)
            results = [as_pod(template, thing["metadata"]["name"])] if template else []
        out += [
            Owner(
                name,
                pod,
                pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""),
                hook,
            )
            for pod in results
        ]
    return out


def index(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
    """Return objects by kind and name; a duplicate is an error."""
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for thing in objects:
        key = (thing["kind"], thing["metadata"]["name"])
        assert key not in out, f"two objects {key}"
        out[key] = thing
    return out
