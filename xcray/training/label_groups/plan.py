"""The groups of a training: their weight first, from a training on a part of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from xcray.data.dataset import Dataset, open_verified
from xcray.errors import Refused, Stopped
from xcray.model.model import Model
from xcray.solvers import SOLVERS
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.system.cores import available_cores
from xcray.system.units import format_bytes
from xcray.telemetry.progress import Progress
from xcray.training.capacity.preflight import Estimate, memory_limits
from xcray.training.label_groups.clustering import choose_sizes, cluster_bytes, cluster_labels
from xcray.training.label_groups.data import GroupPlan
from xcray.training.label_groups.weighing import choose_weight
from xcray.training.selection.evaluate import STOPPED
from xcray.training.selection.held_out import HOLDOUT, hold_out
from xcray.training.spec import TrainSpec, parse_group_sizes
from xcray.workers.pool import StopFlag

RESULT_FILE = "groups.json"


class TrainsModel(Protocol):
    """A training run, see `xcray.training.run`."""

    def train(self, out: Path) -> object:
        """Train and publish the model `out`."""


# spec, run directory, progress, flag that stops it, prefix of the names of actors, groups
MakeRun = Callable[
    [TrainSpec, Path, Callable[[Progress], None], StopFlag, str, GroupPlan | None], TrainsModel
]


def plan_groups(
    spec: TrainSpec,
    run_dir: Path,
    make_run: MakeRun,
    progress: Callable[[Progress], None],
    stop: StopFlag,
    job: str,
) -> tuple[GroupPlan | None, dict[str, Any]]:
    """Return the groups of a training, None without or if they gain nothing, and its report entry.

    All labels and groups are trained on a part of the training rows, and the weight of the groups
    is the best on the others. run_dir: stores the result, which a later call returns at once.
    Raises ParameterError, InputError, Stopped, and as the run.
    """
    if parse_group_sizes(spec.groups) == ():
        return None, {}
    dataset = open_verified(spec.dataset)
    sizes = choose_sizes(spec.groups, dataset.n_labels)
    report: dict[str, Any] = {"requested": spec.groups, "weight": 0.0}
    if not sizes:
        return None, {"groups": report}
    identity = {
        "solver": spec.solver,
        "params": dict(spec.params),
        "dataset": dataset.content_hash,
        "revision": SOLVERS[spec.solver].revision,
        "sizes": list(sizes),
    }
    _check_memory(spec, dataset)
    path = run_dir / RESULT_FILE
    document = read_json(path) if path.exists() else {}
    if document.get("identity") != json.loads(json.dumps(identity)):

        def report_part(part: Progress) -> None:
            progress(part._replace(phase="SELECTING", note="label groups on held-out rows"))

        def train_part(part: TrainSpec, groups: GroupPlan, folder: Path) -> None:
            run = make_run(part, folder / "run", report_part, stop, f"{job}-groups", groups)
            run.train(folder / "model")

        def check_stop() -> None:
            if stop.is_set():
                raise Stopped(STOPPED)

        weight, measured = _weigh(spec, dataset, sizes, run_dir / "groups", train_part, check_stop)
        document = {"identity": identity, "weight": weight, "measured": measured}
        write_json(path, document)
    weight = float(document["weight"])
    report |= {"weight": weight, **document["measured"]}
    if weight == 0.0:
        return None, {"groups": report}
    plan = GroupPlan(cluster_labels(dataset.train.X, dataset.train.YT, sizes), weight)
    return plan, {"groups": {**report, "sizes": list(plan.clusters.sizes)}}


def _check_memory(spec: TrainSpec, dataset: Dataset) -> None:
    """Raise Refused if the clustering of the labels does not fit in memory."""
    needed = cluster_bytes(dataset.n_labels, dataset.n_features)
    free = min(memory_limits(spec).values(), default=needed)
    if needed > free:
        raise Refused(
            f"the groups of the labels need about {format_bytes(needed)} of memory, "
            f"{format_bytes(free)} are left: raise the limit, or train without groups",
            code="MEMORY",
            needed=needed,
            available=free,
        )


def with_weighing(estimate: Estimate) -> Estimate:
    """Return the estimate of a training with groups, and of the one on a part of its rows."""
    times = 1.0 + (1.0 - HOLDOUT)
    return estimate._replace(
        core_seconds=times * estimate.core_seconds, seconds=times * estimate.seconds
    )


def _weigh(
    spec: TrainSpec,
    dataset: Dataset,
    sizes: tuple[int, ...],
    folder: Path,
    train_part: Callable[[TrainSpec, GroupPlan, Path], None],
    tick: Callable[[], None],
) -> tuple[float, dict[str, Any]]:
    """Return the weight and what was measured; the folder is removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    held = hold_out(dataset, HOLDOUT, 0, folder / "held")
    if not (folder / "model").exists():
        clusters = cluster_labels(held.train.X, held.train.YT, sizes)
        part = replace(spec, dataset=str(held.path), groups="none", calibrate=False, auto=None)
        train_part(part, GroupPlan(clusters, 1.0), folder)
    index = Model.open(folder / "model", verify=False).search
    threads = 1 if spec.pool == "serial" else min(spec.workers or 4096, available_cores())
    weighed = choose_weight(index, held["test"].X, held["test"].Y, threads, tick)
    discard_directory(folder)
    return weighed
