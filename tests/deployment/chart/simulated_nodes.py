"""A replacement of the kubelets: nodes and volumes exist only as objects, and pods never run.

Pods of Jobs and of helm's tests get the phase Succeeded; the others get Running and are ready. A
deleted pod disappears at once. Without a controller manager, Jobs get the condition Complete. The
control plane itself decides whether a pod can exist and where it is placed.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.deployment.chart.controlplane import MERGE, ControlPlane

# Name: labels in addition to zone and host name. The spot node repels pods that do not tolerate it.
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


class SimulatedNodes:
    """Nodes, and a thread that updates their objects during the block.

    `faults` lists rejected updates; it should be empty.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.faults = list[str]()
        self._ended = threading.Event()
        self._volumes = set[str]()
        self._thread = threading.Thread(target=self._update_loop, daemon=True)

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
        """Create a ready node, and remove the taint that the server sets on a new node."""
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

    def _update_loop(self) -> None:
        """Update the objects every 0.2 s until the block ends."""
        while not self._ended.wait(0.2):
            # The server ends or is slow: retried in the next iteration.
            with contextlib.suppress(httpx.TransportError):
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
        """Delete a pod, or set its status, as needed."""
        path, status = f"/api/v1{where(pod, 'pods')}", pod.get("status", {})
        if "deletionTimestamp" in pod["metadata"]:
            self._change("DELETE", path, {"gracePeriodSeconds": 0})
        elif status.get("phase") == "Pending" and (
            "kube-scheduler" not in self.plane.has or pod["spec"].get("nodeName")
        ):
            self._change("PATCH", f"{path}/status", {"status": pod_status(pod)})

    def _provide(self, claim: dict[str, Any]) -> None:
        """Create the volume that a claim requests, like a provisioner.

        The controller manager binds it.
        """
        about, expected = claim["metadata"], claim["spec"]
        meant = {
            "kind": "PersistentVolumeClaim",
            "namespace": about["namespace"],
            "name": about["name"],
            "uid": about["uid"],
        }
        spec = {
            "capacity": expected["resources"]["requests"],
            "accessModes": expected["accessModes"],
            "claimRef": meant,
        }
        spec |= {
            "hostPath": {"path": "/nowhere"},
            "storageClassName": expected.get("storageClassName", ""),
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
        """Send a change; another client may have been faster."""
        answer = self.plane.ask(verb, path, body, MERGE if verb == "PATCH" else "application/json")
        if answer.status_code not in (200, 201, 202, 404, 409):
            self.faults.append(f"{verb} {path}: {answer.text[:500]}")


def where(thing: dict[str, Any], many: str) -> str:
    """Return the path of an object in its group."""
    return f"/namespaces/{thing['metadata']['namespace']}/{many}/{thing['metadata']['name']}"


def pod_status(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod: succeeded for pods of Jobs and hooks, running for the others."""
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
