"""Rows about models that change or are damaged during predictions."""

from __future__ import annotations

import os
import threading
from typing import Any

import httpx

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.service import PATIENCE, Service
from tests.robustness.faults.stage import Stage, until
from tests.robustness.faults.work import ok
from tests.support.live_service import text_model
from xcray.model.registry import Registry

TEXT = "read rows of a csv file"


@row(
    "F25",
    "models change while they are asked",
    "an alias is moved between versions, versions are published and deleted, under 4 clients "
    "that ask; each reply must be one version's, whole",
    "tests/service/models/test_version_switch.py",
)
def switched(stage: Stage) -> None:
    service = Service(stage, models_loaded=2)
    registry = Registry(service.home.models)
    for seed in (1, 2):
        _publish(stage, registry, seed)
    registry.aliases.set("docs", "prod", 1)
    service.up()
    whole = {number: _ask(service.http, f"docs:{number}") for number in (1, 2)}
    assert whole[1]["predictions"] != whole[2]["predictions"]
    switches, ending, replies, errors = (
        60 if stage.small else 200 * stage.runs,
        threading.Event(),
        [0],
        [],
    )

    def client() -> None:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=PATIENCE) as http:
            while not ending.is_set():
                try:
                    result = _ask(http, "docs@prod")
                except AssertionError as error:
                    errors.append(str(error))
                    continue
                replies[0] += 1
                same = whole[result["model"]["version"]]
                if (result["model"]["sha256"], result["predictions"]) != (
                    same["model"]["sha256"],
                    same["predictions"],
                ):
                    stage.measurements.fault(
                        f"a reply says version {result['model']['version']} and is not its answer"
                    )

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    for turn in range(switches):
        ok(service.http.put("/v1/models/docs/aliases/prod", json={"version": 1 + turn % 2}))
        if turn % 20 == 19:
            number = _publish(stage, registry, 3)
            ok(service.http.delete(f"/v1/models/docs/versions/{number}"))
        stage.measurements.runs += 1
    ending.set()
    for each in clients:
        each.join()
    for sentence in errors:
        stage.measurements.fault(f"a prediction failed: {sentence}")
    stage.measurements.details |= {
        "switches": switches,
        "replies": replies[0],
        "errors": len(errors),
    }
    drained(stage, service)


@row(
    "F31",
    "the files of a loaded model are truncated",
    "every array of a loaded model is cut to 0 bytes in place, which ends each process that reads it "
    "(SIGBUS); a service with two workers must refuse this model and answer for the others",
)
def truncated(stage: Stage) -> None:
    service = Service(stage, words=("--processes", "2"))
    registry = Registry(service.home.models)
    _publish(stage, registry, 0, "other")
    service.up()
    for turn in range(stage.runs):
        name = f"docs{turn}"
        _publish(stage, registry, 1, name)
        loaded = {_status(service.http, each) for each in (name, "other") for _ in range(24)}
        stage.expect(loaded == {200}, f"before the fault: {loaded}")
        for path in registry.resolve(name).rglob("*.arrow"):
            os.truncate(path, 0)
        with stage.measurements.recovering():
            _await_status(service.http, name, 503)
            _await_status(service.http, "other", 200)
        stage.expect(service.alive, "the process manager ended")
        stage.measurements.runs += 1
    drained(stage, service)


def _await_status(http: httpx.Client, name: str, status: int) -> None:
    """Wait until enough predictions to reach both workers have this status."""
    until(
        lambda: {_status(http, name) for _ in range(16)} == {status},
        f"predictions of {name} have status {status}",
        60,
    )


def _status(http: httpx.Client, name: str) -> int:
    """Return the status of one prediction, on a connection of its own; 0 if it broke."""
    body = {"instances": [{"text": TEXT}], "top_k": 3}
    address = f"{str(http.base_url).rstrip('/')}/v1/models/{name}:predict"
    try:
        return httpx.post(address, json=body, trust_env=False, timeout=PATIENCE).status_code
    except httpx.TransportError:
        return 0


def _publish(stage: Stage, registry: Registry, seed: int, name: str = "docs") -> int:
    """Publish a version with random weights."""
    text_model(stage.folder / f"staged-{seed}", seed=seed)
    return registry.publish(name, stage.folder / f"staged-{seed}")


def _ask(http: httpx.Client, reference: str) -> dict[str, Any]:
    """Return one complete prediction."""
    return dict(
        ok(
            http.post(
                f"/v1/models/{reference}:predict", json={"instances": [{"text": TEXT}], "top_k": 3}
            )
        )
    )


@row(
    "F28",
    "a long run under random faults",
    "the random kills of `python -m tests.robustness.faults chaos`, and `python -m benchmarks.soak` for memory; "
    "this row plays half a minute of the former on the embedded store",
)
def soak(stage: Stage) -> None:
    from tests.robustness.faults import chaos

    played = chaos.on_stage(stage, minutes=0.1 if stage.small else 0.3, store="sqlite")
    stage.measurements.details |= played
