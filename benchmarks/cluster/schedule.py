"""Distance of the schedule from the ideal, simulated.

The simulations have up to 1,000 workers and 670,000 labels.

`python -m benchmarks.cluster.schedule [--data DIR] [--sets gutenberg_lcsh]
[--largest 670000]`

Simulated: the scheduler runs on a simulated clock (`benchmarks.cluster.simulation`). It knows what
a solver reports before the work: cost terms and a first estimate of their rates. The true costs are
the CPU seconds of each class, measured one at a time on each set. For the large job, and without
data, they are drawn from the measured distribution, with errors of the estimate in total and per
label. The ideal is the larger of two times: all work without any waiting on the available workers
(total / sum of speeds, if all stay), and the most expensive label on the fastest worker. The
driver's share of a core is that of the scheduler, the timeline and the parts, with as many weights
per label as Amazon-670K's shape has, measured while the benchmark runs: if workers see the run
directory, and if they do not. Ray's messages are not in it.
"""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster.driver_cost import driver_cost
from benchmarks.cluster.simulation import FLOOR, Simulation, heavy_tailed
from benchmarks.harness import dataset, run_benchmark
from xcray.data.dataset import Dataset
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.solvers import make_solver
from xcray.training.part_writer import SHARED_BYTES

OVERHEAD = 1e-3  # seconds between two batches of a worker, as measured on Ray without prefetching
PAPER_SECONDS = (
    922.0 * 100.0
)  # core-seconds that PPDSparse took for Amazon-670K: what a job for 1,000 workers looks like
# per label: the same job at this project's target speed; on 1,000 workers it takes 2.4 seconds
OWN_MILLISECONDS = 3.6
NOISE = 0.4  # spread of the logarithm of true costs around those of the terms, as measured
SIZES, BATCHES = (
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000),
    200_000,
)  # numbers of workers, and the maximum number of batches of a simulated job


class Work(NamedTuple):
    """Labels to solve.

    The scheduler receives the terms (K, T) and rates (T,). The true cost is (K,) in seconds.
    """

    name: str
    terms: np.ndarray
    rates: tuple[float, ...]
    cost: np.ndarray


def measured(data: Dataset) -> Work:
    """Return the CPU seconds of every class of a set, one at a time, and the solver's terms."""
    solver, part = make_solver("ppdsparse", {}), data.train
    local, cost = solver.load(part.X, part.XT, part.YT), np.empty(data.n_labels)
    solver.warm_up()
    for label in range(data.n_labels):
        began = time.thread_time()
        solver.solve(local, np.array([label], np.int32))
        cost[label] = time.thread_time() - began
    return Work(data.name, solver.cost_terms(part.X, part.XT, part.YT), solver.cost_rates, cost)


def generated(n: int, total: float | None = None) -> Work:
    """Return costs of the measured distribution, scaled to `total` seconds.

    The estimate is three times too high for the floor, twice too low for the tail, and without
    noise.
    """
    shape = heavy_tailed(n)
    scale = 1.0 if total is None else total / shape.sum()
    terms = scale * np.stack([np.full(n, FLOOR), shape - FLOOR], axis=1)
    noise = np.exp(NOISE * np.random.default_rng(1).normal(size=n) - NOISE**2 / 2)
    return Work(
        f"{n:,} labels, {scale * shape.sum():,.0f} s", terms, (3.0, 0.5), scale * shape * noise
    )


