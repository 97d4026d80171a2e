"""The tables of sizes and prices in docs/operations.md, from the formula of `xcray plan`: `python
docs/sizes.py` rewrites them.

Tables stand between a line `<!-- sizes: NAME -->` and a line `<!-- end -->`; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from xcray.cli.training.plan import format_figure
from xcray.training.capacity.serving import ServingLoad, estimate_serving
from xcray.training.planning.deployment import GIB, DeploymentSize, size_from_numbers
from xcray.training.planning.deployment_options import DatasetShape, DeploymentOptions

PAGE: Final = Path(__file__).parent / "operations.md"
CORE, MEMORY, DISK, MONTH = (
    0.04,
    0.005,
    0.10,
    730,
)  # assumed prices of a core hour, a GiB hour, a GiB month; hours
TRAININGS: Final = 30  # a month


class Common(NamedTuple):
    """A common size: the data, a description, and the options."""

    words: str
    data: DatasetShape
    wishes: DeploymentOptions


COMMON: Final = (
    Common(
        "20,000 x 20,000, 1 M",
        DatasetShape(20_000, 20_000, 1_000, 1_000_000),
        DeploymentOptions(cluster=False),
    ),
    Common(
        "100,000 x 384, dense, length 1",
        DatasetShape(100_000, 384, 1_000, 38_400_000, 1.0, mean_sq_norm=1.0),
        DeploymentOptions(cluster=False),
    ),
    Common(
        "100,000 x 100,000, 8 M",
        DatasetShape(100_000, 100_000, 10_000, 8_000_000),
        DeploymentOptions(),
    ),
    Common(
        "500,000 x 500,000, 40 M",
        DatasetShape(500_000, 500_000, 100_000, 40_000_000),
        DeploymentOptions(cores=8),
    ),
    Common(
        "2 M x 1 M, 200 M",
        DatasetShape(2_000_000, 1_000_000, 1_000_000, 200_000_000, 5.0),
        DeploymentOptions(cores=16, hours=4.0),
    ),
)


def sizes() -> str:
    """Pods, home, weights and core hours of common sizes."""
    lines = [
        "| K | rows x features, entries | pods: memory (limit) in GiB | home | weights | core hours a training |",
        "|---|---|---|---|---|---|",
    ]
    for common in COMMON:
        found = size_from_numbers(common.data, common.wishes)
        hours = f"{format_figure(found.core_hours.value)} ({format_figure(found.core_hours.low)} to {format_figure(found.core_hours.high)})"
        cells = [
            f"{common.data.labels:,}",
            common.words,
            pods(found, common.wishes),
            f"{found.home / GIB:.1f} GiB",
        ]
        lines.append(
            "| "
            + " | ".join([*cells, f"{format_figure(found.training.weights / 1e6)} M", hours])
            + " |"
        )
    return "\n".join(lines)


def pods(found: DeploymentSize, wishes: DeploymentOptions) -> str:
    """Memory of each pod."""
    of = {name: f"{pod.memory / GIB:.1f}" for name, pod in found.pods.items()}
    limit = f"({found.pods['api'].limit / GIB:.1f})"
    if not wishes.cluster:
        return f"all in one, {wishes.cores} cores: {of['api']} {limit}"
    worker = found.pods["worker"]
    many = "worker" if worker.number == 1 else f"{worker.number} workers"
    return f"API {of['api']} {limit}, runner {of['runner']}, head {of['head']}, {many} of {worker.cores} cores {of['worker']}"


def prices() -> str:
    """The worked example: one training a day, no spare copy."""
    lines = [
        "| K, rows x features | stands ready | a training | a month: ready + trainings + home |",
        "|---|---|---|---|",
    ]
    for common in COMMON:
        found, cluster = size_from_numbers(common.data, common.wishes), common.wishes.cluster
        ready = [pod for name, pod in found.pods.items() if name != "worker"]
        cores, memory = (
            sum(pod.number * pod.cores for pod in ready),
            sum(pod.number * pod.memory for pod in ready) / GIB,
        )
        core_hours, worker = found.core_hours.value, found.pods.get("worker")
        money = [MONTH * (cores * CORE + memory * MEMORY), 0.0, found.home / GIB * DISK]
        training = f"{format_figure(core_hours)} core hours"
        if worker is not None:
            held = worker.number * worker.memory / GIB * found.hours
            money[1] = TRAININGS * (core_hours / 0.9 * CORE + held * MEMORY)
            training += f", {worker.number} worker pod{'s' * (worker.number > 1)} for {format_figure(found.hours)} h"
        cells = [
            f"{common.data.labels:,}: {common.words}",
            f"{cores} cores, {memory:.1f} GiB",
            training,
        ]
        lines.append(
            "| "
            + " | ".join(
                [*cells, " + ".join(format_figure(each) if each else "0" for each in money)]
            )
            + " |"
        )
        assert cluster == (worker is not None)
    return "\n".join(lines)


def serving() -> str:
    """What a core answers from models of common sizes."""
    asked = [
        ServingLoad(1_000, 20_000, 1_500_000, 50),
        ServingLoad(1_000, 384, 268_000, 384),
        ServingLoad(35_116, 200_251, 31_000_000, 99),
        ServingLoad(325_056, 1_617_899, 136_000_000, 42),
        ServingLoad(670_091, 135_909, 228_000_000, 76),
    ]
    lines = [
        "| labels x features, weights | entries of a query | memory of a process with it | search | requests a second of a core |",
        "|---|---|---|---|---|",
    ]
    for each in asked:
        found = estimate_serving(each)
        name = f"{each.labels:,} x {each.features:,}, {format_figure(each.weights / 1e6)} M"
        cells = [
            name,
            f"{each.entries:g}",
            f"{found.memory / GIB:.1f} GiB",
            f"{1e3 * found.search:.2g} ms",
            f"{found.requests:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES: Final = {"sizes": sizes, "prices": prices, "serving": serving}


def written(page: str) -> str:
    """The page with its tables as the formula has them now. Raises ValueError for a page that lacks
    one.
    """
    for name, table in TABLES.items():
        begin = f"<!-- sizes: {name} -->\n"
        if begin not in page:
            raise ValueError(f"the page has no line {begin.strip()}")
        page = re.sub(
            rf"({re.escape(begin)}).*?(<!-- end -->)",
            lambda found, of=table: f"{found[1]}{of()}\n{found[2]}",
            page,
            flags=re.S,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
