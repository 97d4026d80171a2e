"""Command output: tables, lines or JSON on stdout; errors and notes on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xcray.errors import InputError, NotFound, Stopped, XcrayError

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

JSON_HELP: Final = (
    "Print one JSON document on stdout and errors as JSON on stderr, without progress."
)


class Mode:
    """How the running command prints: one JSON document, or texts for people.

    A command passes its document to `print_json`, and its texts to the other functions: each writes
    in its own mode only.
    """

    is_json = False


def set_json(value: bool) -> None:
    """Set the mode of the command, which --json chooses."""
    Mode.is_json = value


def is_json() -> bool:
    """Return whether the command prints JSON."""
    return Mode.is_json


def print_json(document: Any) -> None:
    """Write one JSON document to stdout if --json was given; non-finite numbers become null."""
    if Mode.is_json:
        text = json.dumps(replace_non_finite(document), indent=2, ensure_ascii=False, default=str)
        print(text, flush=True)  # a service goes on after it has printed its address


def replace_non_finite(value: Any) -> Any:
    """Return the document with null for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(name): replace_non_finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_line(text: str = "") -> None:
    """Write one line to stdout, unless --json was given."""
    if not Mode.is_json:
        print(printable(text), flush=True)


def print_note(text: str, *, always: bool = False) -> None:
    """Write one line to stderr, so that notes never mix with results.

    always: also with --json, for what people must see of a command that runs or changes something.
    """
    if always or not Mode.is_json:
        print(printable(text), file=sys.stderr, flush=True)


def printable(text: Any) -> str:
    """Escape control characters, so that names in data cannot control the terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in str(text)
    )


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows below headers: aligned on a terminal, tab-separated elsewhere."""
    if Mode.is_json:
        return
    lines = [[format_cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*headers], *lines):
            print("\t".join(line))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*headers, box=None, header_style="bold", pad_edge=False)
    for line in lines:
        drawn.add_row(*(Text(each) for each in line))
    Console().print(drawn)


def print_pairs(values: Mapping[str, Any]) -> None:
    """Write one aligned line per value."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        print_line(f"{name:<{width}}  {format_cell(value)}")


def format_cell(value: Any) -> str:
    """Format a value: thousands separators, floats with four digits, a dash for nothing.

    A mapping is a list of "name: value".
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {format_cell(item)}" for name, item in value.items()) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(printable(each) for each in value) or "-"
    return printable(value)


def print_error(problem: Mapping[str, Any]) -> None:
    """Write an error to stderr: one line and its hint, or one JSON document."""
    if Mode.is_json:
        print(
            json.dumps(replace_non_finite(problem), ensure_ascii=False, default=str),
            file=sys.stderr,
        )
        return
    print_note(f"error {problem['code']}: {problem['message']}")
    for line in problem.get("errors", [])[1:]:
        print_note(f"  {line.get('message', line) if isinstance(line, Mapping) else line}")
    if problem.get("hint"):
        print_note(f"  hint: {problem['hint']}")


def print_warnings(warnings: Iterable[Mapping[str, Any]]) -> None:
    """Write warnings with a code and a message to stderr, one line each."""
    for each in warnings:
        print_note(f"warning {each['code']}: {each['message']}")


def exit_code_of(error: XcrayError) -> int:
    """Return the exit code: 2 for bad input, 130 for a requested stop, else 1."""
    if isinstance(error, Stopped):
        return INTERRUPTED
    return BAD_INPUT if isinstance(error, InputError | NotFound) else FAILURE


def parse_assignments(
    pairs: Sequence[str] | None, form: str = "NAME=VALUE", example: str = "lam=0.01"
) -> dict[str, str]:
    """Parse ["lam=0.01"] to {"lam": "0.01"}.

    Raises InputError, with the form and an example, if an item has no name or no equals sign.
    """
    out = {}
    for each in pairs or ():
        name, equals, value = each.partition("=")
        if not (equals and name.strip()):
            raise InputError(
                f"{each[:80]!r} is not {form}; write for example {example}", code="USAGE"
            )
        out[name.strip()] = value
    return out
