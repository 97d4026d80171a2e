"""`xcray solvers`: the solvers and their parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.completion import complete_solvers


def solvers(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOLVER]",
            help="Show the parameters of this solver.",
            autocompletion=complete_solvers,
        ),
    ] = None,
) -> None:
    """List the solvers, or the parameters of one: default, range, meaning."""
    from xcray.solvers import describe_solver, loaded_solvers

    if name is None:
        names, broken = loaded_solvers()
        descriptions = [describe_solver(each) for each in names]
        for error in broken:
            output.print_note(f"{error.message}; {error.hint}", always=True)
    else:
        descriptions = [describe_solver(name)]
    output.print_json({"solvers": descriptions})
    if name is None:
        for title, is_baseline in (("solver", False), ("baseline", True)):
            rows = [
                [each["name"], each["family"], each["help"]]
                for each in descriptions
                if each["baseline"] == is_baseline
            ]
            output.print_table([title, "family", "what it solves"], rows)
    else:
        output.print_line(f"{descriptions[0]['name']}: {descriptions[0]['help']}")
        rows = [
            [each["name"], str(each["default"]), format_range(each), each["help"]]
            for each in descriptions[0]["parameters"]
        ]
        output.print_table(["parameter", "default", "range", "meaning"], rows)


def format_range(row: dict[str, Any]) -> str:
    """Format the range of a parameter: `> 0`, `1 to 100`, `a, b`."""
    if "choices" in row:
        return ", ".join(row["choices"])
    low = f"> {row['above']}" if "above" in row else f">= {row['low']}" if "low" in row else ""
    high = f"<= {row['high']}" if "high" in row else ""
    return ", ".join(part for part in (low, high) if part)
