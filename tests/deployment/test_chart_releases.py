"""Releases of the chart, by helm itself against a stand-in for the API server: installed, upgraded,
tested, uninstalled, again.

What only a cluster shows of templates is shown here: what `lookup` finds, which hook comes first,
what stays.
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
# values that came after a release of 0.1.0 could be there; --reuse-values knows them not
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
    """What helm says to a command about the release xcray. Raises Refused."""
    folder = str(Path(server.kubeconfig).parent)
    command = [helms()[name], *words, "--namespace", SPACE, "--kubeconfig", server.kubeconfig]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={"HOME": folder, "PATH": "/usr/bin:/bin"},
    )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def several() -> list[str]:
    """The helms that are here; none is said."""
    if not helms():
        say("helm, for releases", "no release was installed or upgraded")
    return sorted(helms())


def own(writes: list[Write]) -> list[Write]:
    """What is not helm's record of its releases."""
    return [each for each in writes if not each.name.startswith("sh.helm.release")]


def admin_key(server: ApiServer) -> str:
    """The key that the chart made up."""
    return base64.b64decode(server.find("Secret", "xcray-admin-key")["data"]["key"]).decode()


def restarts(server: ApiServer) -> str:
    """What pods of the API are restarted by."""
    return str(
        server.find("Deployment", "xcray-api")["spec"]["template"]["metadata"]["annotations"][
            "checksum/secrets"
        ]
    )


def test_a_made_up_key_and_the_volume_stay_through_everything(tmp_path: Path) -> None:
    for name in several():
        with ApiServer(tmp_path) as server:
            said = helm(server, name, "install", "xcray", str(CHART))
            assert "get secret xcray-admin-key" in said
            assert "WARNING" not in said
            key, template = (
                admin_key(server),
                server.find("Deployment", "xcray-api")["spec"]["template"],
            )
            assert import_token(key).token == key
            assert "xck_" not in said

            helm(server, name, "upgrade", "xcray", str(CHART), "--set", "service.port=81")
            assert server.find("Service", "xcray")["spec"]["ports"][0]["port"] == 81
            assert admin_key(server) == key
            assert (
                server.find("Deployment", "xcray-api")["spec"]["template"] == template
            )  # nothing of it changed: nothing restarts

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
    """Kind and name of what a command made or changed first."""
    return next((each.kind, each.name) for each in own(server.writes) if each.verb != "DELETE")


def test_migrations_come_first_and_changed_secrets_restart_pods(tmp_path: Path) -> None:
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
            assert upgraded != installed  # by the changed Secret alone


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ("api.replicas=2", "store.type=postgresql"),
        ("auth.generate=false", "auth.existingSecret"),
        ("mode=other", "all-in-one"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, change: str, mend: str) -> None:
    for name in several():
        with ApiServer(tmp_path) as server:
            with pytest.raises(Refused, match=mend):
                helm(server, name, "install", "xcray", str(CHART), "--set", change)
            assert server.writes == []


def older_chart(folder: Path) -> str:
    """The chart without the values of ADDED_VALUES, as an older version had it."""
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


def test_values_that_an_older_release_does_not_know_are_not_missed(tmp_path: Path) -> None:
    """By --reuse-values they are not there at all. And what the autoscaler decided outlives
    upgrades.
    """
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
                Refused, match=r"storage\.home\.existingClaim, must hold ReadWriteMany"
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
            assert "replicas" not in api  # nobody knows yet
            selector, api["replicas"] = api["selector"], 7  # as the autoscaler does
            helm(server, name, "upgrade", "xcray", str(CHART), "--reuse-values")
            api = server.find("Deployment", "xcray-api")["spec"]
            assert (api["selector"], api["replicas"]) == (selector, 7)


def test_what_was_kept_is_taken_up_by_an_upgrade_for_no_helm_rolls_back_over_it(
    tmp_path: Path,
) -> None:
    """As `python -m tests.deployment.chart.real` showed with a real API server."""
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
