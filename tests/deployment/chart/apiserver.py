"""A simulated Kubernetes API server for helm: it stores objects without checking or running them.

    with ApiServer(tmp_path) as server:
        subprocess.run([helm, "install", ..., "--kubeconfig", server.kubeconfig])
        server.find("Secret", "xcray-admin-key")

Jobs are complete and pods have succeeded when they are created, so hooks and `helm test` end.
`writes` lists the requested creations, changes and deletions in order. The server listens on
127.0.0.1 only, without authentication.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import yaml

Object = dict[str, Any]
Query = dict[str, list[str]]
KINDS: Final = {  # per group and version: kinds with their plural
    "v1": {
        "Secret": "secrets",
        "ConfigMap": "configmaps",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
    },
    "apps/v1": {
        "Deployment": "deployments",
        "ReplicaSet": "replicasets",
        "StatefulSet": "statefulsets",
    },
    "batch/v1": {"Job": "jobs"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"},
    "rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings"},
    "ray.io/v1": {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices"},
    "monitoring.coreos.com/v1": {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
}
WATCH_SECONDS: Final = 5.0
PROTOBUF: Final = b"k8s\0"
DONE: Final[dict[str, Object]] = {
    "Job": {
        "succeeded": 1,
        "conditions": [{"type": "Complete", "status": "True"}],
        "startTime": "2026-01-01T00:00:00Z",
    },
    "Pod": {
        "phase": "Succeeded",
        "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}],
    },
}


class Write(NamedTuple):
    """A writing request: POST, PUT, PATCH or DELETE."""

    verb: str
    kind: str
    name: str


class ApiServer:
    """A server that runs during the block. folder: for its kubeconfig."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}  # by kind, namespace, name
        self.writes: list[Write] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.version = 0
        self.events: list[tuple[int, str, Object]] = []  # changes, by version
        owner = self

        class Bound(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._http.daemon_threads = True
        self.kubeconfig = str(folder / "kubeconfig")
        url = f"http://127.0.0.1:{self._http.server_address[1]}"
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [context],
        }
        config |= {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        }
        Path(self.kubeconfig).write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._http.shutdown()
        self._http.server_close()

    def find(self, kind: str, name: str) -> Object:
        """Return the object of a kind and name in any namespace. Raises KeyError if missing."""
        for (its_kind, _, its_name), result in self.objects.items():
            if (its_kind, its_name) == (kind, name):
                return result
        raise KeyError(f"there is no {kind} {name}")

    def put(self, kind: str, name: str, namespace: str, **content: Any) -> None:
        """Create or replace an object without helm."""
        api = next(api for api, kinds in KINDS.items() if kind in kinds)
        self.keep(
            {
                "apiVersion": api,
                "kind": kind,
                "metadata": {"name": name, "namespace": namespace},
                **content,
            },
            namespace,
        )

    def put_secret(self, name: str, namespace: str, **data: str) -> None:
        """Create or replace a Secret."""
        self.put(
            "Secret",
            name,
            namespace,
            data={key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
        )

    def keep(self, result: Object, namespace: str) -> Object:
        """Store an object under a new version."""
        kind, about = result["kind"], result["metadata"]
        known = (kind, namespace, about["name"]) in self.objects
        self.version += 1
        about |= {
            "namespace": namespace,
            "resourceVersion": str(self.version),
            "uid": about.get("uid", f"uid-{self.version}"),
        }
        about |= {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
        if kind in DONE:
            result["status"] = DONE[kind]
        self.objects[(kind, namespace, about["name"])] = result
        self.events.append((self.version, "MODIFIED" if known else "ADDED", result))
        return result

    def drop(self, kind: str, namespace: str, name: str) -> bool:
        """Delete an object and return whether it existed."""
        result = self.objects.pop((kind, namespace, name), None)
        if result is not None:
            self.version += 1
            self.events.append((self.version, "DELETED", result))
        return result is not None


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server_of: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing: tests check `writes`."""

    def do_GET(self) -> None:
        """Answer discovery, one object, a list, or a watch."""
        path, query = self._path_and_query()
        if (result := discovery(path)) is not None:
            self._answer(200, result)
            return
        kind, namespace, name = self._meant(path)
        if kind == "":
            self._missing("path", path)
        elif name:
            with self.server_of.lock:
                one = self.server_of.objects.get((kind, namespace, name))
            self._answer(200, one) if one else self._missing(kind, name)
        elif query.get("watch", ["false"])[0] in ("true", "1"):
            self._watch(kind, namespace, query)
        else:
            about = {"resourceVersion": str(self.server_of.version)}
            items = self._matching(kind, namespace, query)
            self._answer(
                200, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": about, "items": items}
            )

    def do_POST(self) -> None:
        """Create an object."""
        path, _ = self._path_and_query()
        kind, namespace, _ = self._meant(path)
        result = self._body()
        name = result["metadata"]["name"]
        with self.server_of.lock:
            self._write(kind, name)
            if (kind, namespace, name) in self.server_of.objects:
                self._fail(409, "AlreadyExists", f"{kind} {name} already exists")
                return
            self._answer(201, self.server_of.keep({"kind": kind, **result}, namespace))

    def do_PUT(self) -> None:
        """Replace an object."""
        path, _ = self._path_and_query()
        kind, namespace, name = self._meant(path)
        with self.server_of.lock:
            self._write(kind, name)
            self._answer(200, self.server_of.keep({"kind": kind, **self._body()}, namespace))

    def do_PATCH(self) -> None:
        """Change an object, or create it by server-side apply."""
        path, _ = self._path_and_query()
        kind, namespace, name = self._meant(path)
        applied = "apply-patch" in self.headers.get("content-type", "")
        with self.server_of.lock:
            self._write(kind, name)
            known = self.server_of.objects.get((kind, namespace, name))
            if known is None and not applied:
                self._missing(kind, name)
                return
            self._answer(
                200 if known else 201,
                self.server_of.keep(merged(known or {}, self._body()), namespace),
            )

    def do_DELETE(self) -> None:
        """Delete an object."""
        path, _ = self._path_and_query()
        kind, namespace, name = self._meant(path)
        self._body()
        with self.server_of.lock:
            self._write(kind, name)
            if self.server_of.drop(kind, namespace, name):
                self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            else:
                self._missing(kind, name)

    def _path_and_query(self) -> tuple[str, Query]:
        """Return path and query."""
        parts = urlsplit(self.path)
        return parts.path.rstrip("/"), parse_qs(parts.query)

    def _meant(self, path: str) -> tuple[str, str, str]:
        """Return kind, namespace and name of a path; the kind is empty for an unknown path."""
        words = path.strip("/").split("/")
        api, rest = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kind = next(
            (kind for kind, many in KINDS.get(api, {}).items() if rest and many == rest[0]), ""
        )
        return kind, namespace, rest[1] if len(rest) > 1 else ""

    def _matching(self, kind: str, namespace: str, query: Query) -> list[Object]:
        """Return the objects that a list selects."""
        with self.server_of.lock:
            return [
                each
                for each in self.server_of.objects.values()
                if meant(each, kind, namespace, query)
            ]

    def _watch(self, kind: str, namespace: str, query: Query) -> None:
        """Send changes after a version, on request preceded by the existing objects.

        The watch ends after WATCH_SECONDS; the client starts it again.
        """
        server, since = self.server_of, int(query.get("resourceVersion", ["0"])[0] or 0)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        deadline = time.monotonic() + WATCH_SECONDS
        with contextlib.suppress(OSError):  # the client closed the connection
            if query.get("sendInitialEvents", ["false"])[0] == "true":
                since = server.version
                for each in self._matching(kind, namespace, query):
                    self._send_event("ADDED", each)
                about = {
                    "resourceVersion": str(since),
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
                api = next(api for api, kinds in KINDS.items() if kind in kinds)
                self._send_event("BOOKMARK", {"kind": kind, "apiVersion": api, "metadata": about})
            while time.monotonic() < deadline and not server.ended.wait(0.02):
                for version, what, each in [each for each in server.events[:] if each[0] > since]:
                    since = version
                    if meant(each, kind, namespace, query):
                        self._send_event(what, each)
            self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, what: str, result: Object) -> None:
        """Send one event of a watch."""
        line = json.dumps({"type": what, "object": result}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _body(self) -> Object:
        """Return the body: JSON, YAML, or the protobuf in which helm stores its releases."""
        messages = self.rfile.read(int(self.headers.get("content-length", 0)))
        if messages.startswith(PROTOBUF):
            return secret_of(messages.removeprefix(PROTOBUF))
        read: Object = yaml.load(messages, Loader=yaml.CSafeLoader) if messages else {}
        return read

    def _write(self, kind: str, name: str) -> None:
        """Record a writing request."""
        self.server_of.writes.append(Write(self.command, kind, name))

    def _missing(self, kind: str, name: str) -> None:
        """Answer 404 like Kubernetes."""
        self._fail(404, "NotFound", f"{kind} {name} not found")

    def _fail(self, code: int, reason: str, message: str) -> None:
        """Answer an error as a Status object."""
        fields = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": code,
        }
        self._answer(code, fields)

    def _answer(self, code: int, result: Object) -> None:
        """Answer with JSON."""
        self._send(code, json.dumps(result).encode())

    def _send(self, code: int, content: bytes) -> None:
        """Send a response with its length."""
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def meant(result: Object, kind: str, namespace: str, query: Query) -> bool:
    """Return whether a list or watch selects an object, by labels and metadata.name."""
    expected = [query.get(name, [""])[0].split(",") for name in ("labelSelector", "fieldSelector")]
    labels, fields = (
        dict(term.split("=", 1) for term in terms if "=" in term and " " not in term)
        for terms in expected
    )
    about = result["metadata"]
    theirs = {
        **about.get("labels", {}),
        **{f"metadata.{key}": about[key] for key in ("name", "namespace")},
    }
    here = result["kind"] == kind and namespace in ("", about["namespace"])
    return here and all(theirs.get(key) == value for key, value in {**labels, **fields}.items())


def discovery(path: str) -> Object | None:
    """Return the discovery document of a path; None for paths of objects."""
    if path == "/version":
        return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = [api.split("/") for api in KINDS if "/" in api]
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version} for group, version in groups
        ]
        listed = [
            {"name": name, "versions": [one], "preferredVersion": one}
            for (name, _), one in zip(groups, versions, strict=True)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if path == "/openapi/v3":
        return {
            "paths": {
                path_of(api): {"serverRelativeURL": f"/openapi/v3/{path_of(api)}"} for api in KINDS
            }
        }
    if path.startswith("/openapi/v3/"):
        return openapi(
            next(api for api in KINDS if path_of(api) == path.removeprefix("/openapi/v3/"))
        )
    api = path.removeprefix("/apis/") if path.startswith("/apis/") else path.removeprefix("/api/")
    if api not in KINDS:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    kinds = [
        {
            "name": many,
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": verbs,
        }
        for kind, many in KINDS[api].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": kinds}


def path_of(api: str) -> str:
    """Return the path of a group."""
    return f"apis/{api}" if "/" in api else f"api/{api}"


def openapi(api: str) -> Object:
    """Return a minimal OpenAPI document.

    It declares that the server validates fields, so that helm does not.
    """
    group, _, version = api.rpartition("/")
    paths = {}
    for kind, many in KINDS[api].items():
        means = {"group": group, "version": version, "kind": kind}
        request = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        change = {
            "x-kubernetes-group-version-kind": means,
            "parameters": [request],
            "responses": {},
        }
        paths[f"/{path_of(api)}/namespaces/{{namespace}}/{many}/{{name}}"] = {"patch": change}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.30.0"},
        "paths": paths,
        "components": {"schemas": {}},
    }


def merged(known: Object, change: Object) -> Object:
    """Apply a merge patch (RFC 7386).

    Directives of strategic merge patches are ignored, and lists are replaced.
    """
    out = dict(known)
    for key, value in change.items():
        if key.startswith("$"):
            continue
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            before = out.get(key)
            out[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            out[key] = value
    return out


def secret_of(messages: bytes) -> Object:
    """Return a Secret from Kubernetes' protobuf.

    The format is runtime.Unknown{1: TypeMeta{2: kind}, 2: Secret{1: ObjectMeta, 2: data, 3: type}}.
    """
    envelope = fields_of(messages)
    kind = fields_of(envelope[1][0])[2][0].decode()
    if kind != "Secret":
        return {}  # options of a deletion
    secret = fields_of(envelope[2][0])
    about = fields_of(secret[1][0])
    labels = {key.decode(): value.decode() for key, value in map(pair_of, about.get(11, []))}
    data = {
        key.decode(): base64.b64encode(value).decode()
        for key, value in map(pair_of, secret.get(2, []))
    }
    fields = {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": about[1][0].decode(), "labels": labels},
    }
    return {**fields, "data": data, "type": secret[3][0].decode()}


def pair_of(entry: bytes) -> tuple[bytes, bytes]:
    """Return key and value of an entry of a map."""
    result = fields_of(entry)
    return result[1][0], result.get(2, [b""])[0]


def fields_of(message: bytes) -> dict[int, list[bytes]]:
    """Return the length-delimited fields of a message by number; integers are skipped."""
    results: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 2:
            size, at = varint(message, at)
            results.setdefault(tag >> 3, []).append(message[at : at + size])
            at += size
        elif tag & 7 == 0:
            _, at = varint(message, at)
        else:
            raise ValueError(f"a field of wire type {tag & 7}: Kubernetes has none here")
    return results


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length integer (seven bits per byte), and the position after it."""
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 128:
            return value, at
