"""The environment of a container of a rendered pod, as a kubelet builds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tests.deployment.chart.helm import Objects

IP: Final = "10.244.3.17"
Secrets = Mapping[str, Mapping[str, str]]


def environment(container: Mapping[str, Any], secrets: Secrets, ip: str = IP) -> dict[str, str]:
    """Return the variables; $(NAME) is replaced by an earlier one.

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
