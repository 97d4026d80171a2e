"""Options of commands made from declared parameters, see `xcray.api.options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field
from functools import wraps
from typing import Annotated, Any, TypeAlias

import typer

from xcray.errors import InputError
from xcray.parameters import declared_fields
from xcray.system.units import parse_bytes, parse_seconds

Options: TypeAlias = Mapping[str, Any]  # the given values of the declared parameters, by name
Command: TypeAlias = Callable[..., None]
UNITS: dict[str, tuple[str, Callable[[str], float]]] = {
    "bytes": ("SIZE: 500MB|4GiB", parse_bytes),
    "seconds": ("TIME: 90s|15m|2h|7d", parse_seconds),
}


def with_options(*declarations: type, server: bool = False) -> Callable[[Command], Command]:
    """Replace the argument `options` of a command by one option per declared parameter.

    The command receives the values that were given, by name, in the types of the declarations.
    server: whether a server can run the command, which has defaults of its own.
    """
    fields = {field.name: field for field in declared_fields(*declarations)}
    added = [_parameter_of(field, server) for field in fields.values()]

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters

        @wraps(command)
        def run(**values: Any) -> None:
            options = {each.name: values.pop(each.name) for each in added}
            given = {
                each.name: _read(fields[each.name], options[each.name])
                for each in added
                if options[each.name] != each.default and options[each.name] != []
            }
            command(options=given, **values)

        every = [
            each for name, one in own.items() for each in (added if name == "options" else [one])
        ]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in keywords}
        return run

    return decorate


def _parameter_of(field: Field[Any], server: bool) -> inspect.Parameter:
    """Return a declared parameter as one of a function, with typer's annotation."""
    about, default = field.metadata, field.default
    kind, unit = about["kind"], about.get("unit")
    metavar = UNITS[unit][0] if unit else None
    help = about["help"] + (f": {', '.join(about['choices'])}" if "choices" in about else "")
    if server and "set_by_server" in about:
        help, default = f"{help}; default: set by the server", None
    elif "many" in about:
        help = f"{help}; repeatable"
    limits: dict[str, Any] = (
        {"min": about.get("low"), "max": about.get("high")} if kind is int else {}
    )
    if unit:
        kind, limits = str, {}
    if "many" in about:
        kind, metavar = list[kind], "NAME"  # type: ignore[valid-type]
    if default is None:
        kind |= None
    option = typer.Option(
        *about.get("flags", (f"--{field.name.replace('_', '-')}",)),
        help=f"{help[:1].upper()}{help[1:]}.",
        metavar=metavar,
        **limits,
    )
    annotation = Annotated[kind, option]  # type: ignore[valid-type]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=default, annotation=annotation)


def _read(field: Field[Any], value: Any) -> Any:
    """Return a value of an option in the type of the parameter. Raises InputError."""
    unit = field.metadata.get("unit")
    if unit is None:
        return value
    try:
        return UNITS[unit][1](value)
    except InputError as error:
        raise InputError(f"{field.name}: {error.message}", code=error.code) from None
