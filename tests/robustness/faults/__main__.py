"""Play rows of the fault catalogue.

Usage: python -m tests.robustness.faults ROW [--runs N] [--seed N] [--json FILE] | all [--page FILE]
| chaos [--minutes N] | table FILES.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.robustness.faults import (
    chaos,
    rows_api,
    rows_disk,
    rows_ray,
    rows_runners,
    rows_serving,
    rows_store,
    table,
)
from tests.robustness.faults.catalogue import ROWS, Row, in_order
from tests.robustness.faults.measurements import Measurements
from tests.robustness.faults.stage import LAST_WORDS, ROOT, enter, stage

RUNS_OF_LIMIT = 5  # the time limit of a row is for this number of runs
# The imports register the rows.
FILES = (
    chaos,
    rows_api,
    rows_disk,
    rows_ray,
    rows_runners,
    rows_serving,
    rows_store,
)


def main(values: list[str]) -> int:
    """Run the command; return 0 if every promise was kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.faults", description=__doc__)
    parser.add_argument("row", help="F1 to F31, all, chaos, or table")
    parser.add_argument("files", nargs="*", type=Path, help="table: what --json wrote")
    parser.add_argument("--runs", type=int, default=5, help="how often a fault is injected")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the measurements there, too")
    parser.add_argument("--small", action="store_true", help="the quick form of the test suite")
    parser.add_argument(
        "--plain", action="store_true", help="no namespaces, also where they are allowed"
    )
    parser.add_argument(
        "--page", type=Path, help="all: write the table between the marks of this page"
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="all: rows played side by side; their seconds suffer"
    )
    parser.add_argument("--only", default="", help="all: these rows, with commas")
    parser.add_argument("--minutes", type=float, default=5.0, help="chaos: how long")
    parser.add_argument(
        "--store", choices=("postgres", "sqlite"), default="postgres", help="chaos: which store"
    )
    chosen = parser.parse_args(values)
    if chosen.row == "table":
        print(table.markdown(table.read(chosen.files)))
        return 0
    if chosen.row == "all":
        return everything(chosen)
    if chosen.row != "chaos" and chosen.row not in ROWS:
        parser.error(
            f"there is no row {chosen.row}: use one of {', '.join(each.number for each in in_order())}, all, chaos, table"
        )
    if chosen.json is not None:
        values[values.index("--json") + 1 if "--json" in values else -1] = str(
            chosen.json.absolute()
        )
        chosen.json = chosen.json.absolute()
    enter(values, chosen.plain)
    if chosen.row == "chaos":
        return write_measurements(
            chaos.play(chosen.minutes, chosen.seed, chosen.store), chosen.json
        )
    return write_measurements(play(ROWS[chosen.row], chosen), chosen.json)


def play(row: Row, chosen: Any) -> Measurements:
    """Play one row; an exception counts as a wrong state."""
    with stage(
        row.number, row.title, runs=chosen.runs, seed=chosen.seed, small=chosen.small
    ) as here:
        here.measurements.injected = row.injected
        try:
            row.play(here)
        except Exception as error:
            traceback.print_exc()
            here.measurements.fault(f"{type(error).__name__}: {str(error)[:500]}")
            for log in sorted(here.folder.glob("*.log")):
                print(
                    f"--- {log.name}\n"
                    + "\n".join(log.read_text(errors="replace").splitlines()[-30:]),
                    file=sys.stderr,
                )
    return here.measurements


def write_measurements(measurements: Measurements, to: Path | None) -> int:
    """Print the measurements, as JSON in the last line, and return the exit status."""
    for sentence in measurements.broken:
        print(f"{measurements.row} BROKEN {sentence}")
    print(measurements.line())
    if to is not None:
        to.write_text(measurements.line() + "\n")
    return 0 if measurements.ok else 1


def everything(chosen: Any) -> int:
    """Play each row in its own process and namespaces; write one JSON line per row and the table.

    A failing row does not stop the others. SIGTERM ends the running rows and starts no more; the
    rows played so far are written.
    """
    began, ending = time.monotonic(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    expected = set(chosen.only.split(",")) if chosen.only else set(ROWS)
    rows = [each for each in in_order() if each.number in expected]
    with ThreadPoolExecutor(chosen.at_once) as pool:
        lines = [
            each
            for each in pool.map(lambda row: _run_in_subprocess(row, chosen, ending), rows)
            if each is not None
        ]
    if chosen.json is not None:
        chosen.json.write_text("".join(json.dumps(each, sort_keys=True) + "\n" for each in lines))
    if chosen.page is not None:
        table.into(chosen.page, lines, runs=chosen.runs, small=chosen.small)
    bad = [each["row"] for each in lines if not each["ok"]]
    left = [each.number for each in rows if each.number not in {line["row"] for line in lines}]
    seconds = round(time.monotonic() - began)
    print(
        json.dumps(
            {
                "rows": len(lines),
                "broken": bad,
                "not_played": left,
                "seconds": seconds,
                "load": os.getloadavg()[0],
            }
        )
    )
    return 1 if bad or left else 0


def _run_in_subprocess(row: Row, chosen: Any, ending: threading.Event) -> dict[str, Any] | None:
    """Play one row in its own process within its time limit and return its measurements.

    Returns None if the row was not started.
    """
    if ending.is_set():
        return None
    words = [
        sys.executable,
        "-m",
        "tests.robustness.faults",
        row.number,
        "--runs",
        str(chosen.runs),
        "--seed",
        str(chosen.seed),
    ]
    words += ["--small"] * chosen.small + ["--plain"] * chosen.plain
    began = time.monotonic()
    limit = row.limit * max(1.0, chosen.runs / RUNS_OF_LIMIT)
    with (
        tempfile.TemporaryFile("w+") as report,
        subprocess.Popen(words, cwd=ROOT, stdout=report) as process,
    ):
        while process.poll() is None and time.monotonic() - began < limit and not ending.is_set():
            time.sleep(0.1)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(LAST_WORDS + 10.0)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        report.seek(0)
        output = report.read()
    measurements = _last(output) or _silent(row, process.returncode, time.monotonic() - began)
    message = "kept" if measurements["ok"] else f"BROKEN: {measurements['broken']}"
    print(f"{row.number:4s} {measurements['seconds']:6.1f} s  {message}", flush=True)
    return measurements


def _last(output: str) -> dict[str, Any] | None:
    """Return the measurements that a row printed at its end, or None if it printed none."""
    with contextlib.suppress(ValueError):
        document = json.loads((output.splitlines() or [""])[-1])
        return document if isinstance(document, dict) else None
    return None


def _silent(row: Row, code: int, seconds: float) -> dict[str, Any]:
    """Return the measurements of a row that printed none."""
    measurements = Measurements(row.number, row.title, row.injected, seconds=round(seconds, 1))
    measurements.fault(
        f"no measurements: it ended with {code} after {seconds:.0f} s of {row.limit:.0f}"
    )
    return measurements.as_dict()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of an interrupted row can still be running
