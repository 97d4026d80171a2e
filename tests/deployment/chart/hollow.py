"""What a kubelet says of its pods, said without one: nodes and volumes that only exist, pods that
run because we say so.

A pod of a Job, and one of helm's tests, has succeeded; any other runs and is ready. A pod that is
deleted is gone at once. Where no controller manager is, Jobs too are complete because we say so.
What decides whether a pod may exist, and where it is placed, is the control plane's own.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.deployment.chart.controlplane import MERGE, ControlPlane

# name: labels beside zone and host name; those of the last repel what does not tolerate them
NODES: Final = {
    "one": {},
    "two": {},
    "three": {},
    "spot": {"node.example.org/capacity": "spot"},
}
SPOT: Final = {"key": "node.example.org/capacity", "value": "spot", "effect": "NoSchedule"}
SIZE: Final = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
EPOCH: Final = "2026-01-01T00:00:00Z"
DONE: Final[dict[str, Any]] = {
    "succeeded": 1,
    "startTime": EPOCH,
    "completionTime": "2026-01-01T00:00:01Z",
    "conditions": [{"type": each, "status": "True"} for each in ("SuccessCriteriaMet", "Complete")],
}


class Hollow:
    """Nodes, and who speaks for them while the block runs. Faults of its own are in `faults`: there
    should be none.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.faults = list[str]()
        self._ended = threading.Event()
        self._volumes = set[str]()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Self:
        for name, labels in NODES.items():
            self._make_node(name, labels)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=60)

    def _make_node(self, name: str, labels: dict[str, str]) -> None:
        """One that is ready. The server itself taints a new node until somebody finds it well: that
        is taken off.
        """
        known = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": f"zone-{name}",
        }
        metadata = {"name": name, "labels": {**known, **labels}}
        self.plane.ask(
            "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        ).raise_for_status()
        taints = {"spec": {"taints": [SPOT] if labels else None}}
        self.plane.ask("PATCH", f"/api/v1/nodes/{name}", taints, MERGE).raise_for_status()
        ready = [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Said",
                "lastHeartbeatTime": EPOCH,
                "lastTransitionTime": EPOCH,
            }
        ]
        status = {"status": {"capacity": SIZE, "allocatable": SIZE, "conditions": ready}}
        self.plane.ask("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE).raise_for_status()

    def _speak(self) -> None:
        """Again and again, until the block ends."""
        while not self._ended.wait(0.2):
            with contextlib.suppress(
                httpx.TransportError
            ):  # the server ends, or is slow: the next round says it again
                for pod in self.plane.get("/api/v1/pods")["items"]:
                    self._say(pod)
                for claim in self.plane.get("/api/v1/persistentvolumeclaims")["items"]:
                    if (
                        claim["status"]["phase"] == "Pending"
                        and claim["metadata"]["uid"] not in self._volumes
                    ):
                        self._provide(claim)
                if "kube-controller-manager" not in self.plane.has:
                    for job in self.plane.get("/apis/batch/v1/jobs")["items"]:
                        if not job.get("status", {}).get("succeeded"):
                            self._change(
                                "PATCH",
                                f"/apis/batch/v1{where(job, 'jobs')}/status",
                                {"status": DONE},
                            )

    def _say(self, pod: dict[str, Any]) -> None:
        """What there is to say of a pod."""
        path, status = f"/api/v1{where(pod, 'pods')}", pod.get("status", {})
        if "deletionTimestamp" in pod["metadata"]:
            self._change("DELETE", path, {"gracePeriodSeconds": 0})
        elif status.get("phase") == "Pending" and (
            "kube-scheduler" not in self.plane.has or pod["spec"].get("nodeName")
        ):
            self._change("PATCH", f"{path}/status", {"status": told(pod)})

    def _provide(self, claim: dict[str, Any]) -> None:
        """A volume for a claim, as a provisioner makes one: just what was asked for. Binding is the
        controller manager's.
        """
        about, wanted = claim["metadata"], claim["spec"]
        meant = {
            "kind": "PersistentVolumeClaim",
            "namespace": about["namespace"],
            "name": about["name"],
            "uid": about["uid"],
        }
        spec = {
            "capacity": wanted["resources"]["requests"],
            "accessModes": wanted["accessModes"],
            "claimRef": meant,
        }
        spec |= {
            "hostPath": {"path": "/nowhere"},
            "storageClassName": wanted.get("storageClassName", ""),
        }
        metadata = {"name": f"volume-{about['uid']}"}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": metadata,
            "spec": spec,
        }
        self._volumes.add(about["uid"])
        self._change("POST", "/api/v1/persistentvolumes", volume)

    def _change(self, verb: str, path: str, body: dict[str, Any]) -> None:
        """Do it; somebody may have been faster."""
        answer = self.plane.ask(verb, path, body, MERGE if verb == "PATCH" else "application/json")
        if answer.status_code not in (200, 201, 202, 404, 409):
            self.faults.append(f"{verb} {path}: {answer.text[:500]}")


def where(thing: dict[str, Any], many: str) -> str:
    """The path of an object in its group."""
    return f"/namespaces/{thing['metadata']['namespace']}/{many}/{thing['metadata']['name']}"


def told(pod: dict[str, Any]) -> dict[str, Any]:
    """The status of a pod: it has succeeded when it is one that ends, else it runs."""
    about = pod["metadata"]
    ends = "helm.sh/hook" in about.get("annotations", {}) or any(
        each["kind"] == "Job" for each in about.get("ownerReferences", [])
    )
    phase, state = (
        ("Succeeded", {"terminated": {"exitCode": 0}})
        if ends
        else ("Running", {"running": {"startedAt": EPOCH}})
    )
    ready = "False" if ends else "True"
    conditions = [{"type": each, "status": ready} for each in ("Ready", "ContainersReady")]
    conditions += [{"type": each, "status": "True"} for each in ("Initialized", "PodScheduled")]
    statuses = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": not ends,
            "state": state,
        }
        for each in pod["spec"]["containers"]
    ]
    return {
        "phase": phase,
        "startTime": EPOCH,
        "conditions": conditions,
        "containerStatuses": statuses,
    }
