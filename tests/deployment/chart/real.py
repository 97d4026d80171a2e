"""Install, upgrade, roll back and uninstall the chart with a real API server.

    python -m tests.deployment.chart.real --binaries DIR

DIR contains etcd and kube-apiserver of Kubernetes 1.27 or newer (from the releases of kubebuilder
or Kubernetes). Admission by the restricted standard, validation, defaults and storage of every
object are real. No controller runs, so Jobs never complete (hooks are left out) and pods have no
node. KubeRay's kinds have their own schemas with CEL rules if those are available
(`tests.deployment.chart.schemas`). The last line of output is JSON. The exit status is 0 on success
and 1 otherwise.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

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
from tests.robustness.faults.stage import free_port, until

Object = dict[str, Any]
PROGRAMS: Final = ("etcd", "kube-apiserver")
SECONDS: Final = 300  # for one helm command, and for the start of a program
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
RETAINED_OBJECTS: Final = {("PersistentVolumeClaim", "xcray-home"), ("Secret", "xcray-admin-key")}


class Fault(Exception):
    """The cluster did or kept something different from the chart."""


@contextlib.contextmanager
def control_plane(binaries: Path, folder: Path) -> Iterator[Cluster]:
    """Run etcd and the API server during the block; each logs to a file in the folder.

    The server listens on 127.0.0.1 only and requires a token. Raises FileNotFoundError.
    """
    if lacking := [name for name in PROGRAMS if not os.access(binaries / name, os.X_OK)]:
        raise FileNotFoundError(f"{binaries} has no program {' and no '.join(lacking)}")
    token, key, port = secrets.token_hex(16), str(folder / "accounts.key"), free_port()
    (folder / "token").write_text(f"{token},admin,1,system:masters\n")
    openssl = ["openssl", "genpkey", "-algorithm", "RSA", "-out", key]
    subprocess.run(openssl, check=True, capture_output=True, timeout=SECONDS)
    store, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    flags = {
        "etcd": {
            "listen-client-urls": store,
            "advertise-client-urls": store,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "data-dir": str(folder / "etcd"),
        },
        "kube-apiserver": {
            "etcd-servers": store,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(port),
            "cert-dir": str(folder / "certificates"),
            "token-auth-file": str(folder / "token"),
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            # Only a controller manager creates what these plugins require.
            "disable-admission-plugins": "ServiceAccount,StorageObjectInUseProtection",
        },
    }
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(f"https://127.0.0.1:{port}", token, folder))
        for name in PROGRAMS:
            words = [f"--{flag}={value}" for flag, value in flags[name].items()]
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen([binaries / name, *words], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        until(cluster.is_ready, f"the API server answers, see {folder}", SECONDS)
        yield cluster


class Cluster:
    """Requests to an API server. folder: for the kubeconfig of helm."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.folder = folder
        self.plurals: dict[tuple[str, str], str] = {}  # by (group and version, kind)
        # The server signs its certificate itself, so it is not verified.
        head = {"authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=url, verify=False, headers=head, timeout=60)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": True}}
            ],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        (folder / "kubeconfig").chmod(0o600)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def is_ready(self) -> bool:
        """Return whether the server answers requests."""
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/readyz").text == "ok"
        return False

    def path_of(self, api: str, kind: str, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all objects of a kind.

        Raises KeyError or httpx.HTTPStatusError if the server does not have the kind.
        """
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        if (api, kind) not in self.plurals:
            listed = self.http.get(root).raise_for_status().json()["resources"]
            kinds = [each for each in listed if "/" not in each["name"]]
            self.plurals |= {(api, each["kind"]): each["name"] for each in kinds}
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"{root}/{where}{self.plurals[api, kind]}{f'/{name}' if name else ''}"

    def serves(self, api: str, kind: str) -> bool:
        """Return whether the server has a kind."""
        try:
            return bool(self.path_of(api, kind, ""))
        except (KeyError, httpx.HTTPStatusError):
            return False

    def create(self, thing: Object, namespace: str = "") -> None:
        """Create an object. Raises Fault with the server's message if it rejects the object."""
        check(thing, self.http.post(self.path_of(*kind_of(thing), namespace), json=thing))

    def take(self, thing: Object) -> None:
        """Apply an object as a dry run; an unknown field is an error. Raises Fault."""
        strictly = {"fieldManager": "check", "fieldValidation": "Strict", "dryRun": "All"}
        path = self.path_of(*kind_of(thing), NAMESPACE, thing["metadata"]["name"])
        kind = {"content-type": "application/apply-patch+yaml"}
        content = json.dumps(thing)
        check(thing, self.http.patch(path, content=content, headers=kind, params=strictly))

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object of the namespace as stored by the server; None if it is missing."""
        api = next(api for (api, its) in self.plurals if its == kind)
        answer = self.http.get(self.path_of(api, kind, NAMESPACE, name))
        return None if answer.status_code == 404 else answer.raise_for_status().json()


def check(thing: Object, answer: httpx.Response) -> None:
    """Raise Fault unless the server accepted an object without a warning."""
    if answer.status_code not in (200, 201) or "warning" in answer.headers:
        raise Fault(f"{key_of(thing)}: {answer.headers.get('warning', answer.text)[:1500]}")


def kind_of(thing: Object) -> tuple[str, str]:
    """Return group and version, and kind."""
    return thing["apiVersion"], thing["kind"]


def key_of(thing: Object) -> tuple[str, str]:
    """Return kind and name."""
    return thing["kind"], thing["metadata"]["name"]


def definition(kind: str, group: str, version: str, schema: Any) -> Object:
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
    about = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{many}.{group}", "annotations": about},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": many},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


def prepare(cluster: Cluster) -> None:
    """Create what a cluster has before the chart: kinds, the namespace, Secrets and a claim."""
    for kind, api in {**dict.fromkeys(CRDS, "ray.io/v1"), **OTHERS}.items():
        known = crd(kind) if kind in CRDS else None
        cluster.create(definition(kind, *api.split("/"), known.original if known else None))
        until(lambda kind=kind, api=api: cluster.serves(api, kind), f"{kind} is served", SECONDS)
    about: Object = {"name": NAMESPACE, "labels": STANDARD}
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
    keys = ("key", "url", "password", "auth_token", "AWS_ACCESS_KEY_ID")
    data = {key: base64.b64encode(b"given").decode() for key in keys}
    for name in ("admin", "postgres", "s3", "ray-token", "redis"):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"xcray-{name}"}}
        cluster.create({**secret, "data": data}, NAMESPACE)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    cluster.create({**claim, "metadata": {"name": "xcray-shared"}}, NAMESPACE)


class Release:
    """The operations of one helm in a cluster. `counts` counts them."""

    def __init__(self, cluster: Cluster, helm: str) -> None:
        self.cluster = cluster
        self.helm = helm
        self.counts: Counter[str] = Counter()

    def run_helm(self, *words: str) -> str:
        """Run a helm command for the release and return its output. Raises Fault."""
        folder = self.cluster.folder
        where = ["--namespace", NAMESPACE, "--kubeconfig", str(folder / "kubeconfig")]
        process = subprocess.run(
            [helms()[self.helm], *words, *where],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )
        if process.returncode:
            raise Fault(f"{self.helm} {' '.join(words)}: {process.stderr.strip()}")
        self.counts[words[0]] += 1
        return process.stdout

    def apply(self, verb: str, name: str) -> dict[tuple[str, str], int]:
        """Install or upgrade to a values file.

        Return how often the specification of each stored object has changed.
        """
        values = ["--values", str(values_files()[name])]
        self.run_helm(verb, RELEASE, str(CHART), *values, "--no-hooks")
        manifest = read(self.run_helm("get", "manifest", RELEASE))
        stored = {key_of(each): self.cluster.find(*key_of(each)) for each in manifest}
        if missing := [key for key, each in stored.items() if each is None]:
            raise Fault(f"{name}: the cluster has no {missing}")
        return {key: each["metadata"].get("generation", 0) for key, each in stored.items() if each}

    def leg(self, name: str, after: str) -> None:
        """Install a values file, upgrade to another, roll back and uninstall. Raises Fault."""
        self.check_admission(name)
        before = self.apply("install", name)
        if (now := self.apply("upgrade", name)) != before:
            raise Fault(f"{name}: an upgrade that changes nothing changed {before} to {now}")
        gone = set(before) - set(self.apply("upgrade", after))
        if stay := {key for key in gone - RETAINED_OBJECTS if self.cluster.find(*key)}:
            raise Fault(f"{name}, upgraded to {after}: {sorted(stay)} are still there")
        # Helm does not roll back over an object that was kept but left the release; an upgrade
        # adopts it.
        if gone & RETAINED_OBJECTS:
            self.apply("upgrade", name)
        else:
            self.run_helm("rollback", RELEASE, "1", "--no-hooks")
        self.run_helm("uninstall", RELEASE, "--no-hooks")
        left = {key for key in before if self.cluster.find(*key)}
        if left != RETAINED_OBJECTS & set(before):
            raise Fault(f"{name}: uninstalling left {sorted(left)}")
        for kind, its in left:
            api = next(api for (api, known) in self.cluster.plurals if known == kind)
            path = self.cluster.path_of(api, kind, NAMESPACE, its)
            self.cluster.http.delete(path).raise_for_status()

    def check_admission(self, name: str) -> None:
        """Check that all objects and pods are accepted strictly and without a warning."""
        words = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE]
        words += ["--values", str(values_files()[name])]
        apis = [word for api in APIS for word in ("--api-versions", api)]
        objects: Objects = read(run(helms()[self.helm], *words, *apis))
        owned = [as_pod(owner.pod, "") for owner in pods(objects)]
        for number, pod in enumerate(owned):
            pod["metadata"]["name"] = f"checked-{number}"
        for thing in [*objects, *owned]:
            self.cluster.take(thing)
            self.counts["objects taken"] += 1


def main(values: list[str]) -> int:
    """Run all helms with each values file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.real", description=__doc__
    )
    parser.add_argument("--binaries", type=Path, default=TOOLS, help="where the programs are")
    options = parser.parse_args(values)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(options.binaries, Path(folder)) as cluster,
    ):
        prepare(cluster)
        figures: Object = {"kubernetes": cluster.http.get("/version").json()["gitVersion"]}
        for helm in sorted(helms()):
            release = Release(cluster, helm)
            for each in sorted(values_files()):
                release.leg(each, AFTER[each])
                print(f"{helm}, {each}: {dict(release.counts)}", flush=True)
            figures[helm] = dict(release.counts)
    print(json.dumps({**figures, "all_s": round(time.monotonic() - began, 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
