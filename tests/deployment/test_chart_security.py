"""Each container of each pod of a release is restricted, also those that KubeRay creates.

The rules are the "restricted" pod security standard of Kubernetes and these: read-only root file
systems, a token of Kubernetes only in the one container that needs it, and no secret in plain text.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from tests.deployment.chart.helm import CHART, Objects, rendering, values_files
from tests.deployment.chart.templates import (
    AUTOSCALER,
    Owner,
    cluster_spec,
    containers,
    planted,
    pods,
)

FILES = sorted(values_files())
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
SHARED_MEMORY = {"shared-mem"}  # emptyDirs in memory
LONG_RUNNING = {
    "api",
    "runner",
    "ray-head",
    "ray-worker",
    "rayjob-head",
    "rayjob-worker",
    "rayservice-head",
    "rayservice-worker",
}
# Patterns of secrets: xcray's keys, private keys, passwords in URLs, AWS key ids, GitHub tokens.
SECRET = re.compile(
    r"xck_[a-z]{20}_|-----BEGIN|://[^/\s:@]+:[^/\s@]+@|\bAKIA[0-9A-Z]{16}\b|\bghp_\w{30}"
)
SECRET_NAMES = re.compile(r"(?i)(password|passwd|secret(_access)?_key|token|credential|api_?key)")
NOT_SECRETS = {"RAY_AUTH_MODE", "XCRAY_RAY_TOKEN_PATH"}  # a mode and a path


def every(name: str) -> list[tuple[Owner, dict[str, Any]]]:
    """Return all containers of a values file, with their pods."""
    return [
        (owner, container) for owner in pods(rendering(name)) for container in containers(owner.pod)
    ]


def faults(owner: Owner) -> list[str]:
    """Return the violations of the rules for all pods."""
    spec, out = owner.pod["spec"], []
    shared = spec.get("securityContext", {})
    out += [f"{key} of the host" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    out += [
        f"{volume['name']} is a path of the host"
        for volume in spec.get("volumes", [])
        if "hostPath" in volume
    ]
    if spec.get("automountServiceAccountToken") is not False:
        out.append("a token of Kubernetes is mounted into every container")
    if spec.get("enableServiceLinks") is not False:
        out.append(
            "addresses of all Services are in its environment: XCRAY_PORT could be one of them"
        )
    if shared.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        out.append("no seccomp profile")
    if not shared.get("runAsUser") or not shared.get("runAsGroup") or not shared.get("fsGroup"):
        out.append("no user, group, or group of volumes")
    for container in containers(owner.pod):
        out += [f"{container['name']}: {fault}" for fault in container_faults(container, spec)]
    return out


def container_faults(container: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    """Return the violations of one container."""
    out = []
    context = container.get("securityContext", {})
    merged = {**spec.get("securityContext", {}), **context}
    fields = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
    }
    out += [
        f"{key} is {merged.get(key)}"
        for key, value in fields.items()
        if merged.get(key) is not value
    ]
    if context.get("privileged") or context.get("capabilities") != {"drop": ["ALL"]}:
        out.append("it has capabilities")
    if merged.get("runAsUser") == 0:
        out.append("it is root")
    limits, requests = (
        container.get("resources", {}).get("limits", {}),
        container.get("resources", {}).get("requests", {}),
    )
    if "memory" not in limits or "memory" not in requests or "cpu" not in requests:
        out.append("its memory or CPU is not requested, or its memory not limited")
    _, _, tag = container["image"].rpartition("/")[2].partition(":")
    if "@sha256:" not in container["image"] and tag in ("", "latest"):
        out.append(f"its image {container['image']} is not one version")
    if any("hostPort" in port for port in container.get("ports", [])):
        out.append("it takes a port of the host")
    names = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        volume = names.get(mount["name"], {})
        if "secret" in volume and not mount.get("readOnly"):
            out.append(f"secret {mount['name']} is not mounted read-only")
    return out


@pytest.mark.parametrize("name", FILES)
def test_every_pod_is_restricted(name: str) -> None:
    result = pods(rendering(name))
    assert len(result) >= 2
    assert {
        owner.name + ":" + owner.pod["metadata"]["name"]: inputs
        for owner in result
        if (inputs := faults(owner))
    } == {}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("hostNetwork",), True, "hostNetwork"),
        (("automountServiceAccountToken",), True, "token"),
        (("securityContext", "runAsNonRoot"), False, None),  # the containers set it, too
        (("securityContext", "seccompProfile", "type"), "Unconfined", "seccomp"),
        (
            ("containers", 0, "securityContext", "readOnlyRootFilesystem"),
            False,
            "readOnlyRootFilesystem",
        ),
        (
            ("containers", 0, "securityContext", "capabilities"),
            {"drop": ["ALL"], "add": ["NET_RAW"]},
            "capabilities",
        ),
        (("containers", 0, "securityContext", "privileged"), True, "capabilities"),
        (("containers", 0, "securityContext", "runAsUser"), 0, "root"),
        (("containers", 0, "image"), "registry:5000/xcray", "not one version"),
        (("containers", 0, "image"), "xcray:latest", "not one version"),
        (("containers", 0, "resources"), {"requests": {"cpu": 1, "memory": "1Gi"}}, "memory"),
        (("volumes", 0), {"name": "home", "hostPath": {"path": "/"}}, "path of the host"),
    ],
)
def test_each_rule_can_fail(path: tuple[Any, ...], value: Any, expected: str | None) -> None:
    owner = pods(rendering("minimal"))[0]
    planted(owner.pod["spec"], path, value)
    text = " ".join(faults(owner))
    assert expected in text if expected else text == ""


@pytest.mark.parametrize("name", FILES)
def test_only_one_container_has_a_kubernetes_token(name: str) -> None:
    """Ray's containers run user code, so only the autoscaler next to them can change pods."""
    holders, scaling = [], 0
    for thing in rendering(name):
        spec = cluster_spec(thing)
        scaling += bool(spec and spec["enableInTreeAutoscaling"])
    for owner, container in every(name):
        tokens = {
            volume["name"]
            for volume in owner.pod["spec"].get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        }
        if tokens & {mount["name"] for mount in container.get("volumeMounts", [])}:
            holders.append(container["name"])
            (mount,) = [each for each in container["volumeMounts"] if each["name"] in tokens]
            assert (mount["mountPath"], mount.get("readOnly")) == (TOKEN, True)
    assert holders == [AUTOSCALER] * scaling
    accounts = [each for each in rendering(name) if each["kind"] == "ServiceAccount"]
    assert accounts
    assert all(each["automountServiceAccountToken"] is False for each in accounts)
    assert not [each for each in rendering(name) if each["kind"] in ("Role", "RoleBinding")]


