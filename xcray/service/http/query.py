"""Query parameters: a misspelled filter or option is refused instead of ignored."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute

from xcray.errors import InputError, excerpt, similar_or_all
from xcray.service.http.audit import SAFE_METHODS

COMMON_PARAMETERS: Final = ("tenant",)  # of administrators, see `AccessMiddleware`


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise InputError UNKNOWN_FIELD for a query parameter that the route lacks."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _parameters(route)
    for name in request.query_params:
        if name not in known and name not in COMMON_PARAMETERS:
            raise InputError(
                f"unknown query parameter {excerpt(name)!r}{similar_or_all(name, known)}",
                code="UNKNOWN_FIELD",
                loc=excerpt(name),
                **_hint(request.method, known),
            )


def _hint(method: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return where a change has its other fields."""
    if method in SAFE_METHODS:
        return {}
    if "options" in known:
        return {"hint": 'options of the file belong in `options`, as JSON: options={"NAME": VALUE}'}
    return {"hint": "fields belong in the JSON body"}


def _parameters(route: APIRoute) -> tuple[str, ...]:
    """Return the names of the query parameters of a route and of its dependencies."""
    names, todo = list[str](), [route.dependant]
    while todo:
        each = todo.pop()
        names += [field.alias for field in each.query_params]
        todo += each.dependencies
    return tuple(names)
