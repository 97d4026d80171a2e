"""Warm starts of indexed block coordinate descent over C and s, against cold starts.

python -m benchmarks.indexed_bcd.warm_starts --data DIR
    [--sets covtype-like,kddcup99_10pct,mnist] [--seeds 3] [--rows 581012]

The class of `benchmarks.indexed_bcd` is solved along two paths: four values of C, from a tenth of
its own on, and five of s, from no outliers down. A warm path starts each problem from the dual
variables of the one before, as `xcray tune` does. Reported: processor seconds and volumes of the
path without its first problem, which has a cold start in any case, as medians over the seeds; the
largest rise of a truncated objective and of a test error (points) over that of the cold start, and
the largest number of problems without a certificate, of all seeds. Objectives are in units of the
null objective; `eps` (0.001) is the gap up to which convex problems are solved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.indexed_bcd.__main__ import NO_TRUNCATION, Task, measure_sets
from xcray.arrays import CSR, csr, frozen
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.training.warm_start import WarmRunner, dual_scale

SELECTIONS = ("pages", "forest")
C_FACTORS = (0.1, 0.316, 1.0, 3.16)
S_VALUES = (NO_TRUNCATION, 4.0, 2.0, 1.0, 0.5)
FIRST = frozen([0], np.int32)
# of the figures of several seeds
AGGREGATES: dict[str, Callable[[Iterable[float]], float]] = {
    "cold_cpu": statistics.median,
    "warm_cpu": statistics.median,
    "cold_volumes": statistics.median,
    "warm_volumes": statistics.median,
    "objective_rise": max,
    "error_rise": max,
    "not_certified": max,
}


class Step(NamedTuple):
    """Result of a problem of a path: its cost, objective by null objective, and test error."""

    cpu: float
    volumes: float
    objective: float
    error: float
    is_certified: bool


def solve_path(
    task: Task, state: HingeState, path: list[IndexedBCDSolver], is_warm: bool
) -> list[Step]:
    """Solve the problems of a path. state: of a solver with the same forest."""
    empty, steps = csr([0], [], [], task.X.n_rows), list[Step]()
    start: CSR | None = None
    before = path[0]
    for solver in path:
        local = solver.reload(state, task.X, empty, task.YT)
        scale = dual_scale({"C": before.C}, {"C": solver.C}, solver.dual_exponent)
        began = time.process_time()
        solved = WarmRunner(solver, start if is_warm else None, scale).solve(local, FIRST)
        cpu = time.process_time() - began
        record, before, start = solved.records[0], solver, solved.duals
        v = np.append(solved.W.to_scipy().toarray()[0], solved.bias[0])
        volumes = float(record["rows_read"] / task.X.n_rows)
        objective = float(record["objective"] / record["null"])
        certified = bool(solver.certified(solved.records)[0])
        steps.append(Step(cpu, volumes, objective, task.error(v), certified))
    return steps


def paths(task: Task, selection: str, seed: int) -> dict[str, list[IndexedBCDSolver]]:
    """Return the paths over C and over s."""
    base: dict[str, Any] = {"selection": selection, "seed": seed}
    return {
        "C": [IndexedBCDSolver(C=factor * task.C, **base) for factor in C_FACTORS],
        "s": [IndexedBCDSolver(C=task.C, s=s, **base) for s in S_VALUES],
    }


def compare(cold: list[Step], warm: list[Step]) -> dict[str, float]:
    """Return the figures of a path."""
    figures = {
        f"{name}_{field}": sum(getattr(step, field) for step in steps[1:])
        for name, steps in (("cold", cold), ("warm", warm))
        for field in ("cpu", "volumes")
    }
    pairs = list(zip(cold, warm, strict=True))
    return {
        **figures,
        "objective_rise": max(b.objective - a.objective for a, b in pairs),
        "error_rise": max(b.error - a.error for a, b in pairs),
        "not_certified": sum(not b.is_certified for _, b in pairs),
    }


def measure(task: Task, seeds: int) -> dict[str, Any]:
    """Return the figures of a data set, by strategy and path."""
    empty, out = csr([0], [], [], task.X.n_rows), dict[str, Any]()
    IndexedBCDSolver(selection="forest").warm_up()
    for selection in SELECTIONS:
        state = IndexedBCDSolver(selection=selection).load(task.X, empty, task.YT)
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            for name, path in paths(task, selection, seed).items():
                steps = [solve_path(task, state, path, is_warm) for is_warm in (False, True)]
                runs.setdefault(f"{selection}, over {name}", []).append(compare(*steps))
        for key, figures in runs.items():
            out[key] = {
                name: round(aggregate(each[name] for each in figures), 5)
                for name, aggregate in AGGREGATES.items()
            }
    return out


if __name__ == "__main__":
    measure_sets(__doc__ or "", measure)
