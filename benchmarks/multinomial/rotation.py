"""Block rotation on Ray: memory by number of workers, and the cost of a slow worker by order.

`python -m benchmarks.multinomial.rotation [--data DIR --set gutenberg_lcsh] [--gib 2] [--workers 1
2 4 8] [--race-labels 2000] [--epochs 8] [--rest-every 1] [--repeats 1] [--slow 4] [--pace 4]
[--parts memory race] [--json FILE] [--picture FILE]`

Memory: one training on P nodes, each with one worker and its own object store, plus the driver's
node, which has no worker. The grid is the same for every P, so the objectives must be
bit-identical. Measured are the anonymous memory of a worker process (its rows, the current block,
and the interpreter, minus what it has before the first visit), the object store of its node (blocks
at rest, those of the previous synchronisation, and blocks in transfer), and both for the driver.
The USS of a worker is reported too, but it includes the pages of the store that no other process
has mapped. With --data the set has as many of its most frequent labels as give --gib GiB of float32
weights; without, it is a generated set with 64 MiB of weights.

Race: four workers on one node, of which one needs --slow times as long for each visit. A hook of
this benchmark makes every visit last --pace times its processor time, so that four workers behave
as on four machines although there are two cores. All variants run the same epochs. Compared are the
seconds until each reaches the objective that all of them reach, interpolated linearly between two
synchronisations. "sync, two laps, 4 x 4" is Algorithm 1 of the paper: as many shards and blocks as
workers, one lap of updates and one lap of sums, with a barrier after each inner epoch. The variants
change one thing at a time: a finer grid; no barrier; one lap that does both; random routing, and
routing to the shortest queue; shards that move to faster workers at synchronisations. While shards
do not move, every block must pass the slow worker once per epoch, which bounds all orders.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cluster.ray_store import several_nodes, store_use
from benchmarks.common import arguments, in_folder
from benchmarks.multinomial.rotation_run import (
    Peaks,
    RotationVariant,
    frequent,
    generated,
    train,
    work_of,
)
from xcray.data.dataset import Dataset
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.rotation_contract import Grid
from xcray.workers.ray.pool import training_session
from xcray.workers.ray.worker_group import RayWorkerGroup

RACERS, SLOW = 4, "worker-3"
COARSE, FINE = (
    Grid(RACERS, RACERS),
    Grid(4 * RACERS, 2 * RACERS),
)  # the paper's grid, and one whose shards can be moved individually
# minimum for the memory part: in addition to its share, a worker holds two blocks in transfer and
# the one it creates
BLOCKS = 64
ALGORITHM_1 = "sync, two laps, 4 x 4"
VARIANTS = (
    RotationVariant(ALGORITHM_1, COARSE, "sync", 2, False),
    RotationVariant("sync, two laps", FINE, "sync", 2, False),
    RotationVariant("ring, two laps", FINE, "ring", 2, False),
    RotationVariant("sync, one lap, 4 x 4", COARSE, "sync", 1, False),
    *(
        RotationVariant(f"{order}, one lap", FINE, order, 1, False)
        for order in ("sync", "ring", "uniform", "shortest")
    ),
    *(
        RotationVariant(f"{order}, one lap, moving", FINE, order, 1, True)
        for order in ("sync", "ring", "uniform", "shortest")
    ),
)
CHARTED_VARIANTS = {  # variants in the picture, and their colours
    ALGORITHM_1: "tab:red",
    "sync, one lap, moving": "tab:red",
    "ring, one lap": "tab:blue",
    "ring, one lap, moving": "tab:blue",
    "shortest, one lap": "tab:green",
    "shortest, one lap, moving": "tab:green",
}
STEPS = (  # gain of each change: name, from, to
    ("finer grid, barrier kept", ALGORITHM_1, "sync, two laps"),
    ("no barrier", "sync, two laps", "ring, two laps"),
    ("one lap, barrier kept", ALGORITHM_1, "sync, one lap, 4 x 4"),
    ("no barrier, one lap", "sync, one lap", "ring, one lap"),
    ("drawn instead of ring", "ring, one lap", "uniform, one lap"),
    ("shortest queue instead of ring", "ring, one lap", "shortest, one lap"),
    ("moving, barrier kept", "sync, one lap", "sync, one lap, moving"),
    ("moving, ring", "ring, one lap", "ring, one lap, moving"),
    ("moving, drawn", "uniform, one lap", "uniform, one lap, moving"),
    ("moving, shortest queue", "shortest, one lap", "shortest, one lap, moving"),
)


def measure_memory(data: Dataset, workers: int, folder: Path) -> dict[str, Any]:
    """Run one training on `workers` nodes, and return the peak memory of processes and stores."""
    weights = 4 * data.n_features * data.n_labels
    grid = Grid(8, max(BLOCKS, -(-weights // (64 << 20))))
    solver = DSMLRSolver(lam=1e-6, epochs=2, tolerance=0.0, history=0, sync_every=2, prune_keep=20)
    store = 3 * weights // workers + 12 * weights // grid.blocks + (80 << 20)
    with several_nodes(*[1] * workers, store=store):
        group = RayWorkerGroup(
            work_of(data, solver, grid), workers, nullcontext(), f"memory-{workers}"
        )
        peaks = Peaks(group)
        result = train(data, solver, grid, group, folder / f"memory-{workers}", look=peaks.look)
        spilled = sum(store_use("spilled_bytes_total").values())
        nodes = {node.split("/")[1] for node in group.nodes.values()}
    at_workers = [size for node, size in peaks.store.items() if node[:12] in nodes]
    row = {
        "workers": workers,
        "weights_bytes": weights,
        "grid": list(grid),
        "worker_anonymous": max(peaks.anonymous.values()),
        "worker_before": max(peaks.first.values()),
        "worker_own": max(peaks.own.values()),
        "store_of_a_node": max(at_workers),
        "mean_store_of_nodes": sum(at_workers) // len(at_workers),
        "spilled": spilled,
        "driver_anonymous": peaks.driver,
        "driver_store": max(
            (size for node, size in peaks.store.items() if node[:12] not in nodes), default=0
        ),
        "seconds": result.history[-1]["seconds"],
        "objective": result.objective,
    }
    row["worker_in_all"] = row["worker_anonymous"] + row["store_of_a_node"]
    row["worker_in_all_beyond_interpreter"] = row["worker_in_all"] - row["worker_before"]
    shown = {
        name: f"{size / 2**20:.0f}"
        for name, size in row.items()
        if isinstance(size, int) and size > 1 << 16
    }
    print(
        f"{workers} workers, MiB: {shown}; {row['seconds']:.0f} s, objective {row['objective']!r}",
        flush=True,
    )
    return row


def memory(data: Dataset, workers: list[int], folder: Path) -> dict[str, Any]:
    """Run each number of workers, and return how their memory decreases."""
    rows = [measure_memory(data, count, folder) for count in workers]
    first, last = rows[0], rows[-1]
    return {
        "set": data.name,
        "rows": rows,
        "same_objective": len({row["objective"] for row in rows}) == 1,
        "fewer_workers_over_more": {
            name: first[name] / last[name]
            for name in (
                "worker_in_all",
                "worker_in_all_beyond_interpreter",
                "store_of_a_node",
                "driver_anonymous",
            )
        },
    }


def lap(data: Dataset, way: RotationVariant, chosen: Any, folder: Path) -> dict[str, Any]:
    """Run one variant once, and return the objective over time."""
    solver = DSMLRSolver(
        lam=chosen.lam,
        epochs=chosen.epochs,
        tolerance=0.0,
        sync_every=chosen.sync_every,
        passes=way.passes,
        order=way.order,
        prune_keep=20,
    )
    work = work_of(data, solver, way.grid, slow=SLOW, factor=chosen.slow, pace=chosen.pace)
    group = RayWorkerGroup(work, RACERS, nullcontext(), folder.name)
    result = train(data, solver, way.grid, group, folder, move=way.move, look=lambda _: None)
    course = [
        (entry["seconds"], entry["objective"], entry["epoch"])
        for entry in result.history
        if not entry["back"]
    ]
    print(
        f"{way.name:32s} {course[-1][0]:7.1f} s, objective {course[-1][1]:.6f}, {result.moved} shards moved",
        flush=True,
    )
    return {
        "way": way.name,
        "course": course,
        "moved": result.moved,
        "back": sum(entry["back"] for entry in result.history),
    }


def reached(course: list[tuple[float, float, int]], objective: float) -> float:
    """Return the seconds until the objective was at most this, interpolated linearly."""
    at = next(number for number, (_, value, _) in enumerate(course) if value <= objective)
    if at == 0:
        return course[0][0]
    (before, high, _), (after, low, _) = course[at - 1], course[at]
    return before + (after - before) * (high - objective) / (high - low)


def race(data: Dataset, chosen: Any, folder: Path) -> dict[str, Any]:
    """Run all variants alternately, and return the seconds to the common objective."""
    runs: list[dict[str, Any]] = []
    with training_session(None, RACERS, 12 * data.n_features * data.n_labels + (256 << 20)):
        for turn in range(chosen.repeats):
            for number, way in enumerate(VARIANTS if turn % 2 == 0 else VARIANTS[::-1]):
                runs.append(lap(data, way, chosen, folder / f"race-{turn}-{number}"))
    target = max(min(value for _, value, _ in run["course"]) for run in runs)
    times = {
        way.name: [reached(run["course"], target) for run in runs if run["way"] == way.name]
        for way in VARIANTS
    }
    took = {name: median(each) for name, each in times.items()}
    rows = {
        name: {
            "seconds": took[name],
            "all": times[name],
            "speed_up": took[ALGORITHM_1] / took[name],
        }
        for name in took
    }
    for name, row in rows.items():
        print(
            f"{name:32s} {row['seconds']:7.1f} s to {target:.6f}: {row['speed_up']:.2f} x {ALGORITHM_1}",
            flush=True,
        )
    steps = {words: took[before] / took[after] for words, before, after in STEPS}
    print(
        "each change alone:", {words: round(gain, 2) for words, gain in steps.items()}, flush=True
    )
    quickest = {
        kind: min(took[way.name] for way in VARIANTS if (way.order == "sync") == (kind == "sync"))
        for kind in ("sync", "async")
    }
    print(
        f"the fastest without barriers {quickest['sync'] / quickest['async']:.2f} x the fastest with them",
        flush=True,
    )
    best = min(value for run in runs for _, value, _ in run["course"])
    return {
        "set": data.name,
        "slow": chosen.slow,
        "pace": chosen.pace,
        "grids": {way.name: list(way.grid) for way in VARIANTS},
        "target": target,
        "target_over_best": target / best,
        "ways": rows,
        "steps": steps,
        "async_over_algorithm_1": took[ALGORITHM_1] / quickest["async"],
        "async_over_quickest_sync": quickest["sync"] / quickest["async"],
        "runs": runs,
    }


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw the memory of workers as bars, and the objective over time as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    rows = record.get("memory", {}).get("rows", [])
    places, below = range(len(rows)), [0.0] * len(rows)
    for name, words in (
        ("worker_anonymous", "process of a worker"),
        ("store_of_a_node", "object store of its node"),
    ):
        sizes = [row[name] / 2**20 for row in rows]
        left.bar(places, sizes, bottom=below, label=words)
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    left.plot(
        places,
        [(row["driver_anonymous"] + row["driver_store"]) / 2**20 for row in rows],
        "ko-",
        label="driver",
    )
    left.axhline(
        rows[0]["weights_bytes"] / 2**20 if rows else 0.0,
        color="grey",
        linestyle=":",
        label="all weights",
    )
    left.set(
        xticks=list(places),
        xticklabels=[row["workers"] for row in rows],
        xlabel="workers",
        ylabel="MiB at most",
    )
    left.legend(frameon=False)
    runs = record.get("race", {}).get("runs", [])[: len(VARIANTS)]
    for run in (run for run in runs if run["way"] in CHARTED_VARIANTS):
        seconds, values, _ = zip(*run["course"], strict=True)
        right.plot(
            seconds,
            values,
            "--" if "moving" in run["way"] else "-",
            color=CHARTED_VARIANTS[run["way"]],
            label=run["way"],
            marker=".",
        )
    right.set(xlabel="seconds, one of four workers slow", ylabel="objective")
    if runs:
        right.legend(frameon=False, fontsize=7, handlelength=5)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the chosen parts and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        set={"default": "gutenberg_lcsh"},
        gib={
            "type": float,
            "default": 2.0,
            "help": "GiB of all weights, in the memory part with --data",
        },
        workers={"type": int, "nargs": "+", "default": [1, 2, 4, 8]},
        race_labels={"type": int, "default": 2000},
        epochs={"type": int, "default": 8},
        sync_every={"type": int, "default": 1},
        repeats={"type": int, "default": 1},
        slow={"type": float, "default": 4.0},
        pace={"type": float, "default": 4.0},
        lam={"type": float, "default": 1e-5},
        parts={"nargs": "+", "default": ["memory", "race"], "choices": ["memory", "race"]},
    )

    def run(folder: Path) -> dict[str, Any]:
        out: dict[str, Any] = {"benchmark": "rotation"}
        if "memory" in chosen.parts:
            if chosen.data:
                features = frequent(chosen.set, chosen.data, folder, 1).n_features
                data = frequent(
                    chosen.set, chosen.data, folder, -(-int(chosen.gib * 2**30) // (4 * features))
                )
            else:
                data = generated(folder, 4000, 4096, 4096)
            out["memory"] = memory(data, chosen.workers, folder)
        if "race" in chosen.parts:
            if chosen.data:
                data = frequent(chosen.set, chosen.data, folder, chosen.race_labels)
            else:
                data = generated(folder, 40_000, 3000, 2000)
            out["race"] = race(data, chosen, folder)
        if chosen.picture:
            picture(out, chosen.picture)
        return out

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
