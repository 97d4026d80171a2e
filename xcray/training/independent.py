"""Training strategy of family "independent": one task solves a batch of labels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import Float64, Int32, frozen
from xcray.data.dataset import Dataset
from xcray.errors import missing_ray
from xcray.schedule.placement import ONE_CPU, ResourceRequest
from xcray.solvers.contract import IndependentSolver, WarmStartSolver
from xcray.solvers.group_contract import StagedModel
from xcray.solvers.solved_labels import SolvedLabels
from xcray.telemetry.progress import LABELS_SOLVED
from xcray.training.capacity.preflight import (
    PROCESS_BYTES,
    Estimate,
    estimate,
    memory_limits,
    worker_count,
)
from xcray.training.capacity.worker_memory import entries_per_label, worker_bytes
from xcray.training.label_groups.clustering import LabelClusters
from xcray.training.label_groups.data import LabelsAndGroups, with_group_labels
from xcray.training.observer import TrainingObserver
from xcray.training.part_writer import writing_task
from xcray.training.report.summary import label_table, summarize_block
from xcray.training.selection.warm_start import WarmRunner
from xcray.training.solve_labels import (
    LabelsToSolve,
    TrainingData,
    make_local_pool,
    solve_labels,
)
from xcray.training.spec import TrainSpec
from xcray.training.strategy import TrainingContext, TrainingStrategy
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import Pool, Result, TaskRunner
from xcray.workers.solver_task import SolverTask, shared_arrays
from xcray.workers.timeline import DONE, SCHEMA, Span, balance, read_streams


class IndependentLabels(TrainingStrategy):
    """Strategy of family "independent", see `TrainingStrategy`."""

    staged: StagedModel | None = None

    def __init__(self, context: TrainingContext, solver: IndependentSolver) -> None:
        self._context = context
        self._solver = solver
        train = context.dataset.train
        self._data = TrainingData(train.X, train.XT, train.YT, train.weights)
        self._cost_terms = self._data.cost_terms(solver)
        self.workers = worker_count(context.spec)

    def run_settings(self) -> dict[str, Any]:
        """Return the groups of labels, if any, and whether parts have dual variables.

        Labels give the same bits in any batches.
        """
        clusters = self._context.clusters
        settings: dict[str, Any] = {} if clusters is None else {"groups": list(clusters.sizes)}
        return settings | ({"duals": True} if self._context.spec.keep_duals else {})

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Estimate the training; see `xcray.training.capacity.preflight.estimate`."""
        context = self._context
        return estimate(
            context.spec,
            context.dataset,
            self._solver,
            missing,
            workers=self.workers,
            probe_seconds=probe_seconds,
            cost_terms=self._cost_terms,
            runner=self._label_runner(),
        )

    def weight_shares(self) -> Float64:
        """Return the square root of the entries of X in each label's rows."""
        shares: Float64 = np.sqrt(entries_per_label(self._context.dataset.train))
        return shares

    def solve(self, observer: TrainingObserver) -> None:
        """Solve batches on the pool of the spec.

        With a time limit, the labels with the most training rows are solved first.
        """
        missing = frozen(observer.parts.missing, np.int32)
        if not len(missing):
            return
        counts, seconds = self._context.dataset.label_counts, observer.seconds_left()
        work = LabelsToSolve(
            self._solver, missing, self._cost_terms, None if seconds is None else counts
        )
        pool = self._make_pool()
        with observer.observe(pool):
            solve_labels(
                work,
                pool,
                _BatchObserver(
                    observer, self._solver, len(counts) - len(missing), self._first_group
                ),
                workers=self.workers,
                stop=observer.stop,
                seconds=seconds,
            )
        if not self._context.spec.workers:
            self.workers = pool.status().peak or self.workers  # the workers that actually joined

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return the counts and the solver's summary."""
        return summarize_block(block, self._solver)

    def label_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Return the per-label report with certificates and costs."""
        return label_table(block, self._solver, timeline)

    def rows_limit(self) -> int | None:
        """Return the bytes that the memory limit leaves for the rows of a worker; None for all."""
        spec = self._context.spec
        if spec.memory_limit is None:
            return None
        no_labels = frozen([], np.int32)
        left = memory_limits(spec)["memory_limit"] - self.estimate(no_labels, 0.0).memory
        return max(1, left // self.workers)

    def _make_pool(self) -> Pool:
        """Return the pool of the spec."""
        context = self._context
        if context.spec.pool == "ray":
            return make_ray_pool(
                context.spec,
                self._solver,
                context.dataset,
                self.workers,
                context.job,
                context.run_dir,
                memory_limit=self.rows_limit(),
                clusters=context.clusters,
                runner=self._label_runner(),
            )
        state = self._solver.load_dataset(context.dataset, self.rows_limit())
        runner = self._label_runner()
        return make_local_pool(context.spec.pool, self._solver, state, self.workers, runner)

    @property
    def _first_group(self) -> int:
        """Return the number of labels, without groups."""
        clusters, labels = self._context.clusters, self._context.dataset.n_labels
        return labels if clusters is None else len(clusters.members)

    def _label_runner(self) -> TaskRunner | None:
        """Return what solves the labels if it is not the solver."""
        if self._context.spec.keep_duals:
            return WarmRunner(cast("WarmStartSolver", self._solver))
        grouped = self._context.clusters is not None
        return LabelsAndGroups(self._solver, self._first_group) if grouped else None


class _BatchObserver(RunObserver[Result]):
    """Observes batches of labels; the progress counts the labels of earlier attempts too."""

    def __init__(
        self, observer: TrainingObserver, solver: IndependentSolver, n_earlier: int, n_labels: int
    ) -> None:
        self._observer = observer
        self._solver = solver
        self._n_earlier, self._n_labels = n_earlier, n_labels
        self._certified: dict[int, int] = {}  # by task, from its commit to its record
        earlier = read_streams(observer.run_dir) if n_earlier else SCHEMA.empty_table()
        done = earlier.filter(pc.equal(earlier.column("outcome"), DONE))
        self._earlier_seconds = balance(earlier, 1)["makespan"]
        self._earlier_done = pc.sum(done.column("n_labels")).as_py() or 0

    def record(self, span: Span) -> None:
        """Record what a worker did."""
        self._observer.record(span._replace(certified=self._certified.pop(span.task.id, 0)))

    def sync(self, *, at_once: bool = True) -> None:
        """Make all committed batches durable."""
        self._observer.sync(at_once=at_once)

    def commit(self, result: Result) -> None:
        """Commit a batch, and count its labels."""
        self._observer.commit(result.value)
        metrics = self._observer.metrics
        metrics.add(LABELS_SOLVED, len(result.value.labels))
        # groups have a larger gap
        records = result.value.records[result.value.labels < self._n_labels]
        gap, certified = self._solver.largest_gap(records), self._solver.certified(records)
        if gap is not None:
            metrics.add_gap(gap)
        if certified is not None:
            n = self._certified[result.task.id] = int(certified.sum())
            metrics.add_certified(n, len(certified))

    def report(self, progress: RunProgress) -> None:
        """Report the finished labels of all attempts, and their rate over all attempts."""
        seconds = self._earlier_seconds + progress.seconds
        rate = (self._earlier_done + progress.done) / seconds if seconds > 0.0 else 0.0
        eta = progress.eta
        if eta is None and rate > 0.0:  # no batch of this attempt has ended
            eta = (progress.total - progress.done) / rate
        note = self._observer.metrics.progress_note(
            f"{self._n_earlier} kept" if self._n_earlier else ""
        )
        self._observer.report_progress(
            self._n_earlier + int(progress.done),
            self._n_earlier + progress.total,
            rate,
            eta,
            note,
        )


def make_ray_pool(
    spec: TrainSpec,
    solver: IndependentSolver,
    dataset: Dataset,
    workers: int,
    job: str,
    run_dir: Path,
    memory_limit: int | None = None,
    clusters: LabelClusters | None = None,
    runner: TaskRunner | None = None,
) -> Pool:
    """Return a pool of Ray actors, on the spec's cluster or on a local Ray.

    run_dir: see `PartWriter`. memory_limit, runner: see `SolverTask`. clusters: groups that the
    labels of `dataset` end with; its directory does not have them.
    """
    try:
        from xcray.workers.ray.pool import (
            MAX_CLUSTER_WORKERS,
            RayPool,
            scaling_policy_for,
            training_session,
        )
    except ModuleNotFoundError as error:
        raise missing_ray(error) from None
    data_path = str(dataset.path.resolve())
    prepare = None if clusters is None else partial(with_group_labels, clusters=clusters)
    task = SolverTask(solver, data_path, dataset.content_hash, memory_limit, prepare, runner)
    policy, request = scaling_policy_for(spec.ray_address), ONE_CPU
    if policy is not None:
        request = ResourceRequest(memory=PROCESS_BYTES + worker_bytes(solver, dataset.train, 0)[0])
        workers = workers if spec.workers else MAX_CLUSTER_WORKERS
    return RayPool(
        writing_task(task, run_dir, workers),
        workers,
        training_session(spec.ray_address, workers),
        job,
        lambda: shared_arrays(dataset),
        request=request,
        policy=policy,
    )
