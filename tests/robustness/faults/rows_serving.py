"""Rows about models that change during predictions."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.service import PATIENCE, Service
from tests.robustness.faults.stage import Stage
from tests.robustness.faults.work import ok
from tests.support.live_service import text_model
from xcray.model.registry import Registry

TEXT = "read rows of a csv file"


@row(
    "F25",
    "models change while they are asked",
    "an alias is moved between versions, versions are published and deleted, under 4 clients "
    "that ask; each reply must be one version's, whole",
    "tests/service/prediction/test_predict.py",
)
def swapped(stage: Stage) -> None:
    service = Service(stage, models_loaded=2)
    registry = Registry(service.home.models)
    for seed in (1, 2):
        _publish(stage, registry, seed)
    registry.aliases.set("docs", "prod", 1)
    service.up()
    whole = {number: _ask(service.http, f"docs:{number}") for number in (1, 2)}
    assert whole[1]["predictions"] != whole[2]["predictions"]
    swaps, ending, replies, errors = (
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
                    stage.figures.fault(
                        f"a reply says version {result['model']['version']} and is not its answer"
                    )

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    for turn in range(swaps):
        ok(service.http.put("/v1/models/docs/aliases/prod", json={"version": 1 + turn % 2}))
        if turn % 20 == 19:
            number = _publish(stage, registry, 3)
            ok(service.http.delete(f"/v1/models/docs/versions/{number}"))
        stage.figures.runs += 1
    ending.set()
    for each in clients:
        each.join()
    for sentence in errors:
        stage.figures.fault(f"a prediction failed: {sentence}")
    stage.figures.facts |= {"swaps": swaps, "replies": replies[0], "errors": len(errors)}
    drained(stage, service)


def _publish(stage: Stage, registry: Registry, seed: int) -> int:
    """Publish a version with random weights."""
    text_model(stage.folder / f"staged-{seed}", seed=seed)
    return registry.publish("docs", stage.folder / f"staged-{seed}")


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
    stage.figures.facts |= played
