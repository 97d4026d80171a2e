"""How close the estimate before a training is to what the training needs.

`python -m benchmarks.training.estimates --data DIR [--sets cooking ...]`

Each set is trained with the defaults of PPDSparse. Ratios are actual over estimated, as the report
of the training has them: core seconds of solving (CPU time, so that other processes count little),
bytes of anonymous memory, bytes of the model, and weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import dataset, run_benchmark, table
from xcray.training import TrainSpec, train

SETS = ["cooking", "bibtex", "clef_imclef07a", "news20_bydate", "gutenberg_lcsh", "gnd_tibkat"]
NEEDS = ("core_seconds", "memory", "model", "weights")
COLUMNS = ("set", "probed", *(f"{name} {of}" for name in NEEDS for of in ("actual", "ratio")))


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Train on all sets."""
    rows = []
    for name in options.sets:
        spec = TrainSpec(str(dataset(name, options.data, folder).path))
        report = train(spec, run_dir=folder / f"{name}-run", out=folder / f"{name}-model").report
        preflight = report["preflight"]
        row = {"set": name, "probed": preflight["estimate"]["probed"]}
        for need in NEEDS:
            compared = preflight["compared"][need]
            row |= {f"{need} {of}": compared[of] for of in ("actual", "ratio")}
        rows.append(row)
        print(table([row], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS), flush=True)
    return {"benchmark": "estimates", "sets": rows}


def main() -> None:
    """Train and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"]},
        sets={"nargs": "+", "default": SETS},
    )


if __name__ == "__main__":
    main()
