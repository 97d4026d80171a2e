"""Problem documents (RFC 9457, application/problem+json) of xcray's errors.

A document has: type, title, status, detail, code, kind (the class in xcray.errors), hint,
request_id, and positions (file, line, column, loc...). Responses never repeat the body, and never
contain tracebacks, server paths or SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from xcray import errors
from xcray.errors import InputError, XcrayError, excerpt, suggestion
from xcray.service import constants
from xcray.service.observability.request_log import LOGGER, REQUEST_ID, add_log_context

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
RFC_9110_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}
RENAMED_DETAILS = {"status": "state"}  # in a problem document, `status` is the HTTP status
HTTP_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
MAX_LISTED_ERRORS = 20  # errors of a body in one document
MAX_CONTEXT = 300  # characters of a list of choices or a pattern

STATUS_OF_CLASS: dict[type[XcrayError], int] = {
    errors.InputError: 422,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Fenced: 409,
    errors.Corrupt: 503,
    errors.Refused: 422,
    errors.Stopped: 409,
    errors.Unavailable: 503,
    errors.XcrayError: 500,
}
STATUS_OF_CODE = {
    "BAD_HEADER": 400,
    "BODY_TOO_LARGE": 413,
    "BUSY": 503,
    "CONCURRENCY": 429,
    "CONTENT_DAMAGED": 400,
    "CONTENT_ENCODING": 415,
    "CONTENT_TYPE": 415,
    "DISK_FULL": 507,
    "EMPTY_BODY": 400,
    "ENCODING": 400,
    "FAILED_KEYS": 429,
    "FEEDBACK_QUOTA": 507,
    "FORBIDDEN": 403,
    "HEADERS_TOO_LARGE": 431,
    "HOST": 400,
    "JSON_DEPTH": 400,
    "JSON_DUP_KEY": 400,
    "JSON_INVALID": 400,
    "JSON_KEYS": 400,
    "KEY_IN_URL": 400,
    "ORIGIN": 403,
    "QUOTA": 429,
    "RATE_LIMIT": 429,
    "SLOW_BODY": 408,
    "DATASET_QUOTA": 507,
    "UNAUTHORISED": 401,
    "UPLOAD_QUOTA": 507,
    "URI_FORBIDDEN": 403,
}
CODE_OF_STATUS = {400: "BAD_REQUEST", 404: "NO_SUCH_PATH", 405: "METHOD", 413: "BODY_TOO_LARGE"}
DETAIL_OF_STATUS = {
    404: "unknown path; see /docs for all paths",
    405: "this path does not support this method; see /docs",
    413: "the body is too large",
}
MODEL_PATH = re.compile(r"/v1/models/[^/]*[:@]")
MODEL_PATH_DETAIL = (
    "unknown path; a model is name, name:3 (a version number) or name@alias, and :predict, "
    ":explain, :batchPredict, :load or :unload can follow"
)

# pydantic's error type -> (code, message); fields in braces come from the error's context
VALIDATION_RULES = {
    "extra_forbidden": ("UNKNOWN_FIELD", "unknown field"),
    "finite_number": ("NOT_FINITE", "a finite number was expected"),
    "float_type": ("TYPE", "a number was expected"),
    "greater_than": ("RANGE", "must be greater than {gt}"),
    "greater_than_equal": ("RANGE", "must be at least {ge}"),
    "int_parsing_size": ("RANGE", "the integer is too large"),
    "less_than": ("RANGE", "must be less than {lt}"),
    "less_than_equal": ("RANGE", "must be at most {le}"),
    "literal_error": ("CHOICE", "must be one of {expected}"),
    "missing": ("MISSING_FIELD", "this field is required"),
    "string_pattern_mismatch": ("BAD_NAME", "must match {pattern}"),
    "string_too_long": ("LENGTH", "must have at most {max_length} characters"),
    "string_too_short": ("LENGTH", "must have at least {min_length} characters"),
    "string_unicode": ("UNICODE", "a string of whole characters was expected"),
    "too_long": ("LENGTH", "must have at most {max_length} entries"),
    "too_short": ("LENGTH", "must have at least {min_length} entries"),
}
EXPECTED_TYPES = {
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "an integer",
    "list": "a list",
    "model": "an object",
    "model_attributes": "an object",
    "string": "a string",
    "tuple": "a list",
}
# (code of the rule, field) -> more specific code
FIELD_CODES = {
    ("LENGTH", "instances"): "INSTANCES",
    ("RANGE", "indices"): "INDEX_RANGE",
    ("RANGE", "top_k"): "K_RANGE",
    ("RANGE", "values"): "NOT_FINITE",
}


def install_handlers(app: FastAPI) -> None:
    """Register the exception handlers that turn errors into problem documents.

    Unexpected exceptions are handled by the edge middleware.
    """
    app.add_exception_handler(XcrayError, _handle_xcray_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)


def problem_response(error: XcrayError) -> Response:
    """Return the problem document of an error, with the headers of its status."""
    status = status_of(error)
    headers = (
        {"Retry-After": str(error.details.get("retry_after", RETRY_SECONDS))}
        if status in (429, 503)
        else {}
    )
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="xcray"'
    if error.code == "CONTENT_ENCODING":
        headers["Accept-Encoding"] = "gzip, identity"
    return problem_document(
        status,
        error.code,
        error.message,
        kind=type(error),
        hint=error.hint,
        headers=headers,
        more=error.details,
    )


def reason_phrase(status: int) -> str:
    """Return the phrase of a status in RFC 9110, which Python has from version 3.13 on."""
    return RFC_9110_PHRASES.get(status) or HTTPStatus(status).phrase


def status_of(error: XcrayError) -> int:
    """Return the HTTP status of an error: by its code, otherwise by its nearest class."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    return next(STATUS_OF_CLASS[kind] for kind in type(error).__mro__ if kind in STATUS_OF_CLASS)


