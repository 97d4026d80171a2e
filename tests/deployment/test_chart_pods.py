"""The rendered pods: their settings are valid, and as processes they run and can be replaced.

Environment, commands and probes are those of the manifests; only the drain seconds are shorter.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.deployment.chart.environment import IP, environment, pods
from tests.deployment.chart.helm import (
    NAMESPACE,
    ROOT,
    Objects,
    helms,
    rendering,
    template_values,
    values_files,
)
from tests.robustness.faults.stage import until
from tests.support.missing_tools import say
from tests.support.postgres import PASSWORD
from xcray.jobs.store.tokens import create_token
from xcray.service.settings import Settings, check_address
from xcray.workers.ray.session import free_port

OTHERS = {"XCRAY_KEY_FILE"}  # variables of xcray that are not settings of the service
CLUSTER: dict[str, Any] = {
    "mode": "cluster",
    "auth": {"existingSecret": "admin"},
    "store": {"existingSecret": "store"},
    "settings": {"job_nice": 0},
}


def secrets_of(objects: Objects) -> dict[str, dict[str, str]]:
    """Return all Secrets that pods name, with invented content."""
    named: dict[str, dict[str, str]] = {}
    for spec in pods(objects).values():
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            for each in container.get("env", []):
                if ref := each.get("valueFrom", {}).get("secretKeyRef"):
                    store = each["name"] == "XCRAY_STORE"
                    content = "postgresql://xcray@postgres/xcray" if store else "unused"
                    named.setdefault(ref["name"], {})[ref["key"]] = content
            for each in container.get("envFrom", []):
                named.setdefault(each["secretRef"]["name"], {})
    return named


@pytest.mark.parametrize("name", sorted(values_files()))
def test_every_variable_is_a_setting_of_the_program(name: str) -> None:
    objects = rendering(name)
    secrets = secrets_of(objects)
    values = 0
    for pod, spec in pods(objects).items():
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            results = {
                key: value
                for key, value in environment(container, secrets).items()
                if key.startswith("XCRAY_") and key not in OTHERS
            }
            names = {key.removeprefix("XCRAY_").lower() for key in results}
            unknown = names - set(Settings.model_fields)
            assert not unknown, f"{pod}: {unknown} are not settings"
            settings = read_settings(results)
            values += len(names)
            if container["name"] in ("api", "runner"):
                check_address(settings, has_keys=lambda: True)
                assert {IP, "xcray", f"xcray.{NAMESPACE}.svc"} <= settings.served_hosts
                # The API, and the pod of `helm test`.
                assert settings.has_shared_store or len(pods(objects)) == 2
    assert values > 10


def read_settings(variables: dict[str, str]) -> Settings:
    """Read settings from variables, like the program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XCRAY_HOME")
        for name, value in variables.items():
            patch.setenv(name, value)
        return Settings()


@pytest.mark.parametrize(
    ("resources", "cores"),
    [
        ({"requests": {"cpu": "1500m"}}, "2"),
        ({"requests": {"cpu": "100m"}}, "1"),
        ({"requests": {"cpu": 0.5}}, "1"),
        ({"requests": {"cpu": 3}, "limits": {"cpu": "7500m"}}, "8"),
    ],
)
def test_pods_count_the_requested_cores(resources: dict[str, Any], cores: str) -> None:
    if not helms():
        rendering("minimal")  # skips the test
    pod = pods(template_values({"api": {"resources": resources}}))["Deployment/xcray-api"]
    assert environment(pod["containers"][0], {})["PYTHON_CPU_COUNT"] == cores


