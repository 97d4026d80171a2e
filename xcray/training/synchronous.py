"""Synchronous strategy: all workers run one method at a time, the driver adds up the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from xcray.arrays import Float64, Int32, Pattern, TopK, frozen
from xcray.data.dataset import Dataset, Split
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.kernels.sparse import take_pattern_rows
from xcray.metrics import f1, precision_at_k, predicted_sets
from xcray.schedule.events import Task
from xcray.solvers import make_solver
from xcray.solvers.multinomial import Shard, make_shard, shard_rows, total_weight
from xcray.solvers.solved_labels import SolvedLabels
from xcray.solvers.synchronous_contract import (
    HeldOut,
    InitialWeights,
    LabelWeights,
    RoundMetrics,
    SynchronousOutcome,
)
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    read_json,
    write_json,
)
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.joint_resources import estimate_synchronous, joint_shape
from xcray.training.capacity.preflight import Estimate
from xcray.training.checkpoints import read_arrays, write_arrays
from xcray.training.joint import JointStrategy, make_worker_group, outcome_report, report_progress
from xcray.training.strategy import RunServices, TrainingContext
from xcray.workers.synchronous_calls import SynchronousCalls
from xcray.workers.timeline import DONE, Span, Timeline
from xcray.workers.worker_group import OBJECT_LOST, CallResult, Reply, WorkerGroup

SEED: Final = 0  # of the row shares; the optimum does not depend on it
CHECKPOINT_SECONDS: Final = 30.0  # between two checkpoints of the weights
# Copies of all weights in Ray's object store: weights and gradients, of this round and the
# last.
STORE_COPIES: Final = 4
OUTCOME_FILE: Final = "ended.json"
NOTE_FILE: Final = "note.json"
# names of the solvers' round limits
LIMIT_PARAMETERS: Final = (
    "max_iterations",
    "max_rounds",
)
MAX_RESTARTS: Final = 5  # restarts from a checkpoint after node losses


@dataclass(frozen=True)
class SynchronousWorkerFactory:
    """Creates the workers of a synchronous training.

    solver, parameters: see `make_solver`. path, content_hash: of the data set, which all nodes must
    see. workers: number of workers.
    """

    solver: str
    parameters: Mapping[str, Any]
    path: str
    content_hash: str
    workers: int

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's local part: a share of the rows, or all rows if it needs them."""
        solver: Any = make_solver(self.solver, self.parameters)
        number = int(worker.rpartition("-")[2])
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"{worker} does not see the data set ({error.message}): "
                "put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        shares = (1, 0) if solver.replicated else (self.workers, number)
        return solver.make_worker(*shards_of(data, solver, *shares), stopped)

    def warm_up(self) -> None:
        """Do nothing: there are no kernels to compile."""