@pytest.mark.parametrize("name", FILES)
def test_no_secret_is_in_plain_text(name: str) -> None:
    for thing in rendering(name):
        where = f"{thing['kind']}/{thing['metadata']['name']}"
        if thing["kind"] == "Secret":
            # The pattern finds real secrets.
            assert all(
                SECRET.search(base64.b64decode(value).decode()) for value in thing["data"].values()
            )
            continue
        assert not SECRET.search(json.dumps(thing)), f"{where} holds what looks like a secret"
    for owner, container in every(name):
        for each in container.get("env", []):
            if SECRET_NAMES.search(each["name"]) and each["name"] not in NOT_SECRETS:
                assert "secretKeyRef" in each.get("valueFrom", {}), (
                    f"{owner.name}: {each['name']} is written out"
                )


@pytest.mark.parametrize("name", FILES)
def test_long_running_pods_have_probes_and_limits(name: str) -> None:
    for owner in pods(rendering(name)):
        if owner.role not in LONG_RUNNING or owner.pod["metadata"]["name"].endswith(
            "-redis-cleanup"
        ):
            continue
        first = owner.pod["spec"]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert "httpGet" in first[probe], owner.name
        assert owner.pod["spec"]["terminationGracePeriodSeconds"] >= 30
        for volume in owner.pod["spec"]["volumes"]:
            if "emptyDir" in volume:
                assert volume["emptyDir"].get("sizeLimit"), (
                    f"{owner.name}: {volume['name']} can fill the node"
                )
                assert volume["emptyDir"].get("medium") == (
                    "Memory" if volume["name"] in SHARED_MEMORY else None
                )


def exposed(objects: Objects) -> set[tuple[str, int]]:
    """Return roles and ports that are available outside of the cluster.

    They come from Ingress, HTTPRoute, and Services with an outside address.
    """
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    names = {
        name
        for name, each in services.items()
        if each["spec"].get("type", "ClusterIP") != "ClusterIP"
    }
    for each in objects:
        if each["kind"] == "Ingress":
            names |= {
                path["backend"]["service"]["name"]
                for rule in each["spec"]["rules"]
                for path in rule["http"]["paths"]
            }
        if each["kind"] == "HTTPRoute":
            names |= {ref["name"] for rule in each["spec"]["rules"] for ref in rule["backendRefs"]}
    results = {services[name]["spec"]["selector"]["app.kubernetes.io/component"] for name in names}
    return {
        (role, port["port"])
        for role in results
        for name in names
        for port in services[name]["spec"]["ports"]
    }


@pytest.mark.parametrize("name", FILES)
def test_only_the_api_is_ever_exposed(name: str) -> None:
    objects = rendering(name)
    assert {role for role, _ in exposed(objects)} <= {"api"}
    for thing in objects:
        if thing["kind"] == "Ingress":
            hosts = {host for each in thing["spec"]["tls"] for host in each["hosts"]}
            assert {rule["host"] for rule in thing["spec"]["rules"]} <= hosts
        spec = cluster_spec(thing)
        if spec is not None:
            assert spec["authOptions"]["mode"] == "token"
            assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
            assert spec["headGroupSpec"]["enableIngress"] is False


def test_no_template_contains_cluster_wide_rights() -> None:
    for path in (CHART / "templates").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert not re.search(
                r"kind: (ClusterRole|ClusterRoleBinding|CustomResourceDefinition|PodSecurityPolicy)",
                text,
            ), path.name
            assert "hostPath" not in text, path.name
