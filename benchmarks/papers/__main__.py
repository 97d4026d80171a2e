"""Measure the claims of the five papers, and write docs/papers.md.

python -m benchmarks.papers --data DIR [--only NAME ...]
python -m benchmarks.papers --only references
python -m benchmarks.papers

DIR: see `benchmarks.harness.dataset`; `xcray data fetch NAME --out DIR/NAME` gets public sets.
--only measures these rows, or all rows of a paper (ppdsparse, ds_mlr, memoir, least_squares,
indexed_bcd); by default all rows whose sets are in DIR. Results replace those of the same rows in
benchmarks/papers/*.json. references: see `benchmarks.papers.references`. Without --data the page
is made from the results alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.papers import references
from benchmarks.papers.page import (
    HELD,
    NOT_HELD,
    PAGE,
    PAPERS,
    PICTURES,
    REFERENCES,
    draw_figures,
    page,
    results,
    save,
)
from benchmarks.papers.rows import Bench, Paper, Row


def is_present(row: Row, data: Path) -> bool:
    """Return whether the data sets of a row are there."""
    return all((data / name).exists() for name in row.needs)


def chosen_rows(only: list[str], data: Path) -> list[tuple[Paper, Row]]:
    """Return the rows to measure. Raises SystemExit for a name that no row has."""
    rows = [(paper, row) for paper in PAPERS for row in paper.rows]
    names = {each for paper, row in rows for each in (paper.name, row.name)}
    for name in set(only) - names:
        raise SystemExit(f"there is no row {name!r}; rows: {', '.join(sorted(names))}")
    if only:
        return [(paper, row) for paper, row in rows if {paper.name, row.name} & set(only)]
    return [(paper, row) for paper, row in rows if is_present(row, data)]


def measure(data: Path, only: list[str], folder: Path) -> None:
    """Measure rows, and save each result at once."""
    bench = Bench(data, folder)
    for paper, row in chosen_rows(only, data):
        outcome = row.run(bench)
        verdict = HELD if outcome.held else NOT_HELD
        print(f"{row.name}: {outcome.ours}: {verdict}", flush=True)
        document = results(paper)
        today = datetime.now(UTC).date().isoformat()
        measured = {"ours": outcome.ours, "verdict": verdict, "date": today}
        figure = {} if outcome.figure is None else {"figure": outcome.figure._asdict()}
        document["measured"][row.name] = measured | figure
        save(paper, document)


def main() -> None:
    """Measure if there is --data; write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="directory of data sets")
    parser.add_argument("--only", nargs="+", default=[], help="rows or papers to measure")
    options = parser.parse_args()
    if options.only == ["references"]:
        with tempfile.TemporaryDirectory(prefix="xcray-papers-") as folder:
            lines = references.measure(Path(folder))
        REFERENCES.write_text(json.dumps(lines, indent=1) + "\n")
    elif options.data:
        with tempfile.TemporaryDirectory(prefix="xcray-papers-") as folder:
            measure(options.data, options.only, Path(folder))
    draw_figures(PICTURES)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
