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

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = values_schema(CHART)
PG = {"store": {"existingSecret": "pg"}}
CLUSTER = {"mode": "cluster", **PG}
RAY = {**CLUSTER, "ray": {"enabled": True}}
SERVING = {
    "mode": "serving",
    **PG,
    "storage": {"objects": {"enabled": True}},
    "api": {"models": [{"name": "news", "uri": "s3://b/m"}]},
}
ENTRANCES = {
    "ingress": {
        "enabled": True,
        "hosts": ["x.example.org"],
        "tls": [{"secretName": "t", "hosts": ["x.example.org"]}],
    }
}


def over(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge values like helm."""
    out: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = isinstance(value, dict) and isinstance(out.get(name), dict)
            out[name] = over(out[name], value) if both else copy.deepcopy(value)
    return out


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
        if parents[:1] in free or not parents or isinstance(at(VALUES, parents), list):
            continue
        if maps(parents):
            continue
        planted: dict[str, Any] = {"nonesuch": 1}
        for name in reversed(parents):
            planted = {name: planted}
        assert any("nonesuch" in fault for fault in schema_errors(planted)), (
            f"{'.'.join(parents)} takes any key"
        )


def at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path."""
    for name in path:
        value = value[name]
    return value


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


MISSHAPEN: list[tuple[str, dict[str, Any], str]] = [
    ("mode", {"mode": "cloud"}, "'cloud' is not one of"),
    ("a misspelt key", {"replicas": 3}, "'replicas' was unexpected"),
    ("a text for a number", {"api": {"replicas": "3"}}, "'3' is not of type 'integer'"),
    ("fewer than none", {"api": {"replicas": -1}}, "-1 is less than the minimum"),
    ("half a digest", {"image": {"digest": "sha256:abc"}}, "does not match"),
    ("no quantity", {"storage": {"home": {"size": "20 gigabytes"}}}, "does not match"),
    ("any origin", {"api": {"corsOrigins": ["*"]}}, "does not match"),
    (
        "a model from the web",
        {"api": {"models": [{"name": "a", "uri": "http://x/y"}]}},
        "does not match",
    ),
    ("a setting that is the chart's", {"settings": {"home": "/tmp"}}, "'home' was unexpected"),
    ("root", {"podSecurity": {"runAsUser": 0}}, "0 is less than the minimum"),
    ("a name too long", {"fullnameOverride": "x" * 41}, "is too long"),
    ("an Ingress without hosts", {"ingress": {"enabled": True}}, "[] should be non-empty"),
    (
        "Ray's dashboard for all",
        {"ray": {"head": {"serviceType": "LoadBalancer"}}},
        "'serviceType' was unexpected",
    ),
    ("Ray without a token", {"ray": {"auth": {"mode": "disabled"}}}, "'mode' was unexpected"),
    ("half a core for workers", {"ray": {"workerDefaults": {"cpu": "500m"}}}, "does not match"),
    (
        "a misspelt key of a group",
        {"ray": {"workerGroups": {"a": {"max": 3}}}},
        "is not valid under any",
    ),
    ("a data set elsewhere", {"rayJob": {"dataset": "data/../../etc"}}, "does not match"),
    (
        "data in a folder of the node",
        {"rayJob": {"dataVolume": {"hostPath": {"path": "/"}}}},
        "'hostPath' is not one of",
    ),
    ("an invalid grace period", {"auth": {"olderExpire": "1 day"}}, "does not match"),
]


@pytest.mark.parametrize(
    ("values", "expected"), [row[1:] for row in MISSHAPEN], ids=[row[0] for row in MISSHAPEN]
)
def test_the_schema_rejects_invalid_values(values: dict[str, Any], expected: str) -> None:
    output = schema_errors(values)
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


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown image", {"image": {"tag": "latest"}}, "image.tag latest is refused"),
    (
        "two hosts on one file",
        {"mode": "cluster", "store": {"type": "sqlite"}},
        "mode cluster needs PostgreSQL",
    ),
    (
        "replicas on SQLite",
        over(SERVING, {"store": {"type": "sqlite", "existingSecret": ""}, "api": {"replicas": 2}}),
        "2 API pods on SQLite",
    ),
    (
        "a Secret for SQLite",
        {"store": {"type": "sqlite", "existingSecret": "pg"}},
        "store.existingSecret is set, but store.type is sqlite",
    ),
    ("PostgreSQL without its Secret", {"mode": "cluster"}, "PostgreSQL needs store.existingSecret"),
    (
        "replicas of all in one",
        over(PG, {"store": {"type": "postgresql"}, "api": {"replicas": 2}}),
        "mode all-in-one is one pod",
    ),
    (
        "a volume of one node",
        over(CLUSTER, {"storage": {"home": {"accessModes": ["ReadWriteOnce"]}}}),
        "mode cluster mounts the home",
    ),
    (
        "SQLite on a network",
        {"storage": {"home": {"accessModes": ["ReadWriteMany"]}}},
        "SQLite on a ReadWriteMany volume",
    ),
    (
        "a volume of one pod",
        over(
            CLUSTER, {"storage": {"home": {"accessModes": ["ReadWriteOncePod"], "sameNode": True}}}
        ),
        "a ReadWriteOncePod claim",
    ),
    (
        "nothing to serve",
        over(SERVING, {"api": {"models": []}}),
        "mode serving has nothing to serve",
    ),
    (
        "models from two places",
        over(SERVING, {"storage": {"home": {"existingClaim": "c"}}}),
        "mode serving takes its models from",
    ),
    (
        "models without storage",
        over(SERVING, {"storage": {"objects": {"enabled": False}}}),
        "api.models, storage.objects.mirror and storage.objects.follow need object storage",
    ),
    (
        "following in another mode",
        {"storage": {"objects": {"enabled": True, "follow": "s3://b/m"}}},
        "storage.objects.follow is for mode serving",
    ),
    (
        "a mirror of nothing",
        over(SERVING, {"storage": {"objects": {"mirror": "s3://b/m"}}}),
        "mode serving publishes nothing that storage.objects.mirror could copy",
    ),
    (
        "a model that is nowhere",
        over(SERVING, {"api": {"preload": ["law"]}}),
        "api.preload names law",
    ),
    (
        "models in another mode",
        {
            "storage": {"objects": {"enabled": True}},
            "api": {"models": [{"name": "news", "uri": "s3://b/m"}]},
        },
        "api.models are pulled in mode serving only",
    ),
    ("no keys", {"auth": {"generate": False}}, "no keys at all"),
    (
        "a key for no keys",
        {"auth": {"insecureDev": True, "existingSecret": "k"}},
        "auth.insecureDev and auth.existingSecret exclude",
    ),
    (
        "no keys, seen from outside",
        over(ENTRANCES, {"auth": {"insecureDev": True}}),
        "auth.insecureDev is for closed networks",
    ),
    (
        "no keys, a node's port",
        {"auth": {"insecureDev": True}, "service": {"type": "NodePort"}},
        "auth.insecureDev is for closed networks",
    ),
    (
        "an Ingress in plain text",
        {"ingress": {"enabled": True, "hosts": ["x.example.org"]}},
        "Ingress for x.example.org without TLS",
    ),
    (
        "a balancer in plain text",
        {"service": {"type": "LoadBalancer"}},
        "a Service of type LoadBalancer without TLS",
    ),
    ("a drain too short", {"api": {"drainSeconds": 5}}, "api.drainSeconds=5 must be more than"),
    (
        "a pod killed too soon",
        {"api": {"terminationGracePeriodSeconds": 40}},
        "api.terminationGracePeriodSeconds=40 must be more than",
    ),
    (
        "fewest above most",
        over(
            CLUSTER, {"api": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}}
        ),
        "minReplicas is above",
    ),
    (
        "nothing to scale by",
        over(
            CLUSTER,
            {"api": {"autoscaling": {"enabled": True, "targetCPUUtilizationPercentage": None}}},
        ),
        "api.autoscaling has no metric",
    ),
    (
        "a share of nothing",
        over(
            CLUSTER,
            {"api": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        ),
        "api.autoscaling by CPU needs",
    ),
    (
        "two strategies of the API",
        over(CLUSTER, {"api": {"updateStrategy": {"type": "Recreate"}}}),
        "api.updateStrategy.type=Recreate",
    ),
    (
        "two strategies of runners",
        over(CLUSTER, {"runner": {"updateStrategy": {"type": "Recreate"}}}),
        "runner.updateStrategy.type=Recreate",
    ),
    (
        "Ray in a runner's pod",
        over(CLUSTER, {"runner": {"pool": "ray"}}),
        "runner.pool=ray needs ray.enabled=true",
    ),
    ("Ray without a cluster", {"ray": {"enabled": True}}, "ray.enabled needs mode=cluster"),
    ("an old Ray", over(RAY, {"ray": {"version": "2.51.0"}}), "token authentication needs 2.52"),
    (
        "a head that is all objects",
        over(RAY, {"ray": {"head": {"objectStore": "8Gi"}}}),
        "ray.head: objectStore is a part of memory",
    ),
    (
        "a Redis nowhere",
        over(RAY, {"ray": {"gcsFaultTolerance": {"enabled": True}}}),
        "gcsFaultTolerance.enabled needs redisAddress",
    ),
    (
        "a Redis that is open",
        over(RAY, {"ray": {"gcsFaultTolerance": {"enabled": True, "redisAddress": "redis:6379"}}}),
        "gcsFaultTolerance.enabled needs existingSecret",
    ),
    (
        "no workers",
        over(RAY, {"ray": {"workerGroups": {"general": {"enabled": False}}}}),
        "no worker group is enabled",
    ),
    (
        "no workers at all",
        over(RAY, {"ray": {"workerGroups": {"general": None}}}),
        "no worker group is enabled",
    ),
    (
        "fewest workers above most",
        over(RAY, {"ray": {"workerGroups": {"general": {"minReplicas": 9}}}}),
        "minReplicas is above maxReplicas",
    ),
    (
        "a group of none",
        over(RAY, {"ray": {"workerGroups": {"a": {"maxReplicas": 0}}}}),
        "maxReplicas is 0: disable the group",
    ),
    (
        "workers that are all objects",
        over(RAY, {"ray": {"workerGroups": {"a": {"objectStore": "16Gi"}}}}),
        "objectStore is a part of memory",
    ),
    (
        "workers killed while they drain",
        over(RAY, {"ray": {"drainSeconds": 60}}),
        "must be more than ray.drainSeconds",
    ),
    (
        "a training of nothing",
        over(CLUSTER, {"rayJob": {"enabled": True}}),
        "rayJob.enabled needs rayJob.dataset",
    ),
    (
        "a training of what lies in a bucket",
        over(CLUSTER, {"rayJob": {"enabled": True, "dataset": "s3://corpora/news"}}),
        "rayJob.dataset=s3://corpora/news: trainings map a data set's files",
    ),
    (
        "a training without a shared home",
        {"rayJob": {"enabled": True, "dataset": "news"}},
        "rayJob.enabled needs mode=cluster",
    ),
    (
        "copies without shared keys",
        {"rayService": {"enabled": True}},
        "rayService.enabled needs PostgreSQL",
    ),
    (
        "fewest copies above most",
        over(CLUSTER, {"rayService": {"enabled": True, "minReplicas": 9}}),
        "rayService.minReplicas is above",
    ),
    (
        "copies without models",
        over(SERVING, {"rayService": {"enabled": True}}),
        "rayService.enabled needs rayService.models",
    ),
    (
        "no queue",
        over(RAY, {"kueue": {"enabled": True}, "ray": {"autoscaling": {"enabled": False}}}),
        "kueue.enabled needs kueue.queueName",
    ),
    (
        "a queue for what grows",
        over(RAY, {"kueue": {"enabled": True, "queueName": "q"}}),
        "kueue.enabled needs ray.autoscaling.enabled=false",
    ),
    (
        "a queue for nothing",
        {"kueue": {"enabled": True, "queueName": "q"}, "ray": {"autoscaling": {"enabled": False}}},
        "there is nothing to queue",
    ),
    (
        "too many kinds for Kueue",
        over(
            RAY,
            {"kueue": {"enabled": True, "queueName": "q"}},
            {
                "ray": {
                    "autoscaling": {"enabled": False},
                    "workerGroups": {f"g{i}": {} for i in range(7)},
                }
            },
        ),
        "Kueue admits at most 8 pod sets",
    ),
    (
        "a way to Ray's dashboard",
        over(
            RAY,
            {
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
                ]
            },
        ),
        "leads to Ray",
    ),
]


