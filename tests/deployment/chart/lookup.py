"""A read-only Kubernetes API server for `lookup` in the chart's templates.

    objects, notes = installed("helm4", [secret], tmp_path, "--set", "service.port=81")

`helm install --dry-run=server` queries the existing objects, renders the templates and writes
nothing. The server listens on 127.0.0.1 only, without authentication.
"""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deployment.chart.helm import (
    CHART,
    NAMESPACE,
    RELEASE,
    SECONDS,
    Objects,
    Refused,
    helms,
    read,
)

# Per group and version: kinds with their plural.
KINDS: Final = {
    "v1": {
        "Secret": "secrets",
        "ConfigMap": "configmaps",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
    },
    "apps/v1": {"Deployment": "deployments"},
    "batch/v1": {"Job": "jobs"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"},
    "ray.io/v1": {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices"},
    "monitoring.coreos.com/v1": {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
}
# What helm requires of an object before it takes it into a release.
OWNED: Final = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {
        "meta.helm.sh/release-name": RELEASE,
        "meta.helm.sh/release-namespace": NAMESPACE,
    },
}


def discovery(path: str) -> dict[str, Any] | None:
    """Return the discovery document of a path; None for paths of objects."""
    if path == "/version":
        return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = [{"groupVersion": api, "version": api.split("/")[-1]} for api in KINDS]
        groups = [
            {"name": one["groupVersion"].split("/")[0], "versions": [one], "preferredVersion": one}
            for one in versions
            if "/" in one["groupVersion"]
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    api = path.removeprefix("/apis/").removeprefix("/api/")
    if api not in KINDS:
        return None
    resources = [
        {"name": many, "kind": kind, "namespaced": True, "verbs": ["get", "list"]}
        for kind, many in KINDS[api].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": api, "resources": resources}


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request: GET only."""

    objects: dict[tuple[str, str], dict[str, Any]]  # by plural and name

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer discovery or one object."""
        path = self.path.partition("?")[0].rstrip("/")
        *_, many, name = path.split("/")
        found = discovery(path) or self.objects.get((many, name))
        missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        content = json.dumps(found or {**missing, "message": f"{path} not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def installed(helm: str, existing: Objects, folder: Path, *words: str) -> tuple[Objects, str]:
    """Return the objects and notes of `helm install` in a cluster with existing objects.

    words: further arguments. Raises Refused.
    """
    plurals = {kind: many for kinds in KINDS.values() for kind, many in kinds.items()}
    known = {(plurals[each["kind"]], each["metadata"]["name"]): each for each in existing}
    bound = type("Bound", (_Handler,), {"objects": known})
    with ThreadingHTTPServer(("127.0.0.1", 0), bound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "users": [{"name": "u", "user": {}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        where = ["--namespace", NAMESPACE, "--kubeconfig", str(folder / "kubeconfig")]
        dry = ["--dry-run=server", "--disable-openapi-validation"]
        process = subprocess.run(
            [helms()[helm], "install", RELEASE, str(CHART), *where, *dry, *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )
        server.shutdown()
    if process.returncode:
        raise Refused(process.stderr)
    _, _, shown = process.stdout.partition("MANIFEST:\n")
    manifest, _, notes = shown.partition("\nNOTES:\n")
    return read(manifest), notes
