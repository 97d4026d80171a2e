"""The chart as rendered by helm: equal for both helms, valid for Kubernetes and KubeRay, complete.

The values files are in helm/xcray/ci. Without helm, these tests are skipped, and the
summary of the run says so.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployment.chart.helm import (
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    Objects,
    available,
    helms,
    normal,
    plain,
    read,
    rendering,
    run,
    template,
    template_values,
    values_files,
)
from tests.deployment.chart.network import selects
from tests.deployment.chart.schemas import (
    CRDS,
    KUBERNETES,
    OTHERS,
    check_custom,
    check_kubernetes,
    crd,
)
from tests.deployment.chart.templates import (
    CLUSTER_SPECS,
    cluster_name,
    cluster_spec,
    containers,
    index,
    planted,
    pods,
)
from xcray import __version__

FILES = sorted(values_files())
LONGEST = 63  # characters of a label's value, and of most names
RELEASE_LONGEST = "a" + "b2" * 26  # 53 characters: helm's maximum
MADE_BY_KUBERNETES = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}


@pytest.mark.parametrize("name", FILES)
def test_both_helms_render_the_same(name: str) -> None:
    results = [normal(read(template(helm, name))) for helm in available()]
    assert all(each == results[0] for each in results)
    assert not results or len(results[0]) >= 8


@pytest.mark.parametrize("name", FILES)
def test_lint_finds_no_fault(name: str) -> None:
    for program in helms().values():
        output = run(program, "lint", str(CHART), "--strict", "--values", str(values_files()[name]))
        assert "0 chart(s) failed" in output
        assert "[WARNING]" not in output
        assert "[ERROR]" not in output


def test_the_package_contains_exactly_the_needed_files(tmp_path: Path) -> None:
    for helm, program in helms().items():
        run(program, "package", str(CHART), "--destination", str(tmp_path / helm))
        (package,) = (tmp_path / helm).glob("*.tgz")
        with tarfile.open(package) as archive:
            names = {member.name.removeprefix("xcray/") for member in archive.getmembers()}
        assert {
            "Chart.yaml",
            "values.yaml",
            "values.schema.json",
            "templates/_ray.tpl",
            "templates/NOTES.txt",
        } <= names
        assert not [
            name
            for name in names
            if name.startswith((".git", "ci/")) or name.endswith(("~", ".tgz"))
        ]


def test_kinds_of_other_projects_are_optional() -> None:
    """The chart can be installed without the Prometheus operator, Gateway API or Kueue."""
    for name in ("minimal", "serving"):
        assert not {each["kind"] for each in rendering(name)} & {*OTHERS, *CRDS}
    for helm in available()[-1:]:
        results = [{each["kind"] for each in read(template(helm, name, apis=()))} for name in FILES]
        # Nothing depends on the APIs of a cluster.
        assert results == [{each["kind"] for each in rendering(name)} for name in FILES]


# Schemas


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", FILES)
def test_objects_are_valid(name: str, version: str) -> None:
    for thing in rendering(name):
        where = f"{thing['kind']}/{thing['metadata']['name']}"
        if thing["kind"] in OTHERS:
            assert thing["apiVersion"] == OTHERS[thing["kind"]], where
        elif thing["kind"] not in CRDS:
            assert check_kubernetes(version, thing) == [], where


@pytest.mark.parametrize("name", FILES)
def test_custom_resources_of_kuberay_are_valid(name: str) -> None:
    results = [thing for thing in rendering(name) if thing["kind"] in CRDS]
    assert {each["kind"] for each in results} == CUSTOM.get(name, set())
    for thing in results:
        assert thing["apiVersion"] == "ray.io/v1"
        assert check_custom(thing) == []


CUSTOM = {
    "production": {"RayCluster"},
    "autoscaled": {"RayCluster", "RayJob", "RayService"},
    "kueue": {"RayCluster", "RayJob"},
}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", FILES)
def test_pods_are_valid_also_those_that_kuberay_builds(name: str, version: str) -> None:
    for owner, pod, _, _ in pods(rendering(name)):
        assert check_kubernetes(version, pod) == [], owner


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("spec", "replicas"), "three", "replicas"),
        (
            ("spec", "template", "spec", "containers", 0, "imagePullPolice"),
            "Always",
            "imagePullPolice",
        ),
        (
            ("spec", "template", "spec", "containers", 0, "ports"),
            [{"containerPort": "8000x"}],
            "containerPort",
        ),
        (("spec", "strategy"), ["RollingUpdate"], "strategy"),
    ],
)
def test_the_schemas_of_kubernetes_find_faults(
    path: tuple[Any, ...], value: Any, expected: str
) -> None:
    thing = index(rendering("minimal"))["Deployment", "xcray-api"]
    assert all(check_kubernetes(version, thing) == [] for version in KUBERNETES)
    planted(thing, path, value)
    assert all(expected in " ".join(check_kubernetes(version, thing)) for version in KUBERNETES)


def test_the_schemas_of_kuberay_find_faults() -> None:
    for path, value, expected in (
        (("spec", "rayversion"), "2.60.0", "rayversion"),
        (("spec", "authOptions", "mode"), "secret", "mode"),
        (("spec", "workerGroupSpecs", 0, "minReplicas"), "1", "minReplicas"),
    ):
        thing = index(rendering("production"))["RayCluster", "xcray-ray"]
        planted(thing, path, value)
        assert crd("RayCluster") is None or expected in " ".join(check_custom(thing))


# Completeness


@pytest.mark.parametrize("name", FILES)
def test_names_labels_and_namespace(name: str) -> None:
    objects = rendering(name)
    index(objects)
    for thing in objects:
        metadata = thing["metadata"]
        assert metadata["namespace"] == NAMESPACE, thing["kind"]
        assert len(metadata["name"]) <= LONGEST
        labels = metadata["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/version"] == __version__
        assert all(len(str(value)) <= LONGEST for value in labels.values())


@pytest.mark.parametrize("name", FILES)
def test_the_longest_release_name_fits(name: str) -> None:
    for helm in available()[-1:]:
        objects = read(template(helm, name, release=RELEASE_LONGEST))
        short = index(rendering(name))
        assert len(index(objects)) == len(short)
        for thing in objects:
            suffix = {
                "RayCluster": "-head-svc",
                "RayJob": "-abcde",
                "RayService": "-abcde-head-svc",
            }.get(thing["kind"], "")
            assert len(thing["metadata"]["name"] + suffix) <= LONGEST, thing["metadata"]["name"]
        for _, pod, _, _ in pods(objects):
            assert all(len(value) <= LONGEST for value in pod["metadata"]["labels"].values())
        for owner, kind, named in references(objects):
            assert exists(objects, name, kind, named), f"{owner} names {kind}/{named}"


def texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def references(objects: Objects) -> Iterator[tuple[str, str, str]]:
    """Yield (owner, kind, name) for each reference to another object."""
    for owner, pod, _, _ in pods(objects):
        spec = pod["spec"]
        yield owner, "ServiceAccount", spec["serviceAccountName"]
        yield from ((owner, "Secret", each["name"]) for each in spec.get("imagePullSecrets", []))
        for container in containers(pod):
            for each in container.get("env", []):
                for source, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
                    if source in each.get("valueFrom", {}):
                        yield owner, kind, each["valueFrom"][source]["name"]
            for each in container.get("envFrom", []):
                for source, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
                    if source in each:
                        yield owner, kind, each[source]["name"]
        for volume in spec.get("volumes", []):
            yield from ((owner, kind, named) for kind, named in volume_references(volume))
    for thing in objects:
        owner = f"{thing['kind']}/{thing['metadata']['name']}"
        yield from ((owner, kind, named) for kind, named in object_references(thing))


def volume_references(volume: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the references of one volume."""
    if "secret" in volume:
        yield "Secret", volume["secret"]["secretName"]
    if "configMap" in volume:
        yield "ConfigMap", volume["configMap"]["name"]
    if "persistentVolumeClaim" in volume:
        yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for source in volume.get("projected", {}).get("sources", []):
        yield from (
            ("Secret", source["secret"]["name"])
            for _ in source.get("secret", [])[:1]
            if "secret" in source
        )
        if "configMap" in source:
            yield "ConfigMap", source["configMap"]["name"]


