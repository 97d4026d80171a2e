"""The page docs/papers.md, from the rows and the committed results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.papers import ds_mlr, indexed_bcd, least_squares, memoir, ppdsparse
from benchmarks.papers.rows import Figure, Paper
from xcray.plots.axes import axis_around
from xcray.plots.marks import Panel, lines
from xcray.plots.picture import Picture

PAPERS = tuple(each.PAPER for each in (ppdsparse, ds_mlr, memoir, least_squares, indexed_bcd))
FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "papers.md"
PICTURES = PAGE.parent / "pictures"
HELD, NOT_HELD, NOT_REPEATED = "held", "did not hold", "not repeated here"
REFERENCES = FOLDER / "references.json"
COLUMNS = ("claim", "paper", "ours", "command", "same work?", "verdict")

HEAD = """# The five papers: what held

Made by `python -m benchmarks.papers` from `benchmarks/papers/*.json`; do not edit it.
`python -m benchmarks.papers --data DIR --only NAME` measures a row again: NAME is in the column
"command" of rows that are a name alone. DIR holds a directory for each data set, made by
`xcray data fetch NAME --out DIR/NAME`, or for clef_imclef07a (ImCLEF07A) and cooking (titles of
StackExchange, the tutorial of fastText) by `xcray data build xc TRAIN DIR/NAME --test TEST`.
Settings are those of the paper, or chosen on held-out training rows. Seconds are processor seconds of
one core of a busy machine: read ratios. A row with a figure holds if ours is as good, up to the noise
of the test rows, which is the tolerance in the code.
"""

REFERENCES_HEAD = """## Independent references

How far the objective of a published model is above that of another program, in percent of the
objective without weights: LIBLINEAR, scipy's L-BFGS-B and numpy's `solve`, in double precision, on two
sets of scikit-learn on which no parameter was chosen; rows are standardised. `python -m
benchmarks.papers --only references` measures them, and a drill holds them within the last column.
"""


def results(paper: Paper) -> dict[str, Any]:
    """Return the results of a paper.

    measured: by name of a row; noted: rows of other benchmarks, complete, in the order of the page.
    """
    path = FOLDER / f"{paper.name}.json"
    if not path.exists():
        return {"measured": {}, "noted": []}
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def save(paper: Paper, document: dict[str, Any]) -> None:
    """Write the results of a paper."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    (FOLDER / f"{paper.name}.json").write_text(text + "\n")


def table(paper: Paper) -> list[tuple[str, ...]]:
    """Return the rows of a paper's table, see COLUMNS."""
    document = results(paper)
    rows = []
    for row in paper.rows:
        measured = document["measured"].get(row.name)
        ours = measured["ours"] if measured else f"needs {', '.join(row.needs)}"
        verdict = measured["verdict"] if measured else NOT_REPEATED
        rows.append((row.claim, row.paper, ours, f"`{row.name}`", row.same, verdict))
    for each in document["noted"]:
        command = f"`{each['command']}`"
        values = (each["claim"], each["paper"], each["ours"], command, each["same"])
        rows.append((*values, each["verdict"]))
    return rows


def figures(paper: Paper) -> Iterator[tuple[str, str, Figure]]:
    """Yield (file, command, figure) for each measured row with a figure."""
    measured = results(paper)["measured"]
    for row in paper.rows:
        if found := measured.get(row.name, {}).get("figure"):
            yield f"{row.name}.svg", f"--only {row.name}", Figure(**found)


def draw_figures(folder: Path) -> None:
    """Draw the figures of all papers from the results."""
    for paper in PAPERS:
        for file, command, figure in figures(paper):
            points = [point for curve in figure.curves.values() for point in curve]
            x, y = (
                axis_around(label, [point[i] for point in points], is_log=figure.scales[i])
                for i, label in enumerate(figure.axes)
            )
            curves = lines([(name, [(a, b) for a, b in at]) for name, at in figure.curves.items()])
            panel = Panel(figure.title, x, y, curves, height=280)
            note = f"python -m benchmarks.papers --data DIR {command}"
            Picture(paper.title, note, (panel,)).write(folder / file)


def counts(rows: list[tuple[str, ...]]) -> str:
    """Return "3 held, 1 did not hold, 2 not repeated here"."""
    found = Counter(row[-1] for row in rows)
    return ", ".join(f"{found[each]} {each}" for each in (HELD, NOT_HELD, NOT_REPEATED))


def page() -> str:
    """Return docs/papers.md."""
    tables = {paper.name: table(paper) for paper in PAPERS}
    lines = [HEAD, "| paper | rows |", "|---|---|"]
    lines += [f"| {paper.title} | {counts(tables[paper.name])} |" for paper in PAPERS]
    lines += [f"| all | {counts([row for rows in tables.values() for row in rows])} |", ""]
    for paper in PAPERS:
        notebook = f"[a notebook](../notebooks/{paper.name}.ipynb)"
        lines += [f"## {paper.title}", "", f"{paper.reference}. Its figures: {notebook}.", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [
            f"| {' | '.join(_cell(each) for each in row)} |" for row in _short(tables[paper.name])
        ]
        lines += [""]
        drawn = [(file, figure.title) for file, _, figure in figures(paper)]
        for file, caption in (*paper.pictures, *drawn):
            lines += [f"![{caption}](pictures/{file})", ""]
        lines += ["Not repeated here:", ""]
        lines += [f"- {what}: {why}." for what, why in paper.missing]
        lines += [""]
    return "\n".join([*lines, *_references()]).rstrip() + "\n"


def _short(rows: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield rows whose long notes are not repeated from one row to the next."""
    at, note = COLUMNS.index("same work?"), ""
    for row in rows:
        is_same = row[at] == note and len(note) > len("as above")
        yield (*row[:at], "as above" if is_same else row[at], *row[at + 1 :])
        note = row[at]


def _references() -> list[str]:
    """Return the section about independent references."""
    lines = json.loads(REFERENCES.read_text())
    sets = [name for name in lines[0] if name not in ("solver", "params", "allowed")]
    rows = []
    for line in lines:
        params = ", ".join(f"{name}={value}" for name, value in sorted(line["params"].items()))
        figures = " | ".join(f"{line[name]:.4f}" for name in sets)
        rows.append(f"| `{line['solver']}` | {params} | {figures} | {line['allowed']:g} |")
    head = f"| solver | parameters | {' | '.join(sets)} | allowed |"
    return [REFERENCES_HEAD, head, "|---" * (3 + len(sets)) + "|", *rows]


def _cell(text: str) -> str:
    """Return the text of a cell."""
    return text.replace("|", "\\|").replace("\n", " ")
