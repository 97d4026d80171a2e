"""Results on stdout: tables and lines for people, one JSON document for machines. Errors and notes on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from xcray.errors import InputError, NotFound, Stopped, XcrayError

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="One JSON document on stdout; errors as JSON on stderr; no progress."
    ),
]


def emit(document: Any) -> None:
    """Write one JSON document to stdout; numbers that JSON can't hold become null."""
    print(json.dumps(finite(document), indent=2, ensure_ascii=False, default=str))


def finite(value: Any) -> Any:
    """The same document with null for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str = "") -> None:
    """A line for people, on stdout."""
    print(printable(text), flush=True)


def note(text: str) -> None:
    """A remark for people, on stderr, so that it never mixes with results."""
    print(printable(text), file=sys.stderr, flush=True)


def printable(text: Any) -> str:
    """Text that can't steer a terminal: names in data are data, their control characters arrive escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in str(text)
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows below headers: aligned on a terminal, separated by tabs elsewhere."""
    lines = [[cell(value) for value in row] for row in rows]
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


def pairs(values: Mapping[str, Any]) -> None:
    """One aligned line a value."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        say(f"{name:<{width}}  {cell(value)}")


def cell(value: Any) -> str:
    """A value as people read it: thousands separated, floats with four digits, nothing as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(printable(each) for each in value) or "-"
    return printable(value)


def bytes_of(n: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def fail(problem: Mapping[str, Any], as_json: bool) -> None:
    """Write an error to stderr: one line and its hint, or one JSON document."""
    if as_json:
        print(json.dumps(finite(problem), ensure_ascii=False, default=str), file=sys.stderr)
        return
    note(f"error {problem['code']}: {problem['message']}")
    for line in problem.get("errors", [])[1:]:
        note(f"  {line.get('message', line) if isinstance(line, Mapping) else line}")
    if problem.get("hint"):
        note(f"  hint: {problem['hint']}")


def status_of(error: XcrayError) -> int:
    """The exit code: 2 when the caller can mend it, 130 when stopped on request, else 1."""
    if isinstance(error, Stopped):
        return INTERRUPTED
    return BAD_INPUT if isinstance(error, InputError | NotFound) else FAILURE


def assignments(given: Sequence[str] | None) -> dict[str, str]:
    """{"lam": "0.01"} of ["lam=0.01"]. Raises InputError for anything that is not NAME=VALUE."""
    out = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (equals and name.strip()):
            raise InputError(
                f"{each[:80]!r} is not NAME=VALUE; write for example lam=0.01", code="USAGE"
            )
        out[name.strip()] = value
    return out
