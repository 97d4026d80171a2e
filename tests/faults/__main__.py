"""python -m tests.faults ROW [--runs N] [--seed N] [--json FILE] | all [--page FILE] | chaos [--minutes N] | table FILES."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults import chaos, rows_api, rows_disk, rows_ray, rows_runners, rows_serving, rows_store, table
from tests.faults.catalogue import ROWS, Row, in_order
from tests.faults.figures import Figures
from tests.faults.stage import ROOT, enter, stage

FILES = (chaos, rows_api, rows_disk, rows_ray, rows_runners, rows_serving, rows_store)  # importing them fills the catalogue


def main(given: list[str]) -> int:
    """Exit status: 0 every promise was kept, 1 not."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("row", help="F1 to F30, all, chaos, or table")
    parser.add_argument("files", nargs="*", type=Path, help="table: what --json wrote")
    parser.add_argument("--runs", type=int, default=5, help="how often a fault is injected")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--small", action="store_true", help="the quick form of the test suite")
    parser.add_argument("--plain", action="store_true", help="no namespaces, also where they are allowed")
    parser.add_argument("--page", type=Path, help="all: write the table between the marks of this page")
    parser.add_argument("--at-once", type=int, default=1, help="all: rows played side by side; their seconds suffer")
    parser.add_argument("--only", default="", help="all: these rows, with commas")
    parser.add_argument("--minutes", type=float, default=5.0, help="chaos: how long")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres", help="chaos: which store")
    chosen = parser.parse_args(given)
    if chosen.row == "table":
        print(table.markdown(table.read(chosen.files)))
        return 0
    if chosen.row == "all":
        return everything(chosen)
    if chosen.row != "chaos" and chosen.row not in ROWS:
        parser.error(f"there is no row {chosen.row}: use one of {', '.join(each.number for each in in_order())}, all, chaos, table")
    if chosen.json is not None:
        given[given.index("--json") + 1 if "--json" in given else -1] = str(chosen.json.absolute())
        chosen.json = chosen.json.absolute()
    enter(given, chosen.plain)
    if chosen.row == "chaos":
        return told(chaos.play(chosen.minutes, chosen.seed, chosen.store), chosen.json)
    return told(play(ROWS[chosen.row], chosen), chosen.json)


def play(row: Row, chosen: Any) -> Figures:
    """Play one row. What raises counts as a wrong state, with its place."""
    with stage(row.number, row.title, runs=chosen.runs, seed=chosen.seed, small=chosen.small) as here:
        here.figures.injected = row.injected
        try:
            row.play(here)
        except Exception as error:
            traceback.print_exc()
            here.figures.fault(f"{type(error).__name__}: {str(error)[:500]}")
            for log in sorted(here.folder.glob("*.log")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]), file=sys.stderr)
    return here.figures


def told(figures: Figures, to: Path | None) -> int:
    """Print the figures, the last line as JSON; the exit status."""
    for sentence in figures.broken:
        print(f"{figures.row} BROKEN {sentence}")
    print(figures.line())
    if to is not None:
        to.write_text(figures.line() + "\n")
    return 0 if figures.ok else 1


def everything(chosen: Any) -> int:
    """Each row in a process and namespaces of its own; one JSON line a row, and the table into a page when one is named."""
    began = time.monotonic()
    wanted = set(chosen.only.split(",")) if chosen.only else set(ROWS)
    rows = [each for each in in_order() if each.number in wanted]
    with ThreadPoolExecutor(chosen.at_once) as pool:
        lines = [*pool.map(lambda row: _alone(row, chosen), rows)]
    if chosen.json is not None:
        chosen.json.write_text("".join(json.dumps(each, sort_keys=True) + "\n" for each in lines))
    if chosen.page is not None:
        table.into(chosen.page, lines)
    bad = [each["row"] for each in lines if not each["ok"]]
    print(json.dumps({"rows": len(lines), "broken": bad, "seconds": round(time.monotonic() - began), "load": os.getloadavg()[0]}))
    return 1 if bad else 0


def _alone(row: Row, chosen: Any) -> dict[str, Any]:
    """The figures of one row, played by a process of its own."""
    words = [sys.executable, "-m", "tests.faults", row.number, "--runs", str(chosen.runs), "--seed", str(chosen.seed)]
    words += ["--small"] * chosen.small + ["--plain"] * chosen.plain
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, timeout=row.limit, text=True, env=dict(os.environ))
        line = (done.stdout.splitlines() or [""])[-1]
    except subprocess.TimeoutExpired:
        line = ""
    figures = json.loads(line) if line.startswith("{") else _hung(row)
    said = "kept" if figures["ok"] else f"BROKEN: {figures['broken']}"
    print(f"{row.number:4s} {figures['seconds']:6.1f} s  {said}", flush=True)
    return dict(figures)


def _hung(row: Row) -> dict[str, Any]:
    """The figures of a row that gave none."""
    figures = Figures(row.number, row.title, row.injected, seconds=row.limit)
    figures.fault(f"no figures within {row.limit:.0f} s")
    return figures.as_dict()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
