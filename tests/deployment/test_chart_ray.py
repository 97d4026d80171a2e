"""The Ray part of the chart is valid for KubeRay's operator, for Ray and for xcray."""

from __future__ import annotations

import functools
import itertools
import json
import mmap
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.scripts.scripts import start as ray_start

from tests.deployment.chart.helm import NAMESPACE, helms, rendering, template_values, values_files
from tests.deployment.chart.operator import bytes_of, faults, start_words
from tests.deployment.chart.templates import (
    CLUSTER_SPECS,
    cluster_name,
    cluster_spec,
    containers,
    head_pod,
    index,
    planted,
    pods,
    variables,
    worker_pods,
)
from xcray.cli.main import commands_for
from xcray.service.settings import Settings
from xcray.workers.ray.session import local_ray_environment

FILES = sorted(values_files())
WITH_RAY = [name for name in FILES if name in ("production", "autoscaled", "kueue")]
# Variables of the client and of drivers.
NO_SETTINGS = {
    "XCRAY_KEY_FILE",
    "XCRAY_RAY_NODE_SECONDS",
    "XCRAY_RAY_START_SECONDS",
}


def clusters(name: str) -> list[dict[str, Any]]:
    """Return the custom resources of KubeRay in a values file."""
    return [thing for thing in rendering(name) if thing["kind"] in CLUSTER_SPECS]


