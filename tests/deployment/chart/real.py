"""Install, upgrade, roll back and uninstall the chart in a real control plane.

    python -m tests.deployment.chart.real --binaries DIR

DIR contains etcd and kube-apiserver, and preferably kube-controller-manager and kube-scheduler
(from the releases of kubebuilder or Kubernetes). Nodes and kubelets are simulated, see
`tests.deployment.chart.simulated_nodes`. Everything else is real: admission, validation, defaults,
garbage collection, rollouts, Jobs, and binding of volumes and pods. For a server older than the
chart requires (1.27), the API versions are replaced, see OLDER. The last line of output is JSON.
The exit status is 0 on success and 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.deployment.chart import ground
from tests.deployment.chart.controlplane import ControlPlane, root_of
from tests.deployment.chart.helm import (
    APIS,
    CHART,
    NAMESPACE,
    RELEASE,
    TOOLS,
    Objects,
    helms,
    read,
    run,
    values_files,
)
from tests.deployment.chart.simulated_nodes import SimulatedNodes
from tests.deployment.chart.templates import as_pod, pods

SECONDS: Final = 300  # for one helm command, and for one wait for the cluster
MODERN: Final = (1, 27)
# Replacements in the templates for a server before MODERN: API versions of that time, without the
# two newest fields.
OLDER: Final = {
    "apiVersion: policy/v1\n": "apiVersion: policy/v1beta1\n",
    "apiVersion: autoscaling/v2\n": "apiVersion: autoscaling/v2beta2\n",
    "  unhealthyPodEvictionPolicy: AlwaysAllow\n": "",
    '(set $rule "matchLabelKeys" (list "pod-template-hash"))': "$rule",
}
# The file to which each file is upgraded. No pair claims the home with different access modes or
# classes, which can't change.
AFTER: Final = {
    "minimal": "serving",
    "serving": "production",
    "production": "autoscaled",
    "autoscaled": "kueue",
    "kueue": "serving",
}
RETAINED_OBJECTS: Final = {("PersistentVolumeClaim", "xcray-home"), ("Secret", "xcray-admin-key")}


class Fault(Exception):
    """The cluster did or kept something different from the chart."""


class ReleaseOperations:
    """The operations in a cluster with one helm. `counts` counts them."""

    def __init__(self, plane: ControlPlane, helm: str, chart: Path, folder: Path) -> None:
        self.plane = plane
        self.helm = helm
        self.chart = chart
        self.folder = folder
        self.counts: Counter[str] = Counter()
        # Without a controller manager no Deployment becomes available.
        self.waits = ["--wait"] * ("kube-controller-manager" in plane.has) + [
            "--timeout",
            f"{SECONDS}s",
        ]

    def run_helm(self, *words: str) -> str:
        """Run a helm command for the release and return its output. Raises Fault."""
        command = [
            helms()[self.helm],
            *words,
            "--namespace",
            NAMESPACE,
            "--kubeconfig",
            self.plane.kubeconfig,
        ]
        env = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env)
        if process.returncode:
            raise Fault(f"{self.helm} {' '.join(words)}: {process.stderr.strip()}")
        self.counts[words[0]] += 1
        return process.stdout

    def leg(self, name: str, after: str) -> None:
        """Install a values file, upgrade to another, roll back and uninstall. Raises Fault."""
        self.dry(name)
        self.run_helm(
            "install", RELEASE, str(self.chart), "--values", str(values_files()[name]), *self.waits
        )
        self.check_stored_fields(f"{name} installed")
        self.pods(name)
        before = self.generations()
        self.upgrade(name)
        if (now := self.generations()) != before:
            raise Fault(
                f"{name}: an upgrade that changes nothing changed {sorted(dict(set(now.items()) - set(before.items())))}"
            )
        self.run_helm("test", RELEASE, *self.waits[-2:])
        old = {key_of(each) for each in self.manifest()}
        self.upgrade(after)
        self.check_stored_fields(f"{name}, upgraded to {after}")
        gone = old - {key_of(each) for each in self.manifest()}
        if stay := {key for key in gone - RETAINED_OBJECTS if self.find_object(*key)}:
            raise Fault(f"{name}, upgraded to {after}: {sorted(stay)} are still there")
        if (
            gone & RETAINED_OBJECTS
            # Helm 3 and 4 do not roll back over an object that was kept but left the release; an
            # upgrade adopts it.
        ):
            self.upgrade(name)
        else:
            self.run_helm("rollback", RELEASE, "1", *self.waits)
        self.check_stored_fields(f"{name}, upgraded to {after} and back")
        self.run_helm("uninstall", RELEASE, *self.waits)
        self.cleared()

    def upgrade(self, name: str) -> None:
        """Upgrade to a values file."""
        self.run_helm(
            "upgrade", RELEASE, str(self.chart), "--values", str(values_files()[name]), *self.waits
        )

    def rendered(self, name: str) -> Objects:
        """Return all objects of a values file for this cluster, with hooks and tests."""
        words = [
            "template",
            RELEASE,
            str(self.chart),
            "--namespace",
            NAMESPACE,
            "--values",
            str(values_files()[name]),
        ]
        words += ["--kube-version", ".".join(map(str, self.plane.version))]
        return read(
            run(
                helms()[self.helm],
                *words,
                *(word for api in APIS for word in ("--api-versions", api)),
            )
        )

    def dry(self, name: str) -> None:
        """Check that every object is accepted strictly and without a warning."""
        for thing in self.rendered(name):
            answer = self.plane.take(thing, NAMESPACE)
            if answer.status_code not in (200, 201) or "warning" in answer.headers:
                raise Fault(
                    f"{name}: {key_of(thing)}: {answer.headers.get('warning', answer.text)[:1500]}"
                )
            self.counts["objects taken"] += 1

    def manifest(self) -> Objects:
        """Return the manifest that helm stored."""
        return read(self.run_helm("get", "manifest", RELEASE))

    def find_object(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object of the namespace as stored by the server; None if it is missing."""
        answer = self.plane.ask("GET", self.at(kind, name))
        return None if answer.status_code == 404 else answer.raise_for_status().json()

    def at(self, kind: str, name: str) -> str:
        """Return the path of an object of the namespace. Its kind must have been queried before."""
        api = next(api for (api, its) in self.plane.words if its == kind)
        return f"{root_of(api)}/namespaces/{NAMESPACE}/{self.plane.many(api, kind)}/{name}"

    def check_stored_fields(self, when: str) -> None:
        """Check that the server stored every field as sent; an unknown field would be lost."""
        for thing in self.manifest():
            self.plane.many(thing["apiVersion"], thing["kind"])
            selection = self.find_object(*key_of(thing))
            if selection is None:
                raise Fault(f"{when}: there is no {key_of(thing)}")
            if lost := list(lacking(thing, selection)):
                raise Fault(f"{when}: {key_of(thing)} lost {lost}")
            self.counts["objects kept"] += 1

    def pods(self, name: str) -> None:
        """Check that every pod, also of KubeRay, is admitted without change and finds a node."""
        results = {}
        for at, owner in enumerate(pods(self.rendered(name))):
            pod = as_pod(owner.pod, f"{owner.pod['metadata']['name'][:40]}-{at}")
            pod["metadata"] = {
                "name": f"checked-{at}",
                "labels": {**pod["metadata"].get("labels", {}), "checked": "yes"},
            }
            answer = self.plane.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
            if answer.status_code != 201 or "warning" in answer.headers:
                raise Fault(
                    f"{name}: pod of {owner.name}: {answer.headers.get('warning', answer.text)[:1500]}"
                )
            if (was := security(pod)) != (now := security(answer.json())):
                raise Fault(f"{name}: pod of {owner.name} was sent with {was}, returned with {now}")
            results[pod["metadata"]["name"]] = owner.name
            self.counts["pods admitted"] += 1
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"

        def listed(**query: str) -> list[dict[str, Any]]:
            response: list[dict[str, Any]] = (
                self.plane.ask("GET", path, **query).raise_for_status().json()["items"]
            )
            return response

        if "kube-scheduler" in self.plane.has:
            away = f"{name}: pods without a node"
            self.wait(
                away,
                lambda: [
                    describe_waiting_pod(each, results)
                    for each in listed()
                    if not each["spec"].get("nodeName")
                ],
            )
            self.counts["pods placed"] += len(results)
        self.plane.ask("DELETE", path, labelSelector="checked=yes").raise_for_status()
        self.wait(
            f"{name}: pods that do not go",
            lambda: [each["metadata"]["name"] for each in listed(labelSelector="checked=yes")],
        )

    def generations(self) -> dict[tuple[str, str], int]:
        """Return how often the specification of each object has changed, where that is counted."""
        results = {key_of(each): self.find_object(*key_of(each)) for each in self.manifest()}
        return {
            key: each["metadata"]["generation"]
            for key, each in results.items()
            if each and "generation" in each["metadata"]
        }

    def cleared(self) -> None:
        """Check that only the intended objects are left after uninstalling, then delete them."""
        kinds = {
            (api, kind)
            for api, kind in self.plane.words
            if kind not in ("Event", "Endpoints", "EndpointSlice")
        }
        kinds |= {("v1", "Pod"), ("apps/v1", "ReplicaSet"), ("batch/v1", "Job")}

        def remaining() -> list[tuple[str, str]]:
            results = []
            for api, kind in sorted(kinds):
                answer = self.plane.ask(
                    "GET", f"{root_of(api)}/namespaces/{NAMESPACE}/{self.plane.many(api, kind)}"
                )
                items = answer.json()["items"] if answer.status_code == 200 else []
                results += [
                    (kind, each["metadata"]["name"])
                    for each in items
                    if each["metadata"]["name"].startswith(RELEASE)
                ]
            return [each for each in results if each[1] not in (*ground.SECRETS, ground.CLAIM)]

        self.wait(
            "what uninstalling left behind", lambda: sorted(set(remaining()) - RETAINED_OBJECTS)
        )
        for kind, name in remaining():
            self.plane.ask("DELETE", self.at(kind, name)).raise_for_status()
            self.counts["kept on purpose"] += 1
        self.wait("what was kept, and deleted", remaining)

    def wait(self, what: str, remaining: Callable[[], list[Any]]) -> None:
        """Wait until `left` returns nothing. Raises Fault with the rest after SECONDS."""
        deadline = time.monotonic() + SECONDS
        while result := remaining():
            if time.monotonic() > deadline:
                raise Fault(f"{what}: {result}")
            time.sleep(0.2)


