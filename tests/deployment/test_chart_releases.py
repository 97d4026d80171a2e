"""Templates and existing objects: keys and replicas stay, changed Secrets restart pods."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.chart.helm import NAMESPACE, Refused, available, values_files
from tests.deployment.chart.lookup import OWNED, installed
from tests.deployment.chart.templates import index
from xcray.jobs.store.tokens import import_token

PRODUCTION = ("--values", str(values_files()["production"]))
AUTOSCALED = ("--values", str(values_files()["autoscaled"]))


def existing(kind: str, name: str, api: str = "v1", **content: Any) -> dict[str, Any]:
    """Return an object that the cluster already has, of this release."""
    metadata = {"name": name, "namespace": NAMESPACE, **OWNED}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **content}


def secret(name: str, **data: str) -> dict[str, Any]:
    """Return an existing Secret."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return existing("Secret", name, data=encoded)


def test_a_generated_key_is_valid_never_shown_and_never_replaced(tmp_path: Path) -> None:
    for helm in available():
        objects, notes = installed(helm, [], tmp_path)
        made = index(objects)["Secret", "xcray-admin-key"]
        key = base64.b64decode(made["data"]["key"]).decode()
        assert import_token(key).token == key
        assert "get secret xcray-admin-key" in notes
        assert "WARNING" not in notes
        assert "xck_" not in notes
        # Helm keeps the key and the claim after uninstalling.
        for kind, name in (("Secret", "xcray-admin-key"), ("PersistentVolumeClaim", "xcray-home")):
            about = index(objects)[kind, name]["metadata"]
            assert about["annotations"] == {"helm.sh/resource-policy": "keep"}

        kept = secret("xcray-admin-key", key=key)
        again = index(installed(helm, [kept], tmp_path, "--set", "service.port=81")[0])
        assert again["Service", "xcray"]["spec"]["ports"][0]["port"] == 81
        assert again["Secret", "xcray-admin-key"]["data"] == made["data"]
        third = index(installed(helm, [kept], tmp_path)[0])
        # No change, so no restart.
        assert third["Deployment", "xcray-api"] == again["Deployment", "xcray-api"]


def test_a_changed_secret_restarts_pods(tmp_path: Path) -> None:
    for helm in available()[-1:]:
        restarts = []
        for url in ("postgresql://one", "postgresql://two", "postgresql://two"):
            known = [secret("xcray-admin", key="one"), secret("xcray-postgres", url=url)]
            objects = index(installed(helm, known, tmp_path, *PRODUCTION)[0])
            template = objects["Deployment", "xcray-api"]["spec"]["template"]
            restarts.append(template["metadata"]["annotations"]["checksum/secrets"])
            assert ("Secret", "xcray-admin-key") not in objects
        assert restarts[0] != restarts[1] == restarts[2]


def test_the_access_mode_of_an_existing_claim_is_checked(tmp_path: Path) -> None:
    for helm in available()[-1:]:
        claim = existing("PersistentVolumeClaim", "xcray-shared", spec={})
        claim["spec"]["accessModes"] = ["ReadWriteOnce"]
        with pytest.raises(
            Refused, match=r"storage\.home\.existingClaim, must contain ReadWriteMany"
        ):
            installed(helm, [claim], tmp_path, *AUTOSCALED)
        claim["spec"]["accessModes"] = ["ReadWriteMany"]
        assert installed(helm, [claim], tmp_path, *AUTOSCALED)


def test_an_upgrade_keeps_the_replicas_of_the_autoscaler(tmp_path: Path) -> None:
    for helm in available()[-1:]:
        for replicas in (None, 7):
            spec = {} if replicas is None else {"replicas": replicas}
            api = existing("Deployment", "xcray-api", "apps/v1", spec=spec)
            objects = index(installed(helm, [api], tmp_path, *AUTOSCALED)[0])
            assert objects["Deployment", "xcray-api"]["spec"].get("replicas") == replicas
