"""Accepted and rejected values: the schema checks single values, the templates combinations.

Every `fail` of the templates has a row here, and each row's message names the fix.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from tests.deployment.chart.helm import (
    CHART,
    Refused,
    helms,
    rendering,
    template_values,
    values_files,
)
from tests.deployment.chart.schemas import faults, values_schema
from tests.deployment.chart.values_table import value_at

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = values_schema(CHART)
PG: dict[str, Any] = {"store.existingSecret": "pg"}
CLUSTER: dict[str, Any] = {"mode": "cluster", **PG}
RAY: dict[str, Any] = {**CLUSTER, "ray.enabled": True}
SERVING: dict[str, Any] = {
    "mode": "serving",
    **PG,
    "storage.objects.enabled": True,
    "api.models": [{"name": "news", "uri": "s3://b/m"}],
}
ENTRANCES: dict[str, Any] = {
    "ingress.enabled": True,
    "ingress.hosts": ["x.example.org"],
    "ingress.tls": [{"secretName": "t", "hosts": ["x.example.org"]}],
}


def over(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge values like helm."""
    out: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(value, dict) and isinstance(out.get(name), dict)
            out[name] = over(out[name], value) if both else copy.deepcopy(value)
    return out


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return values of dotted keys as a tree: {"store.type": "sqlite"} sets a key of `store`."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        tree = over(tree, value)
    return tree