def controls(plane: ControlPlane) -> int:
    """Check that the server rejects unsafe pods, and return their number. Raises Fault."""
    at = f"/api/v1/namespaces/{NAMESPACE}/pods"
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}

    def pod(**changed: Any) -> dict[str, Any]:
        one = {
            "name": "c",
            "image": "c",
            "securityContext": {**safe, **changed.pop("container", {})},
        }
        fields = {
            "securityContext": {**spec, **changed.pop("pod", {})},
            "containers": [one],
            **changed,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "control"}, "spec": fields}

    if (answer := plane.ask("POST", at, pod(), dryRun="All")).status_code != 201:
        raise Fault(f"the server refuses a pod that breaks no rule: {answer.text}")
    breaks = {
        "root": pod(pod={"runAsUser": 0, "runAsNonRoot": False}),
        "privileged": pod(container={"privileged": True, "allowPrivilegeEscalation": True}),
        "may gain privileges": pod(container={"allowPrivilegeEscalation": True}),
        "has a capability": pod(
            container={"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}
        ),
        "unconfined": pod(pod={"seccompProfile": {"type": "Unconfined"}}),
        "the host's network": pod(hostNetwork=True),
        "the host's files": pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    }
    for what, broken in breaks.items():
        if plane.ask("POST", at, broken, dryRun="All").status_code != 403:
            raise Fault(f"the server takes a pod that breaks the rules: {what}")
    return len(breaks)


def older(folder: Path) -> Path:
    """Copy the chart for a server older than it requires, see OLDER."""
    chart = folder / CHART.name
    shutil.copytree(CHART, chart)
    named = chart / "Chart.yaml"
    named.write_text(
        "".join(
            line
            for line in named.read_text().splitlines(keepends=True)
            if not line.startswith("kubeVersion:")
        )
    )
    for template in [*(chart / "templates").rglob("*.yaml"), *(chart / "templates").rglob("*.tpl")]:
        text = template.read_text()
        for new, old in OLDER.items():
            text = text.replace(new, old)
        template.write_text(text)
    return chart


def key_of(thing: dict[str, Any]) -> tuple[str, str]:
    """Return kind and name."""
    return thing["kind"], thing["metadata"]["name"]


def describe_waiting_pod(pod: dict[str, Any], record: dict[str, str]) -> str:
    """Return the name of a pod and the reason why it has no node."""
    name = pod["metadata"]["name"]
    return f"{name} of {record.get(name, 'a controller')}: {[each.get('message') for each in pod['status'].get('conditions', [])]}"


def security(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the security contexts of a pod."""
    spec = pod["spec"]
    inside = [*spec.get("initContainers", []), *spec["containers"]]
    return {
        "pod": spec.get("securityContext"),
        **{each["name"]: each.get("securityContext") for each in inside},
    }


def lacking(messages: Any, selection: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which the server does not store the sent value.

    Empty values count as missing, as in Kubernetes.
    """
    if isinstance(messages, dict) and isinstance(selection, dict):
        for name, each in messages.items():
            if each not in (None, "", [], {}) or selection.get(name):
                yield from (
                    lacking(each, selection[name], f"{path}.{name}")
                    if name in selection
                    else [f"{path}.{name}"]
                )
    elif (
        isinstance(messages, list)
        and isinstance(selection, list)
        and len(messages) == len(selection)
    ):
        for one, other in zip(ordered(messages), ordered(selection), strict=True):
            yield from lacking(one, other, f"{path}[]")
    elif messages != selection and (
        isinstance(messages, dict | list) or amount(messages) != amount(selection)
    ):
        yield path


def ordered(values: list[Any]) -> list[Any]:
    """Sort values by name if each has one: the server chooses the order of such lists."""
    named = all(isinstance(each, dict) and "name" in each for each in values)
    return sorted(values, key=lambda each: str(each["name"])) if named else values


def amount(value: Any) -> float | str:
    """Return a quantity of Kubernetes as a number, and other values as text."""
    match = re.fullmatch(r"([0-9.]+)(m|k|[KMGTP]i?)?", str(value))
    if match is None:
        return str(value)
    size = {
        "m": 1e-3,
        "k": 1e3,
        **{f"{each}i": 1024.0 ** (at + 1) for at, each in enumerate("KMGTP")},
    }
    size |= {each: 1000.0 ** (at + 1) for at, each in enumerate("KMGTP")}
    return float(match[1]) * size.get(match[2], 1.0)


def main(values: list[str]) -> int:
    """Run both helms with each values file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.real", description=__doc__
    )
    programs = Path(os.environ.get("XCRAY_CONTROL_PLANE", TOOLS))
    parser.add_argument("--binaries", type=Path, default=programs, help="where the programs are")
    parser.add_argument(
        "--helm",
        choices=sorted(helms()),
        action="append",
        help="again for several; all that are here by default",
    )
    parser.add_argument(
        "--values",
        choices=sorted(values_files()),
        action="append",
        help="the same, of helm/xcray/ci",
    )
    options = parser.parse_args(values)
    names = options.values or sorted(values_files())
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        with ControlPlane(options.binaries, folder) as plane:
            ground.lay(plane)
            chart = CHART if plane.version >= MODERN else older(folder)
            with SimulatedNodes(plane) as simulated:
                figures = {
                    "kubernetes": ".".join(map(str, plane.version)),
                    "programs": sorted(plane.has),
                }
                figures |= {
                    "started_s": round(time.monotonic() - began, 1),
                    "pods refused": controls(plane),
                }
                print(json.dumps(figures), flush=True)
                for helm in options.helm or sorted(helms()):
                    journey = ReleaseOperations(plane, helm, chart, folder)
                    for each in names:
                        journey.leg(each, AFTER[each])
                        print(f"{helm}, {each}: {dict(journey.counts)}", flush=True)
                    figures[helm] = dict(journey.counts)
                if simulated.faults:
                    raise Fault(f"the server rejected updates of pods: {simulated.faults[:3]}")
    print(json.dumps({**figures, "all_s": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
