"""The description of the API at /openapi.json: everything each operation may be sent and may answer, and nothing else.

FastAPI describes parameters and replies. What it can't know is added here: bodies that are read by our own reader, problem
documents and which status codes an operation has, headers, how a caller says who they are, and which operation's reply
holds what another one asks for (links). `tests/service/http/test_openapi.py` holds the service to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from xcray.service.http.access import OPEN
from xcray.service.http.body import DESCRIBED
from xcray.service.http.problems import MEDIA_TYPE
from xcray.service.schemas import Problem
from xcray.service.schemas.inference import InferenceProblem

Operation = dict[str, Any]

SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "xck_ID_SECRET",
        "description": "A key of `xcray keys create`. A service without any key, on an address of its own machine, asks for none.",
    }
}
RATES: Final = ("RateLimit", "RateLimit-Policy")
INFO: Final = """Data sets are uploaded or named, jobs train models and answer files, models answer questions.

Errors are problem documents (RFC 9457) with a `code` for programs and a sentence that names the mend. Lists are paged by
`page_token`. Requests that make something take an `Idempotency-Key`; things have an `ETag`. A key with the scope admin names
the tenant whose things it means by `?tenant=`. Paths under /v1 keep their meaning: fields, parameters, codes and paths are
added, never changed or taken away; clients pass over fields they do not know."""
TAGS: Final = {
    "data sets": "Rows to train on.",
    "jobs": "Trainings and batch predictions that wait, run or have ended; what they tell while they run.",
    "models": "Versions that never change, aliases that move, sets of labels.",
    "predictions": "Questions answered at once.",
    "batch predictions": "Files answered by jobs.",
    "open inference protocol": "The same answers for clients of the Open Inference Protocol, version 2.",
    "operations": "For whoever runs the service.",
}
HEADERS: Final[dict[str, Operation]] = {
    "X-Request-ID": {"description": "Names this request in the log.", "schema": {"type": "string"}},
    "ETag": {"description": "Changes with the content.", "schema": {"type": "string"}},
    "Location": {"description": "Where what was made can be seen.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds after which it may be tried again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "RateLimit": {
        "description": "Requests left (r) and seconds until all are back (t); told to keys with a limit of their own.",
        "schema": {"type": "string", "examples": ['"requests";r=98;t=2']},
    },
    "RateLimit-Policy": {
        "description": "Requests (q) in so many seconds (w); told to keys with a limit of their own.",
        "schema": {"type": "string", "examples": ['"requests";q=100;w=60']},
    },
    "WWW-Authenticate": {"description": "How to say who asks.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {
        "description": "`true` when the key was used before: this is what was made then.",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
HEADERS_OF_STATUS: Final = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After",),
    503: ("Retry-After",),
    201: ("Location",),
}
# What an operation can answer beside what its parameters and its body imply.
MORE: Final[dict[str, tuple[int, ...]]] = {
    "batch_submit": (404, 409, 507),
    "datasets_create": (404, 409, 507),
    "datasets_delete": (409, 412),
    "datasets_upload": (409, 507),
    "jobs_delete": (409, 412),
    "jobs_resume": (409, 412),
    "jobs_stop": (409, 412),
    "jobs_submit": (404, 409),
    "models_delete_alias": (412,),
    "models_delete_set": (412,),
    "models_delete_version": (409, 412),
    "models_put_set": (412,),
    "models_set_alias": (409, 412),
}


ROUTED: Final = frozenset(
    {"predict_predict", "predict_explain", "inference_infer", "inference_version_infer"}
)
ROUTING_KEY: Final = {
    "name": "X-Routing-Key",
    "in": "header",
    "required": False,
    "description": "Chooses among the versions of an alias that is split: the same key meets the same version.",
    "schema": {"type": "string"},
}
_TEXT: Final = "read rows of a csv file into dictionaries"
EXAMPLES: Final[dict[str, Any]] = {
    "batch_submit": {
        "path": "/data/questions.jsonl",
        "format": "jsonl",
        "text_columns": ["text"],
        "top_k": 5,
    },
    "datasets_create": {"name": "pydocs", "format": "pydocs"},
    "inference_infer": {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [_TEXT]}],
        "parameters": {"top_k": 3},
    },
    "jobs_submit": {
        "dataset": "pydocs",
        "model": "pydocs",
        "params": {"lam": 0.01},
        "max_seconds": 600,
    },
    "models_put_set": {"labels": ["csv", "json"]},
    "models_set_alias": {"version": 1},
    "predict_explain": {"instance": {"text": _TEXT}, "top": 5},
    "predict_predict": {"instances": [{"text": _TEXT}], "top_k": 3},
}


class Link(NamedTuple):
    """The reply of `source` with `status` holds what `target` asks for: parameter -> where it stands."""

    source: str
    status: int
    target: str
    parameters: dict[str, str]


_ID: Final = "$response.body#/id"
_JOB: Final = {"job_id": _ID}
_FROM_JOBS: Final = (
    ("jobs_submit", 201),
    ("jobs_submit", 200),
    ("batch_submit", 201),
    ("jobs_show", 200),
)
_OF_JOBS: Final = (
    *(
        "jobs_show",
        "jobs_stop",
        "jobs_resume",
        "jobs_delete",
        "jobs_events",
        "jobs_logs",
        "jobs_timeline",
        "jobs_classes",
    ),
    "batch_output",
)
LINKS: Final = (
    *(
        Link(source, status, target, _JOB)
        for source, status in _FROM_JOBS
        for target in _OF_JOBS
        if source != target
    ),
    Link("datasets_create", 201, "datasets_show", {"dataset_id": _ID}),
    Link("datasets_create", 201, "datasets_delete", {"dataset_id": _ID}),
    Link("jobs_index", 200, "jobs_index", {"page_token": "$response.body#/next_page_token"}),
    Link("jobs_index", 200, "jobs_show", {"job_id": "$response.body#/jobs/0/id"}),
    Link("datasets_index", 200, "datasets_show", {"dataset_id": "$response.body#/datasets/0/id"}),
    Link("models_index", 200, "models_show", {"name": "$response.body#/models/0/name"}),
    Link("models_index", 200, "predict_predict", {"reference": "$response.body#/models/0/name"}),
    Link("models_index", 200, "inference_metadata", {"name": "$response.body#/models/0/name"}),
    *(
        Link(
            "models_show",
            200,
            target,
            {"name": "$response.body#/name", "version": "$response.body#/latest/version"},
        )
        for target in ("models_show_version", "models_card", "inference_version_infer")
    ),
    Link(
        "models_put_set",
        200,
        "models_show_set",
        {"name": "$request.path.name", "set": "$response.body#/name"},
    ),
)


def operation_id(route: APIRoute) -> str:
    """The name of an operation: its file's and its function's. Clients are generated from these: they stay."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"


