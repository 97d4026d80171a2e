"""The experiments of the MEMOIR paper: searches, readings of Algorithm 1, Table 2 and Figure 1.

python -m benchmarks.memoir.paper --data DIR [--parts searches,readings,batch,l1] [--seeds 3]
    [--sets clef_imclef07a,cooking] [--json FILE]

searches: accuracy and macro-F1 of each search at equal freezing, that is with 1, 100 and 1,000
samples whose rivals are searched before W changes; eta0 and lam are chosen for each of these with
the exact search on every fifth training row, left out. Differences are paired by seed. An index of
nmslib or LSH is built per sample with group 1, so these pairs are left out with more classes than
--slow. readings: the presets. batch: Table 2, the size of a batch at 25 x 100 sqrt(C) samples. l1:
Figure 1, lam against weights and accuracy, by both truncations. Rows as in `benchmarks.memoir`.
Seconds are processor seconds of one core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import run_benchmark
from benchmarks.memoir.__main__ import ClassData, leave_out, load, score, train_solver
from xcray.solvers import make_solver

GROUPS: Final = (1, 100, 1000)
ETA0: Final = (0.1, 0.3, 1.0)
LAM: Final = (1e-5, 1e-4, 3e-4)
ORACLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "exact": {"oracle": "exact"},
    "sw-graph": {"oracle": "sw-graph"},
    "nmslib": {"oracle": "nmslib"},
    "lsh-256": {"oracle": "lsh", "bits": 256},
    "random": {"oracle": "random"},
}
PRESETS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "l2 as printed": ("memoir-paper", {}),
    "l1 as printed": ("memoir-paper", {"penalty": "l1", "lam": 1e-6}),
    "l2, rivals frozen": ("memoir-paper-frozen", {}),
    "scripts": ("memoir-scripts", {}),
}
BATCHES: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)  # times sqrt(C): Table 2
L1: Final = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def trials(data: ClassData, solver: str, settings: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return accuracies and macro-F1 by seed, and means of weights and seconds."""
    models = [
        train_solver(data.train, data.n_classes, make_solver(solver, {**settings, "seed": i}))
        for i in range(seeds)
    ]
    scores = np.array([score(model, data.test) for model in models])
    return {
        "accuracy": scores[:, 0].tolist(),
        "macro_f1": scores[:, 1].tolist(),
        "weights": float(np.mean([model["weights"] for model in models])),
        "seconds": float(np.mean([model["seconds"] for model in models])),
    }


def mean_and_error(values: Any) -> tuple[float, float]:
    """Return the mean and its standard error; that of one value is not known."""
    array = np.asarray(values, np.float64)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), float(error)


def searches(data: ClassData, options: Any) -> Iterator[dict[str, Any]]:
    """Yield the figures of each search and group, and the difference to the exact search."""
    train, validation = leave_out(data.train)
    for group in GROUPS:
        tried = [
            {
                "rounds": options.rounds,
                "batch": options.batch,
                "group": group,
                "eta0": eta0,
                "lam": lam,
            }
            for eta0, lam in product(ETA0, LAM)
        ]
        sums = [
            sum(score(train_solver(train, data.n_classes, make_solver("memoir", each)), validation))
            for each in tried
        ]
        settings, exact = tried[int(np.argmax(sums))], None
        for name in options.oracles.split(","):
            is_rebuilt = name.startswith(("nmslib", "lsh"))
            if is_rebuilt and group == 1 and data.n_classes > options.slow:
                continue
            found = trials(data, "memoir", {**settings, **ORACLES[name]}, options.seeds)
            exact = exact or found
            for key in ("accuracy", "macro_f1"):
                found[f"{key}_lost"] = np.subtract(exact[key], found[key]).tolist()
            yield {"group": group, "oracle": name, "eta0": settings["eta0"], **found}


def readings(data: ClassData, options: Any) -> Iterator[dict[str, Any]]:
    """Yield the figures of the presets."""
    for name, (preset, settings) in PRESETS.items():
        yield {"preset": name, **trials(data, preset, settings, options.seeds)}


def batches(data: ClassData, options: Any) -> Iterator[dict[str, Any]]:
    """Yield Table 2: the printed algorithm with other batches and the same number of samples."""
    C = len(np.unique(data.train.y))
    for times in BATCHES:
        batch = max(1, round(times * math.sqrt(C)))
        settings = {"batch": batch, "rounds": max(1, round(25 * 100 * math.sqrt(C) / batch))}
        found = trials(data, "memoir-paper", {**settings, "oracle": "exact"}, options.seeds)
        yield {"times_sqrt_c": times, **settings, **found}


def l1(data: ClassData, options: Any) -> Iterator[dict[str, Any]]:
    """Yield Figure 1: the printed algorithm with l1 for each lam, by both truncations."""
    for truncate, lam in product(("touched", "all"), L1):
        settings = {"penalty": "l1", "lam": lam, "truncate": truncate, "oracle": "exact"}
        yield {
            "truncate": truncate,
            "lam": lam,
            **trials(data, "memoir-paper", settings, options.seeds),
        }


PARTS: Final = {"searches": searches, "readings": readings, "batch": batches, "l1": l1}


def show(name: str, part: str, result: Mapping[str, Any]) -> None:
    """Print a line."""
    words = [f"{k} {v}" for k, v in result.items() if not isinstance(v, list) and k != "seconds"]
    for key, values in result.items():
        if isinstance(values, list):
            mean, error = mean_and_error(values)
            words.append(f"{key} {mean:.2f} +- {error:.2f}")
    print(f"{name} {part}: {', '.join(words)}, {result['seconds']:.2f} s", flush=True)


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all parts on all sets, with one thread of BLAS."""
    sets: dict[str, Any] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for name in options.sets.split(","):
            data, sets[name] = load(name, options.data, folder), {}
            for part in options.parts.split(","):
                sets[name][part] = []
                for result in PARTS[part](data, options):
                    show(name, part, result)
                    sets[name][part].append(result)
    return {"benchmark": "memoir.paper", "sets": sets}


def main() -> None:
    """Run the benchmark."""
    run_benchmark(
        measure,
        __doc__,
        quick={
            "sets": "synthetic",
            "seeds": 1,
            "rounds": 2,
            "batch": 200,
            "oracles": "exact,lsh-256",
        },
        sets={"default": "clef_imclef07a,cooking", "help": "names of data sets"},
        parts={"default": ",".join(PARTS), "help": "of the experiments"},
        oracles={"default": "exact,sw-graph,lsh-256,random", "help": f"of {', '.join(ORACLES)}"},
        seeds={"type": int, "default": 3, "help": "trainings per setting"},
        rounds={"type": int, "default": 30, "help": "of the searches"},
        batch={"type": int, "default": 1000, "help": "samples per round of the searches"},
        slow={"type": int, "default": 100, "help": "classes up to which group 1 builds indexes"},
    )


if __name__ == "__main__":
    main()
