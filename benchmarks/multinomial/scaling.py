"""Simulation of DS-MLR on 20 to 100 nodes: the real scheduler with cell costs of this machine.

`python -m benchmarks.multinomial.scaling [--problems LSHTC1-large ODP Reddit-Full] [--nodes 20 40
60 80 100] [--gbit 10 25 100] [--threads 16] [--workers 4] [--picture FILE]` takes half a minute by
default, two minutes with the problems and nodes shown here, and seven with --workers too.

An epoch is two laps of all blocks over all shards, one that updates and one that sums; merged, it
is one lap that does both. The time of a visit is measured by a small run of the training kernels,
in seconds per (non-zero x label) and per (row x label), divided by the threads of the worker.
Perfect scaling over threads is assumed. One thread copies an updated block to own it, and puts it
into Ray's object store. Blocks are sent whole, in float32 (the tables of the DS-MLR paper use
float64: 34 GB for LSHTC1-large, 355 for ODP, 358 for Reddit-Full; here it is half of that). A node
sends one block and receives one at a time. A message takes 1 ms. The driver takes 0.25 ms per
visit, as measured on Ray.

Questions: (a) bandwidths and orders, with one worker per node and all its threads in one cell; (b)
the same with a slow node, permanently or alternating, and with shards moved to where they are
processed fastest; (c) with --workers per node, the gain of routing by node.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, in_folder
from benchmarks.multinomial.simulated_rotation import Circulation, Cluster
from xcray.arrays import csr, pattern
from xcray.schedule.events import Done
from xcray.schedule.rotation import ORDERS, BlockPass, RotationSchedule
from xcray.schedule.shard_assignment import assign_by_speed
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.multinomial import Shard, make_shard
from xcray.solvers.rotation_contract import Grid, Step

LATENCY, DRIVER = 1e-3, 0.25e-3  # seconds per message, and of the driver per visit
VERBS = ("update", "sum", "both")
SLOW = 4.0  # factor on the time of a slow node
FINE = 8  # shards per worker, if shards are moved
STATE = 2  # numbers per feature that are sent with a block's weights
# seconds per byte written to and read from Ray's object store; measured: 2.6 ms for 5 MB, 12.6 ms
# for 50 MB
HAND_OVER = 0.22e-9
NONZERO_BYTES, ROW_BYTES, WEIGHT_BYTES = (
    8,
    48,
    4,
)  # index and value; targets, offsets, b and its sums; float32
PROBE = {
    "rows": 1500,
    "features": 100_000,
    "labels": 256,
    "nonzeros": (25, 250),
}  # a block of 100 MB, larger than the caches


class Problem(NamedTuple):
    """The sizes of a training set. nonzeros: per row, on average."""

    name: str
    rows: int
    features: int
    classes: int
    nonzeros: float

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of all weights."""
        return float(self.features) * self.label_table * WEIGHT_BYTES

    @property
    def data_bytes(self) -> float:
        """Return the bytes of all rows and their state."""
        return self.rows * (self.nonzeros * NONZERO_BYTES + ROW_BYTES)


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("LSHTC1-large", 93_805, 347_256, 12_294, 347_256 * 0.049e-2),
        Problem("ODP", 1_084_404, 422_712, 105_034, 422_712 * 0.0533e-2),
        Problem("Reddit-Full", 211_532_359, 1_348_182, 33_225, 1_348_182 * 0.0036e-2),
    )
}


class Rates(NamedTuple):
    """Seconds of one thread.

    update, sum, both: per (non-zero x label), and per (row x label), of each operation; copy: per
    byte.
    """

    update: tuple[float, float]
    sum: tuple[float, float]
    both: tuple[float, float]
    copy: float

    def cells(self, problem: Problem, verb: str) -> float:
        """Return the seconds of all cells of a lap on one thread, without copies."""
        nonzero, row = getattr(self, verb)
        return float(problem.rows * float(problem.classes) * (problem.nonzeros * nonzero + row))


class Plan(NamedTuple):
    """One run: nodes, workers per node, threads per worker, blocks per worker, Gbit/s and order.

    merged: whether the two laps are merged. slow: "nobody"; "one" node, always; "turns": every cell
    with a chance of one in the number of nodes; "moved": one node, and shards move to where they
    are processed fastest.
    """

    nodes: int
    workers: int
    threads: int
    blocks: int
    gbit: float
    order: str = "ring"
    merged: bool = False
    slow: str = "nobody"

    @property
    def laps(self) -> tuple[str, ...]:
        """Return the operations of an epoch."""
        return ("both",) if self.merged else ("update", "sum")