def object_references(thing: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the references of one object that is not a pod."""
    spec = thing.get("spec", {})
    if thing["kind"] == "Ingress":
        yield from (("Secret", each["secretName"]) for each in spec.get("tls", []))
        for rule in spec["rules"]:
            yield from (
                ("Service", each["backend"]["service"]["name"]) for each in rule["http"]["paths"]
            )
    if thing["kind"] == "HTTPRoute":
        yield from (
            ("Service", each["name"]) for rule in spec["rules"] for each in rule["backendRefs"]
        )
    if thing["kind"] == "HorizontalPodAutoscaler":
        yield spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]
    ray = cluster_spec(thing)
    if ray is not None:
        yield "Secret", ray["authOptions"].get("secretName", cluster_name(thing))
        password = ray.get("gcsFaultToleranceOptions", {}).get("redisPassword")
        if password:
            yield "Secret", password["valueFrom"]["secretKeyRef"]["name"]


def exists(objects: Objects, name: str, kind: str, named: str) -> bool:
    """Return whether an object comes from the release, Kubernetes, KubeRay, or the values."""
    if (kind, named) in {
        (each["kind"], each["metadata"]["name"]) for each in objects
    } | MADE_BY_KUBERNETES:
        return True
    clusters = {cluster_name(each) for each in objects if each["kind"] in CLUSTER_SPECS}
    if kind == "Secret" and named in clusters:  # KubeRay's token
        return True
    document = yaml.safe_load(values_files()[name].read_text()) or {}
    return kind in ("Secret", "PersistentVolumeClaim") and named in set(texts(document))


@pytest.mark.parametrize("name", FILES)
def test_every_referenced_object_exists(name: str) -> None:
    objects = rendering(name)
    results = list(references(objects))
    assert len(results) >= 5
    for owner, kind, named in results:
        assert exists(objects, name, kind, named), f"{owner} names {kind}/{named}"


@pytest.mark.parametrize("name", FILES)
def test_hooks_need_no_object_of_the_release(name: str) -> None:
    """A pre-install hook needs no claim, ServiceAccount or Secret of the release."""
    objects = rendering(name)
    for thing in objects:
        hooks = thing["metadata"].get("annotations", {}).get("helm.sh/hook", "").split(",")
        if not {"pre-install", "pre-upgrade"} & set(hooks):
            continue
        assert "helm.sh/hook-delete-policy" in thing["metadata"]["annotations"]
        results = {
            (each["kind"], each["metadata"]["name"])
            for each in objects
            if "helm.sh/hook" not in each["metadata"].get("annotations", {})
        }
        assert not results & {(kind, named) for _, kind, named in references([thing])}


@pytest.mark.parametrize("name", FILES)
def test_selectors_match_pods_and_ports_have_names(name: str) -> None:
    objects = rendering(name)
    owners = [owner for owner in pods(objects) if not owner.hook]
    for thing in objects:
        spec = thing.get("spec", {})
        if thing["kind"] in ("Deployment", "StatefulSet"):
            assert selects(spec["selector"], spec["template"]["metadata"]["labels"])
            others = [
                each
                for each in owners
                if each.name != f"{thing['kind']}/{thing['metadata']['name']}"
            ]
            assert not [
                each.name
                for each in others
                if selects(spec["selector"], each.pod["metadata"]["labels"])
            ]
            assert "app.kubernetes.io/version" not in spec["selector"]["matchLabels"], (
                "a selector can't change"
            )
        if thing["kind"] == "Service":
            chosen = [
                each
                for each in owners
                if selects({"matchLabels": spec["selector"]}, each.pod["metadata"]["labels"])
            ]
            assert chosen, thing["metadata"]["name"]
            for port in spec["ports"]:
                for each in chosen:
                    assert port["targetPort"] in port_names(each.pod), (
                        f"{thing['metadata']['name']}: {port}"
                    )
        if thing["kind"] == "PodDisruptionBudget":
            chosen = [
                each for each in owners if selects(spec["selector"], each.pod["metadata"]["labels"])
            ]
            assert len({each.role for each in chosen}) == 1
        if thing["kind"] == "HorizontalPodAutoscaler":
            target = index(objects)[spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]]
            assert "replicas" not in target["spec"], (
                "each upgrade would undo the autoscaler's decision"
            )
            assert spec["minReplicas"] <= spec["maxReplicas"]


def port_names(pod: dict[str, Any]) -> set[str]:
    """Return the named ports of a pod."""
    return {port["name"] for container in containers(pod) for port in container.get("ports", [])}


@pytest.mark.parametrize("name", FILES)
def test_mounts_and_probes_refer_to_volumes_and_ports(name: str) -> None:
    objects = rendering(name)
    for owner, pod, _, _ in pods(objects):
        volumes = [volume["name"] for volume in pod["spec"].get("volumes", [])]
        assert len(volumes) == len(set(volumes)), owner
        mounted = set()
        for container in containers(pod):
            places = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            assert len(places) == len(set(places)), owner
            mounted |= {mount["name"] for mount in container.get("volumeMounts", [])}
            variables = [each["name"] for each in container.get("env", [])]
            assert len(variables) == len(set(variables)), (
                f"{owner}: a variable twice: {sorted(variables)}"
            )
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = container.get(probe, {}).get("httpGet", {}).get("port", 1)
                assert isinstance(port, int) or port in {
                    each["name"] for each in container["ports"]
                }, owner
        # KubeRay keeps the head's volumes there.
        if not pod["metadata"]["name"].endswith("-redis-cleanup"):
            assert mounted == set(volumes), f"{owner}: unused volumes, or mounts without a volume"


def test_versions_are_equal() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", chart["version"])
    assert chart["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


def test_ray_has_one_version_in_chart_image_and_package() -> None:
    from packaging.requirements import Requirement

    version = yaml.safe_load((CHART / "values.yaml").read_text())["ray"]["version"]
    pinned = re.findall(
        r"^ray==(\S+)", (ROOT / "deploy/docker/requirements.txt").read_text(), re.MULTILINE
    )
    assert pinned == [version]
    project = (ROOT / "pyproject.toml").read_text()
    (expected,) = re.findall(r'^ray = \["(ray\[default\][^"]*)"\]', project, re.MULTILINE)
    assert version in Requirement(expected).specifier
    for name in FILES:
        for thing in rendering(name):
            spec = cluster_spec(thing)
            assert spec is None or spec["rayVersion"] == version


def test_dashboards_and_rules_are_in_the_chart() -> None:
    """The chart installs the content of the monitoring folder."""
    boards = sorted((CHART / "monitoring" / "dashboards").glob("*.json"))
    assert len(boards) >= 4
    for _ in helms():
        objects = template_values(
            {
                "monitoring": {
                    "rules": {"enabled": True},
                    "dashboards": {"enabled": True},
                    "scrape": {"enabled": True, "existingSecret": "scrape-key"},
                }
            }
        )
        shown = {
            file: json.loads(text)
            for each in objects
            if each["kind"] == "ConfigMap"
            for file, text in each["data"].items()
        }
        assert {path.name: json.loads(path.read_text()) for path in boards} == {
            name: shown[name] for name in shown if name.startswith("xcray-")
        }
        (rules,) = [each for each in objects if each["kind"] == "PrometheusRule"]
        document = yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())
        assert rules["spec"]["groups"] == plain(document["groups"])
        (monitor,) = [each for each in objects if each["kind"] == "PodMonitor"]
        assert monitor["metadata"]["name"] == "xcray-api"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["authorization"]["credentials"] == {"name": "scrape-key", "key": "key"}


@pytest.mark.parametrize("name", FILES)
def test_monitors_find_pods_and_their_ports(name: str) -> None:
    objects, values = rendering(name), set()
    for thing in objects:
        if thing["kind"] != "PodMonitor":
            continue
        values.add(thing["metadata"]["labels"]["app.kubernetes.io/component"])
        chosen = [
            each.pod
            for each in pods(objects)
            if selects(thing["spec"]["selector"], each.pod["metadata"]["labels"])
        ]
        assert chosen, thing["metadata"]["name"]
        for endpoint in thing["spec"]["podMetricsEndpoints"]:
            assert all(endpoint["port"] in port_names(pod) for pod in chosen), (
                f"{thing['metadata']['name']}: {endpoint['port']}"
            )
    telling = {
        each.role
        for each in pods(objects)
        if not each.hook and {"http", "metrics"} & port_names(each.pod)
    }
    # This includes the clusters of RayJob and RayService.
    assert values in (set(), telling), "a pod exports metrics that no monitor scrapes"
