"""The loop around the program of a solver: history, progress, checkpoints, losses, time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from xcray.arrays import Int64, Pattern
from xcray.errors import Refused, Stopped, Unavailable
from xcray.solvers.group_contract import GroupSolver, Round, StateLost, TrainingRows
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.epoch_progress import CurvePoint, held_out_measures, resume_note, seconds_left
from xcray.training.shards.assignment import ShardAssignment
from xcray.workers.call_queue import WorkerLost
from xcray.workers.calls import TIME_LIMIT, GroupCalls
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.parts import Parts
from xcray.workers.timeline import START, TimelinePosition

MAX_LOSSES_PER_WORKER: Final = 5  # losses before giving up, per worker, since a newer checkpoint
# in addition to the time of the last checkpoint
LEAVE_MARGIN_SECONDS: Final = 5.0
NODE_LEAVES: Final = "LEAVE"  # code of the Stopped before a node goes


class ProgramOutcome(NamedTuple):
    """How a training ended.

    epochs: rounds that count. objective: at the last one, None if it is not known. reason: why it
    stopped. history: one entry per round, in order, JSON: "epoch", "seconds" (of training), numbers
    of the solver and `held_out_measures`; None for numbers that are not finite; "back": whether
    the round does not count. damaged: checkpoints that were set aside. lost: number of lost
    workers. moved: number of shards that moved.
    """

    epochs: int
    objective: float | None
    reason: str
    history: list[dict[str, Any]]
    damaged: list[str]
    lost: int
    moved: int


class ProgramLoop:
    """A running training; `_last` and `_history` are those of the last round.

    Workers that hold shares: a lost worker's calls are run again by the next owner; with each
    checkpoint new workers are taken over and draining nodes left. Workers that hold shards have the
    state of a round, and after a loss the program starts again; at sync points shards move and
    draining nodes are left. What a program yields depends on the layout, the data and the solver,
    not on workers, losses or resumes.

    calls: of the parts, by the program. folder: of the checkpoints, None for none: then workers
    only change after losses. truth: labels of the held-out rows. max_seconds: time limit, None for
    none; ends: its end on the clock of `time.monotonic`. on_end: called with the outcome before the
    labels are delivered.
    """

    def __init__(
        self,
        solver: GroupSolver,
        rows: TrainingRows,
        parts: Parts,
        calls: GroupCalls,
        observer: RunObserver[SolvedLabels],
        *,
        folder: CheckpointFolder | None,
        positives: Int64,
        truth: Pattern | None,
        max_seconds: float | None,
        ends: float | None,
        stopped: Callable[[], bool],
        on_end: Callable[[ProgramOutcome], None] = lambda outcome: None,
    ) -> None:
        self._solver = solver
        self._rows = rows
        self._parts = parts
        self._calls = calls
        self._observer = observer
        self._folder = folder
        self._positives = positives
        self._truth = truth
        self._max_seconds = max_seconds
        self._ends = ends
        self._stopped = stopped
        self._on_end = on_end
        self._rule = solver.stopping
        self._reason = ""  # why the training ends
        self._farthest = -1  # rounds in the newest checkpoint
        self._lost = self._restarts = 0  # workers; losses since that checkpoint
        self._note = ""  # what happened since the last report, for people
        self._eta: float | None = None  # as of the last report
        self._begin(None)
        calls.on_progress = self._on_progress
        calls.on_sync_point = self._on_sync_point

    def run(self) -> tuple[TrainingState, Round | None]:
        """Train, deliver all labels, and return the last state, and the last round if one was done.

        After a loss the program starts again from the newest checkpoint. Raises Stopped, Refused if
        there was no time for a round, and errors of workers.
        """
        loss = ""
        while True:
            try:
                return self._attempt(loss)
            except Stopped as stopped:
                if stopped.code != NODE_LEAVES:
                    self._save_and_stop(stopped)
                loss = ""
                try:
                    self._save_last()
                    self._note = self._parts.leave() or self._note
                except Unavailable as error:  # too late
                    loss = self._recover(error)
            except Unavailable as error:
                loss = self._recover(error)

    def _attempt(self, loss: str) -> tuple[TrainingState, Round | None]:
        """Run the program from the newest checkpoint to the end; loss: what happened before."""
        damaged = len(self._damaged)
        self._begin(None)  # no round is valid until the checkpoint is restored
        self._begin(self._restore())
        if len(self._damaged) > damaged:
            loss = f"{self._damaged[-1]} is damaged"
        if loss:
            self._note = loss + resume_note(self._number)
        self._observer.discard_results()
        self._observer.discard_since(self._position)
        last = None
        if not self._reason:
            last, reason = self._run_rounds()
            self._reason = reason
            self._report()
            if self._parts.keeps_state or self._solver.exports == "stages":
                self._n_durable = 0  # the reason is not saved yet
                self._save_last()
        if self._last is None:
            raise ValueError("a program must yield a round")
        self._on_end(self.outcome())
        for block in self._solver.export(self._calls, self._last, self._positives):
            self._observer.commit(block)
            self._observer.sync()
        return self._last, last

    def _restore(self) -> TrainingState | None:
        """Assign all parts, and restore the newest valid checkpoint, or the start."""
        self._parts.place(self._stopped)
        self._calls.sweeps = 0  # since then
        saved = self._parts.load(self._folder)
        number = 0 if saved is None else len(saved.note["history"])
        if number > self._farthest:
            self._farthest, self._restarts = number, 0
        return saved

    def _recover(self, error: Unavailable) -> str:
        """Replace what was lost; return what happened.

        Raises errors other than losses, and Unavailable if workers keep being lost or no
        worker is left.
        """
        is_new = error.code == StateLost.code  # a worker that took the place of a lost one
        if not isinstance(error, WorkerLost) and not is_new:
            raise error
        group, workers = self._parts.group, getattr(error, "workers", ())
        self._lost += len(workers)
        self._restarts += max(1, len(workers))
        group.interrupt()  # the running calls are not needed any more
        allowed = MAX_LOSSES_PER_WORKER * len(group.workers)
        if self._restarts - group.status().lost_with_nodes > allowed:
            raise Unavailable(
                f"{self._restarts} workers were lost one after the other; "
                "check their logs and memory, then resume",
                code="WORKERS_LOST",
            ) from error
        if isinstance(error, WorkerLost):
            self._parts.recover(error)
        return "a worker was lost" if is_new else error.message

    @property
    def _damaged(self) -> list[str]:
        """Checkpoints that were set aside."""
        return [] if self._folder is None else self._folder.damaged

    def _begin(self, saved: TrainingState | None) -> None:
        """Take over the state of a checkpoint, or that of the start."""
        self._began = time.monotonic()
        self._curve: list[CurvePoint] = []  # of what the tolerance bounds
        self._history: list[dict[str, Any]] = []
        self._last: TrainingState | None = None
        self._number = 0
        self._reason = ""
        self._earlier_seconds = 0.0  # of earlier attempts
        self._position: TimelinePosition = START
        if saved is not None:
            note = saved.note
            self._last = saved._replace(note=note["state"])
            self._history, self._number = list(note["history"]), note["number"]
            self._reason, self._earlier_seconds = note["reason"], note["seconds"]
            self._position = TimelinePosition(*note["timeline"])
        self._n_durable = len(self._history)  # rounds in the newest checkpoint

    def _run_rounds(self) -> tuple[Round | None, str]:
        """Run the program to its end or to the time limit; return the last round and the reason."""
        program, last = self._solver.program(self._calls, self._rows, self._last), None
        while True:
            try:
                last = next(program)
            except StopIteration as end:
                return last, end.value
            except Stopped as stopped:
                if stopped.code != TIME_LIMIT:
                    raise
                return last, self._time_is_up(stopped)
            self._on_round(last)
            is_late = self._ends is not None and time.monotonic() >= self._ends
            if is_late and last.number < self._rule.limit:
                program.close()
                return last, self._time_is_up()

    def _time_is_up(self, stopped: Stopped | None = None) -> str:
        """Return the reason to end. Raises Refused if no round was done."""
        if self._last is None:
            raise Refused(
                f"no epoch was done in {self._max_seconds} s; "
                "give it more time, or go on without a limit",
                code="NO_TIME",
            ) from stopped
        return f"the time of {self._max_seconds:g} s was up"

    def _on_round(self, done: Round) -> None:
        """Record a round, save its state if that is due, and report it."""
        seconds = self._seconds()
        entry = {"epoch": done.number, "seconds": round(seconds, 3), **done.entry}
        entry |= held_out_measures(done.held_out, self._truth)
        self._history.append({name: _finite(value) for name, value in entry.items()})
        self._last, self._number = done.state, done.number
        if not entry.get("back"):
            self._curve.append(CurvePoint(seconds, done.ratio))
        if self._parts.keeps_state:
            self._position = self._observer.mark()
        # first the changes: this is where new workers are requested
        if self._folder is not None and (self._parts.has_changes(self._eta) or self._folder.due):
            self._save_last()
        self._report()

    def _save_last(self) -> None:
        """Save the last round, unless it is saved or there are no checkpoints.

        Then take over new workers and leave draining nodes.
        """
        if self._folder is None or self._last is None or self._n_durable == len(self._history):
            return
        if not self._parts.keeps_state:
            self._position = self._observer.mark()
        note = {
            "state": dict(self._last.note),
            "number": self._number,
            "reason": self._reason,
            "history": self._history,
            "seconds": self._seconds(),
            "timeline": self._position,
        }
        self._parts.save(self._folder, len(self._history), self._last._replace(note=note))
        self._note = self._parts.adapt() or self._note
        self._n_durable = len(self._history)

    def _save_and_stop(self, stopped: Stopped) -> NoReturn:
        """Save the last round if it is still as it was, and raise Stopped."""
        try:
            if self._parts.keeps_state:
                self._save_last()
        except Unavailable as lost:
            raise stopped from lost  # the checkpoint before is used
        raise stopped

    def _report(self, ahead: float = 0.0) -> None:
        """Report progress: `ahead` epochs beyond the last round."""
        done, seconds = self._number + ahead, self._seconds()
        eta = 0.0 if self._reason else seconds_left(self._rule, done, seconds, self._curve)
        self._eta = eta
        newest = self._history[-1] if self._history else {}
        note, self._note = self._note, ""
        rate = done / max(seconds, 1e-9)
        self._observer.report(RunProgress(done, self._rule.limit, seconds, rate, eta, newest, note))

    def _on_progress(self, ahead: float, left: float) -> None:
        """Report that `ahead` epochs of a rotation are done; left: seconds to its end.

        Raises Stopped (LEAVE) if its end would come too late for a draining node.
        """
        self._report(ahead)
        if self._folder is None:
            return
        soonest = min(self._parts.draining.values(), default=math.inf)
        if soonest < left + self._folder.seconds_to_save + LEAVE_MARGIN_SECONDS:
            raise Stopped("a node is about to go", code=NODE_LEAVES)

    def _on_sync_point(self) -> None:
        """Leave draining nodes, add new workers, or move shards to faster workers."""
        if self._folder is not None and self._parts.draining:
            raise Stopped("a node is about to go", code=NODE_LEAVES)
        if self._calls.sweeps and isinstance(self._parts, ShardAssignment):
            moved = self._parts.rebalance(self._calls.speeds, self._calls.sweeps, self._eta)
            self._note = moved or self._note

    def _seconds(self) -> float:
        """Return the seconds of training, in all attempts."""
        return self._earlier_seconds + time.monotonic() - self._began

    def outcome(self) -> ProgramOutcome:
        """Return the outcome of the training."""
        counted = [each.get("objective") for each in self._history if not each.get("back")]
        objective = counted[-1] if counted else None
        return ProgramOutcome(
            self._number,
            objective,
            self._reason,
            self._history,
            self._damaged,
            self._lost + self._calls.lost,
            self._parts.moved,
        )


def _finite(value: Any) -> Any:
    """Return None for a number that is not finite, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
