"""Write the table of values into the chart's README, from the comments in values.yaml.

    python -m tests.deployment.chart.values_table

Each key without keys of its own has a comment `# -- ...` right above it, which can continue in
lines that begin with `#`. So has a key whose content belongs together (a map with free keys).
The exit status is 0 on success and 1 if a key has no comment.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHART = Path(__file__).parents[3] / "helm" / "xcray"
BEGIN, END = "<!-- values -->", "<!-- end of values -->"
KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z_][A-Za-z0-9_]*):(?P<rest>.*)")


class Row(NamedTuple):
    """A line of the table.

    path: keys from the top level. text: the comment. value: the default.
    """

    path: tuple[str, ...]
    text: str
    value: Any


def rows(text: str) -> tuple[list[Row], list[str]]:
    """Return the rows for a values.yaml, and the keys whose comment is missing."""
    values = yaml.safe_load(text)
    results: list[Row] = []
    bare: list[str] = []
    path: list[tuple[int, str]] = []
    messages: list[str] = []
    below: tuple[int, ...] = ()  # indent of a commented key; keys below it need no comment
    for line in text.splitlines():
        bit = line.strip()
        if bit.startswith("# -- "):
            messages = [bit.removeprefix("# -- ")]
        elif bit.startswith("#") and messages:
            messages.append(bit.removeprefix("#").strip())
        elif key := KEY.fullmatch(line):
            indent, name = len(key["indent"]), key["name"]
            path = [*(each for each in path if each[0] < indent), (indent, name)]
            if not (below and indent > below[0]):
                below = ()
                names = tuple(each for _, each in path)
                value = value_at(values, names)
                if messages:
                    results.append(Row(names, " ".join(messages), value))
                    below = (indent,) if isinstance(value, (dict, list)) and value else ()
                elif not (isinstance(value, dict) and value):
                    bare.append(".".join(names))
            messages = []
        else:
            messages = []
    return results, bare


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path."""
    for name in path:
        values = values[name]
    return values


def table(text: str) -> str:
    """Return the table as Markdown: first the single keys, then a part per top-level key."""
    parts: dict[str, list[str]] = {"one by one": []}
    for row in rows(text)[0]:
        cells = f"`{'.'.join(row.path)}`", format_default(row.value), row.text.replace("|", "\\|")
        parts.setdefault(row.path[0] if len(row.path) > 1 else "one by one", []).append(
            f"| {' | '.join(cells)} |"
        )
    return "\n\n".join(
        "\n".join([f"### {part}", "", "| key | default | what |", "|---|---|---|", *lines])
        for part, lines in parts.items()
    )


def format_default(value: Any) -> str:
    """Return a default as a cell: short JSON, and nothing for empty text."""
    if value in ("", None):
        return ""
    return f"`{json.dumps(value)}`".replace("|", "\\|")


def renewed(page: str, text: str) -> str:
    """Return the page with the new table between its two marks.

    Raises ValueError if the page has no marks.
    """
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(text)}\n\n{END}{after}"


def main() -> int:
    """Update the chart's README."""
    text = (CHART / "values.yaml").read_text()
    if bare := rows(text)[1]:
        print(f"without a comment `# -- ...` above: {', '.join(bare)}")
        return 1
    page = CHART / "README.md"
    page.write_text(renewed(page.read_text(), text))
    print(f"{page.name}: {len(rows(text)[0])} values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
