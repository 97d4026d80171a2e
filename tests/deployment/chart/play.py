"""Run the rendered pods: build a data set, train a model and predict.

    python -m tests.deployment.chart.play

Mode all-in-one: one pod on SQLite. Mode cluster: pods of API and runner on one home and a private
PostgreSQL, migrated by the hook's container. They are started as by a kubelet. Only the drain
seconds differ from the manifests. See `tests.deployment.chart.cell` for what is not simulated.
Needs root, helm, and for mode cluster PostgreSQL's programs. The exit status is 0 on success and 1
otherwise, with the output of the pods.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.deployment.chart.helm import template_values
from tests.deployment.chart.pod import IP, may_play, plan_of, play, runnable
from tests.support.postgres import private_postgres
from xcray.jobs.store.tokens import create_token

COMMON = {
    "api": {"drainSeconds": 6, "graceSeconds": 5},
    "auth": {"existingSecret": "admin"},
    "settings": {"job_nice": 0},
}
VALUES: dict[str, dict[str, Any]] = {
    "all-in-one": COMMON,
    "cluster": {**COMMON, "mode": "cluster", "store": {"existingSecret": "store"}},
}


def plan(mode: str, folder: Path, labels: int, store: Any) -> dict[str, Any]:
    """Return the plan of a mode. store: a PostgreSQL for mode cluster."""
    objects = {
        (each["kind"], each["metadata"]["name"]): each["spec"]
        for each in template_values(VALUES[mode])
        if "spec" in each
    }
    secrets = {"admin": {"key": create_token().token}}
    api = objects["Deployment", "xcray-api"]["template"]["spec"]
    if store is not None:
        secrets["store"] = {
            "url": store.database().replace(f"127.0.0.1:{store.port}", f"{IP}:5432")
        }
    result = plan_of(api, secrets, folder, [{"path": "/readyz"}])
    if store is not None:
        migrate = objects["Job", "xcray-migrate"]["template"]["spec"]["containers"][0]
        runner = objects["Deployment", "xcray-runner"]["template"]["spec"]["containers"][0]
        result["forward"] = {"5432": str(store.socket)}
        result["init"].insert(0, runnable(migrate, secrets))
        result["companions"] = [
            {**runnable(runner, secrets), "probe": {"path": "/healthz", "port": 8001}}
        ]
    result["program_seconds"] = 900  # the pods compile the kernels, because they have no cache
    journey = runnable(
        {"name": "journey", "command": ["python", "-m", "tests.deployment.chart.journey"]}, secrets
    )
    journey["env"] |= {
        "URL": f"http://{IP}:8000",
        "KEY_FILE": "/run/secrets/xcray-admin/key",
        "LABELS": str(labels),
        "HOME": "/tmp",
    }
    result["programs"] = [
        runnable(objects["Pod", "xcray-test"]["containers"][0], secrets) | {"name": "helm test"},
        journey,
    ]
    result["programs"][0]["env"]["URL"] = f"http://{IP}:8000"
    return result


def main(values: list[str]) -> int:
    """Run both modes, or one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.play", description=__doc__
    )
    parser.add_argument(
        "--mode",
        choices=sorted(VALUES),
        action="append",
        help="again for several; both where none is named",
    )
    parser.add_argument("--labels", type=int, default=200)
    options = parser.parse_args(values)
    if not may_play():
        print("this machine does not allow private namespaces: run it as root")
        return 1
    results: dict[str, Any] = {}
    for mode in options.mode or sorted(VALUES):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            store = stack.enter_context(private_postgres()) if mode == "cluster" else None
            began = time.monotonic()
            output = play(plan(mode, Path(folder), options.labels, store), Path(folder))
            passed = bool(output.get("programs")) and all(
                each["status"] == 0 for each in output["programs"]
            )
            if not passed or output["ending"]["status"] != 0:
                print(json.dumps(output, indent=1))
                return 1
            figures = json.loads(output["programs"][1]["output"].splitlines()[-1])
            results[mode] = {
                **figures,
                "ending_s": output["ending"]["seconds"],
                "all_s": time.monotonic() - began,
            }
            print(
                f"{mode}: trained in {figures['train_s']:.1f} s, {results[mode]['all_s']:.1f} s in all, ended with 0"
            )
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
