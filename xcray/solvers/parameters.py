"""Hyper-parameters, declared once: the field of a frozen dataclass feeds checks, API schema, CLI, docs and model file."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from xcray.errors import ParameterError

P = TypeVar("P")


def parameter(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with `default`, a line of `help`, and its range: `low` <= x <= `high`, x > `above`, or one of `choices`."""
    about = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(
        default=default, metadata={k: v for k, v in about.items() if v is not None}
    )


def check_parameters(values: Any) -> None:
    """Check every field of a parameter dataclass against its type and range. Raises ParameterError naming field and range."""
    for field in dataclasses.fields(values):
        _check(field, getattr(values, field.name))


def make_parameters(cls: type[P], given: Mapping[str, Any]) -> P:
    """The dataclass from a mapping; strings (from a command line) are read as the field's type. Raises ParameterError."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in given:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(fields)}"
            raise ParameterError(
                f"unknown parameter {str(name)[:80]!r}; {hint}", code="UNKNOWN_PARAMETER"
            )
    return cls(**{name: _read(fields[name], value) for name, value in given.items()})


def parameter_table(cls: type) -> list[dict[str, Any]]:
    """One row a parameter: name, type, default, help and range; JSON-ready."""
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
    """A string as the type of the field's default; anything else as it is."""
    if not isinstance(value, str) or isinstance(field.default, str):
        return value
    kind: type = type(field.default)
    try:
        return kind(value)
    except ValueError:
        raise ParameterError(
            f"{field.name} must be a {kind.__name__}, not {value[:80]!r}"
        ) from None


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    """One field against its type and range."""
    name, about = field.name, field.metadata
    if "choices" in about:
        if value not in about["choices"]:
            raise ParameterError(
                f"{name} must be one of {', '.join(about['choices'])}, not {str(value)[:80]!r}"
            )
        return
    kind = (int,) if isinstance(field.default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ParameterError(
            f"{name} must be {'a whole number' if kind == (int,) else 'a number'}, not {str(value)[:80]!r}"
        )
    if not math.isfinite(value):
        raise ParameterError(f"{name} must be finite, not {value}")
    _check_range(name, value, about)


def _check_range(name: str, value: float, about: Mapping[str, Any]) -> None:
    """A number against the bounds of its field."""
    if "above" in about and value <= about["above"]:
        raise ParameterError(f"{name} must be greater than {about['above']}, not {value}")
    if "low" in about and value < about["low"]:
        raise ParameterError(f"{name} must be at least {about['low']}, not {value}")
    if "high" in about and value > about["high"]:
        raise ParameterError(f"{name} must be at most {about['high']}, not {value}")
