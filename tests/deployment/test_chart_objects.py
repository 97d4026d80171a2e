"""What the objects of the chart promise, by values file: see docs/kubernetes.md.

| promise | test |
|---|---|
| an upgrade adds and removes no object by accident | `test_objects_of_a_values_file` |
| one image, by digest if given | `test_all_pods_run_one_image` |
| each pod runs its command, after its init containers | `test_commands` |
| how pods are replaced and end | `test_pods_are_replaced_without_interruption` |
| replicas, autoscaler, disruption budget | `test_replicas` |
| the home stays after uninstalling | `test_the_home` |
| the store is upgraded once, before any pod | `test_migrations` |
| probes, pool and Ray of API and runner | `test_probes_and_settings` |
| exposed by one Service and the Ingress that is asked for | `test_the_way_in` |
| alerts lead to the page that says what to do | `test_alerts_have_runbooks` |
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.deployment.chart.helm import Objects, rendering, template_values, values_files
from tests.deployment.chart.templates import containers, index, pods, variables

FILES = sorted(values_files())
CLUSTERED = ("autoscaled", "kueue", "production")
EVERYWHERE = {
    "Deployment": "api",
    "NetworkPolicy": "api deny test",
    "Pod": "test",
    "Service": "",
    "ServiceAccount": "",
}
CLUSTER = {
    "Deployment": "api runner",
    "Job": "migrate",
    "NetworkPolicy": "api deny migrations ray-head ray-worker runner test",
    "RayCluster": "ray",
}
OBJECTS: dict[str, dict[str, str]] = {
    "minimal": {"PersistentVolumeClaim": "home", "Secret": "admin-key"},
    "serving": {
        "Job": "migrate",
        "NetworkPolicy": "api deny migrations test",
        "PodDisruptionBudget": "api",
    },
    "production": {
        **CLUSTER,
        "ConfigMap": "dashboard-cluster dashboard-jobs dashboard-ray dashboard-serving dashboard-training",
        "Ingress": "",
        "PersistentVolumeClaim": "home",
        "PodDisruptionBudget": "api",
        "PodMonitor": "api ray-head ray-worker runner",
        "PrometheusRule": "",
        "ServiceAccount": " ray-head",
    },
    "kueue": {
        **CLUSTER,
        "LocalQueue": "",
        "NetworkPolicy": f"{CLUSTER['NetworkPolicy']} rayjob-head rayjob-worker",
        "PersistentVolumeClaim": "home",
        "RayJob": "train",
    },
    "autoscaled": {
        **CLUSTER,
        "HorizontalPodAutoscaler": "api",
        "NetworkPolicy": f"{CLUSTER['NetworkPolicy']} rayjob-head rayjob-worker rayservice-head "
        "rayservice-worker",
        "PodDisruptionBudget": "api",
        "PodMonitor": "api ray-head ray-worker rayjob-head rayjob-worker rayservice-head "
        "rayservice-worker runner",
        "RayJob": "train",
        "RayService": "serve",
        "ServiceAccount": " ray-head",
    },
}


def spec(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    """Return the spec of an object."""
    result: dict[str, Any] = index(objects)[kind, name]["spec"]
    return result


def template(objects: Objects, role: str) -> dict[str, Any]:
    """Return the pod spec of a Deployment."""
    result: dict[str, Any] = spec(objects, "Deployment", f"xcray-{role}")["template"]["spec"]
    return result


@pytest.mark.parametrize("name", FILES)
def test_objects_of_a_values_file(name: str) -> None:
    expected = {
        (kind, f"xcray-{part}" if part else "xcray")
        for kind, parts in {**EVERYWHERE, **OBJECTS[name]}.items()
        for part in parts.split(" ")
    }
    assert set(index(rendering(name))) == expected


@pytest.mark.parametrize("name", FILES)
def test_all_pods_run_one_image(name: str) -> None:
    images = {each["image"] for pod in pods(rendering(name)) for each in containers(pod.pod)}
    if name == "production":
        (image,) = images
        assert image.startswith("registry.example.org/ml/xcray@sha256:0f6e3d0c")
        assert all(
            pod.pod["spec"]["imagePullSecrets"] == [{"name": "regcred"}]
            for pod in pods(rendering(name))
        )
    else:
        assert images == {"xcray:0.1.0"}


@pytest.mark.parametrize("name", FILES)
def test_commands(name: str) -> None:
    objects = rendering(name)
    init = [each["name"] for each in template(objects, "api")["initContainers"]]
    assert init == [*(["pull-0", "pull-1"] if name == "serving" else []), "admin-key"]
    (api,) = template(objects, "api")["containers"]
    assert api["command"] == ["xcray", "serve", *(["--no-runner"] if name != "minimal" else [])]
    if name in CLUSTERED:
        (runner,) = template(objects, "runner")["containers"]
        assert runner["command"] == ["xcray", "runner"]
    if name == "serving":
        pull = template(objects, "api")["initContainers"][0]
        assert pull["command"] == ["xcray", "models", "pull"]
        assert pull["args"] == ["s3://models/xcray/news:3", "--name=news"]
    key = template(objects, "api")["initContainers"][-1]
    assert key["command"][:3] == ["xcray", "keys", "create"]
    assert "--if-absent" in key["command"]
    assert "--older-expire=24h" in key["args"]


@pytest.mark.parametrize("name", FILES)
def test_pods_are_replaced_without_interruption(name: str) -> None:
    objects = rendering(name)
    api = spec(objects, "Deployment", "xcray-api")
    grace = api["template"]["spec"]["terminationGracePeriodSeconds"]
    if name == "minimal":  # two pods never share one SQLite file
        assert api["strategy"] == {"type": "Recreate"}
        assert grace == 105
    else:
        assert api["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert grace == 60
    settings = variables(api["template"]["spec"]["containers"][0])
    drain, end = settings["XCRAY_DRAIN_SECONDS"], settings["XCRAY_GRACE_SECONDS"]
    assert int(str(drain)) + int(str(end)) < grace
    if name in CLUSTERED:
        runner = spec(objects, "Deployment", "xcray-runner")
        assert runner["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        assert runner["template"]["spec"]["terminationGracePeriodSeconds"] == 90
    spread = api["template"]["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("minimal", 1), ("serving", 2), ("production", 3), ("kueue", 1), ("autoscaled", None)],
)
def test_replicas(name: str, replicas: int | None) -> None:
    objects = rendering(name)
    assert spec(objects, "Deployment", "xcray-api").get("replicas") == replicas
    if replicas is None:
        scaler = spec(objects, "HorizontalPodAutoscaler", "xcray-api")
        assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 12)
        assert scaler["metrics"][0]["resource"]["target"]["averageUtilization"] == 70
    if replicas != 1:
        assert spec(objects, "PodDisruptionBudget", "xcray-api")["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("name", "mode", "size"),
    [
        ("minimal", "ReadWriteOnce", "20Gi"),
        ("kueue", "ReadWriteMany", "20Gi"),
        ("production", "ReadWriteMany", "500Gi"),
    ],
)
def test_the_home(name: str, mode: str, size: str) -> None:
    claim = index(rendering(name))["PersistentVolumeClaim", "xcray-home"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["accessModes"] == [mode]
    assert claim["spec"]["resources"]["requests"] == {"storage": size}
    assert claim["spec"].get("storageClassName") == ("nfs" if name == "production" else None)


def test_the_home_of_others() -> None:
    (home,) = [
        each for each in template(rendering("serving"), "api")["volumes"] if "home" in str(each)
    ]
    assert home["emptyDir"] == {"sizeLimit": "50Gi"}
    (home,) = [
        each
        for each in template(rendering("autoscaled"), "api")["volumes"]
        if "persistentVolumeClaim" in each
    ]
    assert home["persistentVolumeClaim"]["claimName"] == "xcray-shared"


@pytest.mark.parametrize("name", [name for name in FILES if name != "minimal"])
def test_migrations(name: str) -> None:
    objects = rendering(name)
    job = index(objects)["Job", "xcray-migrate"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["activeDeadlineSeconds"] == 900
    (upgrade,) = job["spec"]["template"]["spec"]["containers"]
    assert [*upgrade["command"], *upgrade.get("args", [])][:3] == ["xcray", "store", "upgrade"]
    for role in ("api", "runner") if name in CLUSTERED else ("api",):
        for each in template(objects, role)["containers"]:
            assert variables(each)["XCRAY_STORE_UPGRADE"] == "false"


@pytest.mark.parametrize("name", FILES)
def test_probes_and_settings(name: str) -> None:
    objects = rendering(name)
    for role in ("api", "runner") if name in CLUSTERED else ("api",):
        (container,) = template(objects, role)["containers"]
        paths = [
            container[f"{probe}Probe"]["httpGet"]["path"]
            for probe in ("startup", "liveness", "readiness")
        ]
        assert paths == ["/healthz", "/healthz", "/readyz"]
        settings = variables(container)
        assert settings["XCRAY_POOL"] == ("ray" if name in CLUSTERED else "threads")
        address = "xcray-ray-head-svc:6379" if name in CLUSTERED else None
        assert settings.get("XCRAY_RAY_ADDRESS") == address
        assert settings["XCRAY_HOME"] == "/var/lib/xcray"


@pytest.mark.parametrize("name", FILES)
def test_the_way_in(name: str) -> None:
    objects = rendering(name)
    service = spec(objects, "Service", "xcray")
    (port,) = service["ports"]
    assert (service["type"], port["port"], port["targetPort"]) == ("ClusterIP", 80, "http")
    if name == "production":
        way = index(objects)["Ingress", "xcray"]
        assert way["spec"]["ingressClassName"] == "nginx"
        assert [rule["host"] for rule in way["spec"]["rules"]] == ["xcray.example.org"]
        assert way["spec"]["tls"] == [{"hosts": ["xcray.example.org"], "secretName": "xcray-tls"}]
        notes = way["metadata"]["annotations"]
        assert notes["cert-manager.io/cluster-issuer"] == "letsencrypt"
        assert notes["nginx.ingress.kubernetes.io/proxy-body-size"] == "0"


def test_a_path_prefix_reaches_the_routes_and_the_service() -> None:
    rendering("minimal")  # skips the test without helm
    ingress = {
        "enabled": True,
        "hosts": ["x.example.org"],
        "tls": [{"secretName": "t", "hosts": ["x.example.org"]}],
        "path": "/team/ml",
        "httpRoute": {
            "enabled": True,
            "hostnames": ["x.example.org"],
            "parentRefs": [{"name": "g"}],
        },
    }
    objects = template_values({"ingress": ingress})
    (rule,) = index(objects)["Ingress", "xcray"]["spec"]["rules"]
    assert [path["path"] for path in rule["http"]["paths"]] == ["/team/ml"]
    (rule,) = index(objects)["HTTPRoute", "xcray"]["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/team/ml"}}]
    (container,) = template(objects, "api")["containers"]
    assert variables(container)["XCRAY_ROOT_PATH"] == "/team/ml"


def test_alerts_have_runbooks() -> None:
    groups = spec(rendering("production"), "PrometheusRule", "xcray")["groups"]
    base = "https://wiki.example.org/xcray/docs/reference/alerts.html"
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) >= 30
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{base}#{rule['alert'].lower()}"
