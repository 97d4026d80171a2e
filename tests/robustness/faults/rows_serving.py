"""Rows about models that change or are damaged during predictions."""

from __future__ import annotations

import os

import httpx

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.service import PATIENCE, Service
from tests.robustness.faults.stage import Stage, until
from tests.support.live_service import text_model
from xcray.model.registry import Registry

TEXT = "read rows of a csv file"


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
