"""A rendered pod as a plan that one machine can run: see `tests.deployment.chart.cell`.

    plan = plan_of(pod_spec, secrets, folder, asks)   # secrets: contents; folder: for volumes
    results = play(plan, folder)                      # where `may_play`

The commands `xcray` and `python` are those of this checkout. The home is a volume as a kubelet
creates it: root owns it, and the group fsGroup can write to it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.deployment.chart.cell import CALL_SECONDS

ROOT: Final = Path(__file__).parents[3]
PROGRAM_SECONDS: Final = 120
IP: Final = "10.244.3.17"
SPACE: Final = [
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
]
Secrets = Mapping[str, Mapping[str, str]]


def may_play() -> bool:
    """Return whether this machine allows namespaces with private mounts."""
    try:
        return (
            subprocess.run(
                [*SPACE, "mount", "--make-rprivate", "/"], capture_output=True, timeout=30
            ).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False


def environment(container: Mapping[str, Any], secrets: Secrets, ip: str = IP) -> dict[str, str]:
    """Return the environment as a kubelet builds it; $(NAME) is replaced by an earlier variable.

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


def plan_of(
    spec: Mapping[str, Any], secrets: Secrets, folder: Path, asks: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the plan of a pod with one container. asks: requests after startup."""
    security = spec["securityContext"]
    volumes = {
        each["name"]: make_volume(each, secrets, folder, security["fsGroup"])
        for each in spec["volumes"]
    }
    main = spec["containers"][0]
    mounts = {
        mount["mountPath"]: str(volumes[mount["name"]])
        for container in (*spec.get("initContainers", []), main)
        for mount in container["volumeMounts"]
        if mount["mountPath"] != "/tmp"
    }
    probe = main["startupProbe"]["httpGet"]
    return {
        "ip": IP,
        "port": next(
            port["containerPort"] for port in main["ports"] if port["name"] == probe["port"]
        ),
        **who_sees(security),
        "mounts": mounts,
        "writable": [where for where in mounts if not where.startswith("/run/secrets/")],
        "init": [runnable(each, secrets) for each in spec.get("initContainers", [])],
        "main": runnable(main, secrets),
        "companions": [],
        "programs": [],
        "program_seconds": PROGRAM_SECONDS,
        "forward": {},
        "scheme": probe["scheme"],
        "probe": {"path": probe["path"]},
        "requests": list(asks),
        "grace": spec["terminationGracePeriodSeconds"],
    }


def who_sees(security: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user and groups of a pod, and the folders it sees: the checkout and Python."""
    keep = [str(ROOT), os.path.realpath(sys.base_prefix)]
    return {
        "uid": security["runAsUser"],
        "gid": security["runAsGroup"],
        "groups": security["fsGroup"],
        "keep": keep,
        "cover": sorted({"/tmp", *(cover for path in keep if (cover := closed_above(Path(path))))}),
    }


def closed_above(path: Path) -> str | None:
    """Return the topmost folder above a path that other users cannot enter."""
    return next(
        (str(each) for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None
    )


def make_volume(volume: Mapping[str, Any], secrets: Secrets, folder: Path, group: int) -> Path:
    """Create the folder of a volume like a kubelet."""
    path = folder / volume["name"]
    path.mkdir(exist_ok=True)
    if "secret" in volume:
        expected = secrets[volume["secret"]["secretName"]]
        items = {item["key"]: item["path"] for item in volume["secret"].get("items", [])} or {
            name: name for name in expected
        }
        for key, name in items.items():
            (path / name).write_text(expected[key])
            os.chown(path / name, 0, group)
            (path / name).chmod(volume["secret"]["defaultMode"])
    os.chown(path, 0, group)
    path.chmod(0o2775)
    return path


def runnable(container: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Return command and environment of a container, with the programs of this checkout."""
    command, *rest = [*container["command"], *container.get("args", [])]
    programs = {"xcray": [sys.executable, "-m", "xcray"], "python": [sys.executable]}
    around = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {
        "name": container["name"],
        "command": [*programs[command], *rest],
        "env": around | environment(container, secrets),
    }


def play(plan: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run a plan and return the results of `tests.deployment.chart.cell.main`.

    Raises RuntimeError if this machine cannot run it.
    """
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    seconds = plan["grace"] + 10 * CALL_SECONDS + plan["program_seconds"]
    command = [*SPACE, sys.executable, "-m", "tests.deployment.chart.cell", str(file)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    if process.returncode:
        raise RuntimeError(f"the pod could not be run: {process.stderr[-4000:]}")
    document: dict[str, Any] = json.loads(process.stdout)
    return document
