"""Training by shards: runs the program of a solver, from the start or a checkpoint to the end.

All global work happens at sync points, where all blocks are at rest: the solver's decisions,
checkpoints, and moves of shards to faster workers.

With the orders "sync" and "ring" the blocks at each sync point depend only on the grid, the data
and the solver. They do not depend on the workers, the shard assignment, losses or resumes. So a
training that was interrupted and resumed ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from xcray.errors import Corrupt, Refused, Stopped, Unavailable
from xcray.solvers.rotation_contract import RotationSolver, RunState, SyncPoint
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder
from xcray.training.epoch_progress import CurvePoint, resume_note, seconds_left
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.calls import ShardCalls
from xcray.training.shards.checkpoints import load_checkpoint, save_checkpoint
from xcray.training.shards.held_out_measures import held_out_measures
from xcray.training.shards.rotate import TIME_LIMIT, measured_speeds
from xcray.training.shards.source import ShardSource
from xcray.training.shards.task import ShardTask, TrainingOutcome
from xcray.workers.calls import WorkerLost
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import START, TimelinePosition
from xcray.workers.worker_group import WorkerGroup

MAX_LOSSES_PER_WORKER: Final = 5  # losses before giving up, per worker
# code of the Stopped before a node goes
NODE_LEAVES: Final = "LEAVE"
# in addition to the time of the last checkpoint
LEAVE_MARGIN_SECONDS: Final = 5.0


def train_shards(
    solver: RotationSolver,
    group: WorkerGroup,
    source: ShardSource,
    task: ShardTask,
    observer: RunObserver[SolvedLabels],
    *,
    directory: Path | None,
    stop: StopFlag,
) -> TrainingOutcome:
    """Train until the solver stops, and deliver the finished blocks in label order.

    group: not open yet, with the workers of a `ShardWorkerSpec`; it is closed in every case.
    source: rows of the shards, for workers that do not see the data set's directory.
    directory: of the checkpoints of this run, None for none; a call with the same directory resumes
    from the last valid one. observer: receives each block once, also after a worker
    loss; the progress in epochs; and the passes, numbered consecutively, as tasks without labels.

    Raises Stopped if `stop` is set, with the last sync point in a checkpoint; Unavailable if
    workers keep being lost; Refused if max_seconds passed before the first sync point; and what the
    solver raises.
    """
    checkpoints = None if directory is None else CheckpointFolder(directory)
    try:
        group.open()
        training = _ShardTraining(solver, group, source, task, checkpoints, observer, stop)
        return training.run()
    finally:
        group.stop()
        group.close()


class _NodesDraining(Exception):
    """Workers are on draining nodes."""


class _ShardTraining:
    """A running training; `_last` and `_history` are those of the last sync point."""

    def __init__(
        self,
        solver: RotationSolver,
        group: WorkerGroup,
        source: ShardSource,
        task: ShardTask,
        checkpoints: CheckpointFolder | None,
        observer: RunObserver[SolvedLabels],
        stop: StopFlag,
    ) -> None:
        self._solver = solver
        self._group = group
        self._task = task
        self._checkpoints = checkpoints
        self._observer = observer
        self._stop = stop
        self._began = time.monotonic()
        self._assignment = ShardAssignment(group, source, task.grid.shards)
        self._calls = ShardCalls(
            group,
            self._assignment,
            task.grid,
            task.n_labels,
            order=solver.order,
            ends=None if task.max_seconds is None else self._began + task.max_seconds,
            stop=stop,
            record=observer.record,
            tick=self._tick,
        )
        self._history: list[dict[str, Any]] = []
        self._last: SyncPoint | None = None
        self._curve: list[CurvePoint] = []  # of what the tolerance bounds
        self._delivered = self._lost = 0
        # Whether this attempt has started: then its own clock counts, and shards can be in an
        # intermediate state.
        self._has_begun = False
        self._n_durable = 0  # sync points in the newest checkpoint
        self._earlier_seconds = 0.0  # seconds of earlier attempts
        self._note = ""
        self._loss = ""  # of workers or files, not reported yet
        self._position = START  # in the timeline, at the last sync point

    def run(self) -> TrainingOutcome:
        """Run the whole training, recovering from worker failures."""
        while True:
            try:
                self._assignment.initialise(self._stop)
                self._train()
                return self._outcome(self._deliver_blocks())
            except _NodesDraining:
                # too late
                try:
                    self._leave_nodes()
                except WorkerLost as lost:
                    self._recover(lost)
            except WorkerLost as lost:
                self._recover(lost)
            except Stopped as stopped:
                self._save_and_stop(stopped)

    @property
    def _epoch(self) -> int:
        """Number of epochs done at the last sync point."""
        return 0 if self._last is None else self._last.number

    def _train(self) -> None:
        """Run the program from the newest checkpoint to its last round, or to the time limit."""
        start = self._resume()
        if self._last is not None and self._last.reason is not None:
            return
        try:
            for point in self._solver.program(self._calls, start):
                self._on_sync_point(point)
        except Stopped as stopped:
            self._break_off(stopped)

    def _resume(self) -> RunState:
        """Restore the newest valid checkpoint; without one, start from the beginning."""
        self._last, self._history, self._n_durable = None, [], 0
        checkpoints = self._checkpoints
        while checkpoints is not None and (saved := checkpoints.newest_files()) is not None:
            owners, n_blocks = self._assignment.owners, self._task.grid.blocks
            try:
                blocks = load_checkpoint(self._group, saved, owners, n_blocks)
            except Corrupt as error:
                checkpoints.set_aside(saved.path)
                self._loss = error.message
                continue
            note = saved.note
            self._position = TimelinePosition(*note["timeline"])
            self._history, self._n_durable = list(note["history"]), len(note["history"])
            objective = math.inf if note["objective"] is None else note["objective"]
            self._last = SyncPoint(
                note["epoch"], {}, objective, blocks, note["state"], reason=note["reason"]
            )
            if not self._has_begun:
                self._earlier_seconds = note["seconds"]
            break
        else:
            # Shards are in an intermediate state, and there is no snapshot to go back to.
            if self._has_begun:
                self._assignment.reset()
            self._position = START
        self._has_begun = True
        self._observer.discard_since(self._position)
        self._curve.clear()
        if self._loss:
            self._note, self._loss = self._loss + resume_note(self._epoch), ""
        return self._state()

    def _state(self) -> RunState:
        """Return the last sync point as the program and the export take it."""
        grid, n_labels = self._task.grid, self._task.n_labels
        if self._last is None:
            return RunState(grid, n_labels)
        return RunState(grid, n_labels, list(self._history), self._last.blocks, self._last.note)

    def _on_sync_point(self, point: SyncPoint) -> None:
        """Record a sync point, write a checkpoint if one is due, and leave or move shards."""
        seconds = self._training_seconds()
        entry = {**point.entry, "seconds": round(seconds, 3)}
        entry |= held_out_measures(point.held_out, self._task.truth)
        self._history.append({name: _finite(value) for name, value in entry.items()})
        self._last = point
        if not entry["back"]:
            self._curve.append(CurvePoint(seconds, point.ratio))
        self._position = self._observer.mark()
        self._report_progress(0.0)
        if self._checkpoints is not None and (point.reason is not None or self._checkpoints.due):
            self._write_checkpoint()
        if point.reason is None:
            self._rebalance()

    def _tick(self, ahead: float, left: float) -> None:
        """Report that `ahead` epochs of a rotation are done; left: seconds to its end.

        Raises Stopped (LEAVE) if its end would come too late for a draining node.
        """
        self._report_progress(ahead)
        if self._checkpoints is None:
            return
        soonest = min(self._assignment.draining.values(), default=math.inf)
        if soonest < left + self._checkpoints.seconds_to_save + LEAVE_MARGIN_SECONDS:
            raise Stopped("a node is about to go", code=NODE_LEAVES)

    def _break_off(self, stopped: Stopped) -> None:
        """Handle an interrupted rotation; the last sync point is kept.

        Raises Stopped, or Refused if the time limit was too short.
        """
        if stopped.code == NODE_LEAVES:
            raise _NodesDraining() from stopped
        if stopped.code != TIME_LIMIT:
            raise stopped
        if self._last is None:
            raise Refused(
                f"no epoch was done in {self._task.max_seconds} s; "
                "give it more time, or go on without a limit",
                code="NO_TIME",
            ) from stopped
        self._last = self._last._replace(reason=f"the time of {self._task.max_seconds:g} s was up")
        self._write_checkpoint()

    def _save_and_stop(self, stopped: Stopped) -> NoReturn:
        """Write a checkpoint of the last sync point if needed, and raise Stopped."""
        try:
            if self._n_durable < len(self._history):
                self._write_checkpoint()
        except WorkerLost as lost:
            raise stopped from lost  # the checkpoint before is used
        raise stopped

    def _write_checkpoint(self) -> None:
        """Write a checkpoint of the last sync point, unless checkpoints are disabled."""
        if self._checkpoints is None or self._last is None:
            return
        note = {
            "epoch": self._last.number,
            "objective": _finite(self._last.objective),
            "reason": self._last.reason,
            "state": self._last.note,
            "history": self._history,
            "seconds": self._training_seconds(),
            "timeline": self._position,
        }
        number, owners = len(self._history), self._assignment.owners
        save_checkpoint(self._checkpoints, self._group, number, note, self._last.blocks, owners)
        self._n_durable = len(self._history)

    def _rebalance(self) -> None:
        """Leave draining nodes, add new workers, or move shards to faster workers."""
        if self._assignment.draining and self._checkpoints is not None:
            raise _NodesDraining()
        if self._group.draining_workers() and self._n_durable < len(self._history):
            self._write_checkpoint()  # all nodes are draining
        speeds = {}
        if (last := self._calls.last) is not None:
            speeds = measured_speeds(last.paces, self._assignment.costs)
        if joined := self._group.poll_new_workers():
            self._assignment.add_workers(joined, speeds)
            self._note = f"{', '.join(joined)} joined"
        elif last is not None:
            self._assignment.rebalance(speeds, len(last.rotation.reports) // self._task.grid.shards)

    def _leave_nodes(self) -> None:
        """Leave draining nodes after a checkpoint; the other workers go on from there."""
        if self._n_durable < len(self._history):
            self._write_checkpoint()
        leaving = list(self._assignment.draining)
        if not leaving:
            return  # they are no longer draining, or gone
        self._assignment.release(leaving)
        self._note = f"left before their node goes: {', '.join(leaving)}"

    def _deliver_blocks(self) -> SyncPoint:
        """Deliver the finished blocks in order, each one only once; return the last round."""
        last = self._last
        if last is None:
            raise ValueError("a program must yield a round")
        blocks = self._solver.export(self._calls, self._state(), self._task.positives)
        for block in _after(blocks, self._delivered):
            self._observer.commit(block)
            self._observer.sync()
            self._delivered += 1
        return last

    def _recover(self, lost: WorkerLost) -> None:
        """Go on with replacements or with the remaining workers.

        Raises Unavailable after MAX_LOSSES_PER_WORKER losses per worker, or if no worker is left.
        """
        self._lost += max(1, len(lost.workers))
        self._group.interrupt()  # the running calls are not needed any more
        self._history, self._n_durable = [], 0  # no sync point is valid
        if self._lost - self._group.status().lost_with_nodes > MAX_LOSSES_PER_WORKER * len(
            self._group.workers
        ):
            raise Unavailable(
                f"{self._lost} workers were lost one after the other; "
                "check their logs and memory, then resume",
                code="WORKERS_LOST",
            ) from lost
        self._assignment.recover(lost)
        self._loss = lost.message

    def _training_seconds(self) -> float:
        """Return the seconds of training, with earlier attempts up to their last checkpoint."""
        return self._earlier_seconds + time.monotonic() - self._began

    def _report_progress(self, ahead: float) -> None:
        """Report progress: `ahead` epochs beyond the last sync point that counts."""
        epoch, seconds = self._epoch + ahead, self._training_seconds()
        rate = epoch / seconds if seconds > 0.0 else 0.0
        rule, newest = self._solver.stopping, self._history[-1] if self._history else {}
        ended = self._last is not None and self._last.reason is not None
        eta = 0.0 if ended else seconds_left(rule, epoch, seconds, self._curve)
        self._observer.report(
            RunProgress(epoch, rule.limit, seconds, rate, eta, newest, self._note)
        )
        self._note = ""

    def _outcome(self, last: SyncPoint) -> TrainingOutcome:
        """Return the outcome of the training."""
        damaged = [] if self._checkpoints is None else self._checkpoints.damaged
        counts = damaged, self._lost, self._assignment.moved_shards
        objective, reason = _finite(last.objective), last.reason or ""
        return TrainingOutcome(last.number, objective, reason, self._history, *counts)


def _finite(value: Any) -> Any:
    """Return None for a number that is not finite, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _after(blocks: Iterable[SolvedLabels], n: int) -> Iterable[SolvedLabels]:
    """Leave out the first n blocks."""
    return (block for number, block in enumerate(blocks) if number >= n)