def describe(app: FastAPI) -> None:
    """Have the app describe itself as above."""
    make = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _whole(make())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # the way FastAPI documents


def _whole(description: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's description, with what it can't know."""
    components = description.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    models: list[type[BaseModel]] = [*DESCRIBED.values(), Problem, InferenceProblem]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components |= {"securitySchemes": SECURITY, "headers": HEADERS, "responses": dict(_problems())}
    description["info"]["description"] = INFO
    description["servers"] = [{"url": "/"}]
    description["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for path, operations in description["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    _link(description)
    return description


def _problems() -> Iterator[tuple[str, Operation]]:
    """A response for every status of a problem, and as the Open Inference Protocol says it."""
    for status in (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 431, 503, 507):
        phrase = HTTPStatus(status).phrase
        headers = {
            name: {"$ref": f"#/components/headers/{name}"}
            for name in ("X-Request-ID", *HEADERS_OF_STATUS.get(status, ()))
        }
        for name, media_type, schema in (
            ("Problem", MEDIA_TYPE, "Problem"),
            ("Error", "application/json", "InferenceProblem"),
        ):
            content = {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
            yield f"{name}{status}", {"description": phrase, "headers": headers, "content": content}


def _complete(path: str, operation: Operation) -> None:
    """Add an operation's problems, headers and security."""
    protocol = path.startswith("/v2")
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own
    for status in _statuses(path, operation, protocol):
        if str(status) not in responses:
            responses[str(status)] = {
                "$ref": f"#/components/responses/{'Error' if protocol else 'Problem'}{status}"
            }
    for status, response in responses.items():
        if "$ref" not in response:
            names = (
                "X-Request-ID",
                *HEADERS_OF_STATUS.get(int(status), ()),
                *(RATES if path not in OPEN else ()),
            )
            told = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
            response["headers"] = told | response.get("headers", {})
    operation["responses"] = dict(sorted(responses.items()))
    if path not in OPEN:
        operation["security"] = [{"bearer": []}]
    if operation["operationId"] in ROUTED:
        operation.setdefault("parameters", []).append(ROUTING_KEY)
    if (example := EXAMPLES.get(operation["operationId"])) is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = example


def _statuses(path: str, operation: Operation, protocol: bool) -> set[int]:
    """The problems that an operation can answer with."""
    places = {parameter["in"] for parameter in operation.get("parameters", [])}
    found = {400, 431, *MORE.get(operation["operationId"], ())}
    if path not in OPEN:
        found |= {401, 403, 429, 503}
    if "path" in places:
        found.add(404)
    if places:
        found.add(422)
    if "requestBody" in operation:
        found |= {403, 408, 413, 415, 422}
    return {400 if protocol and status == 422 else status for status in found}


def _link(description: dict[str, Any]) -> None:
    """Add the links whose operations are there."""
    operations = {
        one["operationId"]: one for each in description["paths"].values() for one in each.values()
    }
    for link in LINKS:
        source = operations.get(link.source)
        if source is not None and link.target in operations:
            links = source["responses"][str(link.status)].setdefault("links", {})
            links[link.target] = {"operationId": link.target, "parameters": link.parameters}