def simulate(
    work: Work,
    speeds: list[float],
    ends: list[tuple[float, str, str]] | None = None,
    late: float = 0.0,
) -> dict[str, Any]:
    """Simulate one job on workers of these speeds.

    late: seconds within which each worker joins, at a random moment.
    """
    when = (
        np.random.default_rng(2).uniform(0.0, late, len(speeds)) if late else np.zeros(len(speeds))
    )
    joins = {f"worker-{n}": (float(when[n]), speed) for n, speed in enumerate(speeds)}
    began = time.perf_counter()
    schedule = LabelScheduler(
        np.arange(len(work.cost)), work.terms, work.rates, workers=len(speeds)
    )
    started = time.perf_counter() - began
    outcome = Simulation(schedule, work.cost, OVERHEAD).run(joins, ends or [])
    if sorted(outcome.committed) != list(range(len(work.cost))):
        raise SystemExit("a label was not committed exactly once")
    ideal = max(
        least_time(work.cost.sum(), speeds, when.tolist(), ends or []),
        work.cost.max() / max(speeds),
    )
    return {
        "work": work.name,
        "workers": len(speeds),
        "ideal": ideal,
        "makespan": outcome.makespan,
        "over_ideal": outcome.makespan / ideal,
        "batches": len(outcome.batches),
        "mean_batch_seconds": outcome.useful / len(outcome.batches),
        "wasted_share": outcome.wasted / (outcome.useful + outcome.wasted),
        "largest_loss": max(outcome.lost, default=0.0),
        "losses": len(outcome.lost),
        "schedule_made_seconds": started,
        "event_microseconds": 1e6 * outcome.seconds / outcome.events,
        "slowest_event_milliseconds": 1e3 * outcome.slowest,
        **{
            name: (
                outcome.seconds + driver_cost().seconds(outcome.batches, outcome.makespan, least)
            )
            / outcome.makespan
            for name, least in {
                "driver_share": SHARED_BYTES / len(speeds),
                "driver_share_unseen": inf,
            }.items()
        },
    }


def least_time(
    total: float, speeds: list[float], joins: list[float], ends: list[tuple[float, str, str]]
) -> float:
    """Return the time of `total` seconds of work without waiting or losses, found by bisection."""
    gone = {name: when for when, name, _ in ends}
    lives = [(speed, joins[n], gone.get(f"worker-{n}", np.inf)) for n, speed in enumerate(speeds)]
    low, high = 0.0, max(joins) + total / min(speeds)
    for _ in range(60):
        middle = (low + high) / 2
        done = sum(speed * max(min(middle, end) - join, 0.0) for speed, join, end in lives)
        low, high = (middle, high) if done < total else (low, middle)
    return high


def scenarios(work: Work) -> dict[str, Any]:
    """Simulate equal workers, one slow worker, and workers that join late, fail or leave."""
    span = work.cost.sum() / 8
    ends = [
        (share * span, f"worker-{n}", how)
        for n, (share, how) in enumerate(
            [(0.4, "lost"), (0.5, "left"), (0.7, "lost"), (0.8, "left")]
        )
    ]
    out = {
        "8 equal": simulate(work, [1.0] * 8),
        "8, one 4x slower": simulate(work, [1.0] * 7 + [0.25]),
        "12, 2 lost, 2 leave, late joins": simulate(work, [1.0] * 12, ends, late=0.3 * span),
    }
    for name, row in out.items():
        show(f"{work.name}: {name}", row)
    return out


def sizes(work: Work) -> list[int]:
    """Return numbers of workers for which the job and its simulation take seconds, not hours."""
    total = float(work.cost.sum())
    return [
        n
        for n in SIZES
        if n <= max(total / 2.0, 8) and 4.0 * total <= BATCHES * max(1.0, n / 100.0)
    ]


def simulated(work: Work, workers: int) -> dict[str, Any]:
    """Simulate a job on equal workers."""
    row = simulate(work, [1.0] * workers)
    show(f"{work.name}: {workers} workers", row)
    return row


def show(title: str, row: dict[str, Any]) -> None:
    """Print one line."""
    shown = (
        f"{row['makespan']:9.3f} s, {row['over_ideal']:.4f} x ideal, {row['batches']:6d} batches"
    )
    driver = (f"{100 * row[name]:.2f}" for name in ("driver_share", "driver_share_unseen"))
    cost = f"{row['event_microseconds']:6.1f} us an event, driver {' / '.join(driver)} %"
    print(f"{title:58s} {shown}, wasted {100 * row['wasted_share']:.2f} %, {cost}", flush=True)


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Simulate every set and the large job."""
    works = [measured(dataset(name, options.data, folder)) for name in options.sets] or [
        generated(37_000)
    ]
    seconds = (OWN_MILLISECONDS * 1e-3 * options.largest, PAPER_SECONDS)
    large = [generated(options.largest, each) for each in seconds]
    return {
        "benchmark": "schedule",
        "scenarios": {work.name: scenarios(work) for work in works},
        "scaling": {
            work.name: [simulated(work, n) for n in sizes(work)] for work in (*works, *large)
        },
    }


def main() -> None:
    """Simulate and measure, and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"largest": 5_000},
        sets={"nargs": "*", "default": []},
        largest={"type": int, "default": 670_000},
    )


if __name__ == "__main__":
    main()
