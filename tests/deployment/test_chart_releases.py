"""Releases of the chart by helm with a simulated API server: install, upgrade, test, uninstall.

This shows what a rendering cannot show: the results of `lookup`, the order of hooks, and the
objects that stay.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deployment.chart.apiserver import ApiServer, Write
from tests.deployment.chart.helm import CHART, SECONDS, Refused, helms, values_files
from tests.support.missing_tools import say
from xcray.jobs.store.tokens import import_token

SPACE = "ml"
PRODUCTION = str(values_files()["production"])
AUTOSCALED = str(values_files()["autoscaled"])
# Values added after release 0.1.0; --reuse-values does not have them.
ADDED_VALUES = (
    *(
        "api.progressDeadlineSeconds",
        "runner.progressDeadlineSeconds",
        "store.caSecret",
        "store.caKey",
        "auth.olderExpire",
    ),
    *(
        "rayJob.dataVolume",
        "networkPolicy.dnsPorts",
        "migrations.nodeSelector",
        "migrations.tolerations",
        "migrations.affinity",
    ),
    *("migrations.priorityClassName", "tests.nodeSelector", "tests.tolerations", "tests.affinity"),
)


def helm(server: ApiServer, name: str, *words: str) -> str:
    """Run a helm command for the release xcray and return its output. Raises Refused."""
    folder = str(Path(server.kubeconfig).parent)
    command = [helms()[name], *words, "--namespace", SPACE, "--kubeconfig", server.kubeconfig]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={"HOME": folder, "PATH": "/usr/bin:/bin"},
    )
    if process.returncode:
        raise Refused(process.stderr)
    return process.stdout


def several() -> list[str]:
    """Return the available helms; report if there are none."""
    if not helms():
        say("helm, for releases", "no release was installed or upgraded")
    return sorted(helms())


def own(writes: list[Write]) -> list[Write]:
    """Return the writes without helm's records of its releases."""
    return [each for each in writes if not each.name.startswith("sh.helm.release")]


def admin_key(server: ApiServer) -> str:
    """Return the key that the chart generated."""
    return base64.b64decode(server.find("Secret", "xcray-admin-key")["data"]["key"]).decode()


def restarts(server: ApiServer) -> str:
    """Return the annotation that restarts the API pods when it changes."""
    return str(
        server.find("Deployment", "xcray-api")["spec"]["template"]["metadata"]["annotations"][
            "checksum/secrets"
        ]
    )


def test_a_generated_key_and_the_volume_are_never_replaced(tmp_path: Path) -> None:
    for name in several():
        with ApiServer(tmp_path) as server:
            output = helm(server, name, "install", "xcray", str(CHART))
            assert "get secret xcray-admin-key" in output
            assert "WARNING" not in output
            key, template = (
                admin_key(server),
                server.find("Deployment", "xcray-api")["spec"]["template"],
            )
            assert import_token(key).token == key
            assert "xck_" not in output

            helm(server, name, "upgrade", "xcray", str(CHART), "--set", "service.port=81")
            assert server.find("Service", "xcray")["spec"]["ports"][0]["port"] == 81
            assert admin_key(server) == key
            # No change, so no restart.
            assert server.find("Deployment", "xcray-api")["spec"]["template"] == template

            helm(server, name, "test", "xcray")
            assert ("POST", "Pod", "xcray-test") in server.writes or (
                "PATCH",
                "Pod",
                "xcray-test",
            ) in server.writes
            claim = server.find("PersistentVolumeClaim", "xcray-home")["metadata"]["uid"]
            helm(server, name, "uninstall", "xcray")
            assert {(kind, its) for kind, _, its in server.objects} == {
                ("Secret", "xcray-admin-key"),
                ("PersistentVolumeClaim", "xcray-home"),
            }
            helm(server, name, "install", "xcray", str(CHART))
            assert admin_key(server) == key
            assert server.find("PersistentVolumeClaim", "xcray-home")["metadata"]["uid"] == claim


def first_made(server: ApiServer) -> tuple[str, str]:
    """Return kind and name of the first object that a command created or changed."""
    return next((each.kind, each.name) for each in own(server.writes) if each.verb != "DELETE")


