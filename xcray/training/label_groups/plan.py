"""The groups of a training: their weight first, from a training on a part of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xcray.data.dataset import Dataset, open_verified
from xcray.errors import Refused
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.solvers import SOLVERS
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.system.cores import available_cores
from xcray.system.units import format_bytes
from xcray.training.capacity.preflight import memory_limits
from xcray.training.label_groups.clustering import choose_sizes, cluster_bytes, cluster_labels
from xcray.training.label_groups.data import GroupPlan, group_solver
from xcray.training.label_groups.weighing import choose_weight
from xcray.training.part_training import PART, PartTraining
from xcray.training.report.summary import summarize_block
from xcray.training.selection.held_out import HOLDOUT, hold_out, split_training_rows
from xcray.training.spec import TrainSpec, parse_group_sizes

RESULT_FILE = "groups.json"


def plan_groups(
    spec: TrainSpec, run_dir: Path, training: PartTraining
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
        discard_directory(run_dir / PART)  # of other groups, or of a ranker without groups
        document = {"identity": identity}
        write_json(path, document)
    if "weight" not in document:
        training = training.renamed("SELECTING", "label groups on held-out rows")
        weight, measured = _weigh(spec, dataset, sizes, run_dir / PART, training)
        document |= {"weight": weight, "measured": measured}
        write_json(path, document)
    weight = float(document["weight"])
    report |= {"weight": weight, **document["measured"]}
    if weight == 0.0:
        return None, {"groups": report}
    plan = GroupPlan(cluster_labels(dataset.train.X, dataset.train.YT, sizes), weight)
    return plan, {"groups": {**report, "sizes": list(plan.clusters.sizes)}}


def summarize_groups(block: SolvedLabels, solver: Any) -> dict[str, Any]:
    """Return the report entry of solved groups, see `summarize_block`."""
    return summarize_block(block, group_solver(solver))


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


def _weigh(
    spec: TrainSpec,
    dataset: Dataset,
    sizes: tuple[int, ...],
    folder: Path,
    training: PartTraining,
) -> tuple[float, dict[str, Any]]:
    """Return the weight and what was measured.

    The folder is removed at the end, unless a ranker needs the model in it.
    """
    part = hold_out(dataset, HOLDOUT, 0, folder / "rows", with_rest=False)
    clusters = cluster_labels(part.train.X, part.train.YT, sizes)
    model = training.model(spec, part, folder, GroupPlan(clusters, 1.0))
    held = split_training_rows(dataset.train.n_rows)[1]
    X, Y = take_rows(dataset.train.X, held), take_pattern_rows(dataset.train.Y, held)
    threads = 1 if spec.pool == "serial" else min(spec.workers or 4096, available_cores())
    weighed = choose_weight(model.require_linear().search, X, Y, threads, training.check_stop)
    if not spec.rank:
        discard_directory(folder)
    return weighed