class Release:
    """The containers of mode cluster as processes, with folders of this machine for volumes."""

    def __init__(self, folder: Path, secrets: dict[str, dict[str, str]]) -> None:
        self.folder = folder
        self.secrets = secrets
        self.pods = pods(template_values(CLUSTER))

    def started(self, container: dict[str, Any], **more: str) -> subprocess.Popen[bytes]:
        """Start a container; it logs to a file, because a pipe that is not read becomes full."""
        key = self.folder / "key"
        key.write_text(self.secrets["admin"]["key"])
        program, *words = [*container["command"], *container.get("args", [])]
        own = {"xcray": [sys.executable, "-m", "xcray"], "python": [sys.executable]}[program]
        variables = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            **environment(container, self.secrets, "127.0.0.1"),
            "XCRAY_HOME": str(self.folder / "home"),
            **more,
        }

        def local(text: str) -> str:
            return text.replace("/run/secrets/xcray-admin/key", str(key))

        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*own, *map(local, words)],
                env={name: local(value) for name, value in variables.items()},
                stdout=log,
                stderr=log,
            )

    def run(self, container: dict[str, Any], **more: str) -> None:
        """Run a container that ends."""
        with self.started(container, **more) as process:
            assert process.wait(600) == 0, (self.folder / "log").read_text()[-4000:]

    @contextmanager
    def api(self) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """Run an API pod until it is ready, and during the block; yield its URL and process."""
        spec = self.pods["Deployment/xcray-api"]
        for each in spec["initContainers"]:
            self.run(each)
        address = {"XCRAY_HOST": "127.0.0.1", "XCRAY_PORT": str(free_port())}
        with self.started(spec["containers"][0], XCRAY_DRAIN_SECONDS="600", **address) as process:
            url = f"http://127.0.0.1:{address['XCRAY_PORT']}"
            try:
                until(lambda: status(url, "/readyz") == 200, "the pod is ready")
                yield url, process
            finally:
                process.kill()


def status(url: str, path: str, key: str = "", **headers: str) -> int:
    """Return the status of a request; 0 without a response."""
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(url + path, headers=headers, timeout=60).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.drill
def test_rendered_pods_run_and_a_new_role_and_key_interrupt_no_request(
    tmp_path: Path, postgres: Any
) -> None:
    """The steps are those of docs/operations.md."""
    if not helms():
        say("helm, for values of one's own", "no rendered pod was run")
        return
    # Roles belong to the server, so each run needs its own names.
    database = urlsplit(postgres.database()).path[1:]
    first, second = f"{database}_a", f"{database}_b"
    postgres.run(f"CREATE ROLE {first} LOGIN PASSWORD '{PASSWORD}'", database)
    postgres.run(f"ALTER DATABASE {database} OWNER TO {first}", database)

    def secrets(role: str) -> dict[str, dict[str, str]]:
        at = f"{PASSWORD.replace(' ', '%20')}@127.0.0.1:{postgres.port}/{database}"
        url = f"postgresql://{role}:{at}?connect_timeout=300"
        return {"admin": {"key": create_token().token}, "store": {"url": url}}

    release = Release(tmp_path, secrets(first))
    key = release.secrets["admin"]["key"]
    (migrate,) = release.pods["Job/xcray-migrate"]["containers"]
    (test,) = release.pods["Pod/xcray-test"]["containers"]
    release.run(migrate)
    with release.api() as (url, process):
        release.run(test, URL=url)
        assert status(url, "/healthz", Host=f"xcray.{NAMESPACE}.svc.cluster.local:80") == 200
        assert status(url, "/healthz", Host="elsewhere.example") == 400
        for path in ("/v1/jobs", "/metrics"):
            assert (status(url, path), status(url, path, key)) == (401, 200)
        # The second role acts as the first, also as owner of objects.
        postgres.run(f"CREATE ROLE {second} LOGIN PASSWORD '{PASSWORD}' IN ROLE {first}", database)
        postgres.run(f"ALTER ROLE {second} SET role = {first}", database)
        release.secrets = secrets(second)
        release.run(migrate)
        with release.api() as (new, _):
            assert [status(each, "/v1/jobs", key) for each in (url, new)] == [200, 200]
            process.terminate()
            until(lambda: status(url, "/readyz") == 503, "the pod drains")
            assert status(url, "/healthz") == 200
            process.terminate()  # ends the drain
            assert process.wait(600) == 0
            postgres.run(f"ALTER ROLE {first} NOLOGIN", database)
            for each in (key, release.secrets["admin"]["key"]):
                assert status(new, "/v1/jobs", each) == 200
    # Only the first key ends, a day later.
    expiries = postgres.run("SELECT expires FROM keys ORDER BY created", database)
    assert [each is None for (each,) in expiries] == [False, True]
