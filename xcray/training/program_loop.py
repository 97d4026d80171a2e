"""The loop around the program of a solver: history, progress, checkpoints, losses, time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from xcray.arrays import Int64, Pattern
from xcray.errors import Refused, Stopped, Unavailable
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.group_contract import Round
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.training.epoch_progress import CurvePoint, held_out_measures, resume_note, seconds_left
from xcray.training.group_workers import NODE_LEAVES, GroupWorkers
from xcray.workers.calls import TIME_LIMIT
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.timeline import START, TimelinePosition


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

    rule: the solver's. folder: of the checkpoints, None for none. truth: labels of the held-out
    rows. max_seconds: time limit, None for none; seconds_left: until then. saves_end: whether the
    end is saved, too. on_end: called with the outcome before the labels are delivered.
    """

    def __init__(
        self,
        workers: GroupWorkers,
        observer: RunObserver[SolvedLabels],
        rule: StoppingRule,
        *,
        folder: CheckpointFolder | None,
        positives: Int64,
        truth: Pattern | None,
        max_seconds: float | None,
        seconds_left: Callable[[], float | None],
        saves_end: bool,
        on_end: Callable[[ProgramOutcome], None] = lambda outcome: None,
    ) -> None:
        self._workers = workers
        self._observer = observer
        self._rule = rule
        self._folder = folder
        self._positives = positives
        self._truth = truth
        self._max_seconds = max_seconds
        self._seconds_left = seconds_left
        self._saves_end = saves_end
        self._reason = ""  # why the training ends
        self._on_end = on_end
        self._begin(None)
        workers.on_progress = self._report

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
                    self._workers.leave()
                except Unavailable as error:  # too late
                    loss = self._workers.recover(error)
            except Unavailable as error:
                loss = self._workers.recover(error)

    def _attempt(self, loss: str) -> tuple[TrainingState, Round | None]:
        """Run the program from the newest checkpoint to the end; loss: what happened before."""
        damaged = len(self._damaged)
        self._begin(None)  # no round is valid until the checkpoint is restored
        self._begin(self._workers.restore(self._folder))
        if len(self._damaged) > damaged:
            loss = f"{self._damaged[-1]} is damaged"
        if loss:
            self._workers.note = loss + resume_note(self._number)
        self._observer.discard_results()
        self._observer.discard_since(self._position)
        last = None
        if not self._reason:
            last, reason = self._run_rounds()
            self._reason = reason
            self._report()
            if self._saves_end:
                self._n_durable = 0  # the reason is not saved yet
                self._save_last()
        if self._last is None:
            raise ValueError("a program must yield a round")
        self._on_end(self.outcome())
        for block in self._workers.export(self._last, self._positives):
            self._observer.commit(block)
            self._observer.sync()
        return self._last, last

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
        program, last = self._workers.program(self._last), None
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
            left = self._seconds_left()
            if left is not None and left <= 0.0 and last.number < self._rule.limit:
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
        if self._workers.keeps_state:
            self._position = self._observer.mark()
        if self._folder is not None and (self._folder.due or self._workers.wants_checkpoint):
            self._save_last()
        self._report()

    def _save_last(self) -> None:
        """Save the last round, unless it is saved or there are no checkpoints."""
        if self._folder is None or self._last is None or self._n_durable == len(self._history):
            return
        if not self._workers.keeps_state:
            self._position = self._observer.mark()
        note = {
            "state": dict(self._last.note),
            "number": self._number,
            "reason": self._reason,
            "history": self._history,
            "seconds": self._seconds(),
            "timeline": self._position,
        }
        self._workers.save(self._folder, len(self._history), self._last._replace(note=note))
        self._n_durable = len(self._history)

    def _save_and_stop(self, stopped: Stopped) -> NoReturn:
        """Save the last round if it is still as it was, and raise Stopped."""
        try:
            if self._workers.keeps_state:
                self._save_last()
        except Unavailable as lost:
            raise stopped from lost  # the checkpoint before is used
        raise stopped

    def _report(self, ahead: float = 0.0) -> None:
        """Report progress: `ahead` epochs beyond the last round."""
        done, seconds = self._number + ahead, self._seconds()
        eta = 0.0 if self._reason else seconds_left(self._rule, done, seconds, self._curve)
        self._workers.seconds_left = eta
        newest = self._history[-1] if self._history else {}
        note, self._workers.note = self._workers.note, ""
        rate = done / max(seconds, 1e-9)
        self._observer.report(RunProgress(done, self._rule.limit, seconds, rate, eta, newest, note))

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
            self._workers.lost,
            self._workers.moved,
        )


def _finite(value: Any) -> Any:
    """Return None for a number that is not finite, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
