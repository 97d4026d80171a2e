"""Compare the plans of `xcray plan` with real trainings.

`python -m benchmarks.sizing --data DIR [--sets NAME ...] [--made] [--seconds 20] [--whole 20]
[--folder DIR] [--json FILE]`

Each set of `benchmarks.sizing.sets` (only synthetic ones without --data) is planned from a tenth of
--seconds, or of the seconds of all its labels if they are fewer. Ratios of actual over planned:

seconds   processor seconds of solving all labels. Actual: all labels if they take less than
          --seconds, otherwise a second sample of that duration
weights   of all labels, from the same solutions
memory    peak anonymous bytes of a process that trains with one worker, over its bytes before and
          the plan, if all labels take less than --whole seconds
model     bytes of the model that it writes

The machine can be busy, so processor time is reported. The last line is JSON with the median and
the worst factor (either way), and how many ranges of seconds and of weights contain the actual
value.
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
from benchmarks.sizing.sets import CASES, opened
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver
from xcray.training.capacity.preflight import split_sizes
from xcray.training.capacity.sampling import Range, estimate_total, solve_sample
from xcray.training.planning.deployment import (
    DeploymentOptions,
    guessed_shape,
    size_from_dataset,
)

FIGURES = ("seconds", "weights", "memory", "model")


def solved(dataset: Dataset, seconds: float) -> tuple[Range, Range, int]:
    """Return seconds and weights of all labels, and the number of labels solved."""
    solver = make_solver("ppdsparse", {})
    guess = guessed_shape(solver, dataset).seconds
    sample = solve_sample(solver, dataset.train, guess, seconds, seed=1)
    return estimate_total(sample), estimate_total(sample, 1), sample.n_labels


def trained(dataset: Dataset) -> dict[str, int]:
    """Run a whole training in its own process."""
    with tempfile.TemporaryDirectory(prefix="xcray-size-") as folder:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.sizing.child", str(dataset.path), folder],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    if process.returncode:
        raise SystemExit(f"the training of {dataset.name} failed: {process.stderr[-2000:]}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


def judged(name: str, dataset: Dataset, seconds: float, whole: float) -> dict[str, Any]:
    """Return actual over planned of one set, by figure."""
    core, weights, n = solved(dataset, seconds)
    plan = size_from_dataset(
        dataset.path,
        DeploymentOptions(cluster=False, cores=1),
        seconds=max(0.1, min(seconds, core.value) / 10),
    )
    planned = plan.core_hours.scale(3600.0)
    row: dict[str, Any] = {
        "set": name,
        "sizes": dict(zip("NDKZ", split_sizes(dataset.train), strict=True)),
        "labels_solved": n,
        "seconds": [planned, core],
        "weights": [plan.weights, weights],
        "based_on": plan.known,
    }
    row["holds"] = [
        first.low <= second.high and second.low <= first.high
        for first, second in ((planned, core), (plan.weights, weights))
    ]
    ratios = {
        "seconds": core.value / planned.value,
        "weights": weights.value / max(plan.weights.value, 1.0),
    }
    if core.value <= whole:
        really = trained(dataset)
        process = really["before"] + plan.training.driver + plan.training.worker
        row |= {
            "process": [process, really["peak"]],
            "model": [plan.training.model, really["model"]],
        }
        ratios |= {
            "memory": really["peak"] / process,
            "model": really["model"] / plan.training.model,
        }
    row["ratios"] = {figure: round(value, 3) for figure, value in ratios.items()}
    summary = "  ".join(
        f"{each} {ratios[each]:.2f}" if each in ratios else f"{each}   - " for each in FIGURES
    )
    print(f"{name:16}  {summary}  {core.value:.2f} s  {row['holds']}", flush=True)
    return row


def worst(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return per figure: sets, median, worst factor, and sets within factors of 1.3 and of 2."""
    out: dict[str, Any] = {}
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
    for position, name in enumerate(("seconds_ranges_hold", "weights_ranges_hold")):
        out[name] = [sum(row["holds"][position] for row in rows), len(rows)]
    return out


def main() -> None:
    """Compare every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "*", "default": [], "help": "these alone"},
        synthetic={"action": "store_true", "help": "only synthetic sets"},
        seconds={"type": float, "default": 20.0, "help": "core seconds of labels per set"},
        whole={
            "type": float,
            "default": 20.0,
            "help": "core seconds up to which a set is trained completely, for memory and bytes",
        },
        folder={"type": Path, "help": "directory of sets, kept for the next run"},
    )
    cases = [case for case in CASES if not chosen.sets or case.name in chosen.sets]
    cases = [
        case
        for case in cases
        if case.synthetic is not None or (chosen.data is not None and not chosen.synthetic)
    ]

    def run(folder: Path) -> dict[str, Any]:
        where = chosen.folder or folder
        where.mkdir(parents=True, exist_ok=True)
        rows = [
            judged(case.name, opened(case, chosen.data, where), chosen.seconds, chosen.whole)
            for case in cases
        ]
        summary = worst(rows)
        for name, figures in summary.items():
            print(f"{name}: {figures}", flush=True)
        return {"benchmark": "sizing", "sets": rows, **summary}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