def measured(repeats: int) -> Rates:
    """Measure the rates of this machine.

    Two probes with few and many non-zeros per row separate the two parts of a cell's cost.
    """
    solver, n_labels = DSMLRSolver(), PROBE["labels"]
    shards = [drawn_rows(nonzeros) for nonzeros in PROBE["nonzeros"]]
    locals_ = [solver.make_shard_state(shard, 0, Grid(1, 1 << 30), None) for shard in shards]
    block = solver.initial_block(0, n_labels, PROBE["features"])
    selection = np.ones_like(block.W)
    runs: dict[tuple[str, int], Callable[[], Any]] = {
        ("copy", 0): partial(np.copyto, selection, block.W)
    }
    for number, local in enumerate(locals_):
        for verb in VERBS:
            solver.step(
                local, block, Step(verb, 1, 1.0), owned=True
            )  # compiles the kernel and touches the memory
            runs[verb, number] = partial(solver.step, local, block, Step(verb, 2, 1.0), owned=True)
    seconds: dict[tuple[str, int], list[float]] = {what: [] for what in runs}
    for _ in range(repeats):
        for what, run in runs.items():
            began = time.thread_time()
            run()
            seconds[what].append(time.thread_time() - began)
    results = {
        what: min(took) / n_labels for what, took in seconds.items()
    }  # the minimum, because other processes can use the machine
    few, many = (shard.X.nnz for shard in shards)
    rates = {}
    for verb in VERBS:
        nonzero = (results[verb, 1] - results[verb, 0]) / (many - few)
        rates[verb] = (nonzero, max(results[verb, 0] - few * nonzero, 0.0) / PROBE["rows"])
    return Rates(**rates, copy=results["copy", 0] * n_labels / block.W.nbytes)


def drawn_rows(nonzeros: int) -> Shard:
    """Return rows of about `nonzeros` features and one label each.

    The r-th feature has a frequency proportional to 1 / r, as words have.
    """
    n, n_features, n_labels = PROBE["rows"], PROBE["features"], PROBE["labels"]
    rng = np.random.default_rng(0)
    drawn = [
        np.unique((np.exp(rng.random(nonzeros) * np.log(n_features))).astype(np.int32) - 1)
        for _ in range(n)
    ]
    ends = np.cumsum([0, *map(len, drawn)])
    X = csr(ends, np.concatenate(drawn), np.full(ends[-1], nonzeros**-0.5), n_features)
    return make_shard(
        X,
        pattern(np.arange(n + 1), rng.integers(0, n_labels, n), n_labels),
        np.arange(n),
        total=float(n),
    )


def simulate(problem: Problem, rates: Rates, plan: Plan) -> dict[str, Any]:
    """Simulate one epoch and return a row of the table, in seconds and gigabytes of 10^9 bytes."""
    node_of = {f"w{w}": f"n{w // plan.workers}" for w in range(plan.nodes * plan.workers)}
    speeds = {
        name: 1.0 / SLOW if node == "n0" and plan.slow in ("one", "moved") else 1.0
        for name, node in node_of.items()
    }
    shards, blocks = (
        len(node_of) * (FINE if plan.slow == "moved" else 1),
        plan.blocks * len(node_of),
    )
    homes = assign_by_speed([1.0] * shards, speeds)
    if plan.slow == "one":
        homes = tuple(node_of)
    order, hybrid = plan.order.removesuffix(" by node"), plan.order.endswith(" by node")
    schedule = RotationSchedule(
        homes, blocks, len(plan.laps), order=order, nodes=node_of if hybrid else None
    )
    block_bytes = problem.weight_bytes / blocks + STATE * problem.features * WEIGHT_BYTES
    copying = [
        0.0 if verb == "sum" else block_bytes * (rates.copy + HAND_OVER) for verb in plan.laps
    ]
    cell = [
        rates.cells(problem, verb) * plan.workers / plan.threads / (shards * blocks)
        for verb in plan.laps
    ]
    slower = slow_turns(plan, len(plan.laps), blocks, shards)

    def seconds(visit: BlockPass) -> float:
        lap, shards = visit.sweep, visit.shards
        cells = (
            len(shards)
            if slower is None
            else slower[lap, visit.block, shards[0] : shards[-1] + 1].sum()
        )
        return float(cells * cell[lap] + copying[lap]) / speeds[visit.worker]

    cluster = Cluster(node_of, block_bytes, plan.gbit * 1e9 / 8, LATENCY, DRIVER)
    outcome = Circulation(schedule, cluster, seconds).run()
    most = max(homes.count(name) for name in node_of) * plan.workers  # shards per node
    return {
        "problem": problem.name,
        **plan._asdict(),
        "epoch_seconds": outcome.makespan,
        "cell_seconds": sum(cell) * shards * blocks / len(node_of),
        "copy_seconds": sum(copying) * blocks,
        "network_seconds": outcome.most_sent / cluster.bandwidth,
        "driver_seconds": outcome.driver,
        "busy_share": outcome.busy / len(node_of) / outcome.makespan,
        "sent_gb": outcome.bytes_sent / 1e9,
        "sent_by_a_node_gb": outcome.bytes_sent / plan.nodes / 1e9,
        "memory_of_a_node_gb": (
            problem.data_bytes * most / shards + outcome.most_blocks * block_bytes
        )
        / 1e9,
        "visits": outcome.visits,
    }


