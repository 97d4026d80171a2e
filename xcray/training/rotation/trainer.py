"""Rotation trainer: intervals and sync points, from the start or a checkpoint to the last block.

All global work happens at sync points, where all blocks are at rest: the objective, held-out
measures, the solver's decision (go on, change the rate, roll back, stop), checkpoints, and moves of
shards to faster workers.

With the orders "sync" and "ring" the blocks at each sync point depend only on the grid, the data
and the solver. They do not depend on the workers, the shard assignment, losses or resumes. So a
training that was interrupted and resumed ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from xcray.errors import Corrupt, Refused, Stopped, Unavailable
from xcray.schedule.calls import Call, at_worker
from xcray.schedule.rotation import RotationSchedule
from xcray.solvers.rotation_contract import MUTATING_KINDS, Decision, RotationSolver, Step
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.training.epoch_progress import CurvePoint, resume_note, seconds_left
from xcray.training.rotation import exact_phase as exact
from xcray.training.rotation.assignment import ShardAssignment
from xcray.training.rotation.checkpoints import Checkpoints
from xcray.training.rotation.config import RotationConfig, TrainingOutcome
from xcray.training.rotation.evaluation import sync_point_metrics, to_sync_state
from xcray.training.rotation.interval import (
    TIME_LIMIT,
    IntervalResult,
    measured_speeds,
    run_interval,
)
from xcray.training.rotation.shard_worker import ShardSource, ShardWorker, require_phase
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import StopFlag
from xcray.workers.rpc import RecordedGroup, WorkerLost, call_many, fetch, require_ref
from xcray.workers.timeline import START, Span, TimelinePosition
from xcray.workers.worker_group import WorkerGroup

OUTCOME_FILE: Final = "outcome.json"  # outcome of a training whose blocks were all delivered
MAX_LOSSES_PER_WORKER: Final = 5  # losses before giving up, per worker
# code of the Stopped before a node goes
NODE_LEAVES: Final = "LEAVE"
# in addition to the time of the last checkpoint
LEAVE_MARGIN_SECONDS: Final = 5.0
# Consecutive rollbacks: after that no rate is small enough.
MAX_ROLLBACKS: Final = 25


def train_rotation(
    solver: RotationSolver,
    group: WorkerGroup,
    source: ShardSource,
    config: RotationConfig,
    observer: RunObserver[SolvedLabels],
    *,
    directory: Path,
    fingerprint: Mapping[str, Any],
    stop: StopFlag,
) -> TrainingOutcome:
    """Train until the solver stops, and deliver the finished blocks in label order.

    group: not open yet, with the workers of a `ShardWorkerSpec`; it is closed in every case.
    source: rows of the shards, for workers that do not see the data set's directory.
    directory: the run's own place for checkpoints; a call with the same directory resumes from
    the last valid one. If all blocks were delivered, the saved outcome is returned.
    fingerprint: identity of the run (JSON). observer: receives each block once, also after a worker
    loss; the progress in epochs; and the passes, numbered consecutively, as tasks without labels.

    Raises Stopped if `stop` is set, with the last sync point in a checkpoint; Unavailable if
    workers keep being lost; Refused if max_seconds passed before the first sync point; Conflict
    if the directory belongs to another run; and what the solver raises.
    """
    ended = directory / OUTCOME_FILE
    if ended.is_file():
        return TrainingOutcome(**read_json(ended))
    checkpoints = Checkpoints(
        directory, {**fingerprint, "grid": list(config.grid)}, seconds=config.checkpoint_seconds
    )
    try:
        group.open()
        outcome = _RotationTrainer(
            solver,
            group,
            source,
            config,
            checkpoints,
            observer,
            stop,
        ).run()
    finally:
        group.stop()
        group.close()
    write_json(ended, outcome._asdict())
    checkpoints.clear()
    return outcome


def gain_curve(history: Sequence[Mapping[str, Any]]) -> list[CurvePoint]:
    """Return the gain per epoch, relative to the objective, over the current phase.

    history: see `TrainingOutcome`; entries that the solver rolled back from do not count.
    """
    kept = [each for each in history if not each["back"] and each["objective"] is not None]
    phase = [each for each in kept if ("length" in each) == ("length" in kept[-1])]
    return [
        CurvePoint(
            after["seconds"],
            (before["objective"] - after["objective"])
            / max(after["epoch"] - before["epoch"], 1)
            / max(after["objective"], 1e-300),
        )
        for before, after in pairwise(phase)
    ]


class _NodesDraining(Exception):
    """Workers are on draining nodes."""


class _RotationTrainer:
    """A running training.

    `history`, `rate`, `epoch` and the blocks are those of the last sync point.
    """

    def __init__(
        self,
        solver: RotationSolver,
        group: WorkerGroup,
        source: ShardSource,
        config: RotationConfig,
        checkpoints: Checkpoints,
        observer: RunObserver[SolvedLabels],
        stop: StopFlag,
    ) -> None:
        self._solver = solver
        self._group = group
        self._source = source
        self._config = config
        self._checkpoints = checkpoints
        self._observer = observer
        self._stop = stop
        self._history: list[dict[str, Any]] = []
        self._epoch = 0
        self._rate = 1.0
        self._reason: str | None = None
        self._blocks: exact.WorkerHandles = []
        self._histories: exact.WorkerHandles = []  # of the blocks, in the exact phase
        # the point of the blocks in the exact phase
        self._trial: exact.TrialPoint | None = None
        self._assignment = ShardAssignment(group, source, config.grid.shards)
        self._delivered = self._lost = self._n_passes = 0
        # Whether this attempt has started: then its own clock counts, and shards can be in an
        # intermediate state.
        self._has_begun = False
        self._interval_seconds = 0.0  # of the last interval
        self._n_durable = 0  # sync points in the newest checkpoint
        self._began = 0.0
        self._earlier_seconds = 0.0  # seconds of earlier attempts
        self._note = ""
        self._loss = ""  # of workers or files, not reported yet
        self._position = START  # in the timeline, at the last sync point

    def run(self) -> TrainingOutcome:
        """Run the whole training, recovering from worker failures."""
        self._began = time.monotonic()
        while True:
            try:
                self._assignment.initialise(self._stop)
                self._resume()
                while not self._is_finished:
                    self._run_interval()
                self._deliver_blocks()
                return self._outcome()
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
    def _is_finished(self) -> bool:
        """Whether there is a reason to stop."""
        return self._reason is not None

    @property
    def _writes_checkpoints(self) -> bool:
        """Whether sync points are made durable."""
        return not math.isinf(self._config.checkpoint_seconds)

    def _save_and_stop(self, stopped: Stopped) -> NoReturn:
        """Write a checkpoint of the last sync point if needed, and raise Stopped."""
        try:
            if self._n_durable < len(self._history):
                self._write_checkpoint()
        except WorkerLost as lost:
            raise stopped from lost  # the checkpoint before is used
        raise stopped

    def _resume(self) -> None:
        """Restore the newest valid checkpoint, or start from the beginning."""
        while (checkpoint := self._checkpoints.newest()) is not None:
            try:
                handles = self._checkpoints.load(
                    self._group, checkpoint, self._assignment.owners, self._config.grid.blocks
                )
            except Corrupt as error:
                self._checkpoints.set_aside(checkpoint)
                self._loss = error.message
                continue
            metadata, n = checkpoint.metadata, self._config.grid.blocks
            self._position = TimelinePosition(*metadata.get("timeline", START))
            self._observer.discard_since(self._position)
            self._blocks, self._histories = handles[:n], handles[n:]
            self._trial = (
                None if metadata["trial"] is None else exact.TrialPoint(*metadata["trial"])
            )
            self._history, self._epoch, self._rate = (
                metadata["history"],
                metadata["epoch"],
                metadata["rate"],
            )
            self._reason, self._n_durable = metadata["reason"], len(self._history)
            if not self._has_begun:
                self._earlier_seconds, self._has_begun = metadata["seconds"], True
            self._report_loss()
            return
        self._start_again()

    def _start_again(self) -> None:
        """Start from the beginning: there is no checkpoint."""
        # Shards are in an intermediate state, and there is no snapshot to go back to.
        if self._has_begun:
            self._assignment.reset()
        self._has_begun = True
        self._observer.discard_since(START)
        self._position = self._observer.mark()
        blocks = range(self._config.grid.blocks)
        owners = [
            self._assignment.owners[block * len(self._assignment.owners) // len(blocks)]
            for block in blocks
        ]
        calls = [
            Call(owners[block], ShardWorker.init_block, *self._config.label_range(block))
            for block in blocks
        ]
        self._blocks = [
            (reply.worker, require_ref(reply.ref)) for reply in call_many(self._group, calls)
        ]
        self._history, self._epoch, self._rate, self._reason, self._n_durable = [], 0, 1.0, None, 0
        self._histories, self._trial = [], None
        self._report_loss()
        self._assignment.call_all(ShardWorker.take_snapshots)

    def _run_interval(self) -> None:
        """Run some epochs, and the sync point after them."""
        config, steps = self._config, self._next_steps()
        nodes = self._group.nodes if config.hybrid else None
        seed, since = config.seed + len(self._history), time.monotonic()
        schedule = RotationSchedule(
            self._assignment.owners,
            config.grid.blocks,
            len(steps),
            order=config.order,
            max_in_flight=config.max_in_flight,
            seed=seed,
            nodes=nodes,
        )
        try:
            result = run_interval(
                schedule,
                self._group,
                [handle for _, handle in self._blocks],
                steps,
                stop=self._stop,
                tick=lambda share: self._tick(share, steps, since),
                record=self._record_pass,
                ends=None if config.max_seconds is None else self._began + config.max_seconds,
            )
        except Stopped as stopped:
            self._break_off(stopped)
            return
        self._n_passes, self._interval_seconds = (
            self._n_passes + result.n_passes,
            time.monotonic() - since,
        )
        if self._trial == exact.ENTERING:
            blocks = list(zip(result.locations, result.blocks, strict=True))
            direction = require_phase(self._solver).coefficients
            self._set_phase_state(exact.enter_phase(self._recorded, blocks, direction))
            self._position = self._observer.mark()
        else:
            self._on_sync_point(result, steps)

    def _tick(self, share: float, steps: Sequence[Step], since: float) -> None:
        """Report that a share of an interval, started at `since`, is done.

        Raises Stopped (LEAVE) if its end would come too late for a draining node.
        """
        self._report_progress(share * (steps[-1].epoch - self._epoch))
        if self._must_leave(share, since):
            raise Stopped("a node is about to go", code=NODE_LEAVES)

    def _next_steps(self) -> list[Step]:
        """Return what the sweeps of the next interval do."""
        if self._trial == exact.ENTERING:
            return [Step("curvature", self._epoch, self._rate)]
        if self._trial is not None:
            return [Step(kind, self._epoch + 1, self._rate) for kind in ("observe", "gradient")]
        steps, epoch = [], self._epoch
        epochs = max(1, min(self._config.sync_every, self._solver.stopping.limit - epoch))
        for kind in self._solver.sweep_kinds(epochs, True):
            epoch += kind in MUTATING_KINDS
            steps.append(Step(kind, epoch, self._rate))
        return steps

    def _break_off(self, stopped: Stopped) -> None:
        """Handle an interrupted interval; the last sync point is kept.

        Raises Stopped, or Refused if the time limit was too short.
        """
        if stopped.code == NODE_LEAVES:
            raise _NodesDraining() from stopped
        if stopped.code != TIME_LIMIT:
            raise stopped
        if not self._history:
            raise Refused(
                f"no epoch was done in {self._config.max_seconds} s; "
                "give it more time, or go on without a limit",
                code="NO_TIME",
            ) from stopped
        self._reason = f"the time of {self._config.max_seconds:g} s was up"
        self._return_to_accepted()
        self._write_checkpoint()

    def _on_sync_point(self, result: IntervalResult, steps: Sequence[Step]) -> None:
        """Evaluate, let the solver decide, then keep this sync point or roll back."""
        epoch, squared = steps[-1].epoch, [value for value in result.squared if value is not None]
        metrics = [result.metrics[shard] for shard in range(self._config.grid.shards)]
        entry = {
            "epoch": epoch,
            "seconds": round(self._training_seconds(), 3),
            "rate": self._rate,
            "back": False,
        }
        objective = self._solver.objective(squared, [each.loss for each in metrics])
        entry |= sync_point_metrics(objective, metrics, self._config.truth)
        entry |= {} if self._trial is None else self._trial._asdict()
        self._history.append(entry)
        decision = self._solver.decide([to_sync_state(each) for each in self._history])
        entry["back"] = decision.roll_back
        if decision.roll_back:
            self._assignment.call_all(ShardWorker.roll_back)
        else:
            self._blocks, self._epoch = (
                list(zip(result.locations, result.blocks, strict=True)),
                epoch,
            )
            self._assignment.call_all(ShardWorker.take_snapshots)
        self._rate, self._reason = decision.rate, decision.stop
        self._advance_phase(decision)
        if (
            all(each["back"] for each in self._history[-MAX_ROLLBACKS:])
            and len(self._history) >= MAX_ROLLBACKS
        ):
            self._reason = f"it went back {MAX_ROLLBACKS} times, with ever smaller steps"
            self._return_to_accepted()
        self._position = self._observer.mark()
        self._report_progress(0.0)
        if self._reason is not None or self._checkpoints.due:
            self._write_checkpoint()
        if self._reason is None:
            self._rebalance(result, len(steps))

    def _advance_phase(self, decision: Decision) -> None:
        """Go to the next point of the exact phase, if it is active or starts now."""
        if decision.lbfgs_action == "enter":
            self._trial = exact.ENTERING
        elif decision.lbfgs_action == "accept":
            direction = require_phase(self._solver).coefficients
            self._set_phase_state(
                exact.accept_point(self._recorded, self._histories, self._blocks, direction)
            )
        elif decision.lbfgs_action == "retry" and self._trial is not None:
            self._set_phase_state(
                exact.retry_point(self._recorded, self._histories, self._trial, decision.length)
            )

    def _return_to_accepted(self) -> None:
        """Go back to the last accepted point: the next one was not evaluated yet."""
        if self._trial is not None and self._trial.length > 0.0:
            self._set_phase_state(
                exact.retry_point(self._recorded, self._histories, self._trial, 0.0)
            )

    def _set_phase_state(self, turn: exact.PhaseState) -> None:
        """Set histories, blocks and trial point."""
        self._histories, self._blocks, self._trial = turn

    def _write_checkpoint(self) -> None:
        """Write a checkpoint of the last sync point, unless checkpoints are disabled."""
        if not self._writes_checkpoints:
            return
        if self._is_finished:  # only the weights are still needed
            self._histories, self._trial = [], None
        metadata = {
            "epoch": self._epoch,
            "rate": self._rate,
            "reason": self._reason,
            "history": self._history,
            "trial": self._trial,
            "seconds": self._training_seconds(),
            "timeline": self._position,
        }
        self._checkpoints.write(
            self._group,
            len(self._history),
            metadata,
            self._blocks + self._histories,
            self._assignment.owners,
        )
        self._n_durable = len(self._history)

    def _rebalance(self, result: IntervalResult, n_sweeps: int) -> None:
        """Leave draining nodes, add new workers, or move shards to faster workers."""
        if self._assignment.draining and self._writes_checkpoints:
            raise _NodesDraining()
        if self._group.draining_workers() and self._n_durable < len(self._history):
            self._write_checkpoint()  # all nodes are draining
        speeds = measured_speeds(result.paces, self._assignment.costs)
        if joined := self._group.poll_new_workers():
            self._assignment.add_workers(joined, speeds)
            self._note = f"{', '.join(joined)} joined"
        elif self._config.move_shards:
            self._assignment.rebalance(speeds, n_sweeps * self._config.grid.blocks)

    def _leave_nodes(self) -> None:
        """Leave draining nodes after a checkpoint; the other workers go on from there."""
        if self._n_durable < len(self._history):
            self._write_checkpoint()
        leaving = list(self._assignment.draining)
        if not leaving:
            return  # they are no longer draining, or gone
        self._assignment.release(leaving)
        self._note = f"left before their node goes: {', '.join(leaving)}"

    def _must_leave(self, share: float, since: float) -> bool:
        """Return whether a node goes before the interval ends and its checkpoint is written."""
        soonest = (
            min(self._assignment.draining.values(), default=math.inf)
            if self._writes_checkpoints
            else math.inf
        )
        took = time.monotonic() - since
        left = (
            took * (1.0 - share) / share if share > 0.0 else max(0.0, self._interval_seconds - took)
        )
        return soonest < left + self._checkpoints.seconds_to_write + LEAVE_MARGIN_SECONDS

    def _deliver_blocks(self) -> None:
        """Deliver the finished blocks in order, each one only once."""
        left = range(self._delivered, self._config.grid.blocks)
        calls = []
        for block in left:
            worker, handle = self._blocks[block]
            lo, hi = self._config.label_range(block)
            positives = self._config.positives[lo:hi]
            calls.append(Call(worker, ShardWorker.export_labels, at_worker(handle), positives))
        for reply in call_many(self._group, calls, self._stop):
            self._observer.commit(fetch(self._group, reply.ref))
            self._observer.sync()
            self._delivered += 1

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

    def _report_loss(self) -> None:
        """Add to the next report how training goes on after a loss, if there was one."""
        if self._loss:
            self._note, self._loss = self._loss + resume_note(self._epoch), ""

    def _training_seconds(self) -> float:
        """Return the seconds of training, with earlier attempts up to their last checkpoint."""
        return self._earlier_seconds + time.monotonic() - self._began

    def _report_progress(self, ahead: float) -> None:
        """Report progress: `ahead` epochs beyond the last sync point that counts."""
        epoch, seconds = self._epoch + ahead, self._training_seconds()
        rate = epoch / seconds if seconds > 0.0 else 0.0
        rule, newest = self._solver.stopping, self._history[-1] if self._history else {}
        ended = self._reason is not None
        eta = 0.0 if ended else seconds_left(rule, epoch, seconds, gain_curve(self._history))
        self._observer.report(
            RunProgress(epoch, rule.limit, seconds, rate, eta, newest, self._note)
        )
        self._note = ""

    def _record_pass(self, span: Span) -> None:
        """Record a pass of this interval, numbered from the first pass of the training."""
        # a pass finishes no label
        task = replace(span.task, id=self._n_passes + span.task.id, labels=())
        self._observer.record(span._replace(task=task))

    @property
    def _recorded(self) -> RecordedGroup:
        """Return the group for calls outside of an interval, which are recorded too."""
        return RecordedGroup(self._group, self._observer.record)

    def _outcome(self) -> TrainingOutcome:
        """Return the outcome of the training."""
        objectives = [each["objective"] for each in self._history if not each["back"]]
        # otherwise it rolled back to the start
        start = self._solver.start_objective(self._config.n_labels)
        objective = objectives[-1] if objectives else start
        counts = self._checkpoints.damaged, self._lost, self._assignment.moved_shards
        return TrainingOutcome(self._epoch, objective, self._reason or "", self._history, *counts)
