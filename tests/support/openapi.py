"""The service against its own OpenAPI description: requests that fit it and requests that do not,
made up by Schemathesis.

    python -m tests.support.openapi --requests 10000 --seed 1

The service is a real one with a key, models, data sets and jobs, on 127.0.0.1. All checks of
Schemathesis run, on examples, on boundary values, on random requests and on chains of requests that
follow the description's links. Printed are requests sent, answers by class of status, and each
failure; the last line is JSON. Exit code 1 when anything failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import schemathesis
from fastapi import FastAPI, Request
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

from tests.support.live_service import plain_model, publish, serving, settings_for
from xcray.errors import Fenced, Unavailable
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.service.http.auth import Caller, Unauthorised, bearer_token

STUB = """import json, pathlib, sys
(pathlib.Path(sys.argv[1]).parent / "outcome.json").write_text(json.dumps({"stats": {"n_labels": 4}}))
"""
KEY = "xck_of_the_tests"

# What a request that fits its schema may be answered all the same, and why. The schema of JSON says
# which fields there are and of what type; whether a data set exists, a solver takes a parameter, or
# the tensors of a row fit each other, it can't say.
REASONS = {
    "400": "rules between fields under /v2, whose protocol says 400",
    "406": "never sent",
    "412": "If-Match of a random tag",
    "413": "a body larger than the limit",
    "415": "a media type beside the described ones",
    "422": "rules between fields, names of things, parameters of solvers",
    "503": "BUSY: so many requests at once",
    "507": "never sent",
}
ACCEPTED = [
    "2xx",
    "304",
    "400",
    "401",
    "403",
    "404",
    "409",
    "412",
    "413",
    "415",
    "422",
    "429",
    "503",
]
REFUSED = [
    "304",
    "400",
    "401",
    "403",
    "404",
    "405",
    "406",
    "409",
    "411",
    "412",
    "413",
    "415",
    "422",
    "429",
    "431",
    "503",
]


Known = dict[str, list[str]]  # names and ids of things that there are
PLACES = {
    "names": ("path.name",),
    "references": ("path.reference",),
    "jobs": ("path.job_id",),
    "datasets": ("path.dataset_id", "body.dataset", "query.dataset"),
}


class Found(NamedTuple):
    """What came of it: requests by class of status, requests by operation, failures (check,
    operation, what) counted.
    """

    statuses: Counter[str]
    operations: Counter[str]
    failures: Counter[tuple[str, str, str]]

    @property
    def requests(self) -> int:
        """How many were sent."""
        return sum(self.statuses.values())


@contextmanager
def service(folder: Path) -> Iterator[tuple[dict[str, Any], str, Known]]:
    """A served app with something of everything: its description, its address, and what there
    is.
    """
    stub = folder / "stub.py"
    stub.write_text(STUB)
    settings = settings_for(folder / "home", requests_per_minute=0)
    with closing(JobStore(Home(settings.home).store_url)) as store:
        app = create_app(
            settings,
            store=store,
            supervisor=Ender(store),
            build_command=(sys.executable, str(stub)),
            authenticate=admin,
        )
        yield from _furnished(app, folder)


def _furnished(app: FastAPI, folder: Path) -> Iterator[tuple[dict[str, Any], str, Known]]:
    """The app served, with models, data sets and jobs."""
    app_state: AppState = app.state.app_state
    registry = app_state.registry_of("default")
    publish(registry, "docs", folder / "one", seed=1)
    publish(registry, "docs", folder / "two", seed=2)
    plain_model(folder / "plain")
    registry.publish("plain", folder / "plain")
    registry.set_alias("docs", "stable", 1)
    registry.label_sets("docs").put("files", ["csv", "json"])
    data = app_state.store.add_dataset("news", str(folder / "data"), stats={"n_labels": 4})
    spec = {"dataset": data.path, "dataset_id": data.id, "solver": "ppdsparse"}
    ids = [
        app_state.store.submit(spec, name=f"job {n}", dataset_id=data.id)[0].id for n in range(4)
    ]
    with serving(app) as url:
        yield (
            app.openapi(),
            url,
            {
                "names": ["docs", "plain"],
                "references": ["docs", "docs:1", "docs@stable", "plain"],
                "jobs": ids,
                "datasets": [data.id],
            },
        )


class Ender:
    """A supervisor whose jobs end as soon as they begin, so that no event stream lasts."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._over.set()
        self._thread.join(20)

    def _run(self) -> None:
        """Claim and fail, one after the other."""
        while not self._over.wait(0.05):
            try:
                while (job := self._store.claim_job("tests", lease_seconds=3600)) is not None:
                    self._store.finish_attempt(
                        job.id, job.attempt, "FAILED", reason="MEMORY", message="too large"
                    )
            except (Unavailable, Fenced) as error:  # on a busy machine: the next look comes soon
                print(f"not ended yet: {error}", file=sys.stderr)


