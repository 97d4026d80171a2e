"""Small real work: a synthetic data set and trainings that take seconds.

The tests can act at any share of the labels of a training.
"""

from __future__ import annotations

import time
from typing import Any, Final

import httpx

from tests.robustness.faults.ledger import Ledger
from tests.robustness.faults.stage import until
from xcray.jobs.states import TERMINAL

TINY: Final = {"rows": 400, "features": 200, "labels": 40, "seed": 7}
MIDDLE: Final = {"rows": 6000, "features": 3000, "labels": 3000, "seed": 7}
# on TINY: about two seconds, most of them for the start
QUICK: Final[dict[str, Any]] = {
    "solver": "ppdsparse",
    "pool": "serial",
}
# on MIDDLE: several seconds of training
SLOW: Final[dict[str, Any]] = {
    "solver": "ppdsparse",
    "pool": "serial",
    "params": {"eps": 1e-5},
}
RETRIES: Final = (httpx.TransportError,)


def dataset(http: httpx.Client, ledger: Ledger, name: str = "small", **options: Any) -> str:
    """Build a synthetic data set and return its id once it is READY."""
    body = {
        "name": name,
        "format": "synthetic",
        "options": {"test_fraction": 0.2, "synthetic": {**TINY, **options}},
    }
    document = ok(http.post("/v1/datasets", json=body))
    ledger.acknowledged("dataset", document["id"])
    return settled(http, document["id"])


def settled(http: httpx.Client, dataset_id: str) -> str:
    """Wait until a data set is READY and return its id."""
    state = until(
        lambda: (
            (body := ok(http.get(f"/v1/datasets/{dataset_id}")))["status"] != "BUILDING" and body
        ),
        "data set",
    )
    assert state["status"] == "READY", state
    return dataset_id


def submit(http: httpx.Client, ledger: Ledger, data: str, model: str, key: str, **more: Any) -> str:
    """Submit a job, with retries, record it in the ledger and return its id."""
    body = {**QUICK, "dataset": data, "model": model, **more}
    document = ok(again(lambda: http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})))
    ledger.acknowledged("job", document["id"], key=key)
    return str(document["id"])


def again(ask: Any, seconds: float = 600.0, pause: float = 0.05) -> httpx.Response:
    """Return the first reply that is not 502, 503 or 504.

    Broken connections are retried, as any client must.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            response: httpx.Response = ask()
            if response.status_code not in (502, 503, 504):
                return response
        except RETRIES:
            response = None  # type: ignore[assignment]
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"no answer within {seconds:.0f} s: {response.text if response is not None else 'no connection'}"
            )
        time.sleep(pause)


def ok(answer: httpx.Response) -> Any:
    """Return the content of a successful reply."""
    assert answer.is_success, (
        f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:500]}"
    )
    return answer.json() if answer.content else None


def ended(http: httpx.Client, job: str, seconds: float = 900.0) -> dict[str, Any]:
    """Wait until a job has ended and return it."""
    return until(
        lambda: (
            (body := ok(again(lambda: http.get(f"/v1/jobs/{job}"))))["status"] in TERMINAL and body
        ),
        f"the end of {job}",
        seconds,
    )


def at_share(http: httpx.Client, job: str, share: float) -> dict[str, Any]:
    """Wait until a share of a job's labels is done or the job has ended; return the job."""

    def look() -> Any:
        body = ok(http.get(f"/v1/jobs/{job}"))
        report = body["progress"]
        reached = (
            report.get("phase") == "TRAINING"
            and report.get("total")
            and report["done"] >= share * report["total"]
        )
        return (
            reached
            or body["status"] in TERMINAL
            or report.get("phase") in ("MERGING", "EVALUATING")
        ) and body

    return until(look, f"{share:.0%} of {job}", pause=0.02)
