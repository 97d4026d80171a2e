"""Errors as problem documents (RFC 9457, application/problem+json), by one table from xcray's own tree of errors.

A document: type, title, status, detail, code, kind (the class in xcray.errors), hint, request_id, and where something lies
(file, line, column, loc...). Replies never repeat the body, and never hold tracebacks, paths of the server or SQL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from xcray import errors
from xcray.errors import InputError, XcrayError, excerpt
from xcray.service.observability.request_log import LOGGER, REQUEST_ID, tell

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
RENAMED = {"status": "state"}  # status, in a problem document, is HTTP's
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
SHOWN = 20  # errors of a body that a document lists

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
    "CONTENT_ENCODING": 415,
    "CONTENT_TYPE": 415,
    "DISK_FULL": 507,
    "EMPTY_BODY": 400,
    "ENCODING": 400,
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
    404: "there is no such path; see /docs for all of them",
    405: "this path does not take this method; see /docs",
    413: "the body is too large",
}

# pydantic's kinds of error -> (code, sentence); {…} are filled from the error's context
RULES = {
    "extra_forbidden": ("UNKNOWN_FIELD", "there is no such field"),
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
EXPECTED = {
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
# a field's own code, where a code of a rule would say less: (code of the rule, field) -> code
FIELD_CODES = {
    ("LENGTH", "instances"): "INSTANCES",
    ("RANGE", "indices"): "INDEX_RANGE",
    ("RANGE", "top_k"): "K_RANGE",
    ("RANGE", "values"): "NOT_FINITE",
}


def install(app: FastAPI) -> None:
    """Give an app the handlers that turn errors into problem documents; what nobody expected, the guard sees."""
    app.add_exception_handler(XcrayError, _on_xcray)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)


def response(error: XcrayError) -> Response:
    """The problem document of an error, with the headers its status asks for."""
    status = status_of(error)
    headers = (
        {"Retry-After": str(error.details.get("retry_after", RETRY_SECONDS))}
        if status in (429, 503)
        else {}
    )
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="xcray"'
    return document(
        status,
        error.code,
        error.message,
        kind=type(error),
        hint=error.hint,
        headers=headers,
        more=error.details,
    )


def status_of(error: XcrayError) -> int:
    """The status of an error: by its code, else by the nearest class of the tree."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    return next(STATUS_OF_CLASS[kind] for kind in type(error).__mro__ if kind in STATUS_OF_CLASS)


def document(
    status: int,
    code: str,
    detail: str,
    *,
    kind: type[XcrayError] = InputError,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """A problem document as a response. A detail called `status`, as of a job, appears as `state`."""
    tell(code=code)
    told = {
        RENAMED.get(name, name): value for name, value in (more or {}).items() if value is not None
    }
    body = {
        **told,
        "type": f"urn:xcray:problem:{code.lower().replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "kind": public_kind(kind),
        "request_id": REQUEST_ID.get(),
    }
    if hint:
        body["hint"] = hint
    text = json.dumps(
        body, ensure_ascii=True, default=str
    )  # ASCII: whatever was quoted, the reply can be encoded
    ending = (
        {"Connection": "close"} if status == HTTPStatus.REQUEST_TIMEOUT else {}
    )  # what is left of the request may never come
    return Response(text, status, media_type=MEDIA_TYPE, headers={**(headers or {}), **ending})


def for_path(path: str, found: Response) -> Response:
    """A document as whoever asked under `path` reads it: clients of the Open Inference Protocol look for `error`, and for 400."""
    if not (path == "/v2" or path.startswith("/v2/")):
        return found
    told = json.loads(bytes(found.body))
    status = 400 if found.status_code == 422 else found.status_code
    text = json.dumps(
        {"error": told["detail"], **told, "status": status, "title": HTTPStatus(status).phrase}
    )
    headers = {
        name: value
        for name, value in found.headers.items()
        if name not in ("content-type", "content-length")
    }
    return Response(text, status, media_type="application/json", headers=headers)


def public_kind(kind: type[XcrayError]) -> str:
    """The name of the nearest class that xcray.errors offers."""
    return next(c.__name__ for c in kind.__mro__ if c.__module__ == errors.__name__)


def from_validation(found: Sequence[Any], *, what: str = "body") -> InputError:
    """One error for what pydantic found: the first in words, all (at most 20) in `errors`; input is not repeated."""
    listed = [_entry(item) for item in found[:SHOWN]]
    first = listed[0]
    place = f"{what}: " if first["loc"] in ("", what) else f"{first['loc']}: "
    return InputError(
        place + first["message"],
        code=first["code"],
        loc=first["loc"],
        errors=listed,
        count=len(found),
    )


def _entry(item: Any) -> dict[str, str]:
    """Code, place and sentence of one of pydantic's errors."""
    loc = [part for part in item["loc"] if part != "body"]
    code, sentence = RULES.get(item["type"], ("TYPE", _type_sentence(str(item["type"]))))
    if code == "TYPE" and not loc:
        code = "BODY_TYPE"
    fields = [part for part in loc if isinstance(part, str)]
    code = FIELD_CODES.get((code, fields[-1]) if fields else ("", ""), code)
    context = {name: excerpt(str(value)) for name, value in (item.get("ctx") or {}).items()}
    try:
        sentence = sentence.format(**context)
    except KeyError:
        sentence = "is out of its range"
    return {"code": code, "loc": _spelled(loc), "message": sentence}


def _type_sentence(kind: str) -> str:
    """What was expected, from the name of pydantic's kind: 'int_type' -> 'an integer'."""
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    return f"{EXPECTED.get(stem, 'another type')} was expected"


def _spelled(loc: Sequence[Any]) -> str:
    """('instances', 3, 'values') -> instances[3].values."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{excerpt(str(part))}"
    return out.removeprefix(".")


async def _on_xcray(request: Request, error: Exception) -> Response:
    """An error of our own tree."""
    assert isinstance(error, XcrayError)
    if status_of(error) >= 500:
        LOGGER.warning("request failed", extra={"code": error.code, "detail": error.message})
    return for_path(request.url.path, response(error))


async def _on_validation(request: Request, error: Exception) -> Response:
    """Query and path parameters that do not fit."""
    assert isinstance(error, RequestValidationError)
    found = [item | {"loc": tuple(item["loc"])[1:]} for item in error.errors()]
    return for_path(request.url.path, response(from_validation(found, what="query")))


async def _on_http(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: no such path, wrong method."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    kind = errors.NotFound if status == 404 else InputError
    headers = {"Allow": ", ".join(_methods(request))} if status == 405 else {}
    detail = DETAIL_OF_STATUS.get(status, HTTPStatus(status).phrase.lower())
    found = document(status, CODE_OF_STATUS.get(status, "HTTP"), detail, kind=kind, headers=headers)
    return for_path(request.url.path, found)


def _methods(request: Request) -> list[str]:
    """The methods of all routes of a path: the framework names those of the first alone."""
    path = {"type": "http", "path": request.scope["path"], "root_path": "", "headers": []}
    found: set[str] = set()
    for method in METHODS:
        matched = [route.matches({**path, "method": method})[0] for route in request.app.routes]
        found |= {method} if Match.FULL in matched else set()
    return sorted(found)


def unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has the traceback, the reply only the request id to find it by."""
    LOGGER.error(
        "unexpected error",
        exc_info=error,
        extra={"method": request.method, "path": request.url.path},
    )
    detail = "something went wrong here, not with your request; the log has more under request_id"
    return for_path(request.url.path, document(500, "INTERNAL", detail, kind=XcrayError))