async def admin(request: Request) -> Caller:
    """Who bears the key may do everything; a key of the store could be revoked by one of the
    requests.
    """
    if bearer_token(request).decode("latin-1") != KEY:
        raise Unauthorised("nobody knows this key")
    return Caller()


def explore(
    description: dict[str, Any],
    url: str,
    known: Known,
    *,
    examples: int,
    seed: int,
    whole: bool = True,
) -> Found:
    """Send about `examples` requests to each operation and follow as many chains of links, and
    check every answer.

    whole: with the boundary values of every parameter, some thousand requests.
    """
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": url,
            "headers": {"Authorization": f"Bearer {KEY}"},
            "dictionaries": {name: {"values": values} for name, values in known.items()},
            "parameters": {
                place: {"dictionary": name, "probability": 0.6}
                for name, places in PLACES.items()
                for place in places
            },
            "continue-on-failure": True,
            "request-timeout": 60.0,
            "checks": {
                "positive_data_acceptance": {"expected-statuses": ACCEPTED},
                "negative_data_rejection": {"expected-statuses": REFUSED},
                "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
            },
            "generation": {
                "max-examples": examples,
                "deterministic": True,
                "no-shrink": True,
                "database": "none",
            },
            "phases": {"coverage": {"enabled": whole}, "stateful": {"max-steps": 6}},
        }
    )
    schema = schemathesis.openapi.from_dict(description, config=config)
    found = Found(Counter(), Counter(), Counter())
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            _count(event.recorder, found)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found.failures["engine", getattr(event, "label", "") or "", _line(_told(event))] += 1
    return found


def _count(recorder: Any, found: Found) -> None:
    """Add one scenario."""
    for case_id, interaction in recorder.interactions.items():
        status = (
            f"{interaction.response.status_code // 100}xx"
            if interaction.response is not None
            else "no answer"
        )
        found.statuses[status] += 1
        if case_id in recorder.cases:
            found.operations[recorder.cases[case_id].value.operation.label] += 1
    for case_id, checks in recorder.checks.items():
        for check in checks:
            if check.status == Status.FAILURE and check.failure_info is not None:
                label = recorder.cases[case_id].value.operation.label
                told = f"{check.failure_info.failure.title}: {check.failure_info.failure.message}"
                found.failures[
                    check.name, label, _line(f"{told} | {check.failure_info.code_sample}")
                ] += 1


def _told(event: Any) -> str:
    """What an engine error says."""
    info = getattr(event, "info", None)
    return f"{getattr(info, 'title', '')}: {getattr(info, 'message', '') or event}"


def _line(text: str) -> str:
    """Text in one line of bearable length."""
    return " ".join(text.split())[:600]


def many(requests: int, seed: int) -> Found:
    """Explore with one seed after another until so many requests were sent."""
    total = Found(Counter(), Counter(), Counter())
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder)) as (description, url, known),
    ):
        while total.requests < requests:
            found = explore(
                description,
                url,
                known,
                examples=min(50, max(2, (requests - total.requests) // 150)),
                seed=seed,
            )
            for mine, more in zip(total, found, strict=True):
                mine.update(more)  # type: ignore[arg-type]
            seed += 1
            print(
                f"{total.requests:,} requests, {sum(total.failures.values())} failures", flush=True
            )
            tell(found)
            if not found.requests:
                break
    return total


def tell(found: Found) -> None:
    """Each failure in a line."""
    for (check, operation, told), times in sorted(found.failures.items()):
        print(f"FAILED {times} x {check} | {operation} | {told}", flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    begun = time.monotonic()
    found = many(asked.requests, asked.seed)
    for operation, n in sorted(found.operations.items()):
        print(f"{n:6,} {operation}")
    figures = {
        "requests": found.requests,
        "by_status": dict(sorted(found.statuses.items())),
        "operations": len(found.operations),
        "failures": sum(found.failures.values()),
        "distinct_failures": len({(check, operation) for check, operation, _ in found.failures}),
        "seed": asked.seed,
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(figures))
    return 1 if found.failures or found.statuses["5xx"] else 0


if __name__ == "__main__":
    sys.exit(main())