def spec_of(thing: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the Ray cluster in a resource."""
    spec = cluster_spec(thing)
    assert spec is not None
    return spec


# Rules of the operator


@pytest.mark.parametrize("name", WITH_RAY)
def test_the_operator_accepts_every_resource(name: str) -> None:
    assert {
        each["metadata"]["name"]: inputs for each in clusters(name) if (inputs := faults(each))
    } == {}


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("metadata", "name"), "1" * 54, "too long, not a DNS-1035 label"),
        (("spec", "rayVersion"), "2.51.0", "a token needs, priorities"),
        (("spec", "headGroupSpec", "rayStartParams", "redis-password"), "x", "operator's to set"),
        (("spec", "workerGroupSpecs", 0, "minReplicas"), 99, "fewest above most"),
        (
            ("spec", "workerGroupSpecs", 0, "template", "spec", "restartPolicy"),
            "Always",
            "never restarted",
        ),
        (("spec", "gcsFaultToleranceOptions", "backend"), "rocksdb", "feature gate"),
    ],
)
def test_each_rule_of_the_operator_can_fail(
    path: tuple[Any, ...], value: Any, expected: str
) -> None:
    thing: Any = index(rendering("production"))["RayCluster", "xcray-ray"]
    planted(thing, path, value)
    assert all(each in " ".join(faults(thing)) for each in expected.split(", ")), faults(thing)


@pytest.mark.parametrize("name", WITH_RAY)
def test_api_and_runners_find_the_head_and_its_token(name: str) -> None:
    objects = rendering(name)
    cluster = index(objects)["RayCluster", "xcray-ray"]
    service = f"{cluster_name(cluster)}-head-svc"  # the operator's name of the Service
    ports = {
        port["containerPort"]
        for port in spec_of(cluster)["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
    }
    token = spec_of(cluster)["authOptions"].get("secretName", cluster_name(cluster))
    for owner in pods(objects):
        if owner.role not in ("api", "runner"):
            continue
        result = variables(owner.pod["spec"]["containers"][0])
        assert result["XCRAY_RAY_ADDRESS"] == f"{service}:6379"
        assert result["XCRAY_RAY_DASHBOARD"] == f"http://{service}:8265"
        assert {6379, 8265} <= ports
        assert result["RAY_AUTH_MODE"] == "token"
        (volume,) = [
            each
            for each in owner.pod["spec"]["volumes"]
            if each.get("secret", {}).get("secretName") == token
        ]
        (mount,) = [
            each
            for each in owner.pod["spec"]["containers"][0]["volumeMounts"]
            if each["name"] == volume["name"]
        ]
        assert (
            result["XCRAY_RAY_TOKEN_PATH"]
            == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
        )
        # The key that the operator reads and writes.
        assert volume["secret"]["items"][0]["key"] == "auth_token"


def test_the_head_outlives_its_pod_by_redis() -> None:
    spec = spec_of(index(rendering("production"))["RayCluster", "xcray-ray"])
    options = spec["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == "redis.databases.svc:6379"
    assert options["redisPassword"] == {
        "valueFrom": {"secretKeyRef": {"name": "xcray-redis", "key": "password"}}
    }
    # Another release on the same Redis has another namespace.
    assert options["externalStorageNamespace"] == f"{NAMESPACE}-xcray-ray"
    assert "backend" not in options  # immutable: to set the default would prevent a later change


# Sizes


@pytest.mark.parametrize("name", WITH_RAY)
def test_limits_cover_object_store_memory_and_disk(name: str) -> None:
    for thing in clusters(name):
        spec = spec_of(thing)
        # Drivers only: overload of the head would end the cluster.
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            resources = pod["containers"][0]["resources"]
            assert resources["requests"] == resources["limits"]
            (memory,) = [
                each["emptyDir"]["sizeLimit"]
                for each in pod["volumes"]
                if each["name"] == "shared-mem"
            ]
            store = int(group["rayStartParams"]["object-store-memory"])
            assert store < bytes_of(memory) < bytes_of(resources["limits"]["memory"])
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())
            if "groupName" in group:
                # KubeRay rounds up: half a core would be offered as one.
                assert int(resources["limits"]["cpu"]) >= 1
            disk = sum(
                bytes_of(each["emptyDir"]["sizeLimit"])
                for each in pod["volumes"]
                if each["name"] in ("tmp", "ray-logs")
            )
            assert disk <= bytes_of(resources["limits"]["ephemeral-storage"])


def test_autoscaled_clusters_set_no_replicas() -> None:
    for thing in clusters("autoscaled"):
        spec = spec_of(thing)
        assert spec["enableInTreeAutoscaling"] is True
        assert spec["autoscalerOptions"]["version"] == "v2"
        assert all("replicas" not in group for group in spec["workerGroupSpecs"]), (
            "each upgrade would undo the autoscaler's decision"
        )
    groups = {
        group["groupName"]: group
        for group in spec_of(index(rendering("autoscaled"))["RayCluster", "xcray-ray"])[
            "workerGroupSpecs"
        ]
    }
    assert groups["general"]["priority"] > groups["spot"].get("priority", 0)
    assert groups["spot"]["labels"] == {"ray.io/market-type": "spot"}
    assert groups["spot"]["idleTimeoutSeconds"] == 15
    assert groups["spot"]["template"]["spec"]["tolerations"]
    assert json.loads(groups["big"]["rayStartParams"]["resources"].strip("'")) == {"big": 1}


def test_clusters_for_kueue_have_one_size_and_are_not_suspended() -> None:
    for thing in clusters("kueue"):
        spec = spec_of(thing)
        labels = thing["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "xcray"
        assert labels["kueue.x-k8s.io/priority-class"] == "training"
        assert spec["enableInTreeAutoscaling"] is False
        assert "autoscalerOptions" not in spec
        assert all(
            group["replicas"] == group["minReplicas"] == group["maxReplicas"] > 0
            for group in spec["workerGroupSpecs"]
        )
        assert len(spec["workerGroupSpecs"]) <= 7
        assert "suspend" not in thing["spec"], (
            "Kueue sets it; in the manifest, each upgrade would stop a running cluster"
        )
    assert (
        index(rendering("kueue"))["RayJob", "xcray-train"]["spec"]["shutdownAfterJobFinishes"]
        is True
    )
    queue = index(rendering("kueue"))["LocalQueue", "xcray"]
    assert queue["spec"] == {"clusterQueue": "machine-learning"}


@pytest.mark.parametrize("name", WITH_RAY)
def test_workers_have_time_to_drain_and_a_dead_node_is_noticed_soon(name: str) -> None:
    for thing in clusters(name):
        for group in spec_of(thing)["workerGroupSpecs"]:
            pod = group["template"]["spec"]
            drain = float(
                variables(pod["containers"][0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] or "nan"
            )
            assert 0 < drain < pod["terminationGracePeriodSeconds"] - 5
        for pod in (head_pod(thing), *worker_pods(thing)):
            result = variables(pod["spec"]["containers"][0])
            values = [
                float(result[f"RAY_health_check_{each}"] or "nan")
                for each in ("period_ms", "timeout_ms", "failure_threshold")
            ]
            assert values[0] * values[2] + values[1] <= 3000
            assert result["RAY_health_check_initial_delay_ms"] == "0"


# Understood by Ray and xcray


@functools.cache
def known_to_ray(variable: str) -> bool:
    """Return whether Ray's compiled or Python code contains an environment variable."""
    folder = Path(ray.__file__).parent
    with (
        (folder / "_raylet.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary,
    ):
        if binary.find(variable.encode() + b"\0") >= 0:
            return True
    return any(f'"{variable}"' in text for text in python_of_ray())


@functools.cache
def python_of_ray() -> tuple[str, ...]:
    """Return the text of the parts of Ray's Python code that read variables."""
    folder = Path(ray.__file__).parent
    parts = [(folder / name).rglob("*.py") for name in ("_common", "_private", "autoscaler")]
    return tuple(path.read_text(encoding="utf-8") for path in itertools.chain(*parts))


def test_ray_reads_the_variables() -> None:
    results = {
        name
        for file in WITH_RAY
        for owner in pods(rendering(file))
        for container in owner.pod["spec"]["containers"]
        for name in variables(container)
        if name.startswith("RAY_")
    }
    assert len(results) >= 10
    assert {name for name in results if not known_to_ray(name)} == set()
    assert not known_to_ray("RAY_health_check_nonsense")


def test_pods_have_the_variables_of_a_local_ray() -> None:
    """Local Rays and pods have the same variables, except for the memory monitor.

    In a pod it measures the memory of the pod, so it is useful there.
    """
    pod = head_pod(index(rendering("production"))["RayCluster", "xcray-ray"])
    result = variables(pod["spec"]["containers"][0])
    entries = {
        name: value
        for name, value in local_ray_environment("/x").items()
        if not name.startswith("RAY_AUTH_")
    }
    different = {name for name, value in entries.items() if result.get(name) != value}
    assert different == {"RAY_memory_monitor_refresh_ms"}
    assert int(result["RAY_memory_monitor_refresh_ms"] or 0) > 0


@pytest.mark.parametrize("name", WITH_RAY)
def test_ray_start_accepts_the_parameters(name: str) -> None:
    for thing in clusters(name):
        spec = spec_of(thing)
        for head, group in (
            (True, spec["headGroupSpec"]),
            *((False, each) for each in spec["workerGroupSpecs"]),
        ):
            selection = ray_start.make_context("start", start_words(group, head)).params
            assert selection["head"] is head
            assert selection["object_store_memory"] == int(
                group["rayStartParams"]["object-store-memory"]
            )
            assert selection["metrics_export_port"] == 8080
            assert selection["num_cpus"] == (
                0
                if head
                else int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
            )
            assert isinstance(json.loads(selection["resources"]), dict)


@functools.cache
def tree() -> Any:
    """Return the commands of `xcray`."""
    return commands_for([])


def parsed_arguments(words: list[str]) -> dict[str, Any]:
    """Return the parsed arguments of a command of `xcray`. Raises click's UsageError."""
    command = tree()
    rest = list(words)
    while hasattr(command, "commands") and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    params: dict[str, Any] = command.make_context("xcray", rest).params
    return params


def commands(name: str) -> list[list[str]]:
    """Return every command of `xcray` that a values file runs, without its first word."""
    results = [
        [*each.get("command", []), *each.get("args", [])]
        for owner in pods(rendering(name))
        for each in containers(owner.pod)
    ]
    results += [
        shlex.split(command)
        for each in clusters(name)
        if each["kind"] == "RayJob"
        for command in each["spec"]["entrypoint"].split(" && ")
    ]
    return [[str(word) for word in words[1:]] for words in results if words[:1] == ["xcray"]]


@pytest.mark.parametrize("name", FILES)
def test_xcray_accepts_the_commands(name: str) -> None:
    result = commands(name)
    assert result
    for words in result:
        assert isinstance(parsed_arguments(words), dict), words


def test_a_rayjob_runs_the_configured_training() -> None:
    (command,) = [
        each["spec"]["entrypoint"] for each in clusters("autoscaled") if each["kind"] == "RayJob"
    ]
    train, push = (shlex.split(part)[1:] for part in command.split(" && "))
    result = parsed_arguments(train)
    assert (result["pool"], result["workers"]) == ("ray", 4)
    assert result["run_dir"] is not None
    pushed = parsed_arguments(push)
    assert (pushed["model"], pushed["uri"], pushed["name"]) == (
        str(result["out"]),
        "s3://models/xcray",
        "news",
    )
    for _ in helms():
        values = yaml.safe_load(values_files()["autoscaled"].read_text())
        values["rayJob"]["arguments"] = ["--solver", "it's; touch /tmp/x $(id)"]
        (job,) = [each for each in template_values(values) if each["kind"] == "RayJob"]
        # Each argument stays one word.
        train = job["spec"]["entrypoint"].partition(" && ")[0]
        assert shlex.split(train)[-2:] == values["rayJob"]["arguments"]


def test_the_variables_of_rays_pods_are_settings() -> None:
    for name in WITH_RAY:
        for thing in clusters(name):
            for pod in (head_pod(thing), *worker_pods(thing)):
                for container in containers(pod):
                    names = {
                        each for each in variables(container) if each.startswith("XCRAY_")
                    } - NO_SETTINGS
                    assert {each.removeprefix("XCRAY_").lower() for each in names} <= set(
                        Settings.model_fields
                    )


def test_only_pods_that_open_the_store_have_its_address() -> None:
    """Drivers on the head and Ray Serve replicas have the address; training workers do not."""
    for name in WITH_RAY:
        for owner in pods(rendering(name)):
            if owner.role.startswith("ray"):
                results = {
                    each for container in containers(owner.pod) for each in variables(container)
                }
                assert ("XCRAY_STORE" in results) == (
                    owner.role in ("ray-head", "rayservice-worker")
                ), owner.name


def test_serve_accepts_the_configuration_of_a_rayservice() -> None:
    from ray.serve.schema import ServeDeploySchema

    (service,) = [each for each in clusters("autoscaled") if each["kind"] == "RayService"]
    config = ServeDeploySchema(**yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "xcray.service.ray_serve:application"
    module, _, name = application.import_path.partition(":")
    source = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
    assert re.search(rf"^(def {name}\(|{name}\b.* = )", source.read_text(), re.MULTILINE)
    (deployment,) = application.deployments
    assert re.search(rf"(class {deployment.name}\b|name=\"{deployment.name}\")", source.read_text())
    assert service["spec"]["excludeHeadPodFromServeSvc"] is True
    for pod in worker_pods(service):
        ports = {
            port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]
        }
        assert ports["serve"] == config.http_options.port
        assert pod["spec"]["initContainers"][0]["command"] == ["xcray", "models", "pull"]
