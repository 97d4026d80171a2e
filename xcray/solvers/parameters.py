"""Hyper-parameters: fields of a frozen dataclass, declared once.

The declaration is used for checks, the API schema, the CLI, the docs and the model manifest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from xcray.errors import ParameterError, excerpt, similar_or_all

P = TypeVar("P")

_KIND_NAMES: Final[dict[type, str]] = {int: "a whole number", float: "a number"}


def parameter(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Return a dataclass field with a default, a help text and a range.

    The range is low <= x <= high, x > above, or one of `choices`.
    """
    about = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(
        default=default, metadata={k: v for k, v in about.items() if v is not None}
    )


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


def check_parameters(values: Any) -> None:
    """Check every field of a parameter dataclass against its type and range.

    Raises ParameterError with the name of the field and its range.
    """
    for field in dataclasses.fields(values):
        _check(field, getattr(values, field.name))


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


def parameter_table(cls: type) -> list[dict[str, Any]]:
    """Return one JSON-ready row per parameter: name, type, default, help and range."""
    return [
        {
            "name": field.name,
            "type": type(field.default).__name__,
            "default": field.default,
            **field.metadata,
        }
        for field in dataclasses.fields(cls)
    ]


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


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    """Check one field against its type and range."""
    name, about = field.name, field.metadata
    if "choices" in about:
        if value not in about["choices"]:
            raise ParameterError(
                f"{name} must be one of {', '.join(about['choices'])}, not {str(value)[:80]!r}"
            )
        return
    kind = (int,) if isinstance(field.default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ParameterError(f"{name} must be {_KIND_NAMES[kind[-1]]}, not {str(value)[:80]!r}")
    if not math.isfinite(value):
        raise ParameterError(f"{name} must be finite, not {value}")
    _check_range(name, value, about)


def _check_range(name: str, value: float, about: Mapping[str, Any]) -> None:
    """Check a number against the bounds of its field."""
    if "above" in about and value <= about["above"]:
        raise ParameterError(f"{name} must be greater than {about['above']}, not {value}")
    if "low" in about and value < about["low"]:
        raise ParameterError(f"{name} must be at least {about['low']}, not {value}")
    if "high" in about and value > about["high"]:
        raise ParameterError(f"{name} must be at most {about['high']}, not {value}")