class Synchronous(JointStrategy):
    """Strategy of family "synchronous", see `TrainingStrategy`."""

    def __init__(self, at: TrainingContext) -> None:
        super().__init__(at)
        self._history: list[dict[str, Any]] = []
        self._began = self._earlier_seconds = 0.0  # start of this attempt; seconds of earlier ones
        self._reason = ""  # why the training ends
        self._limit = next(
            int(getattr(at.solver, name)) for name in LIMIT_PARAMETERS if hasattr(at.solver, name)
        )

    def run_settings(self) -> dict[str, Any]:
        """Return no settings: a run can be resumed with any number of workers."""
        return {}

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """See `xcray.training.capacity.joint_resources`."""
        return estimate_synchronous(
            self._at.spec, joint_shape(self._at.dataset, self._solver), self._solver, self.workers
        )

    def solve(self, services: RunServices) -> None:
        """Run rounds from the last saved weights, or from 0, then commit all weights."""
        if (self.folder / OUTCOME_FILE).is_file() and not len(services.parts.missing):
            return
        (self.folder / OUTCOME_FILE).unlink(missing_ok=True)
        services.parts.clear()
        at, checkpoints = self._at, WeightCheckpoints(self.folder)
        factory = SynchronousWorkerFactory(
            at.spec.solver,
            at.solver.as_dict(),
            str(at.dataset.path.resolve()),
            at.dataset.content_hash,
            self.workers,
        )
        group = make_worker_group(
            at.spec,
            factory,
            self.workers,
            at.job,
            STORE_COPIES * 8 * self._n_features * at.dataset.n_labels,
        )
        self._began = time.monotonic()
        try:
            group.open()
            services.set_memory_source(group.memory_usage)
            services.metrics.set_worker_source(group.status)
            with Timeline(at.run_dir, lambda: group.nodes) as timeline, limit_blas_threads():

                def record(span: Span) -> None:
                    timeline.add(span)
                    services.metrics.add_span(span)

                rounds = SynchronousCalls(
                    cast("WorkerGroup", RecordingGroup(group, record)), services.stop.is_set
                )
                trained = self._train(rounds, services, checkpoints)
                self._write_outcome(self._reason or trained.reason, rounds.lost)
                for block in self._solver.blocks(trained, at.dataset.label_counts):
                    services.parts.commit(block)
        finally:
            group.stop()
            group.close()
        checkpoints.clear()

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, the final gradient norm and the number of lost workers."""
        newest = read_json(self.folder / OUTCOME_FILE)
        return {
            **outcome_report(newest, block, measures),
            "gradient": newest["gradient"],
            "workers_lost": newest["lost"],
        }

    def _train(
        self, rounds: SynchronousCalls, services: RunServices, checkpoints: WeightCheckpoints
    ) -> SynchronousOutcome:
        """Run all rounds; after a node loss, restart from the last checkpoint."""
        for losses in range(MAX_RESTARTS + 1):
            newest = checkpoints.newest()
            self._history, self._earlier_seconds, start = (
                ([], 0.0, None) if newest is None else newest
            )
            base = len(self._history)

            def on_round(
                metrics: RoundMetrics, parts: Callable[[], Iterator[LabelWeights]], base: int = base
            ) -> bool:
                return self._on_round(
                    metrics._replace(number=base + metrics.number), parts, services, checkpoints
                )

            try:
                return cast(
                    "SynchronousOutcome",
                    self._solver.train(
                        rounds, self._n_features, self._at.dataset.n_labels, on_round, start
                    ),
                )
            except Unavailable as error:
                if error.code != OBJECT_LOST or losses == MAX_RESTARTS:
                    raise
        raise AssertionError("the last time around raises")

    @property
    def _n_features(self) -> int:
        """D', with the constant feature."""
        return int(self._at.dataset.n_features) + bool(self._solver.bias)

    def _on_round(
        self,
        metrics: RoundMetrics,
        parts: Callable[[], Iterator[LabelWeights]],
        services: RunServices,
        checkpoints: WeightCheckpoints,
    ) -> bool:
        """Record and report a round, save the weights if due; return whether to stop."""
        seconds = self._earlier_seconds + time.monotonic() - self._began
        entry = {
            "epoch": metrics.number,
            "seconds": round(seconds, 3),
            "objective": metrics.objective,
            "gradient": metrics.gradient,
        }
        self._history.append({**entry, **self._held_out_metrics(metrics.held_out)})
        rate = metrics.number / max(seconds, 1e-9)
        report_progress(
            services,
            metrics.number,
            self._limit,
            rate,
            (self._limit - metrics.number) / rate,
            self._history[-1],
        )
        left = services.seconds_left()
        if left is not None and left <= 0.0:
            self._reason = f"the time of {self._at.spec.max_seconds:g} s was up"
        elif metrics.number >= self._limit:
            self._reason = f"after {self._limit} rounds"
        if checkpoints.due or self._reason:
            checkpoints.save(self._history, seconds, parts)
        return bool(self._reason)

    def _held_out_metrics(self, held_out: HeldOut | None) -> dict[str, float]:
        """Return measures of held-out rows; nothing if they were not evaluated."""
        test = self._at.dataset.test
        if held_out is None or test is None:
            return {}
        truth: Pattern = take_pattern_rows(test.Y, frozen(held_out.rows, np.int64))
        top = TopK(frozen(held_out.labels, np.int32), frozen(held_out.scores, np.float64))
        precision = {
            f"P@{k}": precision_at_k(top, truth, k) for k in sorted({1, held_out.labels.shape[1]})
        }
        return {
            "held_out": held_out.loss,
            **precision,
            **f1(predicted_sets(top, truth.n_cols, k=1), truth),
        }

    def _write_outcome(self, reason: str, losses: int) -> None:
        """Write the training summary before the parts, so that parts never exist without it."""
        last = self._history[-1]
        metrics = {
            "epochs": last["epoch"],
            "objective": last["objective"],
            "gradient": last["gradient"],
            "reason": reason,
        }
        write_json(
            self.folder / OUTCOME_FILE, {**metrics, "history": self._history, "lost": losses}
        )


