"""A real control plane on this machine: etcd, kube-apiserver, and optional components.

The controller manager and the scheduler are started if their binaries exist.

    with ControlPlane(binaries, folder) as plane:
        plane.ask("GET", "/version").json()
        subprocess.run([helm, "install", ..., "--kubeconfig", plane.kubeconfig])

There is no kubelet: `tests.deployment.chart.simulated_nodes` sets the status of pods. The server
listens on 127.0.0.1 only and requires a token. All programs end with the block. Each logs to a file
in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import httpx
import yaml

Object = dict[str, Any]
MUST: Final = ("etcd", "kube-apiserver")
MAY: Final = ("kube-controller-manager", "kube-scheduler")
START_SECONDS: Final = 300  # for each program to become ready
# First version that enforces the pod security standard of a namespace.
POD_SECURITY: Final = (
    1,
    25,
)
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"


class ControlPlane:
    """Runs during the block. binaries: folder of the programs; folder: for data, keys and logs."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        if lacking := [name for name in MUST if not os.access(binaries / name, os.X_OK)]:
            raise FileNotFoundError(f"{binaries} has no program {' and no '.join(lacking)}")
        self.binaries = binaries
        self.folder = folder
        self.has = {name for name in MAY if os.access(binaries / name, os.X_OK)}
        self.kubeconfig = str(folder / "kubeconfig")
        process = subprocess.run(
            [binaries / MUST[1], "--version"],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=True,
        )
        self.version = tuple(
            int(each) for each in re.findall(r"\d+", process.stdout)[:2]
        )  # (1, 30)
        self._token = secrets.token_hex(16)
        self.words: dict[tuple[str, str], str] = {}  # plurals by (group and version, kind)
        self._programs: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []
        self._etcd, port = f"http://127.0.0.1:{quiet_port()}", quiet_port()
        self.url = f"https://127.0.0.1:{port}"
        self._port = port
        # The server signs its certificate itself at each start. No other program listens on the
        # chosen port, so verification is not needed.
        self._client = httpx.Client(
            base_url=self.url,
            verify=False,
            headers={"authorization": f"Bearer {self._token}"},
            timeout=60,
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, process, _ in reversed(self._programs):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()
        for _, _, output in self._programs:
            output.close()
        self._client.close()

    def _start(self) -> None:
        """Start all programs in order."""
        (self.folder / "token").write_text(f"{self._token},admin,1,system:masters\n")
        self._write_kubeconfig()
        key = str(self.folder / "accounts.key")
        results = [
            "openssl",
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
            "-out",
            key,
        ]
        subprocess.run(results, check=True, capture_output=True, timeout=START_SECONDS)
        peer = f"http://127.0.0.1:{quiet_port()}"
        etcd = {
            "listen-client-urls": self._etcd,
            "advertise-client-urls": self._etcd,
            "listen-peer-urls": peer,
        }
        etcd |= {
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "data-dir": str(self.folder / "etcd"),
        }
        self._run("etcd", {**etcd, "unsafe-no-fsync": "true"})
        self._until("etcd", lambda: httpx.get(f"{self._etcd}/health", timeout=5).status_code == 200)
        self._run("kube-apiserver", self._server_flags(key))
        self._until("kube-apiserver", lambda: self.ask("GET", "/readyz").text == "ok")
        common = {"kubeconfig": self.kubeconfig, "leader-elect": "false"}
        if "kube-controller-manager" in self.has:
            accounts = {
                "service-account-private-key-file": key,
                "use-service-account-credentials": "true",
            }
            self._run(
                "kube-controller-manager",
                {**common, **accounts, "controllers": "*,-nodelifecycle,-nodeipam"},
            )
        if "kube-scheduler" in self.has:
            self._run("kube-scheduler", common)

    def _server_flags(self, key: str) -> dict[str, str]:
        """Return the flags of kube-apiserver: as from kubeadm, but without Node authorization.

        That needs nodes.
        """
        accounts = {"service-account-key-file": key, "service-account-signing-key-file": key}
        # Only a controller manager creates what these plugins require and removes what they add.
        off = (
            ""
            if "kube-controller-manager" in self.has
            else "ServiceAccount,StorageObjectInUseProtection"
        )
        return {
            "etcd-servers": self._etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self._port),
            "cert-dir": str(self.folder / "certificates"),
            "token-auth-file": str(self.folder / "token"),
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-issuer": "https://kubernetes.default.svc",
            **accounts,
            **({"disable-admission-plugins": off} if off else {}),
            **(
                {}
                if self.version >= POD_SECURITY
                else {"enable-admission-plugins": "PodSecurityPolicy"}
            ),
        }

    def _write_kubeconfig(self) -> None:
        """Write the kubeconfig for helm, the controller manager and the scheduler."""
        cluster = {"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [context],
            "clusters": [cluster],
        }
        Path(self.kubeconfig).write_text(
            yaml.safe_dump(config | {"users": [{"name": "u", "user": {"token": self._token}}]})
        )
        Path(self.kubeconfig).chmod(0o600)

    def _run(self, name: str, flags: dict[str, str]) -> None:
        """Start a program."""
        output = (self.folder / f"{name}.log").open("wb")
        command = [
            str(self.binaries / name),
            *(f"--{flag}={value}" for flag, value in flags.items()),
        ]
        self._programs.append(
            (name, subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder), output)
        )

    def _until(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a program is ready.

        Raises RuntimeError with the log if it ends, or is not ready after START_SECONDS.
        """
        process = next(process for its, process, _ in self._programs if its == name)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}: {self.log_tail(name)}")
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{name} did not answer in {START_SECONDS} s: {self.log_tail(name)}")

    def log_tail(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def ask(
        self,
        verb: str,
        path: str,
        body: Object | None = None,
        kind: str = "application/json",
        **query: str,
    ) -> httpx.Response:
        """Send a request and return the response with any status. kind: type of the body."""
        messages = None if body is None else json.dumps(body)
        return self._client.request(
            verb, path, content=messages, headers={"content-type": kind}, params=query
        )

    def get(self, path: str) -> Object:
        """Return the object at a path. Raises httpx.HTTPStatusError if there is none."""
        response: Object = self.ask("GET", path).raise_for_status().json()
        return response

    def take(self, thing: Object, namespace: str) -> httpx.Response:
        """Return the response to a server-side apply as a dry run.

        An unknown field is an error there, in any version.
        """
        query = {
            "fieldManager": "check",
            "force": "true",
            "fieldValidation": "Strict",
            "dryRun": "All",
        }
        return self.ask("PATCH", self.path_of(thing, namespace), thing, APPLY, **query)

    def path_of(self, thing: Object, namespace: str) -> str:
        """Return the path of an object."""
        api, name = thing["apiVersion"], thing["metadata"]["name"]
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"{root_of(api)}/{where}{self.many(api, thing['kind'])}/{name}"

    def many(self, api: str, kind: str) -> str:
        """Return the server's plural of a kind. Raises KeyError if it does not have the kind."""
        if (api, kind) not in self.words:
            listed = self.get(root_of(api))["resources"]
            self.words |= {
                (api, each["kind"]): each["name"] for each in listed if "/" not in each["name"]
            }
        return self.words[api, kind]

    def offers(self, api: str, kind: str) -> bool:
        """Return whether the server has a kind."""
        try:
            return bool(self.many(api, kind))
        except (KeyError, httpx.HTTPStatusError):
            return False


def quiet_port() -> int:
    """Return a free loopback port below the range of ephemeral ports.

    The kernel assigns it to no other program before its own program has started.
    """
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", random.randint(20_000, 32_000))) as listener,
        ):
            return int(listener.getsockname()[1])


def root_of(api: str) -> str:
    """Return the path of the objects of a group and version."""
    return f"/apis/{api}" if "/" in api else f"/api/{api}"
