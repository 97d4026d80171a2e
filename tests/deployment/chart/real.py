"""Install, upgrade, roll back and uninstall the chart in a real control plane.

    python -m tests.deployment.chart.real --binaries DIR

DIR contains etcd, kube-apiserver, kube-controller-manager and kube-scheduler of Kubernetes 1.27 or
newer (from their releases). Nodes and kubelets are simulated, see
`tests.deployment.chart.controlplane`. Everything else is real: admission by the restricted
standard, validation, defaults, garbage collection, rollouts, Jobs, and binding of volumes and pods.
KubeRay's kinds have their own schemas with CEL rules if those are available
(`tests.deployment.chart.schemas`). The last line of output is JSON. The exit status is 0 on success
and 1 otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.deployment.chart.controlplane import APPLY, ControlPlane
from tests.deployment.chart.helm import (
    APIS,
    CHART,
    KUBE,
    NAMESPACE,
    RELEASE,
    TOOLS,
    Objects,
    helms,
    read,
    run,
    values_files,
)
from tests.deployment.chart.schemas import CRDS, OTHERS, crd
from tests.deployment.chart.templates import as_pod, pods

SECONDS: Final = 300  # for one helm command, and for one wait for the cluster
# The file to which each file is upgraded. No pair claims the home with different access modes or
# classes, which can't change.
AFTER: Final = {
    "minimal": "serving",
    "serving": "production",
    "production": "autoscaled",
    "autoscaled": "kueue",
    "kueue": "serving",
}
STANDARD: Final = {
    f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")
}
# What a user creates before the chart.
CLAIM: Final = "xcray-shared"
SECRETS: Final = (
    "xcray-admin",
    "xcray-postgres",
    "xcray-s3",
    "xcray-ray-token",
    "xcray-redis",
    "regcred",
)
RETAINED_OBJECTS: Final = {("PersistentVolumeClaim", "xcray-home"), ("Secret", "xcray-admin-key")}


class Fault(Exception):
    """The cluster did or kept something different from the chart."""


def prepare(plane: ControlPlane) -> None:
    """Create the kinds of KubeRay and others, the namespace, Secrets and a claim."""
    for kind, api in {**dict.fromkeys(CRDS, "ray.io/v1"), **OTHERS}.items():
        known = crd(kind) if kind in CRDS else None
        create(plane, kind_of(kind, *api.split("/"), known.original if known else None))
    for kind, api in {**dict.fromkeys(CRDS, "ray.io/v1"), **OTHERS}.items():
        wait(f"the server serves {kind}", lambda kind=kind, api=api: unserved(plane, api, kind))
    namespace = {"name": NAMESPACE, "labels": STANDARD}
    create(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    keys = ("key", "url", "password", "auth_token", "AWS_ACCESS_KEY_ID")
    data = {key: base64.b64encode(b"given").decode() for key in keys}
    for name in SECRETS:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        create(plane, secret, NAMESPACE)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    create(plane, {**claim, "metadata": {"name": CLAIM}}, NAMESPACE)


def create(plane: ControlPlane, thing: dict[str, Any], namespace: str = "") -> None:
    """Create an object. Raises Fault with the server's message if it rejects the object."""
    answer = plane.ask("POST", plane.path_of(thing["apiVersion"], thing["kind"], namespace), thing)
    if answer.status_code != 201 or "warning" in answer.headers:
        raise Fault(f"{key_of(thing)}: {answer.headers.get('warning', answer.text)[:1500]}")


def unserved(plane: ControlPlane, api: str, kind: str) -> list[str]:
    """Return the kind if the server does not serve it yet."""
    answer = plane.ask("GET", f"/apis/{api}")
    kinds = [each["kind"] for each in answer.json().get("resources", [])]
    return [] if kind in kinds else [kind]


def kind_of(kind: str, group: str, version: str, schema: Any) -> dict[str, Any]:
    """Return a CustomResourceDefinition. Without a schema it accepts any field."""
    many = f"{kind.lower()}s"
    any_field = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema or any_field},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{many}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": many},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