def test_migrations_run_first_and_changed_secrets_restart_pods(tmp_path: Path) -> None:
    for name in several():
        with ApiServer(tmp_path) as server:
            server.put_secret("xcray-admin", SPACE, key="one")
            server.put_secret("xcray-postgres", SPACE, url="postgresql://one")
            helm(server, name, "install", "xcray", str(CHART), "--values", PRODUCTION)
            assert first_made(server) == ("Job", "xcray-migrate")
            assert not [
                its
                for kind, _, its in server.objects
                if its == "xcray-migrate" or (kind, its) == ("Secret", "xcray-admin-key")
            ]
            installed = restarts(server)

            server.writes.clear()
            server.put_secret("xcray-postgres", SPACE, url="postgresql://two")
            helm(server, name, "upgrade", "xcray", str(CHART), "--values", PRODUCTION)
            assert first_made(server) == ("Job", "xcray-migrate")
            upgraded = restarts(server)
            assert upgraded != installed  # only the Secret has changed


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ("api.replicas=2", "store.type=postgresql"),
        ("auth.generate=false", "auth.existingSecret"),
        ("mode=other", "all-in-one"),
    ],
)
def test_rejected_values_create_no_object(tmp_path: Path, change: str, fix: str) -> None:
    for name in several():
        with ApiServer(tmp_path) as server:
            with pytest.raises(Refused, match=fix):
                helm(server, name, "install", "xcray", str(CHART), "--set", change)
            assert server.writes == []


def older_chart(folder: Path) -> str:
    """Copy the chart without the values of ADDED_VALUES, like an older version."""
    copy = folder / "older"
    shutil.copytree(CHART, copy)
    values: dict[str, Any] = yaml.safe_load((copy / "values.yaml").read_text())
    for path in ADDED_VALUES:
        *parents, last = path.split(".")
        at = values
        for name in parents:
            at = at[name]
        del at[last]
    (copy / "values.yaml").write_text(yaml.safe_dump(values))
    return str(copy)


def test_an_upgrade_works_without_newer_values(tmp_path: Path) -> None:
    """With --reuse-values they do not exist. The autoscaler's replicas survive upgrades."""
    for name in several()[-1:]:
        with ApiServer(tmp_path) as server:
            server.put_secret("xcray-admin", SPACE, key="one")
            server.put_secret("xcray-postgres", SPACE, url="postgresql://one")
            server.put(
                "PersistentVolumeClaim",
                "xcray-shared",
                SPACE,
                spec={"accessModes": ["ReadWriteOnce"]},
            )
            with pytest.raises(
                Refused, match=r"storage\.home\.existingClaim, must contain ReadWriteMany"
            ):
                helm(server, name, "install", "xcray", str(CHART), "--values", AUTOSCALED)
            server.put(
                "PersistentVolumeClaim",
                "xcray-shared",
                SPACE,
                spec={"accessModes": ["ReadWriteMany"]},
            )
            helm(server, name, "install", "xcray", older_chart(tmp_path), "--values", AUTOSCALED)
            api = server.find("Deployment", "xcray-api")["spec"]
            assert "replicas" not in api  # the autoscaler has not set it yet
            selector, api["replicas"] = api["selector"], 7  # like the autoscaler
            helm(server, name, "upgrade", "xcray", str(CHART), "--reuse-values")
            api = server.find("Deployment", "xcray-api")["spec"]
            assert (api["selector"], api["replicas"]) == (selector, 7)


def test_an_upgrade_adopts_kept_objects_but_a_rollback_fails(
    tmp_path: Path,
) -> None:
    """`python -m tests.deployment.chart.real` shows the same with a real API server."""
    for name in several()[-1:]:
        with ApiServer(tmp_path) as server:
            server.put_secret("xcray-admin", SPACE, key="one")
            server.put_secret("xcray-postgres", SPACE, url="postgresql://one")
            helm(server, name, "install", "xcray", str(CHART))
            key = admin_key(server)
            claim = server.find("PersistentVolumeClaim", "xcray-home")["metadata"]["uid"]
            helm(
                server,
                name,
                "upgrade",
                "xcray",
                str(CHART),
                "--values",
                str(values_files()["serving"]),
            )
            with pytest.raises(Refused, match='with the name "xcray-admin-key"'):
                helm(server, name, "rollback", "xcray", "1")
            helm(server, name, "upgrade", "xcray", str(CHART), "--reset-values")
            assert admin_key(server) == key
            assert server.find("PersistentVolumeClaim", "xcray-home")["metadata"]["uid"] == claim
