"""python -m tests.deployment.chart.values_table: write the table of values into the chart's README,
from the comments in values.yaml.

Each key that holds no keys of its own has a comment `# -- ...` right above it, which may go on in
lines that begin with `#`. A key whose content is meant as a whole (a map of free keys) has one too.
Exit status: 0 done, 1 a key has no comment.
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
    """A line of the table. path: keys from the top; text: what the comment says; value: the
    default.
    """

    path: tuple[str, ...]
    text: str
    value: Any


def rows(text: str) -> tuple[list[Row], list[str]]:
    """The rows for a values.yaml, and the keys that should have a comment and have none."""
    values = yaml.safe_load(text)
    found: list[Row] = []
    bare: list[str] = []
    path: list[tuple[int, str]] = []
    said: list[str] = []
    below: tuple[
        int, ...
    ] = ()  # the indent of a commented key with content: nothing below it needs a comment
    for line in text.splitlines():
        bit = line.strip()
        if bit.startswith("# -- "):
            said = [bit.removeprefix("# -- ")]
        elif bit.startswith("#") and said:
            said.append(bit.removeprefix("#").strip())
        elif key := KEY.fullmatch(line):
            indent, name = len(key["indent"]), key["name"]
            path = [*(each for each in path if each[0] < indent), (indent, name)]
            if not (below and indent > below[0]):
                below = ()
                names = tuple(each for _, each in path)
                value = value_at(values, names)
                if said:
                    found.append(Row(names, " ".join(said), value))
                    below = (indent,) if isinstance(value, (dict, list)) and value else ()
                elif not (isinstance(value, dict) and value):
                    bare.append(".".join(names))
            said = []
        else:
            said = []
    return found, bare


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    """What lies at a path."""
    for name in path:
        values = values[name]
    return values


def table(text: str) -> str:
    """The table as Markdown, a part for each key at the top that holds others; single keys come
    first.
    """
    parts: dict[str, list[str]] = {"one by one": []}
    for row in rows(text)[0]:
        cells = f"`{'.'.join(row.path)}`", shown(row.value), row.text.replace("|", "\\|")
        parts.setdefault(row.path[0] if len(row.path) > 1 else "one by one", []).append(
            f"| {' | '.join(cells)} |"
        )
    return "\n\n".join(
        "\n".join([f"### {part}", "", "| key | default | what |", "|---|---|---|", *lines])
        for part, lines in parts.items()
    )


def shown(value: Any) -> str:
    """A default in a cell: short as JSON, empty texts as nothing."""
    if value in ("", None):
        return ""
    return f"`{json.dumps(value)}`".replace("|", "\\|")


def renewed(page: str, text: str) -> str:
    """The page with the table of these values between its two marks. Raises ValueError when it has
    none.
    """
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(text)}\n\n{END}{after}"


def main() -> int:
    """Renew the chart's README."""
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
