"""Training strategy of solvers with independent labels (family "independent").

One task solves a batch of labels. Joint solvers solve all labels in one task.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64, Int32, frozen
from xcray.data.dataset import Dataset
from xcray.errors import missing_ray
from xcray.schedule.placement import ONE_CPU, ResourceRequest
from xcray.solvers.contract import Solver, set_checkpoint_dir
from xcray.solvers.solved_labels import SolvedLabels, concatenate
from xcray.telemetry.progress import CLASSES_SOLVED
from xcray.training.capacity.preflight import (
    PROCESS_BYTES,
    Estimate,
    entries_per_label,
    estimate,
    worker_bytes,
    worker_count,
)
from xcray.training.report.summary import class_table, largest_gap, summarize_block
from xcray.training.solve_labels import TrainingData, make_local_pool, solve_labels
from xcray.training.spec import TrainSpec
from xcray.training.strategy import RunServices, TrainingContext
from xcray.workers.pool import Pool, Result
from xcray.workers.solver_task import SolverTask, shared_arrays
from xcray.workers.timeline import Span, Timeline


class IndependentLabels:
    """Training strategy for independent labels, see `TrainingStrategy`."""

    link = "identity"

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        self._solver = context.solver
        train = context.dataset.train
        self._data = TrainingData(train.X, train.XT, train.YT, train.weights)
        self._cost_terms = self._data.cost_terms(context.solver)
        self.workers = 1 if context.solver.joint else worker_count(context.spec)

    def run_settings(self) -> dict[str, Any]:
        """Return no settings: labels give the same bits in any batches."""
        return {}

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
        )

    def weight_shares(self) -> Float64:
        """Return the square root of the entries of X in each label's rows."""
        shares: Float64 = np.sqrt(entries_per_label(self._context.dataset.train))
        return shares

    def solve(self, services: RunServices) -> None:
        """Solve batches on the pool of the spec.

        With a time limit, the labels with the most training rows are solved first.
        """
        missing = frozen(services.parts.missing, np.int32)
        if not len(missing):
            return
        n_labels, began = self._context.dataset.n_labels, time.monotonic()
        n_kept = n_labels - len(missing)
        finished = list[SolvedLabels]()  # not yet on disk

        def sync() -> None:
            if finished:
                services.parts.commit(concatenate(finished))
                finished.clear()

        def tick(done: int, share: float) -> None:
            elapsed = time.monotonic() - began
            eta = elapsed * (1.0 - share) / share if share > 0.0 else None
            rate = done / elapsed if elapsed > 0.0 else 0.0
            services.report_progress(
                n_kept + done,
                n_labels,
                rate,
                eta,
                services.metrics.progress_note(f"{n_kept} kept" if n_kept else ""),
            )

        pool, seconds = self._make_pool(), services.seconds_left()
        services.set_memory_source(pool.memory_usage)
        services.metrics.set_worker_source(pool.status)
        with Timeline(self._context.run_dir, lambda: pool.nodes) as timeline:

            def record(span: Span) -> None:
                timeline.add(span)
                services.metrics.add_span(span)

            def commit(result: Result) -> None:
                finished.append(result.value)
                services.metrics.add(CLASSES_SOLVED, len(result.value.labels))
                services.metrics.add_gap(largest_gap(result.value.records))

            solve_labels(
                self._solver,
                self._cost_terms,
                missing,
                pool,
                workers=self.workers,
                commit=commit,
                stop=services.stop,
                tick=tick,
                record=record,
                values=None if seconds is None else self._context.dataset.label_counts,
                seconds=seconds,
                sync=sync,
            )
        if not self._context.spec.workers:
            self.workers = pool.status().peak or self.workers  # the workers that actually joined

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return the counts and the certificate summary."""
        return summarize_block(block, self._solver.eps)

    def class_table(self, block: SolvedLabels, timeline: pa.Table) -> pa.Table:
        """Return the per-class report with certificates and costs."""
        return class_table(block, self._solver.eps, timeline)

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
                checkpoint_dir=context.run_dir,
            )
        state = self._solver.load(*self._data)
        set_checkpoint_dir(state, context.run_dir)
        return make_local_pool(context.spec.pool, self._solver, state, self.workers)


def make_ray_pool(
    spec: TrainSpec,
    solver: Solver,
    dataset: Dataset,
    workers: int,
    job: str,
    checkpoint_dir: Path | None = None,
) -> Pool:
    """Return a pool of Ray actors, on the spec's cluster or on a local Ray.

    checkpoint_dir: see `RayPool`.
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
    checkpoint_path = str(checkpoint_dir.resolve()) if checkpoint_dir is not None else None
    task = SolverTask(
        spec.solver, solver.as_dict(), data_path, dataset.content_hash, checkpoint_path
    )
    policy, request = scaling_policy_for(spec.ray_address), ONE_CPU
    if policy is not None:
        request = ResourceRequest(memory=PROCESS_BYTES + worker_bytes(solver, dataset.train, 0)[0])
        workers = workers if spec.workers or solver.joint else MAX_CLUSTER_WORKERS
    return RayPool(
        task,
        workers,
        training_session(spec.ray_address, workers),
        job,
        lambda: shared_arrays(dataset),
        request=request,
        policy=policy,
    )
