"""OpenAPI description at /openapi.json: all inputs and responses of each operation.

FastAPI describes parameters and replies. Added here: bodies that are read by the strict decoder,
problem documents and status codes of each operation, headers, and authentication.
`tests/service/http/test_openapi.py` checks the service against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from xcray.service.http.access import PUBLIC_PATHS
from xcray.service.http.body import BODY_MODELS
from xcray.service.http.problems import MEDIA_TYPE, reason_phrase
from xcray.service.schemas.base import (
    ALIAS_PATTERN,
    MAX_VERSION,
    NAME_PATTERN,
    REFERENCE_PATTERN,
    Problem,
)
from xcray.service.schemas.inference import InferenceProblem

Operation = dict[str, Any]

SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "xck_ID_SECRET",
        "description": "A key of `xcray keys create`. "
        "Not needed on a loopback address while no key exists.",
    }
}
RATE_LIMIT_HEADERS: Final = ("RateLimit", "RateLimit-Policy")
INFO: Final = """Upload or register data sets, train models in jobs, predict online or in batches.

Errors are problem documents (RFC 9457) with a machine-readable `code` and a message that includes
the fix. Lists are paged by `page_token`. Requests that create resources accept an
`Idempotency-Key`; resources have an `ETag`. A key with the scope admin can select the tenant with
`?tenant=`. Paths under /v1 are stable: fields, parameters, codes and paths can be added, but are
never changed or removed; clients must ignore unknown fields."""
TAGS: Final = {
    "data sets": "Rows to train on.",
    "jobs": "Pending, running and ended trainings and batch predictions, with their progress.",
    "models": "Immutable versions, movable aliases, labels, label sets.",
    "feedback": "Right and wrong labels of answers, for the next data set.",
    "solvers": "Solvers and their parameters.",
    "predictions": "Online predictions.",
    "batch predictions": "Predictions for files, run as jobs.",
    "open inference protocol": "Predictions for clients of the Open Inference Protocol, version 2.",
    "operations": "Health, metrics, keys and audit log, for operators.",
}
HEADERS: Final[dict[str, Operation]] = {
    "X-Request-ID": {
        "description": "Identifies this request in the log.",
        "schema": {"type": "string"},
    },
    "ETag": {"description": "Identifies the state of the content.", "schema": {"type": "string"}},
    "Location": {"description": "URL of the created resource.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds to wait before a retry.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "RateLimit": {
        "description": "Requests left (r) and seconds until the limit is full again (t); "
        "for keys with their own limit.",
        "schema": {"type": "string", "examples": ['"requests";r=98;t=2']},
    },
    "RateLimit-Policy": {
        "description": "Requests (q) per window in seconds (w); for keys with their own limit.",
        "schema": {"type": "string", "examples": ['"requests";q=100;w=60']},
    },
    "WWW-Authenticate": {"description": "Required authentication.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {
        "description": "`true` if the key was used before: this is the resource created then.",
        "schema": {"type": "string", "enum": ["true"]},
    },
}
HEADERS_OF_STATUS: Final = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After",),
    503: ("Retry-After",),
    201: ("Location",),
}
# Statuses of an operation in addition to those implied by its parameters and body.
EXTRA_STATUSES: Final[dict[str, tuple[int, ...]]] = {
    "batch_submit": (404, 409, 507),
    "updates_submit": (404, 409, 507),
    "datasets_create": (404, 409, 507),
    "datasets_delete": (409, 412),
    "feedback_create": (404, 409, 507),
    "datasets_histograms": (409,),
    "pictures_dataset": (409,),
    "datasets_upload": (409, 507),
    "jobs_delete": (409, 412),
    "comparisons_compare": (404, 409),
    "jobs_estimate": (404, 409),
    "jobs_resume": (409, 412),
    "jobs_stop": (409, 412),
    "jobs_submit": (404, 409),
    "models_delete_alias": (412,),
    "models_delete_set": (412,),
    "models_delete_version": (409, 412),
    "models_put_set": (412,),
    "models_set_alias": (409, 412),
}


# Rules of parameters that the service checks itself, with its own codes: (in, name) -> schema.
PARAMETER_SCHEMAS: Final[dict[tuple[str, str], Operation]] = {
    ("header", "last-event-id"): {"pattern": "^[0-9]{1,18}$"},
    ("path", "alias"): {"pattern": ALIAS_PATTERN},
    ("path", "name"): {"pattern": NAME_PATTERN},
    ("path", "reference"): {"pattern": REFERENCE_PATTERN},
    ("path", "set"): {"pattern": NAME_PATTERN},
    ("path", "version"): {"minimum": 0, "maximum": MAX_VERSION},
    ("query", "page_token"): {"description": "`next_page_token` of the previous page."},
    ("query", "tenant"): {"pattern": NAME_PATTERN},
}
ROUTED_OPERATIONS: Final = frozenset(
    {"predict_predict", "predict_explain", "inference_infer", "inference_version_infer"}
)
ROUTING_KEY: Final = {
    "name": "X-Routing-Key",
    "in": "header",
    "required": False,
    "description": "Selects the version of an alias with a traffic split: "
    "the same key gets the same version.",
    "schema": {"type": "string"},
}
# Headers that the service reads itself, in operations with a status.
CONDITIONS: Final[dict[str, Operation]] = {
    "304": {
        "name": "If-None-Match",
        "in": "header",
        "required": False,
        "description": "Known ETags: 304 if one of them is current.",
        "schema": {"type": "string"},
    },
    "412": {
        "name": "If-Match",
        "in": "header",
        "required": False,
        "description": "Expected ETag: 412 if the resource has changed.",
        "schema": {
            "type": "string",
            "pattern": r'^(\*|"[\x21\x23-\x7e]*"(, ?"[\x21\x23-\x7e]*")*)$',
        },
    },
}
_JOB_REQUEST: Final = {
    "dataset": "pydocs",
    "model": "pydocs",
    "params": {"lam": 0.01},
    "max_seconds": 600,
}
_TEXT: Final = "read rows of a csv file into dictionaries"
_INFERENCE: Final = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [_TEXT]}],
    "parameters": {"top_k": 3},
}
# Ids are made by the service: a reader replaces these by those of a reply.
ID_EXAMPLES: Final = {
    "upload": "up_0123456789ab",
    "dataset_id": "ds_0123456789ab",
    "job_id": "job_0123456789ab",
    "key_id": "key_0123456789ab",
}
PATH_EXAMPLES: Final = {
    **{name: value for name, value in ID_EXAMPLES.items() if name != "upload"},
    "alias": "prod",
    "file": "part-00000.parquet",
    "id": "doc-17",
    "label": "csv",
    "name": "pydocs",
    "reference": "pydocs",
    "set": "files",
    "solver": "ppdsparse",
    "version": 1,
    "picture": "timeline",
}
EXAMPLES: Final[dict[str, Any]] = {
    "batch_submit": {
        "upload": ID_EXAMPLES["upload"],
        "format": "jsonl",
        "text_fields": ["text"],
        "top_k": 3,
    },
    "comparisons_compare": {"models": ["pydocs:1", "pydocs"], "dataset": "pydocs"},
    "datasets_create": {"name": "pydocs", "format": "pydocs"},
    "feedback_create": {"id": "doc-17", "instance": {"text": _TEXT}, "right": ["csv"]},
    "updates_submit": {"dataset": "pydocs-2"},
    "inference_infer": _INFERENCE,
    "inference_load": {},
    "inference_repository_index": {"ready": False},
    "inference_unload": {},
    "inference_version_infer": _INFERENCE,
    "jobs_estimate": _JOB_REQUEST,
    "jobs_submit": _JOB_REQUEST,
    "keys_create": {"name": "notebook", "scopes": ["predict"], "expires_seconds": 86400},
    "models_put_set": {"labels": ["csv", "json"]},
    "models_set_alias": {"version": 1},
    "predict_explain": {"instance": {"text": _TEXT}, "top": 5},
    "predict_predict": {"instances": [{"text": _TEXT}], "top_k": 3},
}
UPLOAD_EXAMPLE: Final = f'{{"text": "{_TEXT}"}}\n'  # a file in the format jsonl


def operation_id(route: APIRoute) -> str:
    """Return the operation id: module name and function name.

    Clients are generated from the ids, so they must not change.
    """
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"


def install_openapi(app: FastAPI) -> None:
    """Replace the OpenAPI description of an app with the completed one."""
    make = app.openapi

    def build_openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete_description(make())
        return app.openapi_schema

    app.openapi = build_openapi  # type: ignore[method-assign]  # as documented by FastAPI


def _complete_description(description: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's description with the additions of this module."""
    components = description.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    models: list[type[BaseModel]] = [*BODY_MODELS.values(), Problem, InferenceProblem]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components |= {
        "securitySchemes": SECURITY,
        "headers": HEADERS,
        "responses": dict(_problem_responses()),
    }
    description["info"]["description"] = INFO
    description["servers"] = [{"url": "/"}]
    description["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for path, operations in description["paths"].items():
        for operation in operations.values():
            _complete_operation(path, operation)
    return description


def _problem_responses() -> Iterator[tuple[str, Operation]]:
    """Yield a response per problem status, also in the form of the Open Inference Protocol."""
    for status in (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 431, 503, 507):
        phrase = reason_phrase(status)
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


def _complete_operation(path: str, operation: Operation) -> None:
    """Add an operation's problem responses, headers and security."""
    protocol = path.startswith("/v2")
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own
    for status in _problem_statuses(path, operation, protocol):
        if str(status) not in responses:
            responses[str(status)] = {
                "$ref": f"#/components/responses/{'Error' if protocol else 'Problem'}{status}"
            }
    for status, response in responses.items():
        if "$ref" not in response:
            names = (
                "X-Request-ID",
                *HEADERS_OF_STATUS.get(int(status), ()),
                *(RATE_LIMIT_HEADERS if path not in PUBLIC_PATHS else ()),
            )
            headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
            response["headers"] = headers | response.get("headers", {})
    operation["responses"] = dict(sorted(responses.items()))
    for parameter in operation.get("parameters", []):
        _complete_parameter(parameter)
    if path not in PUBLIC_PATHS:
        operation["security"] = [{"bearer": []}]
    added = [header for status, header in CONDITIONS.items() if status in responses]
    if operation["operationId"] in ROUTED_OPERATIONS:
        added.append(ROUTING_KEY)
    if added:
        operation.setdefault("parameters", []).extend(added)
    operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
    _add_examples(operation)


def _complete_parameter(parameter: Operation) -> None:
    """Add the rules of a parameter. It can be omitted, but not be null, which would be a string."""
    schema = parameter["schema"]
    kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        schema = kinds[0] | schema
    elif kinds:
        schema["anyOf"] = kinds
    place = (parameter["in"], parameter["name"].lower())
    parameter["schema"] = schema | PARAMETER_SCHEMAS.get(place, {})
    if parameter["in"] == "path":
        parameter["example"] = PATH_EXAMPLES[parameter["name"]]


def _add_examples(operation: Operation) -> None:
    """Add the examples of the body, by media type."""
    content = operation.get("requestBody", {}).get("content", {})
    if (example := EXAMPLES.get(operation["operationId"])) is not None:
        content["application/json"]["example"] = example
    if operation["operationId"] == "datasets_upload":
        content["application/octet-stream"]["example"] = UPLOAD_EXAMPLE


def _problem_statuses(path: str, operation: Operation, protocol: bool) -> set[int]:
    """Return the problem statuses of an operation."""
    locations = {parameter["in"] for parameter in operation.get("parameters", [])}
    statuses = {400, 431, *EXTRA_STATUSES.get(operation["operationId"], ())}
    if path not in PUBLIC_PATHS:
        statuses |= {401, 403, 429, 503}
    if "path" in locations:
        statuses.add(404)
    if locations:
        statuses.add(422)
    if "requestBody" in operation:
        statuses |= {403, 408, 413, 415, 422}
    return {400 if protocol and status == 422 else status for status in statuses}
