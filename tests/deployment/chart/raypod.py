"""Run the head of the rendered Ray cluster as a pod on this machine.

    python -m tests.deployment.chart.raypod [--seconds N]

KubeRay's command starts the head of the production values as the pod's user, without capabilities,
with a read-only root and the volumes of its template. The checks: probes pass, the dashboard
rejects requests without the token and accepts those with it, and the time from SIGTERM to the end.
The run takes 1.5 GB of memory and, on an idle machine, half a minute. It ends with one JSON line.
The exit status is 0 if all checks pass and 1 otherwise. Needs root, for namespaces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.deployment.chart.helm import plain, rendering
from tests.deployment.chart.operator import start_words
from tests.deployment.chart.pod import IP, ROOT, SPACE, environment, make_volume, may_play, who_sees
from tests.deployment.chart.templates import cluster_spec, head_pod, index

TOKEN = "0123456789abcdef" * 4
AGENT, DASHBOARD, METRICS = 52365, 8265, 8080
STORE = "postgresql://user@127.0.0.1/nothing"


def plan(folder: Path) -> dict[str, Any]:
    """Return the plan for `tests.deployment.chart.cell`."""
    objects = rendering("production")
    thing = index(objects)["RayCluster", "xcray-ray"]
    pod = plain(head_pod(thing)["spec"])
    spec = cluster_spec(thing)
    assert spec is not None
    main, security = pod["containers"][0], pod["securityContext"]
    secrets = {
        "xcray-ray-token": {"auth_token": TOKEN},
        "xcray-postgres": {"url": STORE},
        "xcray-s3": {},
    }
    mounted = [
        each
        for each in pod["volumes"]
        if each["name"] in {mount["name"] for mount in main["volumeMounts"]}
    ]
    volumes = {
        each["name"]: make_volume(each, secrets, folder, security["fsGroup"]) for each in mounted
    }
    mounts = {
        each["mountPath"]: str(volumes[each["name"]])
        for each in main["volumeMounts"]
        if each["mountPath"] != "/tmp"
    }
    # The values request 1 GiB, which a test machine may lack. In a pod Ray finds its own address.
    words = [
        "--object-store-memory=100000000" if word.startswith("--object-store-memory=") else word
        for word in start_words(spec["headGroupSpec"], True)
    ]
    line = " ".join(["ray", "start", *words, "--no-monitor", f"--node-ip-address={IP}"])
    around = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    opens = {"Authorization": f"Bearer {TOKEN}"}
    return {
        "ip": IP,
        "port": AGENT,
        "scheme": "HTTP",
        **who_sees(security),
        "mounts": mounts,
        "writable": list(mounts),
        "init": [],
        "main": {
            "name": "ray-head",
            "command": ["/bin/bash", "-c", "--", f"ulimit -n 4096; {line}"],
            "env": around | environment(main, secrets),
        },
        "companions": [],
        "programs": [],
        "forward": {},
        "probe": {"path": main["startupProbe"]["httpGet"]["path"]},
        "requests": [
            {"path": "/api/version", "port": DASHBOARD, "expected": 401},
            {"path": "/api/jobs/", "port": DASHBOARD, "expected": 401},
            {"path": "/api/version", "port": DASHBOARD, "headers": opens, "expected": 200},
            {
                "path": "/api/jobs/",
                "port": DASHBOARD,
                "headers": {"Authorization": "Bearer " + "f" * 64},
                "expected": 403,
            },
            {"path": "/metrics", "port": METRICS, "expected": 200},
            {"path": "/api/healthz", "expected": 200},
        ],
        "grace": pod["terminationGracePeriodSeconds"],
    }


def main(values: list[str]) -> int:
    """Run the plan and print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.raypod", description=__doc__
    )
    parser.add_argument("--seconds", type=int, default=300, help="longest time for all of it")
    seconds: int = parser.parse_args(values).seconds
    if not may_play():
        print("this machine does not allow namespaces with private mounts: nothing was run")
        return 1
    with tempfile.TemporaryDirectory(prefix="xr-") as scratch:
        file = Path(scratch) / "plan.json"
        file.write_text(json.dumps(plan(Path(scratch))))
        command = [*SPACE, sys.executable, "-m", "tests.deployment.chart.cell", str(file)]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    if process.returncode:
        print(process.stderr[-4000:])
        return 1
    document = json.loads(process.stdout)
    answers = [
        {key: each[key] for key in ("port", "path", "status", "expected") if key in each}
        for each in document.get("answers", [])
    ]
    well = document["started"] and all(each["status"] == each["expected"] for each in answers)
    ending = document.get("ending", {})
    if not well:
        print(document["output"][-3000:])
    print(
        json.dumps(
            {
                "started": document["started"],
                "answers": answers,
                "ended_after": round(ending.get("seconds", -1), 1),
                "well": well,
            }
        )
    )
    return 0 if well and ending["status"] is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