class RecordingGroup:
    """A worker group that also records results in a timeline."""

    def __init__(self, group: WorkerGroup, record: Callable[[Span], None]) -> None:
        self._team = group
        self._record = record

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the wrapped group."""
        return getattr(self._team, name)

    def wait(self, seconds: float) -> list[Reply]:
        """See `WorkerGroup.wait`."""
        replies = self._team.wait(seconds)
        for reply in replies:
            if isinstance(reply, CallResult):
                self._record(
                    Span(
                        reply.worker,
                        Task(reply.ticket, (), 0.0),
                        reply.started,
                        reply.seconds,
                        DONE,
                    )
                )
        return replies


class WeightCheckpoints:
    """Checkpoints of the weights, at most one every CHECKPOINT_SECONDS.

    Each one is a directory that is published by one rename; only the newest is kept.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".round-*.part"):
            discard_directory(left)
        self._folder = folder
        self._saved_at = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS

    def save(
        self,
        history: list[dict[str, Any]],
        seconds: float,
        parts: Callable[[], Iterator[LabelWeights]],
    ) -> None:
        """Save the weights after the last round of `history`, after `seconds` of training."""
        target = self._folder / f"round-{len(history):06d}"
        staged, files = create_staging_directory(target), []
        try:
            for number, part in enumerate(parts()):
                digest = write_arrays(staged / f"weights-{number:05d}.arrow", {"W": part.W})
                files.append({"lo": part.lo, "hi": part.hi, "sha256": digest})
            write_json(staged / NOTE_FILE, {"history": history, "seconds": seconds, "files": files})
            discard_directory(target)
            publish_directory(staged, target)
        finally:
            discard_directory(staged)
        for older in self._paths()[1:]:
            discard_directory(older)
        self._saved_at = time.monotonic()

    def newest(self) -> tuple[list[dict[str, Any]], float, InitialWeights] | None:
        """Return the history, the seconds and the last saved weights; None without any.

        Damaged checkpoints are removed.
        """
        for path in self._paths():
            try:
                note = read_json(path / NOTE_FILE)
                files = [
                    (f"weights-{number:05d}.arrow", each["sha256"])
                    for number, each in enumerate(note["files"])
                ]
                arrays = [read_arrays(path / name, digest)["W"] for name, digest in files]
            except XcrayError:
                discard_directory(path)
                continue
            ends = [(each["lo"], each["hi"]) for each in note["files"]]
            return note["history"], note["seconds"], partial(weight_columns, ends, arrays)
        return None

    def clear(self) -> None:
        """Remove all checkpoints after the training."""
        for path in self._paths():
            discard_directory(path)

    def _paths(self) -> list[Path]:
        """Return the published checkpoints, newest first."""
        return sorted(self._folder.glob("round-[0-9]*"), reverse=True)


def shards_of(data: Dataset, solver: Any, shares: int, number: int) -> tuple[Shard, Shard | None]:
    """Return share `number` of `shares` of the training rows, and of the held-out ones or None."""
    train, test = data.train, data.test

    def shard(part: Split) -> Shard:
        rows, weights = shard_rows(part.n_rows, shares, SEED, number), part.weights
        return make_shard(
            part.X,
            part.Y,
            rows,
            total=total_weight(part.Y, weights),
            weights=weights,
            bias=solver.bias,
        )

    return shard(train), None if test is None or not test.Y.nnz else shard(test)


def weight_columns(
    ends: Sequence[tuple[int, int]], arrays: Sequence[Float64], lo: int, hi: int
) -> Float64:
    """Return the weights of labels lo .. hi-1: (D', hi-lo).

    arrays: weights of labels a .. b-1 each, where (a, b) are the `ends`.
    """
    overlapping = [
        W[:, max(lo - a, 0) : hi - a]
        for (a, b), W in zip(ends, arrays, strict=True)
        if a < hi and b > lo
    ]
    return np.concatenate(overlapping, axis=1)
