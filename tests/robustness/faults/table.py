"""Write measurements as a Markdown table into docs/reliability.md, between its marks."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.robustness.faults.catalogue import ROWS
from tests.robustness.faults.stage import ROOT

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEAD = (
    "| # | fault | injected by | N | lost | dup. | wrong | recovery p50 / max, s | redone at most | more | also in |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
USUAL = ("private namespaces",)


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the measurements in files written by `--json`; the last line of a row counts."""
    lines = [
        json.loads(line)
        for path in files
        for line in path.read_text().splitlines()
        if line.startswith("{")
    ]
    results = {each["row"]: each for each in lines if "row" in each}
    return sorted(
        results.values(),
        key=lambda each: int(each["row"].lstrip("F") or 0) if each["row"][1:].isdecimal() else 99,
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    return "\n".join([HEAD, *(_line(each) for each in rows)])


def into(page: Path, rows: Sequence[dict[str, Any]], *, runs: int, small: bool) -> None:
    """Write the table between the marks of a page.

    A sentence before it states the command, the time and the machine.
    """
    before, _, rest = page.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{page} does not contain the marks {BEGIN} and {END}"
    page.write_text(f"{before}{BEGIN}\n{_how(rows, runs, small)}\n\n{markdown(rows)}\n{END}{after}")


def _how(rows: Sequence[dict[str, Any]], runs: int, small: bool) -> str:
    """Return a sentence on the command, the machine and the rows that were not played."""
    cores, memory = os.cpu_count(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    loads, seconds = [each["load"] for each in rows], sum(each["seconds"] for each in rows)
    played = {each["row"] for each in rows}
    left = [name for name in sorted(ROWS, key=lambda name: int(name[1:])) if name not in played]
    return " ".join(
        [
            f"`python -m tests.robustness.faults all --runs {runs}{' --small' if small else ''}` of {_commit()}, with Python",
            f"{platform.python_version()} on {platform.system()}, {cores} cores and {memory:.0f} GiB, whose load average was",
            f"{min(loads, default=0.0):.1f} to {max(loads, default=0.0):.1f} as rows began; {seconds / 60:.0f} minutes in all.",
            f"Not played: {', '.join(left)}." if left else f"All {len(played)} rows.",
        ]
    )


def _commit() -> str:
    """Return the commit and its date, and whether the tree was changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        process = subprocess.run(
            [*git, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", "xcray", "tests/robustness/faults"], check=False
        ).returncode
    except (OSError, subprocess.CalledProcessError):
        return "a tree without git"
    return f"commit {process}{', with changes' if changed else ''}"


def _line(each: dict[str, Any]) -> str:
    """Return the line of one row."""
    pace = (
        ""
        if each["recovery_p50"] is None
        else f"{each['recovery_p50']:.1f} / {each['recovery_max']:.1f}"
    )
    redone = "" if each["redone_max"] is None else f"{each['redone_max']:.0%}"
    details = [f"{name.replace('_', ' ')} {value}" for name, value in each["details"].items()]
    more = "; ".join(
        [*details, *(note for note in each["notes"] if note not in USUAL), *each["broken"][:2]]
    )
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
