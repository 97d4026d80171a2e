"""A real control plane on this machine: etcd, API server, controller manager and scheduler.

    with ControlPlane(binaries, folder) as plane:
        plane.ask("GET", "/version").json()
        subprocess.run([helm, "install", ..., "--kubeconfig", plane.kubeconfig])

There is no kubelet: nodes and volumes exist only as objects, and pods never run. A thread sets the
status of pods: Succeeded for those of Jobs and of helm's tests, Running and ready for the others.
The server listens on 127.0.0.1 only and requires a token. All programs end with the block. Each
logs to a file in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, Self

import httpx
import yaml

from tests.robustness.faults.stage import free_port

Object = dict[str, Any]
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
START_SECONDS: Final = 300  # for each program to become ready
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
# The spot node repels pods that do not tolerate it.
NODES: Final = ("one", "two", "three", "spot")
SPOT: Final = {"key": "node.example.org/capacity", "value": "spot", "effect": "NoSchedule"}
SIZE: Final = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
EPOCH: Final = "2026-01-01T00:00:00Z"


class ControlPlane:
    """Runs during the block. binaries: folder of the programs; folder: for data, keys and logs.

    `faults` lists rejected updates of nodes and pods; it should be empty.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        if lacking := [name for name in PROGRAMS if not os.access(binaries / name, os.X_OK)]:
            raise FileNotFoundError(f"{binaries} has no program {' and no '.join(lacking)}")
        self.binaries = binaries
        self.folder = folder
        self.kubeconfig = str(folder / "kubeconfig")
        self.plurals: dict[tuple[str, str], str] = {}  # by (group and version, kind)
        self.faults: list[str] = []
        self._token = secrets.token_hex(16)
        self._etcd, self._port = f"http://127.0.0.1:{free_port()}", free_port()
        self._programs: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
        self._ended = threading.Event()
        self._kubelet = threading.Thread(target=self._run_kubelet, daemon=True)
        # The server signs its certificate itself, so it is not verified.
        self._client = httpx.Client(
            base_url=f"https://127.0.0.1:{self._port}",
            verify=False,
            headers={"authorization": f"Bearer {self._token}"},
            timeout=60,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._kubelet.is_alive():
            self._kubelet.join(timeout=60)
        for _, process, output in reversed(self._programs):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()
            output.close()
        self._client.close()

    def _start(self) -> None:
        """Start all programs in order, create the nodes, and start the thread."""
        (self.folder / "token").write_text(f"{self._token},admin,1,system:masters\n")
        self._write_kubeconfig()
        key = str(self.folder / "accounts.key")
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "RSA", "-out", key],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        peer = f"http://127.0.0.1:{free_port()}"
        etcd = {
            "listen-client-urls": self._etcd,
            "advertise-client-urls": self._etcd,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "data-dir": str(self.folder / "etcd"),
        }
        self._run("etcd", etcd)
        self._until("etcd", lambda: httpx.get(f"{self._etcd}/health", timeout=5).status_code == 200)
        # As from kubeadm, but without Node authorization, which needs real nodes.
        server = {
            "etcd-servers": self._etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self._port),
            "cert-dir": str(self.folder / "certificates"),
            "token-auth-file": str(self.folder / "token"),
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
        }
        self._run("kube-apiserver", server)
        self._until("kube-apiserver", lambda: self.ask("GET", "/readyz").text == "ok")
        common = {"kubeconfig": self.kubeconfig, "leader-elect": "false"}
        manager = {
            "service-account-private-key-file": key,
            "use-service-account-credentials": "true",
            "controllers": "*,-nodelifecycle,-nodeipam",
        }
        self._run("kube-controller-manager", {**common, **manager})
        self._run("kube-scheduler", common)
        for name in NODES:
            self._make_node(name)
        self._kubelet.start()

    def _write_kubeconfig(self) -> None:
        """Write the kubeconfig for helm, the controller manager and the scheduler."""
        url = f"https://127.0.0.1:{self._port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": True}}
            ],
            "users": [{"name": "u", "user": {"token": self._token}}],
        }
        Path(self.kubeconfig).write_text(yaml.safe_dump(config))
        Path(self.kubeconfig).chmod(0o600)

    def _run(self, name: str, flags: dict[str, str]) -> None:
        """Start a program."""
        output = (self.folder / f"{name}.log").open("wb")
        words = [f"--{flag}={value}" for flag, value in flags.items()]
        command = [str(self.binaries / name), *words]
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder)
        self._programs.append((name, process, output))

    def _until(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a program is ready.

        Raises RuntimeError with the log if it ends, or is not ready after START_SECONDS.
        """
        process = next(process for its, process, _ in self._programs if its == name)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.2)
        log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{name} did not answer: {log}")

    def ask(
        self,
        verb: str,
        path: str,
        body: Object | None = None,
        kind: str = "application/json",
        **query: str,
    ) -> httpx.Response:
        """Send a request and return the response with any status. kind: type of the body."""
        content = None if body is None else json.dumps(body)
        headers = {"content-type": kind}
        return self._client.request(verb, path, content=content, headers=headers, params=query)

    def get(self, path: str) -> Object:
        """Return the object at a path. Raises httpx.HTTPStatusError if there is none."""
        response: Object = self.ask("GET", path).raise_for_status().json()
        return response

    def path_of(self, api: str, kind: str, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all objects of a kind.

        Raises KeyError or httpx.HTTPStatusError if the server does not have the kind.
        """
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        if (api, kind) not in self.plurals:
            self.plurals |= {
                (api, each["kind"]): each["name"]
                for each in self.get(root)["resources"]
                if "/" not in each["name"]
            }
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"{root}/{where}{self.plurals[api, kind]}{f'/{name}' if name else ''}"

    # What kubelets and a provisioner of volumes would do

    def _make_node(self, name: str) -> None:
        """Create a ready node, and remove the taint that the server sets on a new node."""
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": f"zone-{name}",
        }
        labels |= {"node.example.org/capacity": "spot"} if name == "spot" else {}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.ask("POST", "/api/v1/nodes", node).raise_for_status()
        taints = {"spec": {"taints": [SPOT] if name == "spot" else None}}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Simulated",
            "lastHeartbeatTime": EPOCH,
            "lastTransitionTime": EPOCH,
        }
        status = {"capacity": SIZE, "allocatable": SIZE, "conditions": [ready]}
        self._change("PATCH", f"/api/v1/nodes/{name}", taints)
        self._change("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def _run_kubelet(self) -> None:
        """Update pods and claims every 0.2 s until the block ends."""
        while not self._ended.wait(0.2):
            with contextlib.suppress(httpx.TransportError):  # retried in the next iteration
                for pod in self.get("/api/v1/pods")["items"]:
                    self._update_pod(pod)
                for claim in self.get("/api/v1/persistentvolumeclaims")["items"]:
                    if claim["status"]["phase"] == "Pending":
                        self._provide(claim)

    def _update_pod(self, pod: Object) -> None:
        """Delete a pod that ends at once; set the status of a pod that has a node."""
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        if "deletionTimestamp" in about:
            self._change("DELETE", path, {"gracePeriodSeconds": 0})
        elif pod["status"].get("phase") == "Pending" and pod["spec"].get("nodeName"):
            self._change("PATCH", f"{path}/status", {"status": pod_status(pod)})

    def _provide(self, claim: Object) -> None:
        """Create the volume that a claim requests; the controller manager binds it."""
        about, asked = claim["metadata"], claim["spec"]
        meant = {key: about[key] for key in ("namespace", "name", "uid")}
        spec = {
            "capacity": asked["resources"]["requests"],
            "accessModes": asked["accessModes"],
            "claimRef": {"kind": "PersistentVolumeClaim", **meant},
            "hostPath": {"path": "/nowhere"},
            "storageClassName": asked.get("storageClassName", ""),
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "spec": spec}
        volume["metadata"] = {"name": f"volume-{about['uid']}"}
        self._change("POST", "/api/v1/persistentvolumes", volume)

    def _change(self, verb: str, path: str, body: Object) -> None:
        """Send a change; another client may have been faster."""
        answer = self.ask(verb, path, body, MERGE if verb == "PATCH" else "application/json")
        if answer.status_code not in (200, 201, 202, 404, 409):
            self.faults.append(f"{verb} {path}: {answer.text[:500]}")


def pod_status(pod: Object) -> Object:
    """Return the status of a pod: succeeded for pods of Jobs and hooks, running for the others."""
    about = pod["metadata"]
    owners = {each["kind"] for each in about.get("ownerReferences", [])}
    ends = "helm.sh/hook" in about.get("annotations", {}) or "Job" in owners
    running = {"running": {"startedAt": EPOCH}}
    state = {"terminated": {"exitCode": 0}} if ends else running
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
        "phase": "Succeeded" if ends else "Running",
        "startTime": EPOCH,
        "conditions": conditions,
        "containerStatuses": statuses,
    }
