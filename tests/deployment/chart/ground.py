"""The objects that a cluster has before the chart is installed.

They are the kinds of KubeRay and others, a namespace of the restricted standard, and Secrets.
KubeRay's kinds have their own schemas with CEL rules if those are available
(`tests.deployment.chart.schemas`). Otherwise they accept any field, like the other kinds.
"""

from __future__ import annotations

import base64
import time
from typing import Any, Final

from tests.deployment.chart.controlplane import POD_SECURITY, ControlPlane
from tests.deployment.chart.helm import NAMESPACE
from tests.deployment.chart.schemas import CRDS, OTHERS, crd

Object = dict[str, Any]
KIND_SECONDS: Final = 60  # until a new kind is served
STANDARD: Final = {
    f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")
}
CLAIM: Final = "xcray-shared"
SECRETS: Final = (
    "xcray-admin",
    "xcray-postgres",
    "xcray-s3",
    "xcray-ray-token",
    "xcray-redis",
    "regcred",
)
# Before 1.25: the policy "restricted" of those versions. It requires the same as the standard, but
# adds some fields by default. So `tests.deployment.chart.real` checks that a pod is returned
# unchanged.
POLICY: Final[Object] = {
    "apiVersion": "policy/v1beta1",
    "kind": "PodSecurityPolicy",
    "metadata": {
        "name": "restricted",
        "annotations": {
            "seccomp.security.alpha.kubernetes.io/allowedProfileNames": "runtime/default"
        },
    },
    "spec": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": [
            "configMap",
            "emptyDir",
            "projected",
            "secret",
            "downwardAPI",
            "persistentVolumeClaim",
        ],
        "hostNetwork": False,
        "hostIPC": False,
        "hostPID": False,
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": {"rule": "RunAsAny"},
        "fsGroup": {"rule": "RunAsAny"},
    },
}


def lay(plane: ControlPlane) -> None:
    """Create all objects. Raises AssertionError with the server's message if it rejects one."""
    for kind in CRDS:
        known = crd(kind)
        schema = known.original if known else None
        put(
            plane,
            kind_of(
                kind,
                "ray.io",
                "v1",
                schema if plane.version >= POD_SECURITY else without_empty_defaults(schema),
            ),
        )
    for kind, api in OTHERS.items():
        put(plane, kind_of(kind, *api.split("/"), None))
    put(
        plane,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": STANDARD},
        },
    )
    if plane.version < POD_SECURITY:
        may = [
            {
                "apiGroups": ["policy"],
                "resources": ["podsecuritypolicies"],
                "resourceNames": ["restricted"],
                "verbs": ["use"],
            }
        ]
        rbac, role = "rbac.authorization.k8s.io", {"kind": "ClusterRole", "name": "restricted"}
        everybody = {"kind": "Group", "name": "system:serviceaccounts", "apiGroup": rbac}
        put(plane, POLICY)
        put(
            plane,
            {"apiVersion": f"{rbac}/v1", **role, "metadata": {"name": role["name"]}, "rules": may},
        )
        binding = {
            "roleRef": {**role, "apiGroup": rbac},
            "subjects": [everybody],
            "metadata": {"name": "restricted"},
        }
        put(plane, {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", **binding})
    for name in SECRETS:
        data = {
            key: base64.b64encode(b"given").decode()
            for key in ("key", "url", "password", "auth_token", "AWS_ACCESS_KEY_ID")
        }
        put(
            plane,
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data},
            NAMESPACE,
        )
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    put(
        plane,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": claim,
        },
        NAMESPACE,
    )


def put(plane: ControlPlane, thing: Object, namespace: str = "") -> None:
    """Create an object, and wait until a new kind is served.

    An old server drops CEL rules, which it does not support.
    """
    answer = plane.ask("POST", plane.path_of(thing, namespace).rpartition("/")[0], thing)
    assert answer.status_code == 201, (
        f"{thing['kind']} {thing['metadata']['name']}: {answer.text[:1000]}"
    )
    if thing["kind"] != "CustomResourceDefinition":
        return
    names, group, version = (
        thing["spec"]["names"],
        thing["spec"]["group"],
        thing["spec"]["versions"][0]["name"],
    )
    deadline = time.monotonic() + KIND_SECONDS
    while not plane.offers(f"{group}/{version}", names["kind"]):
        assert time.monotonic() < deadline, (
            f"the server does not serve {names['plural']} after {KIND_SECONDS} s"
        )
        time.sleep(0.1)


def without_empty_defaults(schema: Any) -> Any:
    """Replace empty default texts, which an old server reads as null and rejects.

    Keys of maps need a default, so the text is "unnamed".
    """
    if isinstance(schema, list):
        return [without_empty_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: "unnamed" if (key, each) == ("default", "") else without_empty_defaults(each)
        for key, each in schema.items()
    }


def kind_of(kind: str, group: str, version: str, schema: Object | None) -> Object:
    """Return a CustomResourceDefinition. Without a schema it accepts any field."""
    many = f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": many, "singular": kind.lower()}
    any_field = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema or any_field},
    }
    about = {
        "name": f"{many}.{group}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    }
    spec = {
        "group": group,
        "names": names,
        "scope": "Namespaced",
        "versions": [{**served, "subresources": {"status": {}}}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": about,
        "spec": spec,
    }