def slow_turns(plan: Plan, laps: int, blocks: int, shards: int) -> np.ndarray | None:
    """Return the cost factors of cells, (laps, blocks, shards) float32; None if all are equal.

    The draws are the same for every order.
    """
    if plan.slow != "turns":
        return None
    slow = np.random.default_rng(0).random((laps, blocks, shards)) < 1.0 / plan.nodes
    return np.where(slow, SLOW, 1.0).astype(np.float32)


def plans(problem: Problem, nodes: int, chosen: Any) -> Iterator[Plan]:
    """Yield the plans of questions (a) to (c), and a ring with the solver's number of blocks."""
    middle = middle_of(chosen.gbit)
    base = Plan(nodes, 1, chosen.threads, chosen.blocks, middle)
    yield from (
        base._replace(gbit=gbit, merged=merged) for gbit in chosen.gbit for merged in (False, True)
    )
    yield from (base._replace(order=order) for order in ORDERS if order != "ring")
    yield base._replace(
        blocks=-(
            -DSMLRSolver().grid(problem.rows, problem.classes, problem.features, nodes).blocks
            // nodes
        )
    )
    yield from (
        base._replace(order=order, slow=slow)
        for slow in ("one", "turns", "moved")
        for order in ORDERS
    )
    if chosen.workers > 1:
        orders = (*ORDERS, "uniform by node", "shortest by node")
        yield from (base._replace(workers=chosen.workers, order=order) for order in orders)


