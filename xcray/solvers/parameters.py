"""Parameters of solvers: the base class of solvers, and reading from text and stored files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from xcray.errors import ParameterError, excerpt, similar_or_all
from xcray.parameters import check_parameters, parameter

__all__ = ["Parameters", "make_parameters", "parameter", "with_default"]

P = TypeVar("P")

_KIND_NAMES: Final[dict[type, str]] = {int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Base of solvers: a dataclass whose fields are checked when it is created.

    Raises ParameterError for an invalid value.
    """

    def __post_init__(self) -> None:
        """Check every parameter."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """Return all parameters by name."""
        return dataclasses.asdict(self)


def with_default(cls: type[Any], name: str, default: Any) -> Any:
    """Return a parameter of another solver with another default."""
    return dataclasses.field(default=default, metadata=cls.__dataclass_fields__[name].metadata)


def make_parameters(cls: type[P], values: Mapping[str, Any]) -> P:
    """Make the dataclass from a mapping; strings are converted to the type of the field.

    Raises ParameterError for unknown names and invalid values.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise ParameterError(
                f"unknown parameter {excerpt(str(name))!r}{similar_or_all(str(name), fields)}",
                code="UNKNOWN_PARAMETER",
            )
    return cls(**{name: _read(fields[name], value) for name, value in values.items()})


def _read(field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a string to the type of the field's default; return other values unchanged."""
    if not isinstance(value, str) or isinstance(field.default, str):
        return value
    kind: type = type(field.default)
    try:
        return kind(value)
    except ValueError:
        raise ParameterError(
            f"{field.name} must be {_KIND_NAMES.get(kind, kind.__name__)}, not {value[:80]!r}"
        ) from None
