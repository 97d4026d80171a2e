"""Figures as a Markdown table, into docs/reliability.md between its marks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.catalogue import ROWS

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEAD = (
    "| # | fault | injected by | N | lost | dup. | wrong | recovery p50 / max, s | redone at most | more | also in |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
USUAL = ("private namespaces",)


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The figures of files that `--json` wrote, the later of two for a row."""
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines() if line.startswith("{")]
    found = {each["row"]: each for each in lines if "row" in each}
    return sorted(found.values(), key=lambda each: int(each["row"].lstrip("F") or 0) if each["row"][1:].isdecimal() else 99)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""
    return "\n".join([HEAD, *(_line(each) for each in rows)])


def into(page: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the table between the marks of a page, with the load of the machine it was measured on."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{page} lacks the marks {BEGIN} and {END}"
    loads = [each["load"] for each in rows]
    seconds = sum(each["seconds"] for each in rows)
    said = f"{os.cpu_count()} cores; load average {min(loads):.1f} to {max(loads):.1f} as rows began; {seconds:.0f} s in all."
    page.write_text(f"{before}{BEGIN}\n{said}\n\n{markdown(rows)}\n{END}{after}")


def _line(each: dict[str, Any]) -> str:
    """One row."""
    pace = "" if each["recovery_p50"] is None else f"{each['recovery_p50']:.1f} / {each['recovery_max']:.1f}"
    redone = "" if each["redone_max"] is None else f"{each['redone_max']:.0%}"
    facts = [f"{name.replace('_', ' ')} {value}" for name, value in each["facts"].items()]
    more = "; ".join([*facts, *(note for note in each["notes"] if note not in USUAL), *each["broken"][:2]])
    tests = ROWS[each["row"]].tests if each["row"] in ROWS else ()
    also = ", ".join(dict.fromkeys(name.split("::")[0].removeprefix("tests/") for name in tests))
    cells = (
        each["row"],
        each["title"],
        each["injected"],
        each["runs"],
        each["lost"],
        each["duplicated"],
        each["wrong"],
        pace,
        redone,
        more,
        also,
    )
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
