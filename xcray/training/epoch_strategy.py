"""Parts of trainings of all labels together: worker group and report.

Such a training runs epochs (or rounds), has one objective for all labels, and ends with the weights
of all labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xcray.data.dataset import Dataset
from xcray.errors import NotFound, missing_ray
from xcray.schedule.placement import ONE_CPU, ResourceRequest
from xcray.solvers.contract import Solver
from xcray.solvers.group_contract import Grid, TrainingRows
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json
from xcray.training.capacity.preflight import worker_count
from xcray.training.report.summary import summarize_block
from xcray.training.spec import TrainSpec
from xcray.training.strategy import TrainingContext
from xcray.workers.local_group import ThreadGroup
from xcray.workers.worker_group import WorkerFactory, WorkerGroup

MAX_HISTORY_ENTRIES: Final = 500  # in a report
OUTCOME_FILE: Final = "outcome.json"  # of a training that has ended
CHECKPOINT_FOLDER: Final = "checkpoints"  # in the run directory, for checkpoints


def training_rows(dataset: Dataset) -> TrainingRows:
    """Return the rows of a data set for a group solver."""
    train, test = dataset.train, dataset.test
    held_out = None if test is None else (test.X, test.Y, test.weights)
    return TrainingRows(train.X, train.Y, train.weights, held_out)


def existing_grid(run_dir: Path) -> Grid | None:
    """Return the grid of the run in a directory; None for a new run."""
    try:
        grid = read_json(run_dir / "run.json").get("grid")
    except NotFound:
        return None
    return Grid(*grid) if grid else None


def uses_whole_cluster(context: TrainingContext) -> bool:
    """Return whether a training may use all of a shared cluster."""
    return (
        context.spec.pool == "ray"
        and context.spec.ray_address is not None
        and not context.spec.workers
        and context.cluster
    )


def initial_workers(context: TrainingContext) -> int:
    """Return the number of workers at the start of a training.

    By default it is one per CPU of the cluster, or of this machine. Raises Unavailable if the
    cluster cannot be queried.
    """
    if not uses_whole_cluster(context):
        return worker_count(context.spec)
    try:
        from xcray.workers.ray.cluster_state import cluster_cores_at
        from xcray.workers.ray.pool import MAX_CLUSTER_WORKERS
    except ModuleNotFoundError as error:
        raise missing_ray(error) from None
    return min(cluster_cores_at(str(context.spec.ray_address)), MAX_CLUSTER_WORKERS)


def make_worker_group(
    spec: TrainSpec,
    factory: WorkerFactory,
    workers: int,
    job: str,
    store_bytes: int,
    max_workers: int | None = None,
) -> WorkerGroup:
    """Return the worker group for a spec, not open yet.

    Pool "serial" is a group of one thread, so that the driver can handle a stop meanwhile.
    store_bytes: bytes that the workers hold together in Ray's object store, if the training
    starts its own Ray. max_workers: maximum if the cluster grows; then one worker is enough to
    start. By default all workers are waited for.
    """
    if spec.pool != "ray":
        return ThreadGroup(factory, workers)
    try:
        from xcray.workers.ray.pool import scaling_policy_for, training_session
        from xcray.workers.ray.worker_group import RayWorkerGroup
    except ModuleNotFoundError as error:
        raise missing_ray(error) from None
    need = ResourceRequest(store=store_bytes / workers) if spec.ray_address is not None else ONE_CPU
    where = training_session(spec.ray_address, workers, store_bytes)
    return RayWorkerGroup(
        factory,
        max(workers, max_workers or 0),
        where,
        job,
        request=need,
        initial=workers,
        min_ready=1 if max_workers else None,
        policy=scaling_policy_for(spec.ray_address),
    )


def outcome_report(
    solver: Solver, result: Mapping[str, Any], block: SolvedLabels, measures: Mapping[str, float]
) -> dict[str, Any]:
    """Return the outcome of a training for its report, as JSON.

    result: "epochs", "objective", "reason" and "history" of the training. block: all labels, as
    published. measures: of the published model. "export" compares the held-out measures of all
    weights, at the last sync point, with the published ones.
    """
    history = [each for each in result["history"] if not each.get("back")]
    last = history[-1] if history else {}
    export = compare_measures(last, measures)
    return {
        **summarize_block(block, solver),
        "objective": result["objective"],
        "epochs": result["epochs"],
        "stopped": result["reason"],
        "converged": solver.stopping.is_met(result["reason"]),
        **({"held_out": last["held_out"]} if last.get("held_out") is not None else {}),
        **({"export": export} if export else {}),
        "history": thin_history(result["history"]),
    }


def compare_measures(
    full: Mapping[str, Any], published: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return common measures: of all weights, of the published ones, and their difference."""
    both = [
        name
        for name, value in full.items()
        if "@" in name and value is not None and name in published
    ]
    return {
        name: {
            "full": full[name],
            "published": published[name],
            "loss": round(full[name] - published[name], 6),
        }
        for name in both
    }


def thin_history(
    history: Sequence[Mapping[str, Any]], limit: int = MAX_HISTORY_ENTRIES
) -> list[dict[str, Any]]:
    """Return about `limit` evenly spaced entries at most, with the first and the last one."""
    step = -(-len(history) // limit) or 1
    thinned = [dict(entry) for entry in history[::step]]
    return (
        thinned if not history or (len(history) - 1) % step == 0 else [*thinned, dict(history[-1])]
    )
