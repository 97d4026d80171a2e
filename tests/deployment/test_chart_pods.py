"""The rendered pods run with the manifests' settings, as the pod's user with a read-only root.

Environment, commands, volumes and probes are those of the manifests; only the drain seconds are
shorter.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.chart.helm import (
    NAMESPACE,
    Objects,
    helms,
    rendering,
    template_values,
    values_files,
)
from tests.deployment.chart.pod import IP, environment, may_play, plan_of, play, runnable
from tests.support.missing_tools import say
from xcray.jobs.store.tokens import create_token, import_token
from xcray.service.settings import Settings, check_address

pytestmark = pytest.mark.drill

OTHERS = {"XCRAY_KEY_FILE"}  # variables of xcray that are not settings of the service
WITHOUT = "the program read the settings of all pods, but no pod was run"
URL = "postgresql://xcray@postgres/xcray"


def pods(objects: Objects) -> dict[str, dict[str, Any]]:
    """Return the pods of Deployments, Jobs and tests, by kind and name."""
    results = {
        f"{each['kind']}/{each['metadata']['name']}": each["spec"]
        for each in objects
        if each["kind"] in ("Pod", "Deployment", "Job")
    }
    return {name: spec.get("template", {}).get("spec", spec) for name, spec in results.items()}


def secrets_of(objects: Objects, key: str, store: str = URL) -> dict[str, dict[str, str]]:
    """Return all Secrets that pods name, with a key and a store; the others are empty."""
    named: dict[str, dict[str, str]] = {}
    for spec in pods(objects).values():
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            for each in container.get("env", []):
                if ref := each.get("valueFrom", {}).get("secretKeyRef"):
                    named.setdefault(ref["name"], {})[ref["key"]] = (
                        store if each["name"] == "XCRAY_STORE" else "unused"
                    )
            for each in container.get("envFrom", []):
                named.setdefault(each["secretRef"]["name"], {})
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                names = [item["key"] for item in volume["secret"].get("items", [])]
                named.setdefault(volume["secret"]["secretName"], {}).update(
                    dict.fromkeys(names, key)
                )
    return named


@pytest.mark.parametrize("name", sorted(values_files()))
def test_every_variable_is_a_setting_of_the_program(name: str) -> None:
    objects = rendering(name)
    secrets = secrets_of(objects, create_token().token)
    values = 0
    for pod, spec in pods(objects).items():
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            results = {
                k: v
                for k, v in environment(container, secrets).items()
                if k.startswith("XCRAY_") and k not in OTHERS
            }
            names = {k.removeprefix("XCRAY_").lower() for k in results}
            assert names <= set(Settings.model_fields), (
                f"{pod}: {names - set(Settings.model_fields)} are not settings"
            )
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
        say(
            "helm, for values of one's own",
            "the count of cores was checked only for the values files in ci",
        )
        return
    pod = pods(template_values({"api": {"resources": resources}}))["Deployment/xcray-api"]
    assert environment(pod["containers"][0], {})["PYTHON_CPU_COUNT"] == cores


def hasten(spec: dict[str, Any]) -> None:
    """Shorten the drain seconds, and preload no model, because none is trained yet."""
    variables = spec["containers"][0]["env"]
    variables[:] = [each for each in variables if each["name"] != "XCRAY_PRELOAD"]
    for each in variables:
        if each["name"] in ("XCRAY_DRAIN_SECONDS", "XCRAY_GRACE_SECONDS"):
            each["value"] = "1"


def requests_with(key: str, host: str, metrics: int = 401) -> list[dict[str, Any]]:
    """Return requests with their expected status. metrics: status of /metrics without a key."""
    opens = {"Authorization": f"Bearer {key}"}
    return [
        {"path": "/readyz", "expected": 200},  # Host is the pod's address, as from a kubelet
        {"path": "/healthz", "headers": {"Host": host}, "expected": 200},
        {"path": "/healthz", "headers": {"Host": "elsewhere.example"}, "expected": 400},
        {"path": "/v1/models", "expected": 401},
        {"path": "/v1/models", "headers": opens, "expected": 200},
        {"path": "/metrics", "expected": metrics},
        {
            "path": "/metrics",
            "headers": opens,
            "expected": 200,
        },  # as from Prometheus: by address, with the key
    ]


def hold(record: dict[str, Any]) -> None:
    """Check the results that every API pod must give."""
    assert [each["status"] for each in record["init"]] == [0] * len(record["init"]), record["init"]
    assert record["started"], record["output"]
    assert [(each["path"], each["status"]) for each in record["answers"]] == [
        (each["path"], each["expected"]) for each in record["answers"]
    ]
    assert all(each["status"] == 0 for each in record["programs"]), record["programs"]
    ending = record["ending"]
    assert (ending["status"], ending["ready"], ending["alive"]) == (0, 503, 200), record["output"]


def helm_test(objects: Objects, secrets: dict[str, dict[str, str]], port: int) -> dict[str, Any]:
    """Return the container of `helm test`, adapted to find the API without DNS and Service."""
    container = runnable(pods(objects)["Pod/xcray-test"]["containers"][0], secrets)
    assert container["env"]["URL"] == f"http://xcray.{NAMESPACE}.svc:80"
    container["env"]["URL"] = f"http://{IP}:{port}"
    return container


def test_the_pod_of_mode_all_in_one(tmp_path: Path) -> None:
    objects = rendering("minimal")
    if not may_play():
        say("namespaces of one's own", WITHOUT)
        return
    result = next(each for each in objects if each["kind"] == "Secret")
    key = base64.b64decode(result["data"]["key"]).decode()
    assert import_token(key).token == key  # the key that the chart generates is valid
    secrets = {result["metadata"]["name"]: {"key": key}}
    spec = pods(objects)["Deployment/xcray-api"]
    hasten(spec)
    plan = plan_of(
        spec, secrets, tmp_path, requests_with(key, f"xcray.{NAMESPACE}.svc.cluster.local:80")
    )
    plan["programs"] = [helm_test(objects, secrets, plan["port"])]
    hold(play(plan, tmp_path))
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {
        "xcray.db",
        "datasets",
        "models",
        "runs",
        "logs",
    }


def test_a_pod_with_its_own_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if not (may_play() and helms() and openssl):
        say("namespaces of one's own, helm or openssl", "no pod with its own TLS was run")
        return
    results = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=xcray",
    ]
    files = {"tls.key": tmp_path / "made.key", "tls.crt": tmp_path / "made.crt"}
    command = [openssl, *results, "-keyout", str(files["tls.key"]), "-out", str(files["tls.crt"])]
    subprocess.run(command, check=True, capture_output=True)
    objects = template_values(
        {"api": {"tls": {"existingSecret": "cert"}}, "auth": {"existingSecret": "admin"}}
    )
    key = create_token().token
    secrets = {
        "admin": {"key": key},
        "cert": {name: path.read_text() for name, path in files.items()},
    }
    spec = pods(objects)["Deployment/xcray-api"]
    hasten(spec)
    plan = plan_of(spec, secrets, tmp_path, requests_with(key, f"xcray.{NAMESPACE}.svc:443"))
    assert plan["scheme"] == "HTTPS"
    container = runnable(pods(objects)["Pod/xcray-test"]["containers"][0], secrets)
    assert container["env"]["URL"] == f"https://xcray.{NAMESPACE}.svc:443"
    container["env"]["URL"] = f"https://{IP}:{plan['port']}"
    plan["programs"] = [container]
    hold(play(plan, tmp_path))


def test_the_pods_of_mode_cluster_on_postgresql(tmp_path: Path, postgres: Any) -> None:
    objects = rendering("production")
    if not may_play():
        say("namespaces of one's own", WITHOUT)
        return
    key, store = (
        create_token().token,
        postgres.database().replace(f"127.0.0.1:{postgres.port}", f"{IP}:5432"),
    )
    secrets = secrets_of(objects, key, store)
    result = pods(objects)
    api, runner = result["Deployment/xcray-api"], result["Deployment/xcray-runner"]
    hasten(api)
    # Metrics need no key here.
    plan = plan_of(api, secrets, tmp_path, requests_with(key, "xcray.example.org", 200))
    plan["forward"] = {"5432": str(postgres.socket)}
    # The init containers run twice: the key is not replaced.
    plan["init"] = [
        runnable(result["Job/xcray-migrate"]["containers"][0], secrets),
        *plan["init"],
        *plan["init"],
    ]
    runner_container = runnable(runner["containers"][0], secrets)
    plan["companions"] = [{**runner_container, "probe": {"path": "/healthz", "port": 8001}}]
    report = play(plan, tmp_path)
    hold(report)
    assert [each["name"] for each in report["init"]] == ["migrate", "admin-key", "admin-key"]
    assert [re.search(r"new +(\w+)", each["output"])[1] for each in report["init"][1:]] == [
        "yes",
        "no",
    ]  # type: ignore[index]
    assert [(each["started"], each["ready"]["status"]) for each in report["companions"]] == [
        (True, 200)
    ], report["companions"]
