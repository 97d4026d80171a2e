"""Validation of manifests by the schemas of Kubernetes and of KubeRay's custom resources.

Schemas of Kubernetes come with the package kubernetes-validate for each version; in the strict ones
unknown fields are errors. This project must not copy KubeRay's schemas. They are read from
XCRAY_KUBERAY_CRDS, or ../shared/kuberay-crds, and applied like in an API server: defaults first,
then unknown fields are errors. If they are missing, only the pods of these resources are checked.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import kubernetes_validate
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tests.deployment.chart.helm import ROOT, plain
from tests.support.missing_tools import say

KUBERNETES = ("1.27", "1.30", kubernetes_validate.latest_version())
CRDS = {
    "RayCluster": "rayclusters.v1.json",
    "RayJob": "rayjobs.v1.json",
    "RayService": "rayservices.v1.json",
}
OTHERS = {  # kinds whose schemas are not available, with group and version
    "PodMonitor": "monitoring.coreos.com/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "LocalQueue": "kueue.x-k8s.io/v1beta1",
}


def faults(validator: Draft202012Validator, value: Any) -> list[str]:
    """Return all differences between a value and its schema."""
    return [
        f"{'.'.join(str(step) for step in each.absolute_path)}: {each.message[:300]}"
        for each in validator.iter_errors(value)
    ]


@functools.cache
def _definitions(folder: str) -> Registry[Any]:
    return (
        Resource.from_contents(
            schema_contents(f"kubernetes-json-schema/{folder}/_definitions.json", folder)
        )
        @ Registry()
    )


@functools.cache
def kubernetes_schema(version: str, api: str, kind: str) -> Draft202012Validator | None:
    """Return the strict schema of a kind in a version of Kubernetes such as 1.30.

    Return None if that version does not have the kind.
    """
    full = max(
        each
        for each in kubernetes_validate.utils.all_versions()
        if each.startswith(f"{version.removesuffix('.0')}.")
    )
    group, _, number = api.rpartition("/")
    folder = f"v{full}-local-strict"
    name = (
        f"{kind.lower()}-{group.split('.')[0]}-{number}.json"
        if group
        else f"{kind.lower()}-{number}.json"
    )
    try:
        schema = schema_contents(f"kubernetes-json-schema/{folder}/{name}", version)
    except FileNotFoundError:
        return None
    return Draft202012Validator(
        schema, registry=Resource.from_contents(schema) @ _definitions(folder)
    )


def check_kubernetes(version: str, thing: dict[str, Any]) -> list[str]:
    """Return the faults of an object of Kubernetes itself."""
    schema = kubernetes_schema(version, thing["apiVersion"], thing["kind"])
    if schema is None:
        return [f"Kubernetes {version} has no {thing['kind']} of {thing['apiVersion']}"]
    return faults(schema, thing)


class Crd(NamedTuple):
    """The schema of a custom resource: the original for defaults, and a strict one."""

    original: dict[str, Any]
    validator: Draft202012Validator


def crd_folder() -> Path | None:
    """Return the folder of KubeRay's schemas, or None if one is missing."""
    named = os.environ.get("XCRAY_KUBERAY_CRDS")
    folder = Path(named) if named else ROOT.parent / "shared" / "kuberay-crds"
    return folder if all((folder / name).is_file() for name in CRDS.values()) else None


@functools.cache
def crd(kind: str) -> Crd | None:
    """Return KubeRay's schema of a kind, or None if the schemas are missing."""
    folder = crd_folder()
    if folder is None:
        say(
            "KubeRay's schemas (XCRAY_KUBERAY_CRDS)",
            "pods of RayCluster, RayJob and RayService were checked, not their other fields",
        )
        return None
    original = json.loads((folder / CRDS[kind]).read_text())["openAPIV3Schema"]
    return Crd(original, Draft202012Validator(strict(original, top=True)))


def strict(schema: Any, top: bool = False) -> Any:
    """Return an OpenAPI schema as strict JSON Schema.

    Fields that are not listed are errors, except where the schema preserves unknown fields.
    """
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    entries = {
        k: v
        for k, v in schema.items()
        if not k.startswith("x-kubernetes-")
        and k not in ("description", "format", "nullable", "default")
    }
    out = {
        k: v if k in ("enum", "required") else strict(v)
        for k, v in entries.items()
        if k != "properties"
    }
    if "properties" in schema:
        out["properties"] = {name: strict(each) for name, each in schema["properties"].items()}
        if (
            not schema.get("x-kubernetes-preserve-unknown-fields")
            and "additionalProperties" not in schema
        ):
            out["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    if top:
        out["properties"] = {
            **out["properties"],
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        }
    return out


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """Return a value as the API server completes it before validation."""
    if isinstance(value, dict):
        for name, each in schema.get("properties", {}).items():
            if name not in value and "default" in each:
                value[name] = plain(each["default"])
            if name in value:
                value[name] = with_defaults(each, value[name])
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            return {
                name: each if name in schema.get("properties", {}) else with_defaults(more, each)
                for name, each in value.items()
            }
    elif isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], each) for each in value]
    return value


def check_custom(thing: dict[str, Any]) -> list[str]:
    """Return the faults of a RayCluster, RayJob or RayService."""
    schema = crd(thing["kind"])
    if schema is None:
        return []
    return faults(schema.validator, with_defaults(schema.original, plain(thing)))


def values_schema(chart: Path) -> Draft202012Validator:
    """Return the chart's own schema of its values, by the draft that it names."""
    schema = json.loads((chart / "values.schema.json").read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
