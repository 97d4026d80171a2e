"""Wrong requests: the status, the code, and a message that names the fix in words of the API."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import OCTETS, client_of, publish, settings_for
from tests.support.waiting import until
from xcray.service.app import create_app

TEXT = {"text": "read rows"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the home of the service."""
    return tmp_path_factory.mktemp("wrong") / "home"


@pytest.fixture(scope="module")
def http(home: Path) -> Iterator[httpx.Client]:
    """Yield a client of a service with the model `docs` and no runner."""
    app = create_app(settings_for(home))
    publish(app.state.app_state.registry, "docs", home.parent / "model")
    with client_of(app) as client:
        yield client


ALIAS = "/v1/models/docs/aliases/prod"
CASES: list[tuple[str, str, Any, int, str, tuple[str, ...]]] = [
    # nested unknown fields
    (
        *("POST", "/v1/models/docs:predict", {"instances": [{"txt": "a"}]}, 422, "UNKNOWN_FIELD"),
        (
            "instances[0].txt: unknown field; did you mean 'text'?; known fields: text, fields, indices",
        ),
    ),
    (
        *("PUT", ALIAS, {"split": [{"version": 1, "wieght": 1}]}, 422, "UNKNOWN_FIELD"),
        ("split[0].wieght", "did you mean 'weight'"),
    ),
    (
        *("PUT", ALIAS, {"version": 1, "shadow": {"version": 1, "shar": 1}}, 422, "UNKNOWN_FIELD"),
        ("shadow.shar: unknown field; did you mean 'share'?; known fields: version, share",),
    ),
    # a misspelled field is not reported as a missing one
    (
        *("PUT", "/v1/models/docs/label-sets/a", {"lables": ["x"]}, 422, "UNKNOWN_FIELD"),
        ("lables: unknown field; did you mean 'labels'",),
    ),
    # tags of unions are not part of a location
    (
        *("PUT", ALIAS, {"version": 1, "shadow": {"version": 1, "share": 2}}, 422, "RANGE"),
        ("shadow.share: must be at most 1",),
    ),
    ("PUT", "/v1/models/docs/label-sets/a", {"labels": []}, 422, "LENGTH", ("must not be empty",)),
    (
        *("POST", "/v1/datasets", {"name": "x", "format": "cvs"}, 422, "CHOICE"),
        ("'dataset' or 'feedback'",),
    ),
    (
        *("POST", "/v1/datasets", {"name": "x", "format": "pydocs", "options": {"min_df": 2}}),
        *(422, "PARAMETER", ("write text.min_df",)),
    ),
    *[
        (
            *("POST", "/v1/datasets", {"name": "x", "format": format, "options": options}),
            *(422, "PARAMETER", (message,)),
        )
        for format, options, message in (
            ("pydocs", {"label_separator": ";"}, "no option label_separator, which is for jsonl"),
            ("jsonl", {"synthetic": {"rows": 9}}, "no option synthetic, which is for synthetic"),
            ("dataset", {"seed": 1}, "format dataset has no option seed"),
            ("jsonl", {"test_fraction": 1}, "it must be at least 0 and below 1"),
            ("jsonl", {"test_fraction": "0.1"}, "test_fraction is '0.1'"),
            ("jsonl", {"text": {"fields": "a"}}, "name the fields with text_fields"),
        )
    ],
    (
        *("POST", "/v1/jobs", {"dataset": "x", "model": "m", "solver": "ppdspars"}, 404),
        *("NOT_FOUND", ("GET /v1/datasets lists them",)),
    ),
    (
        *("GET", "/v1/jobs?stauts=FAILED", None, 422, "UNKNOWN_FIELD"),
        ("unknown query parameter 'stauts'; did you mean 'status'",),
    ),
    (
        *("GET", "/v1/models?x=1", None, 422, "UNKNOWN_FIELD"),
        ("unknown query parameter 'x'; there are: contains, loaded, sort, limit, page_token",),
    ),
    (
        *("POST", "/v1/models/docs:predict?top_k=1", {"instances": [TEXT]}, 422, "UNKNOWN_FIELD"),
        ("unknown query parameter 'top_k'; there are: none",),
    ),
    (
        *("POST", "/v1/datasets?name=d&format=csv&label_separator=,", {}, 422, "UNKNOWN_FIELD"),
        ("unknown query parameter 'label_separator'; there are: name, format",),
    ),
    (
        *("PUT", f"{ALIAS}?version=1", {"version": 1}, 422, "UNKNOWN_FIELD"),
        ("unknown query parameter 'version'",),
    ),
    (
        "DELETE",
        f"{ALIAS}?force=1",
        None,
        422,
        "UNKNOWN_FIELD",
        ("unknown query parameter 'force'",),
    ),
    # unknown names, in words of the API
    (
        *("POST", "/v1/models/docs:x:predict", {}, 404, "NO_SUCH_PATH"),
        ("name:3 (a version number)", ":predict, :explain"),
    ),
    ("GET", "/v1/models/doc", None, 404, "NOT_FOUND", ("did you mean 'docs'",)),
    ("PUT", "/v1/models/none/aliases/a", {"version": 1}, 404, "NOT_FOUND", ("no model 'none'",)),
    ("GET", "/v1/models/docs/label-sets/a", None, 404, "NO_SET", ("there are: none",)),
    ("GET", "/v1/models/docs/labels/zz", None, 404, "NOT_FOUND", ("names like 'csv'",)),
    ("GET", "/v1/jobs/none", None, 404, "NOT_FOUND", ("GET /v1/jobs lists them",)),
    ("GET", "/v1/datasets/none", None, 404, "NOT_FOUND", ("GET /v1/datasets lists them",)),
    ("DELETE", "/v1/keys/none", None, 404, "NOT_FOUND", ("GET /v1/keys lists them",)),
    (
        *("POST", "/v1/models/docs:predict", {"instances": [TEXT], "probabilities": True}, 422),
        *("NOT_CALIBRATED", ("train with calibrate=true",)),
    ),
    ("GET", "/v1/solvers/dsmr", None, 404, "NOT_FOUND", ("did you mean 'dsmlr'",)),
    (
        *("POST", "/v1/models/docs:explain", {"instance": TEXT, "label": "nothing"}, 404),
        *("NOT_FOUND", ("nothing",)),
    ),
    ("POST", "/v1/models/docs:explain", {"instance": TEXT, "top": 0}, 422, "RANGE", ("top",)),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]} {case[2]}" for case in CASES])
def test_wrong_requests(
    http: httpx.Client, case: tuple[str, str, Any, int, str, tuple[str, ...]]
) -> None:
    method, path, body, status, code, parts = case
    reply = http.request(method, path, json=body)
    found = reply.json()
    assert (reply.status_code, found["code"]) == (status, code), found
    assert all(part in found["detail"] for part in parts), found["detail"]


def test_compressed_uploads_are_read_by_their_content(http: httpx.Client, home: Path) -> None:
    row = b'{"text": "read rows of a file", "labels": ["csv"]}\n'
    upload = http.post("/v1/uploads", content=gzip.compress(row), headers=OCTETS).json()["id"]
    body = {"name": "small", "format": "jsonl", "uploads": {"train": upload}}
    made = http.post("/v1/datasets", json=body).json()
    until(lambda: http.get(f"/v1/datasets/{made['id']}").json()["status"] == "READY")
    upload = http.post("/v1/uploads", content=gzip.compress(row), headers=OCTETS).json()["id"]
    body = {"upload": upload, "format": "jsonl"}
    job = http.post("/v1/models/docs:batchPredict", json=body).json()
    [path] = (home / "runs" / job["id"] / "input").glob("input.*")
    assert path.name == "input.jsonl.gz"
