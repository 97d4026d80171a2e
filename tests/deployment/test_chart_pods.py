"""The rendered pods as processes: their settings are valid, and a rotation fails no request.

Environment, commands and probes are those of the manifests; only the drain seconds are shorter.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployment.chart.helm import (
    NAMESPACE,
    Objects,
    helms,
    rendering,
    template_values,
    values_files,
)
from tests.deployment.chart.process import IP, Namespace, Pod, environment, pods
from tests.support.live_service import plain_model
from tests.support.missing_tools import say
from tests.support.postgres import PASSWORD
from xcray.jobs.store.tokens import create_token
from xcray.model.registry import Registry
from xcray.service.settings import Settings, check_address

OTHERS = {"XCRAY_KEY_FILE"}  # variables of xcray that are not settings of the service
ASK = {"instances": [{"indices": [1, 3], "values": [1.0, 0.5]}], "top_k": 1}
CLUSTER: dict[str, Any] = {
    "mode": "cluster",
    "auth": {"existingSecret": "admin"},
    "store": {"existingSecret": "store"},
    "settings": {"job_nice": 0, "disk_reserve_bytes": 0},
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
                address = settings.host if container["name"] == "api" else settings.runner_host
                check_address(settings.model_copy(update={"host": address}), has_keys=lambda: True)
                assert {IP, "xcray", f"xcray.{NAMESPACE}.svc"} <= settings.served_hosts
                assert settings.detach_jobs is False
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


class Clients(threading.Thread):
    """A client that sends predictions and requests for the job list, and counts the responses.

    Requests go to `pod`, like those through a Service with one ready pod.
    """

    def __init__(self, pod: Pod, key: str) -> None:
        super().__init__(daemon=True)
        self.pod = pod
        self.headers = {"Authorization": f"Bearer {key}"}
        self.over = threading.Event()
        self.counts = Counter[str]()

    def run(self) -> None:
        """Run the thread."""
        while not self.over.wait(0.02):
            self.count("POST", "/v1/models/plain:predict", json=ASK)
            self.count("GET", "/v1/jobs")

    def count(self, method: str, path: str, **what: Any) -> None:
        """Send a request and count its status, or the error."""
        url = self.pod.url + path
        try:
            answer = httpx.request(method, url, headers=self.headers, timeout=120, **what)
            self.counts[f"{answer.status_code}"] += 1
        except httpx.HTTPError as error:
            self.counts[type(error).__name__] += 1


@pytest.mark.drill
def test_a_new_database_role_and_a_new_first_key_interrupt_no_request(
    tmp_path: Path, postgres: Any
) -> None:
    """The steps are those of docs/operations.md."""
    if not helms():
        say("helm, for values of one's own", "no secret was rotated under rendered pods")
        return
    database = postgres.database().rpartition("/")[2]

    def sql(*statements: str) -> None:
        for statement in statements:
            postgres.run(statement, database)

    def url(role: str) -> str:
        # Roles belong to the server, so each run needs its own names.
        at = f"127.0.0.1:{postgres.port}/{database}"
        return f"postgresql://{database}_{role}:{PASSWORD.replace(' ', '%20')}@{at}"

    login = f"LOGIN PASSWORD '{PASSWORD}'"
    first, second = f"{database}_a", f"{database}_b"
    sql(f"CREATE ROLE {first} {login}", f"ALTER DATABASE {database} OWNER TO {first}")
    plain_model(tmp_path / "staged")
    Registry(tmp_path / "home" / "models").publish("plain", tmp_path / "staged")
    key = create_token().token
    specs = pods(template_values(CLUSTER))
    api, runner = specs["Deployment/xcray-api"], specs["Deployment/xcray-runner"]
    (migrate,) = specs["Job/xcray-migrate"]["containers"]
    namespace = Namespace(tmp_path, {"admin": {"key": key}, "store": {"url": url("a")}})
    with ExitStack() as stack:

        def start(spec: dict[str, Any]) -> Pod:
            pod = Pod(namespace, spec)
            stack.callback(pod.kill)
            return pod

        namespace.run(migrate)
        pod, job_pod = start(api), start(runner)
        check_requests(pod, key)
        (test,) = specs["Pod/xcray-test"]["containers"]
        namespace.run(test, URL=pod.url)
        clients = Clients(pod, key)
        clients.start()
        # The second role acts as the first, also as owner of objects.
        sql(
            f"CREATE ROLE {second} {login} IN ROLE {first}",
            f"ALTER ROLE {second} SET role = {first}",
        )
        namespace.secrets = {"admin": {"key": create_token().token}, "store": {"url": url("b")}}
        namespace.run(migrate)
        assert job_pod.end()[0] == 0
        start(runner)
        clients.pod = start(api)
        status, seen = pod.end()
        assert (status, seen - {(0, 0)}) == (0, {(503, 200)})
        sql(f"ALTER ROLE {first} NOLOGIN")
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{first}'"
        assert postgres.run(sessions, database)[0][0] == 0
        before = clients.counts["200"]
        while clients.counts["200"] < before + 20 and set(clients.counts) == {"200"}:
            clients.over.wait(0.1)
        clients.over.set()
        clients.join(120)
        assert set(clients.counts) == {"200"}
        # The first key ends a day later.
        created = [row[0] for row in postgres.run("SELECT expires FROM keys", database)]
        assert len([each for each in created if each is not None]) == 1


def check_requests(pod: Pod, key: str) -> None:
    """Check a key that is registered once, known and unknown hosts, and requests without a key."""
    opens = {"Authorization": f"Bearer {key}"}
    host = f"xcray.{NAMESPACE}.svc.cluster.local:80"
    assert pod.status("/healthz", Host=host) == 200
    assert pod.status("/healthz", Host="elsewhere.example") == 400
    assert [pod.status(path) for path in ("/v1/models", "/metrics")] == [401, 401]
    assert [pod.status(path, **opens) for path in ("/v1/models", "/metrics")] == [200, 200]
