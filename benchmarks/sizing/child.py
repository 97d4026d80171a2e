"""One training in a process of its own, and what it took: `python -m benchmarks.sizing.child JSON`, a line of JSON at the end.

JSON: dataset (a directory), solver, params, folder (a new one, for the model and the run), seconds (that it may take).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.system.memory import anonymous, footprint
from xcray.training import TrainSpec, train


def trained(told: dict[str, Any]) -> dict[str, Any]:
    """Processor seconds of all threads, most anonymous bytes at any time, weights and bytes of the model, epochs of those that have
    some; whole: whether all was done in the time. One worker, a thread of this process."""
    make_solver(told["solver"], told["params"]).warm_up()
    folder = Path(told["folder"])
    spec = TrainSpec(
        told["dataset"],
        solver=told["solver"],
        params=told["params"],
        pool="threads",
        workers=1,
        max_seconds=told["seconds"],
    )
    before, began, peak = anonymous() or 0, time.process_time(), 0

    def look(_: Any) -> None:
        nonlocal peak
        peak = max(peak, anonymous() or 0)

    result = train(spec, run_dir=folder / "run", out=folder / "model", progress=look)
    took, report, model = (
        time.process_time() - began,
        result.report,
        Model.open(result.model_path, verify=False),
    )
    stopped = str(report.get("stopped", ""))
    seen = report["preflight"]
    return {
        "seconds": took,
        "before": before,
        "peak": max(peak, seen["driver"]["anonymous_peak"] or 0),
        "resident": footprint().resident,  # type: ignore[union-attr]
        "weights": model.nnz,
        "model": sum(path.stat().st_size for path in result.model_path.rglob("*.arrow")),
        "epochs": report.get("epochs"),
        "whole": "partial" not in report and "time" not in stopped,
        "stopped": stopped,
        "estimate": seen["estimate"],
    }


if __name__ == "__main__":
    print(json.dumps(trained(json.loads(sys.argv[1]))))
