"""Requests made from declared parameters, see `xcray.api.options`."""

from __future__ import annotations

from dataclasses import Field as DeclaredField
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, create_model

from xcray.parameters import declared_fields, service_default
from xcray.service.schemas.base import WHOLE

M = TypeVar("M", bound=BaseModel)


def with_parameters(name: str, base: type[M], *declarations: type) -> type[M]:
    """Return the request `base` with one more field per declared parameter."""
    fields: dict[str, Any] = {
        field.name: _field_of(field) for field in declared_fields(*declarations)
    }
    return create_model(
        name, __base__=base, __module__=base.__module__, __doc__=base.__doc__, **fields
    )


def declared_field(declaration: type, name: str) -> Any:
    """Return the field of a request for a declared number or switch."""
    (field,) = [each for each in declared_fields(declaration) if each.name == name]
    about = field.metadata
    limits: dict[str, Any] = {"ge": about.get("low"), "le": about.get("high")}
    return Field(field.default, **limits, description=_description(field))


def declared_values(body: BaseModel, *declarations: type) -> dict[str, Any]:
    """Return the values of these declarations in a request, without those that are null."""
    names = {field.name for field in declared_fields(*declarations)}
    values = body.model_dump(mode="json", include=names)
    return {name: value for name, value in values.items() if value is not None}


def _field_of(field: DeclaredField[Any]) -> tuple[Any, Any]:
    """Return the annotation and the default of a declared parameter."""
    about, default = field.metadata, service_default(field)
    kind = _annotation_of(about)
    if "many" in about:
        limits = Field(min_length=1, max_length=about["many"], fail_fast=True)
        kind = Annotated[list[kind], limits]  # type: ignore[valid-type]
    annotation = kind if default is not None else kind | None
    return annotation, Field(default, description=_description(field))


def _description(field: DeclaredField[Any]) -> str:
    """Return the description of a declared parameter."""
    about = field.metadata
    help = about["help"] + (f", in {about['unit']}" if "unit" in about else "")
    if "set_by_server" in about:
        help = f"{help}. Default: set by the service"
    return f"{help[:1].upper()}{help[1:]}."


def _annotation_of(about: Any) -> Any:
    """Return the type of one value with its range."""
    kind, low, high = about["kind"], about.get("low"), about.get("high")
    if "choices" in about:
        return Literal[about["choices"]]
    if kind is bool:
        return bool
    if kind is str:
        return Annotated[str, Field(min_length=low, max_length=high)]
    if kind is int:
        return Annotated[int, Field(ge=low, le=high), WHOLE]
    return Annotated[float, Field(gt=about.get("above"), ge=low, le=high)]
