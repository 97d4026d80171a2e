"""The container of a rendered pod as a process of this machine, with this checkout's programs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from tests.deployment.chart.helm import ROOT, Objects
from tests.robustness.faults.stage import free_port, until

IP: Final = "10.244.3.17"
START_SECONDS: Final = 300
Secrets = Mapping[str, Mapping[str, str]]


def environment(container: Mapping[str, Any], secrets: Secrets, ip: str = IP) -> dict[str, str]:
    """Return the environment as a kubelet builds it; $(NAME) is replaced by an earlier variable.

    Raises KeyError for a Secret that is missing.
    """
    results: dict[str, str] = {}
    for source in container.get("envFrom", []):
        results |= secrets[source["secretRef"]["name"]]
    for each in container.get("env", []):
        source = each.get("valueFrom")
        if source is None:
            value = re.sub(
                r"\$\(([A-Za-z0-9_]+)\)",
                lambda at: results.get(at[1], at[0]),
                each.get("value", ""),
            )
        elif "fieldRef" in source:
            value = {"status.podIP": ip}[source["fieldRef"]["fieldPath"]]
        else:
            value = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        results[each["name"]] = value
    return results


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """Return the pods of Deployments, Jobs and tests, by kind and name."""
    results = {
        f"{each['kind']}/{each['metadata']['name']}": each["spec"]
        for each in objects
        if each["kind"] in ("Pod", "Deployment", "Job")
    }
    return {name: spec.get("template", {}).get("spec", spec) for name, spec in results.items()}


class Namespace:
    """The Secrets and the folder of a release; folders replace the volumes of its pods."""

    def __init__(self, folder: Path, secrets: dict[str, dict[str, str]]) -> None:
        self.folder = folder
        self.secrets = secrets

    def command(self, container: Mapping[str, Any]) -> list[str]:
        """Return the command of a container, with the current key as a file."""
        (self.folder / "key").write_text(self.secrets["admin"]["key"])
        program, *rest = [*container["command"], *container.get("args", [])]
        own = {"xcray": [sys.executable, "-m", "xcray"], "python": [sys.executable]}[program]
        return [*own, *map(self.localised, rest)]

    def localised(self, text: str) -> str:
        """Return a word of a manifest with the path of the key on this machine."""
        return text.replace("/run/secrets/xcray-admin/key", str(self.folder / "key"))

    def environment(self, container: Mapping[str, Any], **more: str) -> dict[str, str]:
        """Return the environment of a container, with folders of this machine."""
        around = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        variables = environment(container, self.secrets, "127.0.0.1")
        own = {"XCRAY_HOME": str(self.folder / "home"), **more}
        return around | {name: self.localised(each) for name, each in variables.items()} | own

    def run(self, container: Mapping[str, Any], **more: str) -> str:
        """Run a container that ends, and return its output. Raises CalledProcessError."""
        process = subprocess.run(
            self.command(container),
            env=self.environment(container, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_SECONDS,
        )
        assert process.returncode == 0, process.stdout
        return process.stdout


class Pod:
    """The container of a Deployment as a running process; its init containers have run."""

    def __init__(self, namespace: Namespace, spec: Mapping[str, Any]) -> None:
        self.inits = [namespace.run(each) for each in spec["initContainers"]]
        self.grace = float(spec["terminationGracePeriodSeconds"])
        (container,) = spec["containers"]
        port = str(free_port())
        # The drain waits for load balancers, which are missing here.
        own = {
            "XCRAY_HOST": "127.0.0.1",
            "XCRAY_PORT": port,
            "XCRAY_RUNNER_HOST": "127.0.0.1",
            "XCRAY_RUNNER_PORT": port,
            "XCRAY_DRAIN_SECONDS": "1",
        }
        self.log = namespace.folder / f"{container['name']}-{port}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                namespace.command(container),
                env=namespace.environment(container, **own),
                stdout=out,
                stderr=out,
            )
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=120)
        until(self.is_ready, f"{container['name']} is ready", START_SECONDS)

    def is_ready(self) -> bool:
        """Return whether the readiness probe passes. Fails if the process has ended."""
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        return self.status("/readyz") == 200

    def status(self, path: str, **headers: str) -> int:
        """Return the status of a request; 0 without a response."""
        try:
            return self.http.get(path, headers=headers).status_code
        except httpx.TransportError:
            return 0

    def end(self) -> tuple[int, set[tuple[int, int]]]:
        """End the process by SIGTERM; return its exit status, and (readiness, liveness) until then.

        Raises TimeoutExpired if a kubelet would have killed it.
        """
        self.process.terminate()
        seen = set()
        while self.process.poll() is None and (0, 0) not in seen:
            seen.add((self.status("/readyz"), self.status("/healthz")))
        return self.process.wait(self.grace), seen

    def kill(self) -> None:
        """Kill the process at the end of a test."""
        self.process.kill()
        self.process.wait()
        self.http.close()
