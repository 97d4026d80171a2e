"""Play rows of the fault catalogue.

Usage: python -m tests.robustness.faults ROW [--runs N] [--seed N] [--json FILE] | all
| chaos [--minutes N].
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
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
)
from tests.robustness.faults.catalogue import ROWS, TESTED, Row, in_order
from tests.robustness.faults.measurements import Measurements, table_line
from tests.robustness.faults.stage import LAST_WORDS, ROOT, enter, stage

RUNS_OF_LIMIT = 5  # the time limit of a row is for this number of runs
# The imports register the rows.
FILES = (chaos, rows_api, rows_disk, rows_ray, rows_runners, rows_serving, rows_store)


def main(values: list[str]) -> int:
    """Run the command; return 0 if every promise was kept, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.faults", description=__doc__)
    parser.add_argument(
        "row", help="F1 to F31, all or chaos", choices=[*ROWS, *TESTED, "all", "chaos"]
    )
    parser.add_argument("--runs", type=int, default=5, help="how often a fault is injected")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the measurements there, too")
    parser.add_argument("--small", action="store_true", help="the quick form of the test suite")
    parser.add_argument("--minutes", type=float, default=5.0, help="chaos: how long")
    parser.add_argument(
        "--store", choices=("postgres", "sqlite"), default="postgres", help="chaos: which store"
    )
    chosen = parser.parse_args(values)
    if chosen.row in TESTED:
        return run_tests(TESTED[chosen.row].tests)
    if chosen.row == "all":
        failed = play_all(chosen)
        return run_tests([test for row in TESTED.values() for test in row.tests]) or failed
    enter(values)
    if chosen.row == "chaos":
        measurements = chaos.play(chosen.minutes, chosen.seed, chosen.store)
    else:
        measurements = play(ROWS[chosen.row], chosen)
    for sentence in measurements.broken:
        print(f"{measurements.row} BROKEN {sentence}")
    print(measurements.line())
    if chosen.json is not None:
        (ROOT / chosen.json).write_text(measurements.line() + "\n")
    return 0 if measurements.ok else 1


def run_tests(tests: Sequence[str]) -> int:
    """Run tests of the suite and return the exit status."""
    command = [sys.executable, "-m", "pytest", "-q", *dict.fromkeys(tests)]
    return subprocess.run(command, cwd=ROOT).returncode


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
                lines = log.read_text(errors="replace").splitlines()[-30:]
                print("\n".join([f"--- {log.name}", *lines]), file=sys.stderr)
    return here.measurements


def play_all(chosen: Any) -> int:
    """Play each row in its own process and namespaces; print the table of docs/reliability.md.

    A failing row does not stop the others.
    """
    rows = [play_in_subprocess(row, chosen) for row in in_order()]
    for measurements in rows:
        print(table_line(measurements, ROWS[measurements["row"]].tests))
    if chosen.json is not None:
        chosen.json.write_text("".join(json.dumps(each, sort_keys=True) + "\n" for each in rows))
    return 0 if all(each["ok"] for each in rows) else 1


def play_in_subprocess(row: Row, chosen: Any) -> dict[str, Any]:
    """Play one row in its own process within its time limit and return its measurements."""
    words = [sys.executable, "-m", "tests.robustness.faults", row.number]
    words += ["--runs", str(chosen.runs), "--seed", str(chosen.seed)]
    words += ["--small"] * chosen.small
    limit = row.limit * max(1.0, chosen.runs / RUNS_OF_LIMIT)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                output, _ = process.communicate(timeout=LAST_WORDS + 10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
    measurements = _last(output)
    if measurements is None:
        silent = Measurements(row.number, row.title, row.injected)
        silent.fault(
            f"no measurements: it ended with {process.returncode}, its limit is {limit:.0f} s"
        )
        measurements = silent.as_dict()
    message = "kept" if measurements["ok"] else f"BROKEN: {measurements['broken']}"
    print(
        f"{row.number:4s} {measurements['seconds']:6.1f} s  {message}", file=sys.stderr, flush=True
    )
    return measurements


def _last(output: str) -> dict[str, Any] | None:
    """Return the measurements that a row printed at its end, or None if it printed none."""
    with contextlib.suppress(ValueError):
        document = json.loads((output.splitlines() or [""])[-1])
        return document if isinstance(document, dict) else None
    return None


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of an interrupted row can still be running
