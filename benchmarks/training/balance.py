"""Measure how well the Ray pool balances work, and check for equal bits on every pool.

`python -m benchmarks.training.balance [--data DIR] [--sets pydocs gutenberg_lcsh]
[--workers 1 2 4]`

The figures are the busy share of each worker and the makespan over the ideal one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common import arguments, dataset, in_folder
from xcray.training import TrainSpec, train


def runs_of(name: str, data_path: str, workers: list[int], folder: Path) -> list[dict[str, Any]]:
    """Run serial, threads and Ray on one set."""
    out = []
    for pool, count in [("serial", 1), ("threads", 2), *(("ray", count) for count in workers)]:
        place = folder / f"{name}-{pool}-{count}"
        spec = TrainSpec(data_path, pool=pool, workers=count)
        result = train(spec, run_dir=place / "run", out=place / "model")
        selection = (
            "busy_share",
            "makespan",
            "makespan_over_ideal",
            "core_seconds",
            "batches",
            "seconds",
        )
        out.append(
            {
                "set": name,
                "pool": pool,
                "workers": count,
                "sha256": result.sha256,
                **{k: result.report[k] for k in selection},
            }
        )
        print(out[-1], flush=True)
    return out


def main() -> None:
    """Run every pool on every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+", "default": ["pydocs"]},
        workers={"nargs": "+", "type": int, "default": [1, 2, 4]},
    )

    def run(folder: Path) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for name in chosen.sets:
            data = dataset(name, chosen.data, folder)
            rows += runs_of(name, str(data.path), chosen.workers, folder)
        same = {
            name: len({row["sha256"] for row in rows if row["set"] == name}) == 1
            for name in chosen.sets
        }
        if chosen.picture:
            picture(rows, chosen.picture)
        return {"benchmark": "balance", "same_bits": same, "runs": rows}

    in_folder(run, chosen.json)


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw makespan over ideal of every run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axis.bar(
        [f"{row['set']}\n{row['pool']} {row['workers']}" for row in rows],
        [row["makespan_over_ideal"] for row in rows],
    )
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set(ylabel="makespan / ideal", ylim=(0.9, None))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
