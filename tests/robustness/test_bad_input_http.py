"""The bad-input catalogue through the real service: one case per kind of error.

`python -m tests.robustness.badinput` sends all cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.robustness.badinput import predict
from tests.robustness.badinput.case import Bad, row_of
from tests.robustness.badinput.families import FAMILIES
from tests.robustness.badinput.service import SentCase, faults, left_of, send
from tests.support.live_service import client_of, settings_for
from xcray.service.app import create_app

COUNTS = {"S": 47, "X": 16, "P": 15, "C": 20, "J": 28}
# One per format, and an empty file; tests/robustness/test_bad_input_tables.py builds all of them.
SAMPLE = ("S1", "S8", "X5-features", "P8", "C16", "json-deep")
CASES = [
    (format, case)
    for format, family in FAMILIES.items()
    for case in family.BAD
    if case.id in SAMPLE
]


class ServerSetup(NamedTuple):
    """A service, its home, and the cases sent to it."""

    http: httpx.Client
    home: Path
    cases: dict[str, SentCase]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    """Send all cases at once; the service builds them while the tests check one after another."""
    home = tmp_path_factory.mktemp("bad") / "home"
    with client_of(create_app(settings_for(home))) as http:
        yield ServerSetup(http, home, {case.id: send(http, format, case) for format, case in CASES})


@pytest.mark.parametrize(
    ("format", "case"), CASES, ids=[f"{format}-{case.id}" for format, case in CASES]
)
def test_a_bad_file_ends_as_failed_with_the_error_of_the_case(
    server: ServerSetup, format: str, case: Bad
) -> None:
    assert faults(server.http, server.cases[case.id], server.home) == []


def test_nothing_is_left(server: ServerSetup) -> None:
    for messages in server.cases.values():
        faults(server.http, messages, server.home)  # returns after the build has ended
    assert left_of(server.home) == []
    listed = server.http.get("/v1/datasets?limit=100").json()["datasets"]
    assert {each["status"] for each in listed} == {"FAILED"}
    assert len(listed) == len([case for _, case in CASES if case.data])


def test_every_row_of_the_catalogue_is_here() -> None:
    cases = [case for family in FAMILIES.values() for case in (*family.BAD, *family.GOOD)]
    # J27 and J28, frames and methods, have their own tests.
    there = {row_of(case) for case in [*cases, *predict.CASES]} | {
        "J27",
        "J28",
    }
    catalogue = {f"{family}{i}" for family, count in COUNTS.items() for i in range(1, count + 1)}
    assert len(catalogue) == 126
    assert catalogue - there == set()
    assert predict.FRAMES
    assert predict.METHODS


# Rows J1 to J22 are about the form of the body, so all routes that take JSON give the same reply.

FORM = {"J1", "J2", "J3", "J15", "J16", "J17", "J18", "J19", "J20", "J21", "J22", "J26"}
ROUTES = (
    "/v1/models/text:explain",
    "/v1/models/text:batchPredict",
    "/v1/jobs",
    "/v1/datasets",
    "/v2/models/text/infer",
)
BODIES = [
    case
    for case in predict.CASES
    if row_of(case) in FORM
    and case.code
    in (
        "EMPTY_BODY",
        "BODY_TYPE",
        "JSON_INVALID",
        "JSON_DEPTH",
        "JSON_DUP_KEY",
        "JSON_KEYS",
        "ENCODING",
        "UNICODE",
        "CONTENT_ENCODING",
    )
]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_reads_json_strictly(server: ServerSetup, route: str) -> None:
    assert len(BODIES) > 20
    for case in BODIES:
        answer = server.http.post(route, content=case.content, headers=case.headers)
        # The v2 protocol has no 422.
        status = 400 if route.startswith("/v2") and case.status == 422 else case.status
        assert (answer.status_code, answer.json()["code"]) == (status, case.code), (
            case.id,
            answer.text,
        )
        assert str(server.home) not in answer.text
        assert predict.MARK not in answer.text
