"""Compare the estimates of `xcray plan` with real trainings, on fitted, inspected and fresh sets.

`python -m benchmarks.sizing --data DIR [--sets NAME ...] [--made] [--seconds 20] [--whole 20]
[--folder DIR] [--json FILE]`

Each set of `benchmarks.sizing.sets` (only synthetic ones without --data) gives three ratios, actual
over estimated:

seconds   processor seconds of solving all labels. Estimated from N, D, K, Z, labels per row and
          mean |x|^2 alone. Actual: all labels if they take less than --seconds, otherwise a
          stratified sample of that duration (`xcray.training.capacity.sampling`)
memory    peak anonymous bytes of a process that trains with one worker, over its bytes before and
          the estimate, if estimate and sample agree on less than --whole seconds; and the bytes of
          the model that it writes
sample    result of --measure after a tenth of that time: the total over the true value, and
          whether its range contains the true value

Roles: "fitted", the constants were fitted to the set; "looked at", the form of the formula was
chosen with its results in view, so they flatter; "fresh", first run with the final formula. Only
the last are a test. The machine can be busy, so processor time is reported. The last line is JSON
with the median and the worst factor (either way) by role.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import arguments, in_folder
from benchmarks.sizing.sets import CASES, Case, opened
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver
from xcray.training.capacity.preflight import Estimate, mean_sq_norm, split_sizes
from xcray.training.capacity.sampling import TIMING_NOISE, Range, estimate_total, solve_sample
from xcray.training.planning.deployment import guess_label_seconds, size_from_numbers
from xcray.training.planning.deployment_options import DatasetShape, DeploymentOptions

FIGURES = ("seconds", "weights", "memory", "model", "sample")


def foreseen(dataset: Dataset) -> Estimate:
    """By numbers alone: those that `xcray plan` asks for, and the mean |x|^2."""
    train = dataset.train
    held_out = dataset.test.n_rows / train.n_rows if dataset.test is not None else 0.0
    data = DatasetShape(
        *split_sizes(train), train.Y.nnz / train.n_rows, held_out, mean_sq_norm=mean_sq_norm(train)
    )
    return size_from_numbers(data, DeploymentOptions(cluster=False, cores=1)).training


def solved(dataset: Dataset, seconds: float, seed: int) -> tuple[Range, Range, int]:
    """Seconds and weights of all labels, and labels solved."""
    train, solver = dataset.train, make_solver("ppdsparse", {})
    sample = solve_sample(solver, train, guess_label_seconds(solver, dataset), seconds, seed)
    return estimate_total(sample, floor=TIMING_NOISE), estimate_total(sample, 1), sample.n_labels


def trained(dataset: Dataset) -> dict[str, Any]:
    """Run a whole training in its own process."""
    with tempfile.TemporaryDirectory(prefix="xcray-size-") as folder:
        request: dict[str, Any] = {
            "dataset": str(dataset.path),
            "solver": "ppdsparse",
            "params": {},
            "folder": folder,
            "seconds": None,
        }
        command = [sys.executable, "-m", "benchmarks.sizing.child", json.dumps(request)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"the training of {dataset.name} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def judged(case: Case, dataset: Dataset, seconds: float, whole: float) -> dict[str, Any]:
    """One set: really over foreseen, by figure."""
    found, (core, weights, n) = foreseen(dataset), solved(dataset, seconds, 1)
    quick, _, few = solved(dataset, max(0.1, min(seconds, core.value) / 10), 2)
    row: dict[str, Any] = {
        "set": case.name,
        "role": case.role,
        "sizes": dict(zip("NDKZ", split_sizes(dataset.train), strict=True)),
    }
    row |= {"core_seconds": [found.core_seconds, *core], "labels_solved": n}
    row["weights"] = [found.weights, *weights]
    row |= {
        "quick": [*quick],
        "quick_labels": few,
        "holds": quick.low <= core.high and core.low <= quick.high,
    }
    ratios = {
        "seconds": core.value / found.core_seconds,
        "weights": weights.value / max(found.weights, 1),
    }
    ratios["sample"] = quick.value / core.value
    if max(core.value, found.core_seconds) <= whole:
        really = trained(dataset)
        process = really["before"] + found.driver + found.worker
        row |= {
            "process": [process, really["peak"]],
            "model": [found.model, really["model"]],
            "trained": really["seconds"],
        }
        ratios |= {"memory": really["peak"] / process, "model": really["model"] / found.model}
    row["ratios"] = {name: round(value, 3) for name, value in ratios.items()}
    summary = "  ".join(
        f"{name} {ratios[name]:.2f}" if name in ratios else f"{name}   - " for name in FIGURES
    )
    print(f"{case.name:16} {case.role:9}  {summary}  {core.value:.2f} s", flush=True)
    return row


def worst(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return per figure: sets, median, worst factor, and the sets within a factor of 1.3 and of
    2.
    """
    out = {}
    for name in FIGURES:
        ratios = [row["ratios"][name] for row in rows if row["ratios"].get(name)]
        if ratios:
            factors = [math.exp(abs(math.log(ratio))) for ratio in ratios]
            near = {
                f"within_{limit:g}": sum(factor <= limit for factor in factors)
                for limit in (1.3, 2.0)
            }
            out[name] = {
                "sets": len(ratios),
                "median": round(median(ratios), 2),
                "worst": round(max(factors), 2),
                **near,
            }
    holds = [row["holds"] for row in rows]
    return {**out, "ranges_hold": [sum(holds), len(holds)]}


def main() -> None:
    """Every set, and the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "*", "default": [], "help": "these alone"},
        made={"action": "store_true", "help": "only sets that are made up"},
        seconds={"type": float, "default": 20.0, "help": "core seconds of labels for each set"},
        whole={
            "type": float,
            "default": 20.0,
            "help": "core seconds up to which a set is trained whole, for memory and bytes",
        },
        folder={"type": Path, "help": "where sets are kept for the next time"},
    )
    cases = [case for case in CASES if not chosen.sets or case.name in chosen.sets]
    cases = [
        case
        for case in cases
        if case.made is not None or (chosen.data is not None and not chosen.made)
    ]

    def run(folder: Path) -> dict[str, Any]:
        where = chosen.folder or folder
        where.mkdir(parents=True, exist_ok=True)
        rows = [
            judged(case, opened(case, chosen.data, where), chosen.seconds, chosen.whole)
            for case in cases
        ]
        summary = {
            role: worst([row for row in rows if row["role"] == role])
            for role in ("fitted", "looked at", "fresh")
        }
        for role, name, figures in (
            (role, name, figures) for role, of in summary.items() for name, figures in of.items()
        ):
            print(f"{role}, {name}: {figures}", flush=True)
        return {"benchmark": "sizing", "sets": rows, **summary}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
