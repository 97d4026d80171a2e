"""Training of solvers whose labels are given out in batches (family "scatter"): one task a batch, or one for all labels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64, Int32, frozen
from xcray.data.dataset import Dataset
from xcray.errors import lacking_ray
from xcray.schedule.placement import A_CPU, Need
from xcray.solvers.contract import Solver, keep_in
from xcray.solvers.solved_labels import Block, joined
from xcray.telemetry.progress import CLASSES
from xcray.training.capacity.preflight import (
    PROCESS,
    Estimate,
    entries_of_labels,
    estimate,
    worker_bytes,
    workers_of,
)
from xcray.training.report.summary import class_table, figures, largest_gap
from xcray.training.solve_labels import Rows, local_pool, solve_labels
from xcray.training.spec import TrainSpec
from xcray.training.strategy import Desk, Setting
from xcray.workers.pool import Pool, Result
from xcray.workers.solver_task import SolverWork, shared_arrays
from xcray.workers.timeline import Span, Timeline


class Scattering:
    """See `Way`."""

    link = "identity"

    def __init__(self, at: Setting) -> None:
        self._at = at
        self._solver = at.solver
        train = at.dataset.train
        self._rows = Rows(train.X, train.XT, train.YT, train.weights)
        self._terms = self._rows.terms(at.solver)
        self.workers = 1 if at.solver.joint else workers_of(at.spec)

    def settled(self) -> dict[str, Any]:
        """Nothing: labels give the same bits in any batches."""
        return {}

    def foreseen(self, missing: Int32, probe: float | None = None) -> Estimate:
        """See `estimate`."""
        at = self._at
        return estimate(
            at.spec,
            at.dataset,
            self._solver,
            missing,
            workers=self.workers,
            probe=probe,
            terms=self._terms,
        )

    def shares(self) -> Float64:
        """By the entries of X in each label's rows."""
        shares: Float64 = np.sqrt(entries_of_labels(self._at.dataset.train))
        return shares

    def solve(self, desk: Desk) -> None:
        """Batches on the pool that the spec asks for; with an end to the time, the most valuable labels first."""
        missing = frozen(desk.parts.missing, np.int32)
        if not len(missing):
            return
        n_labels, began = self._at.dataset.n_labels, time.monotonic()
        kept, finished = n_labels - len(missing), list[Block]()  # finished: and not yet on disk

        def sync() -> None:
            if finished:
                desk.parts.commit(joined(finished))
                finished.clear()

        def tick(done: int, share: float) -> None:
            elapsed = time.monotonic() - began
            eta = elapsed * (1.0 - share) / share if share > 0.0 else None
            rate = done / elapsed if elapsed > 0.0 else 0.0
            desk.tell(
                kept + done, n_labels, rate, eta, desk.vitals.note(f"{kept} kept" if kept else "")
            )

        pool, seconds = self._pool(), desk.seconds_left()
        desk.watch(pool.footprints)
        desk.vitals.follow(pool.muster)
        with Timeline(self._at.run_dir, lambda: pool.nodes) as timeline:

            def record(span: Span) -> None:
                timeline.add(span)
                desk.vitals.span(span)

            def commit(result: Result) -> None:
                finished.append(result.block)
                desk.vitals.add(CLASSES, len(result.block.labels))
                desk.vitals.certified(largest_gap(result.block.records))

            solve_labels(
                self._solver,
                self._terms,
                missing,
                pool,
                workers=self.workers,
                commit=commit,
                stop=desk.stop,
                tick=tick,
                record=record,
                values=None if seconds is None else self._at.dataset.label_counts,
                seconds=seconds,
                sync=sync,
            )
        if not self._at.spec.workers:
            self.workers = pool.muster().most or self.workers  # as many as came

    def figures(self, block: Block, measures: Mapping[str, float]) -> dict[str, Any]:
        """Counts, and how the certificates came out."""
        return figures(block, self._solver.eps)

    def classes(self, block: Block, timeline: pa.Table) -> pa.Table:
        """With the certificate and the cost of each class."""
        return class_table(block, self._solver.eps, timeline)

    def _pool(self) -> Pool:
        """The pool the spec asks for."""
        at = self._at
        if at.spec.pool == "ray":
            return ray_pool(
                at.spec, self._solver, at.dataset, self.workers, at.job, keep=at.run_dir
            )
        local = self._solver.load(*self._rows)
        keep_in(local, at.run_dir)
        return local_pool(at.spec.pool, self._solver, local, self.workers)


def ray_pool(
    spec: TrainSpec,
    solver: Solver,
    dataset: Dataset,
    workers: int,
    job: str,
    keep: Path | None = None,
) -> Pool:
    """A pool of Ray actors, on the cluster the spec names or on a local Ray of its own; keep: see `RayPool`."""
    try:
        from xcray.workers.ray.pool import MOST, RayPool, session, thrift_on
    except ModuleNotFoundError as error:
        raise lacking_ray(error) from None
    where = str(dataset.path.resolve())
    kept = str(keep.resolve()) if keep is not None else None
    work = SolverWork(spec.solver, solver.as_dict(), where, dataset.content_hash, kept)
    thrift, need = thrift_on(spec.ray_address), A_CPU
    if thrift is not None:
        need = Need(memory=PROCESS + worker_bytes(solver, dataset.train, 0)[0])
        workers = workers if spec.workers or solver.joint else MOST
    return RayPool(
        work,
        workers,
        session(spec.ray_address, workers),
        job,
        lambda: shared_arrays(dataset),
        need=need,
        thrift=thrift,
    )
