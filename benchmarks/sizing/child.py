"""Run one training in its own process and print its costs as a line of JSON.

`python -m benchmarks.sizing.child JSON`. JSON: dataset (a directory), solver, params, folder (a new
one, for the model and the run), seconds (time limit).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.system.memory import anonymous_bytes, process_memory
from xcray.training import TrainSpec, train


def trained(request: dict[str, Any]) -> dict[str, Any]:
    """Train with one worker, a thread of this process, and return the costs.

    They are processor seconds of all threads, peak anonymous bytes, weights and bytes of the model,
    and epochs if there are any. whole: whether everything was done in time.
    """
    make_solver(request["solver"], request["params"]).warm_up()
    folder = Path(request["folder"])
    spec = TrainSpec(
        request["dataset"],
        solver=request["solver"],
        params=request["params"],
        pool="threads",
        workers=1,
        max_seconds=request["seconds"],
    )
    before, began, peak = anonymous_bytes() or 0, time.process_time(), 0

    def look(_: Any) -> None:
        nonlocal peak
        peak = max(peak, anonymous_bytes() or 0)

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
        "resident": process_memory().resident,  # type: ignore[union-attr]
        "weights": model.nnz,
        "model": sum(path.stat().st_size for path in result.model_path.rglob("*.arrow")),
        "epochs": report.get("epochs"),
        "whole": "partial" not in report and "time" not in stopped,
        "stopped": stopped,
        "estimate": seen["estimate"],
    }


if __name__ == "__main__":
    print(json.dumps(trained(json.loads(sys.argv[1]))))