def problem_document(
    status: int,
    code: str,
    detail: str,
    *,
    kind: type[XcrayError] = InputError,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """Return a problem document as a response.

    A detail named `status`, such as the status of a job, appears as `state`.
    """
    add_log_context(code=code)
    extra = {
        RENAMED_DETAILS.get(name, name): value
        for name, value in (more or {}).items()
        if value is not None
    }
    body = {
        **extra,
        "type": f"urn:xcray:problem:{code.lower().replace('_', '-')}",
        "title": reason_phrase(status),
        "status": status,
        "detail": detail,
        "code": code,
        "kind": public_class_name(kind),
        "request_id": REQUEST_ID.get(),
    }
    if hint:
        body["hint"] = hint
    # ASCII: the response can be encoded, whatever it quotes.
    text = json.dumps(body, ensure_ascii=True, default=str)
    # The rest of the request may never arrive.
    ending = {"Connection": "close"} if status == HTTPStatus.REQUEST_TIMEOUT else {}
    return Response(text, status, media_type=MEDIA_TYPE, headers={**(headers or {}), **ending})


def adapt_to_path(path: str, found: Response) -> Response:
    """Return a problem document in the form that clients of the path expect.

    Clients of the Open Inference Protocol (/v2) expect `error`, and 400 instead of 422.
    """
    if not (path == "/v2" or path.startswith("/v2/")):
        return found
    extra = json.loads(bytes(found.body))
    status = 400 if found.status_code == 422 else found.status_code
    text = json.dumps(
        {"error": extra["detail"], **extra, "status": status, "title": reason_phrase(status)}
    )
    headers = {
        name: value
        for name, value in found.headers.items()
        if name not in ("content-type", "content-length")
    }
    return Response(text, status, media_type="application/json", headers=headers)


def public_class_name(kind: type[XcrayError]) -> str:
    """Return the name of the nearest class in xcray.errors."""
    return next(c.__name__ for c in kind.__mro__ if c.__module__ == errors.__name__)


def validation_error(
    findings: Sequence[Any], *, what: str = "body", model: type[BaseModel] | None = None
) -> InputError:
    """Return one error for pydantic's errors.

    The message has the first one, `errors` lists at most 20; the input is not repeated. If a
    field is missing, unknown ones come first, because a misspelled field leaves its right name
    missing. model: of the body, for the known fields in place of an unknown one.
    """
    if any(item["type"] == "missing" for item in findings):
        findings = sorted(findings, key=lambda item: item["type"] != "extra_forbidden")
    listed = [_error_entry(item, model) for item in findings[:MAX_LISTED_ERRORS]]
    first = listed[0]
    place = f"{what}: " if first["loc"] in ("", what) else f"{first['loc']}: "
    return InputError(
        place + first["message"],
        code=first["code"],
        loc=first["loc"],
        errors=listed,
        count=len(findings),
    )


def _error_entry(item: Any, model: type[BaseModel] | None) -> dict[str, str]:
    """Return code, location and message of one of pydantic's errors."""
    loc = [part for part in item["loc"] if part != "body"]
    loc, known = (loc, []) if model is None else _resolve(model, loc)
    code, sentence = VALIDATION_RULES.get(item["type"], ("TYPE", _type_sentence(str(item["type"]))))
    if code == "TYPE" and loc[:1] == ["instances"] and len(loc) == 2:
        sentence += ', such as {{"text": "..."}}'
    if code == "TYPE" and not loc:
        code = "BODY_TYPE"
    fields = [part for part in loc if isinstance(part, str)]
    code = FIELD_CODES.get((code, fields[-1]) if fields else ("", ""), code)
    values = item.get("ctx") or {}
    context = {name: excerpt(str(value), MAX_CONTEXT) for name, value in values.items()}
    if item["type"] in ("too_short", "string_too_short") and values.get("min_length") == 1:
        sentence = "must not be empty"
    if item["type"] == "extra_forbidden" and known:
        sentence += suggestion(str(loc[-1]), known) + f"; known fields: {', '.join(known)}"
    try:
        sentence = sentence.format(**context)
    except KeyError:
        sentence = "is out of its range"
    return {"code": code, "loc": _format_loc(loc), "message": sentence}


def _resolve(model: type[BaseModel], loc: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return a location without the tags of unions, and the fields known where it ends."""
    out = list[Any]()
    fields = dict(model.model_fields)
    for part in loc[:-1]:
        if fields and not isinstance(part, int) and part not in fields:
            continue  # the tag of a union
        out.append(part)
        if not isinstance(part, int):
            fields = _fields_of(fields[part].annotation) if part in fields else {}
    return [*out, *loc[-1:]], list(fields)


def _fields_of(annotation: Any) -> dict[str, Any]:
    """Return the fields of the model in an annotation such as `list[Model] | None`, or none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict(annotation.model_fields)
    parts = (_fields_of(part) for part in get_args(annotation))
    return next((fields for fields in parts if fields), {})


def _type_sentence(kind: str) -> str:
    """Return the expected type from pydantic's error type: 'int_type' -> 'an integer'."""
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    return f"{EXPECTED_TYPES.get(stem, 'another type')} was expected"


def _format_loc(loc: Sequence[Any]) -> str:
    """Return a location as text: ('instances', 3, 'values') -> instances[3].values."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{excerpt(str(part))}"
    return out.removeprefix(".")


async def _handle_xcray_error(request: Request, error: Exception) -> Response:
    """Handle an error of xcray."""
    assert isinstance(error, XcrayError)
    if status_of(error) >= 500:
        LOGGER.warning("request failed", extra={"code": error.code, "detail": error.message})
    return adapt_to_path(request.url.path, problem_response(error))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Handle invalid query and path parameters."""
    assert isinstance(error, RequestValidationError)
    findings = [item | {"loc": tuple(item["loc"])[1:]} for item in error.errors()]
    return adapt_to_path(
        request.url.path, problem_response(validation_error(findings, what="query"))
    )


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """Handle an error of the framework: unknown path or wrong method."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    kind = errors.NotFound if status == 404 else InputError
    headers = {"Allow": ", ".join(_allowed_methods(request))} if status == 405 else {}
    detail = DETAIL_OF_STATUS.get(status, reason_phrase(status).lower())
    if status == 404 and MODEL_PATH.match(request.url.path):
        detail = MODEL_PATH_DETAIL
    document = problem_document(
        status, CODE_OF_STATUS.get(status, "HTTP"), detail, kind=kind, headers=headers
    )
    return adapt_to_path(request.url.path, document)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of a path.

    The framework lists only those of the first route.
    """
    path = {"type": "http", "path": request.scope["path"], "root_path": "", "headers": []}
    methods: set[str] = set()
    for method in HTTP_METHODS:
        matched = [route.matches({**path, "method": method})[0] for route in request.app.routes]
        methods |= {method} if Match.FULL in matched else set()
    methods |= {"HEAD"} if "GET" in methods else set()
    return sorted(methods)


def internal_error(request: Request, error: Exception) -> Response:
    """Log an unexpected error with its traceback, and return a response without details.

    The response has the request id for finding the log entry.
    """
    if errors.is_disk_full(error):
        LOGGER.error("the disk is full", extra={"detail": str(error)})
        full = errors.Refused(constants.DISK_FULL, code="DISK_FULL")
        return adapt_to_path(request.url.path, problem_response(full))
    LOGGER.error(
        "unexpected error",
        exc_info=error,
        extra={"method": request.method, "path": request.url.path},
    )
    detail = "internal error, not a fault of the request; see the log entry of request_id"
    return adapt_to_path(
        request.url.path, problem_document(500, "INTERNAL", detail, kind=XcrayError)
    )