def coalesced(own: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Merge values into the chart's own values; a null removes a key."""
    out = over(own, record)
    for name, value in record.items():
        if value is None:
            out.pop(name, None)
        elif isinstance(value, dict) and isinstance(own.get(name), dict):
            out[name] = coalesced(own[name], value)
    return out


def schema_errors(values: dict[str, Any]) -> list[str]:
    """Return the schema's errors for values merged into the chart's own."""
    return faults(SCHEMA, coalesced(VALUES, values))


@pytest.mark.parametrize("name", sorted(values_files()))
def test_the_schema_accepts_every_values_file(name: str) -> None:
    document = yaml.safe_load(values_files()[name].read_text()) or {}
    assert schema_errors(document) == []


def leaves(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of all values."""
    if isinstance(value, dict) and value:
        return {leaf for name, each in value.items() for leaf in leaves(each, (*path, name))}
    return {path}


def test_the_schema_lists_exactly_the_existing_values() -> None:
    """An unknown key is an error at every depth, so a misspelt key is not ignored."""
    assert schema_errors({}) == []
    free = {("settings",), ("global",)}
    for path in leaves(VALUES):
        parents = path[:-1]
        if parents[:1] in free or not parents or isinstance(value_at(VALUES, parents), list):
            continue
        if maps(parents):
            continue
        planted = nested({".".join((*parents, "nonesuch")): 1})
        assert any("nonesuch" in fault for fault in schema_errors(planted)), (
            f"{'.'.join(parents)} takes any key"
        )


def maps(path: tuple[str, ...]) -> bool:
    """Return whether users choose the keys below: labels, resources, worker groups and others."""
    last = path[-1]
    return last in (
        "requests",
        "limits",
        "labels",
        "annotations",
        "podLabels",
        "podAnnotations",
        "rollingUpdate",
        "workerGroups",
        "matchLabels",
    )


MISSHAPEN: list[tuple[dict[str, Any], str]] = [
    ({"mode": "cloud"}, "'cloud' is not one of"),
    ({"replicas": 3}, "'replicas' was unexpected"),
    ({"api.replicas": "3"}, "'3' is not of type 'integer'"),
    ({"api.replicas": -1}, "-1 is less than the minimum"),
    ({"image.digest": "sha256:abc"}, "does not match"),
    ({"storage.home.size": "20 gigabytes"}, "does not match"),
    ({"api.corsOrigins": ["*"]}, "does not match"),
    ({"api.models": [{"name": "a", "uri": "http://x/y"}]}, "does not match"),
    ({"settings.home": "/tmp"}, "'home' was unexpected"),
    ({"podSecurity.runAsUser": 0}, "0 is less than the minimum"),
    ({"fullnameOverride": "x" * 41}, "is too long"),
    ({"ingress.enabled": True}, "[] should be non-empty"),
    ({"ingress.path": "ml"}, "does not match"),
    ({"ingress.path": "/ml/"}, "does not match"),
    ({"ray.head.serviceType": "LoadBalancer"}, "'serviceType' was unexpected"),
    ({"ray.auth.mode": "disabled"}, "'mode' was unexpected"),
    ({"ray.workerDefaults.cpu": "500m"}, "does not match"),
    ({"ray.workerGroups.a.max": 3}, "is not valid under any"),
    ({"rayJob.dataset": "data/../../etc"}, "does not match"),
    ({"rayJob.dataVolume.hostPath.path": "/"}, "'hostPath' is not one of"),
    ({"auth.olderExpire": "1 day"}, "does not match"),
]


@pytest.mark.parametrize(("values", "expected"), MISSHAPEN)
def test_the_schema_rejects_invalid_values(values: dict[str, Any], expected: str) -> None:
    output = schema_errors(nested(values))
    assert len(output) >= 1
    assert any(expected in each for each in output), output


def test_helm_applies_the_schema() -> None:
    for helm in helms():
        for values, expected in (
            ({"mode": "cloud"}, "mode"),
            ({"api": {"replica": 3}}, "replica"),
            ({"podSecurity": {"runAsUser": 0}}, "runAsUser"),
        ):
            with pytest.raises(Refused, match=expected):
                template_values(values, helm=helm)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"image.tag": "latest"}, "image.tag latest is refused"),
    ({"mode": "cluster", "store.type": "sqlite"}, "mode cluster needs PostgreSQL"),
    (
        {**SERVING, "store.type": "sqlite", "store.existingSecret": "", "api.replicas": 2},
        "2 API pods on SQLite",
    ),
    (
        {"store.type": "sqlite", "store.existingSecret": "pg"},
        "store.existingSecret is set, but store.type is sqlite",
    ),
    ({"mode": "cluster"}, "PostgreSQL needs store.existingSecret"),
    ({**PG, "store.type": "postgresql", "api.replicas": 2}, "mode all-in-one is one pod"),
    ({**CLUSTER, "storage.home.accessModes": ["ReadWriteOnce"]}, "mode cluster mounts the home"),
    ({"storage.home.accessModes": ["ReadWriteMany"]}, "SQLite on a ReadWriteMany volume"),
    (
        {
            **CLUSTER,
            "storage.home.accessModes": ["ReadWriteOncePod"],
            "storage.home.sameNode": True,
        },
        "a ReadWriteOncePod claim",
    ),
    ({**SERVING, "api.models": []}, "mode serving has nothing to serve"),
    ({**SERVING, "storage.home.existingClaim": "c"}, "mode serving takes its models from"),
    (
        {**SERVING, "storage.objects.enabled": False},
        "api.models need object storage",
    ),
    ({**SERVING, "api.preload": ["law"]}, "api.preload names law"),
    (
        {"storage.objects.enabled": True, "api.models": [{"name": "news", "uri": "s3://b/m"}]},
        "api.models are pulled in mode serving only",
    ),
    ({"auth.generate": False}, "no keys at all"),
    (
        {"auth.insecureDev": True, "auth.existingSecret": "k"},
        "auth.insecureDev and auth.existingSecret exclude",
    ),
    ({**ENTRANCES, "auth.insecureDev": True}, "auth.insecureDev is for closed networks"),
    (
        {"auth.insecureDev": True, "service.type": "NodePort"},
        "auth.insecureDev is for closed networks",
    ),
    (
        {"ingress.enabled": True, "ingress.hosts": ["x.example.org"]},
        "Ingress for x.example.org without TLS",
    ),
    ({"service.type": "LoadBalancer"}, "a Service of type LoadBalancer without TLS"),
    ({"api.drainSeconds": 5}, "api.drainSeconds=5 must be more than"),
    (
        {"api.terminationGracePeriodSeconds": 40},
        "api.terminationGracePeriodSeconds=40 must be more than",
    ),
    (
        {
            **CLUSTER,
            "api.autoscaling.enabled": True,
            "api.autoscaling.minReplicas": 9,
            "api.autoscaling.maxReplicas": 3,
        },
        "minReplicas is above",
    ),
    (
        {
            **CLUSTER,
            "api.autoscaling.enabled": True,
            "api.autoscaling.targetCPUUtilizationPercentage": None,
        },
        "api.autoscaling has no metric",
    ),
    (
        {**CLUSTER, "api.autoscaling.enabled": True, "api.resources.requests.cpu": None},
        "api.autoscaling by CPU needs",
    ),
    ({**CLUSTER, "api.updateStrategy.type": "Recreate"}, "api.updateStrategy.type=Recreate"),
    ({**CLUSTER, "runner.updateStrategy.type": "Recreate"}, "runner.updateStrategy.type=Recreate"),
    ({**CLUSTER, "runner.pool": "ray"}, "runner.pool=ray needs ray.enabled=true"),
    ({"ray.enabled": True}, "ray.enabled needs mode=cluster"),
    ({**RAY, "ray.version": "2.51.0"}, "token authentication needs 2.52"),
    ({**RAY, "ray.head.objectStore": "8Gi"}, "ray.head: objectStore is a part of memory"),
    (
        {**RAY, "ray.gcsFaultTolerance.enabled": True},
        "gcsFaultTolerance.enabled needs redisAddress",
    ),
    (
        {
            **RAY,
            "ray.gcsFaultTolerance.enabled": True,
            "ray.gcsFaultTolerance.redisAddress": "redis:6379",
        },
        "gcsFaultTolerance.enabled needs existingSecret",
    ),
    ({**RAY, "ray.workerGroups.general.enabled": False}, "no worker group is enabled"),
    ({**RAY, "ray.workerGroups.general": None}, "no worker group is enabled"),
    ({**RAY, "ray.workerGroups.general.minReplicas": 9}, "minReplicas is above maxReplicas"),
    ({**RAY, "ray.workerGroups.a.maxReplicas": 0}, "maxReplicas is 0: disable the group"),
    ({**RAY, "ray.workerGroups.a.objectStore": "16Gi"}, "objectStore is a part of memory"),
    ({**RAY, "ray.drainSeconds": 60}, "must be more than ray.drainSeconds"),
    ({**CLUSTER, "rayJob.enabled": True}, "rayJob.enabled needs rayJob.dataset"),
    (
        {**CLUSTER, "rayJob.enabled": True, "rayJob.dataset": "s3://corpora/news"},
        "rayJob.dataset=s3://corpora/news: trainings map a data set's files",
    ),
    ({"rayJob.enabled": True, "rayJob.dataset": "news"}, "rayJob.enabled needs mode=cluster"),
    ({"rayService.enabled": True}, "rayService.enabled needs PostgreSQL"),
    (
        {**CLUSTER, "rayService.enabled": True, "rayService.minReplicas": 9},
        "rayService.minReplicas is above",
    ),
    ({**SERVING, "rayService.enabled": True}, "rayService.enabled needs rayService.models"),
    (
        {**RAY, "kueue.enabled": True, "ray.autoscaling.enabled": False},
        "kueue.enabled needs kueue.queueName",
    ),
    (
        {**RAY, "kueue.enabled": True, "kueue.queueName": "q"},
        "kueue.enabled needs ray.autoscaling.enabled=false",
    ),
    (
        {"kueue.enabled": True, "kueue.queueName": "q", "ray.autoscaling.enabled": False},
        "there is nothing to queue",
    ),
    (
        {
            **RAY,
            "kueue.enabled": True,
            "kueue.queueName": "q",
            "ray.autoscaling.enabled": False,
            "ray.workerGroups": {f"g{i}": {} for i in range(7)},
        },
        "Kueue admits at most 8 pod sets",
    ),
    (
        {
            **RAY,
            "extraObjects": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": "open"},
                    "spec": {
                        "type": "LoadBalancer",
                        "ports": [{"port": 8265}],
                        "selector": {"ray.io/node-type": "head"},
                    },
                }
            ],
        },
        "leads to Ray",
    ),
]


@pytest.mark.parametrize(("values", "expected"), REFUSED, ids=[row[1] for row in REFUSED])
def test_unsafe_or_contradictory_values_are_rejected(values: dict[str, Any], expected: str) -> None:
    assert (
        schema_errors(nested(values)) == []
    )  # the schema accepts the values, so the templates reject them
    if not helms():
        rendering("minimal")  # skips the test
    assert expected in refusals()[json.dumps(values)].replace("\n", " ")


@functools.cache
def refusals() -> dict[str, str]:
    """Return helm's error for each row of REFUSED, or "" if it rendered. Two run at a time."""

    def refusal_of(values: dict[str, Any]) -> str:
        try:
            template_values(nested(values))
        except Refused as refusal:
            return str(refusal)
        return ""

    rows = [values for values, _ in REFUSED]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(map(json.dumps, rows), pool.map(refusal_of, rows), strict=True))


def test_every_fail_of_the_templates_is_tested() -> None:
    texts = "\n".join(
        path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()
    )
    written = re.findall(r'fail \(?(?:printf )?"((?:[^"\\]|\\.)*)"', texts)
    assert len(written) == len(re.findall(r"\bfail [(\"]", texts)) >= 40
    lacking = [text for text in written if not any(like(text, expected) for _, expected in REFUSED)]
    assert lacking == [], "refusals without a row in REFUSED"


def like(written: str, expected: str) -> bool:
    """Return whether a template's message can be the expected one; %s and %v match any text."""
    pattern = "".join(
        ".+" if part in ("%s", "%v", "%d") else re.escape(part)
        for part in re.split(r"(%[svd])", written)
    )
    spoken = re.sub(r"%[svd]", "\x00", written)
    whole = any(
        expected in spoken.replace("\x00", word)
        for word in (
            "x",
            "2",
            "5",
            "40",
            "law",
            "Service",
            "LoadBalancer",
            "x.example.org",
            "s3://corpora/news",
        )
    )
    return whole or bool(re.search(pattern, expected))


ACCEPTED: dict[str, dict[str, Any]] = {
    "minimal": {},
    "no keys in a closed network": {"auth.insecureDev": True},
    "a key made elsewhere": {"auth.existingSecret": "k"},
    "pods that speak TLS": {"api.tls.existingSecret": "tls", "service.type": "LoadBalancer"},
    "OpenShift gives users": {
        "podSecurity.runAsUser": None,
        "podSecurity.runAsGroup": None,
        "podSecurity.fsGroup": None,
    },
    "one node": {
        **CLUSTER,
        "storage.home.accessModes": ["ReadWriteOnce"],
        "storage.home.sameNode": True,
    },
    "a route of the Gateway API": {
        "ingress.httpRoute.enabled": True,
        "ingress.httpRoute.parentRefs": [{"name": "g"}],
        "ingress.httpRoute.hostnames": ["a.example.org"],
    },
    "a service account of others": {"serviceAccount.create": False, "serviceAccount.name": "mine"},
    "an operator's own policies": {"networkPolicy.enabled": False},
    "only spot workers": {
        **RAY,
        "ray.workerGroups.general.enabled": False,
        "ray.workerGroups.spot.spot": True,
    },
    "a head that is not kept in Redis, of fixed size": {**RAY, "ray.autoscaling.enabled": False},
    "more objects": {
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "more"},
                "data": {"a": "b"},
            }
        ]
    },
}


@pytest.mark.parametrize("values", ACCEPTED.values(), ids=ACCEPTED)
def test_valid_values_are_rendered(values: dict[str, Any]) -> None:
    assert schema_errors(nested(values)) == []
    for _ in list(helms())[-1:]:
        objects = template_values(nested(values))
        assert {"Deployment", "Service"} <= {each["kind"] for each in objects}


def test_global_values_of_other_charts_are_accepted() -> None:
    assert schema_errors({"global": {"storageClass": "fast", "anything": {"else": 1}}}) == []
    assert json.loads((CHART / "values.schema.json").read_text())["additionalProperties"] is False
