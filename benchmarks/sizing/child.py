"""Run one training in its own process and print its costs as a line of JSON.

`python -m benchmarks.sizing.child DATASET FOLDER`. FOLDER is created for the model and the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from xcray.solvers import make_solver
from xcray.system.memory import anonymous_bytes
from xcray.training import TrainSpec, train


def trained(dataset: str, folder: Path) -> dict[str, int]:
    """Train with one worker, a thread of this process.

    Returns the anonymous bytes before and at the peak, and the bytes of the model.
    """
    make_solver("ppdsparse", {}).warm_up()
    before, peak = anonymous_bytes() or 0, 0

    def look(_: Any) -> None:
        nonlocal peak
        peak = max(peak, anonymous_bytes() or 0)

    spec = TrainSpec(dataset, pool="threads", workers=1)
    result = train(spec, run_dir=folder / "run", out=folder / "model", progress=look)
    return {
        "before": before,
        "peak": max(peak, result.report["preflight"]["driver"]["anonymous_peak"] or 0),
        "model": sum(path.stat().st_size for path in result.model_path.rglob("*.arrow")),
    }


if __name__ == "__main__":
    print(json.dumps(trained(sys.argv[1], Path(sys.argv[2]))))
