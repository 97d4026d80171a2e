"""Parameters: fields of a frozen dataclass, declared once with help, default and range.

Solvers, trainings and jobs declare theirs in this way. The declaration is used for checks, the
schema of the REST API, the options of commands, the form of the console, docs and model manifests.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from xcray.errors import ParameterError
from xcray.system.units import parse_bytes

F = TypeVar("F", bound=Callable[..., Any])

# Limits of numbers that declare a lower limit only. Beyond them float64 and int32 do not suffice.
MAX_WHOLE: Final = 2**31 - 1
MAX_NUMBER: Final = 1e12
LEAST_NUMBER: Final = 1e-20  # above 0
MAX_SECONDS: Final = 366 * 86400.0  # of any time limit
_KIND_NAMES: Final[dict[type, str]] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a text",
}


def parameter(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    kind: type | None = None,
    unit: str | None = None,
    many: int | None = None,
    flags: tuple[str, ...] | None = None,
    set_by_server: bool | None = None,
) -> Any:
    """Return a dataclass field with a default, a help text and a range.

    The range is low <= x <= high, x > above, or one of `choices`; of a text, low and high are
    lengths. A number with a lower limit is at most MAX_WHOLE or MAX_NUMBER if `high` is missing,
    and one above 0 at least LEAST_NUMBER.
    kind: type of the values of a default of None, which means "not given". unit: "bytes",
    which can also be text like "4GiB", or "seconds". many: the largest number of values, for a
    tuple of them. flags: of the command line, if not the name. set_by_server: whether a service
    has a default of its own.
    """
    number = kind or type(default)
    if high is None and number in (int, float) and (low, above) != (None, None):
        high = MAX_WHOLE if number is int else MAX_NUMBER
        low = LEAST_NUMBER if above == 0 and number is float else low
    about: dict[str, Any] = {"help": help, "low": low, "high": high, "above": above}
    about |= {"choices": choices, "kind": number, "unit": unit, "many": many}
    about |= {"flags": flags, "set_by_server": set_by_server}
    return dataclasses.field(
        default=default, metadata={k: v for k, v in about.items() if v is not None}
    )


def declared_fields(*declarations: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of these dataclasses that `parameter` made."""
    every = (field for each in declarations for field in dataclasses.fields(each))
    return [field for field in every if field.metadata]


def parameter_table(*declarations: type) -> list[dict[str, Any]]:
    """Return one JSON-ready row per parameter: name, type, default, help and range."""
    shown = ("help", "low", "high", "above", "choices", "unit", "set_by_server")
    return [
        {
            "name": field.name,
            "type": field.metadata["kind"].__name__,
            "default": field.default,
            **{name: field.metadata[name] for name in shown if name in field.metadata},
        }
        for field in declared_fields(*declarations)
    ]


def service_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a parameter in requests: None if the service has its own."""
    return None if "set_by_server" in field.metadata else field.default


def takes(*declarations: type) -> Callable[[F], F]:
    """Show declared parameters in the signature and the docstring of a function with `**options`.

    Their defaults are those of requests.
    """
    fields = declared_fields(*declarations)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(each.name, keyword, default=service_default(each)) for each in fields
    ]

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        lines = "".join(f"\n{each.name}: {each.metadata['help']}." for each in fields)
        # cleandoc: before Python 3.13 docstrings are indented like the source
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n{lines}"
        vars(function)["__signature__"] = own.replace(parameters=[*named, *added])
        return function

    return decorate


def require_type(name: str, value: Any, kinds: type | tuple[type, ...], form: str) -> None:
    """Raise ParameterError unless an argument of a public function has one of these types.

    form: what it must be, in words.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
        raise ParameterError(f"{name} must be {form}, not {type(value).__name__}")


def check_parameters(values: Any) -> None:
    """Check every field of a parameter dataclass against its type and range.

    Raises ParameterError with the name of the field and its range.
    """
    for field in declared_fields(values):
        value = getattr(values, field.name)
        if value is None and field.default is None:
            continue
        if "many" in field.metadata:
            _check_many(field, value)
        else:
            _check(field.name, field.metadata, value)


def _check_many(field: dataclasses.Field[Any], values: Any) -> None:
    """Check a tuple of values."""
    name, most = field.name, field.metadata["many"]
    if not isinstance(values, tuple) or not 1 <= len(values) <= most:
        raise ParameterError(
            f"{name} must be a list of 1 to {most:,} values, not {str(values)[:80]!r}"
        )
    for value in values:
        _check(name, field.metadata, value)


def _check(name: str, about: Mapping[str, Any], value: Any) -> None:
    """Check one value against the type and range of its field."""
    if "choices" in about:
        if value not in about["choices"]:
            raise ParameterError(
                f"{name} must be one of {', '.join(about['choices'])}, not {str(value)[:80]!r}"
            )
        return
    kind = about["kind"]
    if about.get("unit") == "bytes":
        value = parse_bytes(value)
    accepted = (int, float) if kind is float else (kind,)
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, accepted):
        raise ParameterError(f"{name} must be {_KIND_NAMES[kind]}, not {str(value)[:80]!r}")
    if isinstance(value, str):
        _check_length(name, value, about)
    elif not math.isfinite(value):
        raise ParameterError(f"{name} must be finite, not {value}")
    else:
        _check_range(name, value, about)


def _check_length(name: str, value: str, about: Mapping[str, Any]) -> None:
    """Check the length of a text."""
    if not about.get("low", 0) <= len(value) <= about.get("high", math.inf):
        raise ParameterError(
            f"{name} must have {about.get('low', 0)} to {about['high']:,} characters, "
            f"not {len(value):,}"
        )


def _check_range(name: str, value: float, about: Mapping[str, Any]) -> None:
    """Check a number against the bounds of its field."""
    if "above" in about and value <= about["above"]:
        raise ParameterError(f"{name} must be greater than {about['above']}, not {value}")
    if "low" in about and value < about["low"]:
        raise ParameterError(f"{name} must be at least {about['low']}, not {value}")
    if "high" in about and value > about["high"]:
        raise ParameterError(f"{name} must be at most {about['high']}, not {value}")
