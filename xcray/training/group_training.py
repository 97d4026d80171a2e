"""Training of solvers whose workers act together: the loop around the program of a solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Int32, Pattern, TopK, frozen
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.kernels.sparse import take_pattern_rows
from xcray.measures import f1, precision_at_k, predicted_sets
from xcray.solvers.group_contract import GroupSolver, Layout, Round, StateLost, TrainingRows
from xcray.solvers.held_out import HeldOut
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.system.blas_threads import limit_blas_threads
from xcray.training.capacity.epoch_resources import complete_estimate, problem_shape
from xcray.training.capacity.preflight import Estimate, memory_limits
from xcray.training.epoch_progress import CurvePoint, resume_note, seconds_left
from xcray.training.epoch_strategy import EpochStrategy, make_worker_group, outcome_report
from xcray.training.observer import TrainingObserver
from xcray.training.strategy import TrainingContext
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import ThreadGroup
from xcray.workers.observer import RunProgress
from xcray.workers.timeline import START, TimelinePosition
from xcray.workers.worker_group import OBJECT_LOST

OUTCOME_FILE: Final = "outcome.json"
MAX_RESTARTS: Final = 5  # restarts from one checkpoint after losses
# errors after which the program starts from the newest checkpoint, and what the progress says
LOSSES: Final = {OBJECT_LOST: "a node was lost", StateLost.code: "a worker was lost"}


@dataclass(frozen=True)
class GroupWorkerFactory:
    """Creates the workers of a training.

    solver: its class must be importable by the workers. path, content_hash: of the data set, which
    all nodes must see.
    """

    solver: Any
    path: str
    content_hash: str
    layout: Layout

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's worker, which takes its share of the rows."""
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
        return self.solver.create_worker(training_rows(data), number, self.layout, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


@dataclass(frozen=True)
class RowWorkerFactory:
    """Creates the workers of a training from rows in this process."""

    solver: GroupSolver
    rows: TrainingRows
    layout: Layout

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return the solver's worker, which takes its share of the rows."""
        number = int(worker.rpartition("-")[2])
        return self.solver.create_worker(self.rows, number, self.layout, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


class GroupResult(NamedTuple):
    """Result of a training in this process: its last round, why it ended, and all labels."""

    last: Round
    reason: str
    labels: list[SolvedLabels]


def train_in_process(solver: GroupSolver, rows: TrainingRows, workers: int) -> GroupResult:
    """Train on threads of this process, without a data set directory and checkpoints."""
    layout = solver.layout(workers, processes=False)
    group = ThreadGroup(RowWorkerFactory(solver, rows, layout), layout.workers)
    positives = frozen(np.bincount(rows.Y.indices, minlength=rows.Y.n_cols), np.int64)
    try:
        with limit_blas_threads():
            group.open()
            calls = GroupCalls(group)
            program = solver.program(calls, rows)
            while True:
                try:
                    last = next(program)
                except StopIteration as end:
                    labels = list(solver.export(calls, last.state, positives))
                    return GroupResult(last, end.value, labels)
    finally:
        group.close()


class GroupTraining(EpochStrategy):
    """Strategy of family "group", see `TrainingStrategy`."""

    def __init__(self, context: TrainingContext, solver: GroupSolver) -> None:
        super().__init__(context, solver)
        self._solver = solver
        self._rows = training_rows(context.dataset)
        self._layout = solver.layout(self.workers, processes=context.spec.pool == "ray")
        self.workers = self._layout.workers
        self._shape = problem_shape(context.dataset, solver.n_weights(context.dataset.n_features))
        self._checkpoints = CheckpointFolder(self.folder)
        self._history: list[dict[str, Any]] = []
        self._began = self._earlier_seconds = 0.0  # start of this attempt; seconds of earlier ones
        self._note = ""  # what happened since the last report
        self._curve: list[CurvePoint] = []  # of the ratio, since the start or the last loss

    def run_settings(self) -> dict[str, Any]:
        """Return no settings: a run can be resumed with any number of workers."""
        return {}

    def estimate(self, missing: Int32, probe_seconds: float | None = None) -> Estimate:
        """Return the estimate with rows in memory, or without if they do not fit."""
        estimate = self._estimate(self._layout)
        free = min(memory_limits(self._context.spec).values(), default=0)
        if self._solver.maps_rows and estimate.memory > free:
            self._layout = self._layout._replace(in_memory=False)
            return self._estimate(self._layout)
        return estimate

    def solve(self, observer: TrainingObserver) -> None:
        """Run the program from the newest checkpoint, or from the start, then commit all labels."""
        outcome = self.folder / OUTCOME_FILE
        if outcome.is_file() and not len(observer.parts.missing) and self._is_stored():
            return
        outcome.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        context = self._context
        path, content_hash = str(context.dataset.path.resolve()), context.dataset.content_hash
        factory = GroupWorkerFactory(self._solver, path, content_hash, self._layout)
        store_bytes = self._solver.resources(self._shape, self._layout).store
        group = make_worker_group(context.spec, factory, self.workers, context.job, store_bytes)
        try:
            group.open()
            with observer.observe(group), limit_blas_threads():
                self._train(GroupCalls(group, observer.stop.is_set, observer.record), observer)
        finally:
            group.stop()
            group.close()
        if self._solver.exports == "weights":  # no part has the stages
            self._checkpoints.clear()

    def _is_stored(self) -> bool:
        """Return whether the run has the trained model: labels in parts, stages in a checkpoint."""
        if self._solver.exports == "weights":
            return True
        state = self._newest().state
        if state is not None:
            self.staged = self._solver.staged(state, self._rows)
        return state is not None

    def summarize(self, block: SolvedLabels, measures: Mapping[str, float]) -> dict[str, Any]:
        """Return `outcome_report`, and the numbers of stages, lost workers and damages."""
        newest = read_json(self.folder / OUTCOME_FILE)
        last, report = newest["history"][-1], outcome_report(self._solver, newest, block, measures)
        if report["objective"] is None:  # each stage has its own
            del report["objective"]
        return {
            **report,
            **{name: last[name] for name in ("gradient",) if name in last},
            **({"stages": newest["epochs"]} if self.staged else {}),
            **self._solver.report(newest["history"]),
            "workers_lost": newest["lost"],
            "damaged_checkpoints": newest["damaged"],
        }

    def _estimate(self, layout: Layout) -> Estimate:
        """See `xcray.training.capacity.epoch_resources`."""
        spec, dataset = self._context.spec, self._context.dataset
        needs = self._solver.resources(self._shape, layout)
        if self._solver.exports == "weights":
            return complete_estimate(spec, self.workers, dataset, self._shape, needs)
        sparse = needs._replace(weights=0)
        estimate = complete_estimate(spec, self.workers, dataset, self._shape, sparse)
        return estimate._replace(model=estimate.model + 4 * needs.weights, weights=needs.weights)

    def _train(self, calls: GroupCalls, observer: TrainingObserver) -> None:
        """Run the program and commit its labels; after a node loss, from the newest checkpoint."""
        farthest, losses = -1, 0
        while True:
            newest = self._newest()
            number = len(newest.history)
            losses, farthest = (0 if number > farthest else losses), max(farthest, number)
            try:
                self._run(calls, observer, newest)
                return
            except Unavailable as error:
                losses += 1
                if error.code not in LOSSES or losses > MAX_RESTARTS:
                    raise
                self._note = LOSSES[error.code]

    def _run(self, calls: GroupCalls, observer: TrainingObserver, newest: _Newest) -> None:
        """Run the program from a checkpoint to the end, and commit its labels."""
        observer.parts.clear()
        observer.discard_since(newest.position)
        self._began, self._earlier_seconds = time.monotonic(), newest.seconds
        self._history = list(newest.history)
        self._curve.clear()
        if self._note:
            self._note += resume_note(len(self._history))
        last, reason = self._run_rounds(calls, observer, newest)
        state = newest.state if last is None else last.state
        assert state is not None  # a program without a checkpoint has at least one round
        if last is not None and self._solver.exports == "stages":
            self._save(last, observer)
        self._write_outcome(reason, calls.lost)
        for block in self._solver.export(calls, state, self._context.dataset.label_counts):
            observer.commit(block)
            observer.sync()
        self.staged = last.staged if last else self._solver.staged(state, self._rows)

    def _run_rounds(
        self, calls: GroupCalls, observer: TrainingObserver, newest: _Newest
    ) -> tuple[Round | None, str]:
        """Run the program to its end or to the time limit; return the last round and the reason."""
        program, last = self._solver.program(calls, self._rows, newest.state), None
        while True:
            try:
                last = next(program)
            except StopIteration as end:
                return last, end.value
            if reason := self._on_round(last, observer):
                program.close()
                return last, reason

    def _newest(self) -> _Newest:
        """Return the newest checkpoint, or that of the start."""
        saved = self._checkpoints.newest()
        if saved is None:
            return _Newest(None, [], 0.0, START)
        state, note = TrainingState(saved.note["state"], saved.groups), saved.note
        position = TimelinePosition(*note["timeline"])
        return _Newest(state, note["history"], note["seconds"], position)

    def _on_round(self, done: Round, observer: TrainingObserver) -> str:
        """Record and report a round, save the state if due; return the reason to end, or ""."""
        seconds = self._seconds()
        entry = {"epoch": done.number, "seconds": round(seconds, 3), **done.entry}
        self._history.append({**entry, **self._held_out_metrics(done.held_out)})
        self._curve.append(CurvePoint(seconds, done.ratio))
        rule, rate = self._solver.stopping, done.number / max(seconds, 1e-9)
        eta = seconds_left(rule, done.number, seconds, self._curve)
        newest, self._note, note = self._history[-1], "", self._note
        if self._checkpoints.due:
            self._save(done, observer)
        observer.report(RunProgress(done.number, rule.limit, seconds, rate, eta, newest, note))
        left = observer.seconds_left()
        if left is not None and left <= 0.0 and done.number < rule.limit:
            return f"the time of {self._context.spec.max_seconds:g} s was up"
        return ""

    def _save(self, done: Round, observer: TrainingObserver) -> None:
        """Save the state after a round, with the history and the timeline up to it."""
        note = {
            "state": dict(done.state.note),
            "history": self._history,
            "seconds": self._seconds(),
            "timeline": observer.mark(),
        }
        self._checkpoints.save(done.number, TrainingState(note, done.state.groups))

    def _seconds(self) -> float:
        """Return the seconds of training, in all attempts."""
        return self._earlier_seconds + time.monotonic() - self._began

    def _held_out_metrics(self, held_out: HeldOut | None) -> dict[str, float]:
        """Return measures of held-out rows; nothing if they were not evaluated."""
        test = self._context.dataset.test
        if held_out is None or test is None:
            return {}
        truth: Pattern = take_pattern_rows(test.Y, frozen(held_out.rows, np.int64))
        top = TopK(frozen(held_out.labels, np.int32), frozen(held_out.scores, np.float64))
        precision = {
            f"P@{k}": precision_at_k(top, truth, k) for k in sorted({1, held_out.labels.shape[1]})
        }
        loss = {} if held_out.loss is None else {"held_out": held_out.loss}
        return {**loss, **precision, **f1(predicted_sets(top, truth.n_cols, k=1), truth)}

    def _write_outcome(self, reason: str, losses: int) -> None:
        """Write the training summary before the parts, so that parts never exist without it."""
        last = self._history[-1]
        outcome = {
            "epochs": last["epoch"],
            "objective": last.get("objective"),
            "reason": reason,
            "history": self._history,
            "lost": losses,
            "damaged": self._checkpoints.damaged,
        }
        write_json(self.folder / OUTCOME_FILE, outcome)


class _Newest(NamedTuple):
    """What a training goes on from: state, history, seconds of training, timeline up to it."""

    state: TrainingState | None
    history: list[dict[str, Any]]
    seconds: float
    position: TimelinePosition


def training_rows(dataset: Dataset) -> TrainingRows:
    """Return the rows of a data set for a group solver."""
    train, test = dataset.train, dataset.test
    held_out = None if test is None else (test.X, test.Y, test.weights)
    return TrainingRows(train.X, train.Y, train.weights, held_out)