def middle_of(gbits: Iterable[float]) -> float:
    """Return the bandwidth at which the orders are compared."""
    each = sorted(set(gbits))
    return each[len(each) // 2]


def crossings(
    problem: Problem, rates: Rates, threads: int, gbits: Sequence[float]
) -> dict[str, float]:
    """Return, by Gbit/s, the number of nodes from which transfers take longer than computing.

    Every block enters every node once per lap, so the transfer time of an epoch is constant, while
    the computing time decreases with the number of nodes.
    """
    cells = (rates.cells(problem, "update") + rates.cells(problem, "sum")) / threads
    return {f"{gbit:g}": cells / (2 * problem.weight_bytes / (gbit * 1e9 / 8)) for gbit in gbits}


def events(order: str, shards: int = 400, blocks: int = 800) -> float:
    """Return the microseconds of the scheduler per visit, with one worker per shard."""
    schedule = RotationSchedule([f"w{s}" for s in range(shards)], blocks, 1, order=order)
    began, queue = time.thread_time(), deque(schedule.start())
    while isinstance(visit := queue.popleft(), BlockPass):
        queue.extend(schedule.on(Done(visit.worker, visit.id, 0.0)))
    return 1e6 * (time.thread_time() - began) / schedule.total_cells


def show(row: Mapping[str, Any]) -> None:
    """Print one line."""
    order = (
        row["order"]
        + (", merged" if row["merged"] else "")
        + {"nobody": ""}.get(row["slow"], f", slow: {row['slow']}")
    )
    what = f"{row['problem']:13s} {row['nodes']:3d} x {row['workers']} x {row['blocks']}, {row['gbit']:3g} Gbit/s, {order:22s}"
    parts = (("cells", "cell"), ("copies", "copy"), ("network", "network"), ("driver", "driver"))
    times = ", ".join(f"{name} {row[f'{key}_seconds']:.1f}" for name, key in parts)
    space = f"sends {row['sent_by_a_node_gb']:.1f} GB, holds {row['memory_of_a_node_gb']:.1f} GB"
    print(
        f"{what} {row['epoch_seconds']:9.1f} s ({times}), busy {row['busy_share']:.1%}; a node {space}",
        flush=True,
    )


def picture(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the seconds of an epoch against nodes per problem, and the orders with slow nodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    problems = list(dict.fromkeys(row["problem"] for row in rows))
    columns = (len(problems) + 2) // 2
    figure, axes = plt.subplots(
        2, columns, figsize=(5.6 * columns, 8.4), layout="constrained", squeeze=False
    )
    places = list(axes.flat)
    for place, problem in zip(places, problems, strict=False):
        draw_nodes(place, [row for row in rows if row["problem"] == problem])
    draw_slow(places[len(problems)], [row for row in rows if row["problem"] == problems[-1]])
    for place in places[len(problems) + 1 :]:
        place.set_axis_off()
    figure.legend(
        *places[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.savefig(path, dpi=120)


def draw_nodes(place: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the seconds of an epoch by bandwidth, for a ring and with a barrier.

    Two more lines are the times of the cells alone and of the copies alone.
    """
    gbits = sorted({row["gbit"] for row in rows})
    middle = middle_of(gbits)
    even = [
        row
        for row in rows
        if row["slow"] == "nobody" and row["workers"] == 1 and row["blocks"] == rows[0]["blocks"]
    ]
    lines = [(f"ring, {gbit:g} Gbit/s", "ring", False, gbit, "o-") for gbit in gbits]
    lines += [
        (f"sync, {middle:g} Gbit/s", "sync", False, middle, "s--"),
        (f"ring, merged laps, {gbits[0]:g} Gbit/s", "ring", True, gbits[0], "^:"),
    ]
    for name, order, merged, gbit, style in lines:
        points = [
            row
            for row in even
            if (row["order"], row["merged"], row["gbit"]) == (order, merged, gbit)
        ]
        place.plot(
            [row["nodes"] for row in points],
            [row["epoch_seconds"] for row in points],
            style,
            label=name,
            markersize=5,
        )
    ring = [
        row
        for row in even
        if (row["order"], row["merged"], row["gbit"]) == ("ring", False, gbits[0])
    ]
    for key, name, shade in (
        ("cell_seconds", "cells alone", "0.25"),
        ("copy_seconds", "copies alone", "0.6"),
    ):
        place.plot(
            [row["nodes"] for row in ring],
            [row[key] for row in ring],
            color=shade,
            linewidth=1,
            label=name,
        )
    place.set(
        title=rows[0]["problem"],
        xlabel=f"nodes of {rows[0]['threads']} threads",
        ylabel="seconds an epoch",
        yscale="log",
    )
    place.set_xticks([row["nodes"] for row in ring])
    place.grid(axis="y", which="both", color="0.93")


def draw_slow(place: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the seconds of an epoch by order on the largest cluster, also with a slow node."""
    nodes, gbit, blocks = (
        max(row["nodes"] for row in rows),
        middle_of(row["gbit"] for row in rows),
        rows[0]["blocks"],
    )
    names = {
        "nobody": "no slow node",
        "turns": "alternating slow node",
        "one": "one slow",
        "moved": "one slow,\nshards moved",
    }
    for at, order in enumerate(ORDERS):
        chosen = {
            row["slow"]: row["epoch_seconds"]
            for row in rows
            if (row["order"], row["nodes"], row["gbit"], row["workers"], row["blocks"])
            == (order, nodes, gbit, 1, blocks)
            and not row["merged"]
        }
        bars = place.bar(
            np.arange(len(names)) + 0.22 * (at - 1.5),
            [chosen[slow] for slow in names],
            0.21,
            label=order,
        )
        place.bar_label(bars, fmt="%.0f", fontsize=6.5)
    place.set_xticks(range(len(names)), names.values())
    place.set(
        title=f"{rows[0]['problem']}, {nodes} nodes, {gbit:g} Gbit/s; slow: {SLOW:g} times slower",
        ylabel="seconds per epoch",
    )
    place.legend(loc="upper left", frameon=False, fontsize=8)


def main() -> None:
    """Run the chosen simulations and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        problems={
            "nargs": "*",
            "default": ["LSHTC1-large", "Reddit-Full"],
            "choices": list(PROBLEMS),
        },
        nodes={"nargs": "*", "type": int, "default": [20, 60, 100]},
        gbit={"nargs": "*", "type": float, "default": [10.0, 25.0, 100.0]},
        threads={"type": int, "default": 16, "help": "per node"},
        workers={"type": int, "default": 1, "help": "per node, in (c)"},
        blocks={"type": int, "default": 2, "help": "per worker"},
        repeats={"type": int, "default": 20},
    )

    def run(_: Path) -> dict[str, Any]:
        rates, rows = measured(chosen.repeats), []
        print(
            f"nanoseconds per non-zero and per row, for one label, and per byte: {rates}",
            flush=True,
        )
        for problem in (PROBLEMS[name] for name in chosen.problems):
            for plan in (plan for nodes in chosen.nodes for plan in plans(problem, nodes, chosen)):
                rows.append(simulate(problem, rates, plan))
                show(rows[-1])
        cross = {
            name: crossings(PROBLEMS[name], rates, chosen.threads, chosen.gbit)
            for name in chosen.problems
        }
        if chosen.picture:
            picture(rows, chosen.picture)
        figures = {"rates": rates._asdict(), "communication_dominates_from_nodes": cross}
        return {
            "benchmark": "scaling",
            **figures,
            "schedule_microseconds": {o: events(o) for o in ORDERS},
            "rows": rows,
        }

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