class ReleaseOperations:
    """The operations in a cluster with one helm. `counts` counts them."""

    def __init__(self, plane: ControlPlane, helm: str, folder: Path) -> None:
        self.plane = plane
        self.helm = helm
        self.folder = folder
        self.counts: Counter[str] = Counter()

    def run_helm(self, *words: str) -> str:
        """Run a helm command for the release and return its output. Raises Fault."""
        where = ["--namespace", NAMESPACE, "--kubeconfig", self.plane.kubeconfig]
        process = subprocess.run(
            [helms()[self.helm], *words, *where],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin"},
        )
        if process.returncode:
            raise Fault(f"{self.helm} {' '.join(words)}: {process.stderr.strip()}")
        self.counts[words[0]] += 1
        return process.stdout

    def apply(self, verb: str, name: str) -> None:
        """Install or upgrade to a values file."""
        words = [verb, RELEASE, str(CHART), "--values", str(values_files()[name])]
        self.run_helm(*words, "--wait", "--timeout", f"{SECONDS}s")

    def leg(self, name: str, after: str) -> None:
        """Install a values file, upgrade to another, roll back and uninstall. Raises Fault."""
        self.check_admission(name)
        self.apply("install", name)
        before = self.generations()
        self.apply("upgrade", name)
        if (now := self.generations()) != before:
            changed = sorted(dict(set(now.items()) - set(before.items())))
            raise Fault(f"{name}: an upgrade that changes nothing changed {changed}")
        self.run_helm("test", RELEASE, "--timeout", f"{SECONDS}s")
        old = set(before)
        self.apply("upgrade", after)
        gone = old - set(self.generations())
        if stay := {key for key in gone - RETAINED_OBJECTS if self.find_object(*key)}:
            raise Fault(f"{name}, upgraded to {after}: {sorted(stay)} are still there")
        # Helm does not roll back over an object that was kept but left the release; an upgrade
        # adopts it.
        if gone & RETAINED_OBJECTS:
            self.apply("upgrade", name)
        else:
            self.run_helm("rollback", RELEASE, "1", "--wait", "--timeout", f"{SECONDS}s")
        self.run_helm("uninstall", RELEASE, "--wait", "--timeout", f"{SECONDS}s")
        self.check_remaining()

    def check_admission(self, name: str) -> None:
        """Check that all objects and pods are accepted strictly and without a warning."""
        words = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE]
        words += ["--values", str(values_files()[name])]
        apis = [word for api in APIS for word in ("--api-versions", api)]
        objects = read(run(helms()[self.helm], *words, *apis))
        owned = [
            as_pod(owner.pod, f"checked-{number}") for number, owner in enumerate(pods(objects))
        ]
        for pod in owned:
            pod["metadata"]["name"] = pod["metadata"]["name"].replace("xcray", "checked")
        strictly = {"fieldManager": "check", "force": "true", "fieldValidation": "Strict"}
        for thing in [*objects, *owned]:
            about = thing["apiVersion"], thing["kind"], NAMESPACE, thing["metadata"]["name"]
            path = self.plane.path_of(*about)
            answer = self.plane.ask("PATCH", path, thing, APPLY, dryRun="All", **strictly)
            if answer.status_code not in (200, 201) or "warning" in answer.headers:
                reason = answer.headers.get("warning", answer.text)[:1500]
                raise Fault(f"{name}: {key_of(thing)}: {reason}")
            self.counts["objects taken"] += 1

    def manifest(self) -> Objects:
        """Return the manifest that helm stored."""
        return read(self.run_helm("get", "manifest", RELEASE))

    def find_object(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object of the namespace as stored by the server; None if it is missing."""
        api = next(api for (api, its) in self.plane.plurals if its == kind)
        answer = self.plane.ask("GET", self.plane.path_of(api, kind, NAMESPACE, name))
        return None if answer.status_code == 404 else answer.raise_for_status().json()

    def generations(self) -> dict[tuple[str, str], int]:
        """Return how often the specification of each object has changed; 0 if not counted."""
        found = {key_of(each): self.find_object(*key_of(each)) for each in self.manifest()}
        if missing := [key for key, each in found.items() if each is None]:
            raise Fault(f"the cluster has no {missing}")
        return {key: each["metadata"].get("generation", 0) for key, each in found.items() if each}

    def check_remaining(self) -> None:
        """Check that only the intended objects are left after uninstalling, then delete them."""
        ignored = {"Event", "Endpoints", "EndpointSlice"}
        kinds = {each for each in self.plane.plurals if each[1] not in ignored}
        kinds |= {("v1", "Pod"), ("apps/v1", "ReplicaSet"), ("batch/v1", "Job")}

        def remaining() -> list[tuple[str, str]]:
            results = []
            for api, kind in sorted(kinds):
                answer = self.plane.ask("GET", self.plane.path_of(api, kind, NAMESPACE))
                items = answer.json()["items"] if answer.status_code == 200 else []
                results += [(kind, each["metadata"]["name"]) for each in items]
            given = (*SECRETS, CLAIM)
            return [
                each for each in results if each[1].startswith(RELEASE) and each[1] not in given
            ]

        wait("what uninstalling left", lambda: sorted(set(remaining()) - RETAINED_OBJECTS))
        for kind, name in remaining():
            api = next(api for (api, its) in self.plane.plurals if its == kind)
            path = self.plane.path_of(api, kind, NAMESPACE, name)
            self.plane.ask("DELETE", path).raise_for_status()
            self.counts["kept on purpose"] += 1
        wait("what was kept, and deleted", remaining)


def wait(what: str, remaining: Callable[[], list[Any]]) -> None:
    """Wait until `remaining` returns nothing. Raises Fault with the rest after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while result := remaining():
        if time.monotonic() > deadline:
            raise Fault(f"{what}: {result}")
        time.sleep(0.2)


def key_of(thing: dict[str, Any]) -> tuple[str, str]:
    """Return kind and name."""
    return thing["kind"], thing["metadata"]["name"]


def main(values: list[str]) -> int:
    """Run all helms with each values file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.real", description=__doc__
    )
    parser.add_argument("--binaries", type=Path, default=TOOLS, help="where the programs are")
    options = parser.parse_args(values)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with ControlPlane(options.binaries, Path(folder)) as plane:
            prepare(plane)
            figures: dict[str, Any] = {"kubernetes": plane.get("/version")["gitVersion"]}
            for helm in sorted(helms()):
                operations = ReleaseOperations(plane, helm, Path(folder))
                for each in sorted(values_files()):
                    operations.leg(each, AFTER[each])
                    print(f"{helm}, {each}: {dict(operations.counts)}", flush=True)
                figures[helm] = dict(operations.counts)
            if plane.faults:
                raise Fault(f"the server rejected updates of pods: {plane.faults[:3]}")
    print(json.dumps({**figures, "all_s": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