@pytest.mark.parametrize(
    ("values", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_unsafe_or_contradictory_values_are_rejected(values: dict[str, Any], expected: str) -> None:
    assert (
        schema_errors(values) == []
    )  # the schema accepts the values, so the templates reject them
    if not helms():
        rendering("minimal")  # skips the test
    assert expected in refusals()[json.dumps(values)].replace("\n", " ")


@functools.cache
def refusals() -> dict[str, str]:
    """Return helm's error for each row of REFUSED, or "" if it rendered. Two run at a time."""

    def refusal_of(values: dict[str, Any]) -> str:
        try:
            template_values(values)
        except Refused as refusal:
            return str(refusal)
        return ""

    rows = [values for _, values, _ in REFUSED]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(map(json.dumps, rows), pool.map(refusal_of, rows), strict=True))


def test_every_fail_of_the_templates_is_tested() -> None:
    texts = "\n".join(
        path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file()
    )
    written = re.findall(r'fail \(?(?:printf )?"((?:[^"\\]|\\.)*)"', texts)
    assert len(written) == len(re.findall(r"\bfail [(\"]", texts)) >= 40
    lacking = [
        text for text in written if not any(like(text, expected) for _, _, expected in REFUSED)
    ]
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


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("minimal", {}),
    ("no keys in a closed network", {"auth": {"insecureDev": True}}),
    ("a key made elsewhere", {"auth": {"existingSecret": "k"}}),
    (
        "pods that speak TLS",
        {"api": {"tls": {"existingSecret": "tls"}}, "service": {"type": "LoadBalancer"}},
    ),
    (
        "OpenShift gives users",
        {"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
    ),
    (
        "one node",
        over(CLUSTER, {"storage": {"home": {"accessModes": ["ReadWriteOnce"], "sameNode": True}}}),
    ),
    (
        "a route of the Gateway API",
        {
            "ingress": {
                "httpRoute": {
                    "enabled": True,
                    "parentRefs": [{"name": "g"}],
                    "hostnames": ["a.example.org"],
                }
            }
        },
    ),
    ("a service account of others", {"serviceAccount": {"create": False, "name": "mine"}}),
    ("an operator's own policies", {"networkPolicy": {"enabled": False}}),
    (
        "only spot workers",
        over(
            RAY, {"ray": {"workerGroups": {"general": {"enabled": False}, "spot": {"spot": True}}}}
        ),
    ),
    (
        "a head that is not kept in Redis, of fixed size",
        over(RAY, {"ray": {"autoscaling": {"enabled": False}}}),
    ),
    (
        "more objects",
        {
            "extraObjects": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "more"},
                    "data": {"a": "b"},
                }
            ]
        },
    ),
]


@pytest.mark.parametrize("values", [row[1] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_valid_values_are_rendered(values: dict[str, Any]) -> None:
    assert schema_errors(values) == []
    for _ in list(helms())[-1:]:
        objects = template_values(values)
        assert {"Deployment", "Service"} <= {each["kind"] for each in objects}


def test_global_values_of_other_charts_are_accepted() -> None:
    assert schema_errors({"global": {"storageClass": "fast", "anything": {"else": 1}}}) == []
    assert json.loads((CHART / "values.schema.json").read_text())["additionalProperties"] is False
