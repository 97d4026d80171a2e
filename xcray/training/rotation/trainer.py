"""The training of a solver whose blocks go round: stretches and rests, from the start or the last checkpoint, to the last block.

At a rest everything is in its place, and only there anything global happens: the objective, what held-out rows say, the solver's
judgement (go on, change the rate, go back, stop), checkpoints, shards that move to faster workers.

With the orders "sync" and "ring" the blocks at each rest depend on the grid, the data and the solver alone: not on the workers,
where shards are, losses or resumes. So a training that was broken off and resumed ends with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from xcray.errors import Corrupt, Refused, Stopped, Unavailable
from xcray.schedule.rotation import Circulate
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.rotation_contract import CHANGING, Decision, Step
from xcray.solvers.solved_labels import Block
from xcray.storage.atomic import read_json, write_json
from xcray.training.checkpoints import Checkpoints
from xcray.training.rotation import lbfgs_phase as exact
from xcray.training.rotation.assignment import Crew
from xcray.training.rotation.config import Descent, Plan, Standing
from xcray.training.rotation.evaluation import observed, rest_of
from xcray.training.rotation.interval import TIME, Stretch, rotate, speeds_of
from xcray.training.rotation.shard_worker import Rows
from xcray.workers.pool import StopFlag
from xcray.workers.rpc import Errand, WorkerLost, errands, fetched, made
from xcray.workers.timeline import Span
from xcray.workers.worker_group import Handle, Team

ENDED: Final = "descent.json"  # how a training ended whose blocks were all delivered
LOSSES: Final = 5  # workers that may be lost, for each worker
LEAVE: Final = "LEAVE"  # code of the Stopped that says a node goes before the stretch would end
LEAVE_SECONDS: Final = (
    5.0  # beyond what writing a checkpoint took last, to be away from a node in time
)
BACKS: Final = 25  # rests in a row from which the solver may go back: then no rate is small enough


def descend(
    solver: DSMLRSolver,
    team: Team,
    rows: Rows,
    plan: Plan,
    *,
    directory: Path,
    fingerprint: Mapping[str, Any],
    deliver: Callable[[Block], None],
    stop: StopFlag,
    tell: Callable[[Standing], None] = lambda standing: None,
    record: Callable[[Span], None] = lambda span: None,
) -> Descent:
    """Train until the solver says stop, and deliver the blocks, finished, one at a time in the order of their labels.

    team: not yet open, its hands are those of a `ShardWork`; it is closed in every case. rows: what shards are cut from, for
    workers that don't see the data set's directory. directory: the run's own place for checkpoints; call again with the same
    one to go on from the last good one; when all blocks had been delivered, nothing is done: what was told then is returned.
    fingerprint: what makes two runs the same run (JSON). deliver: when a worker is lost meanwhile, what was delivered is not
    delivered again. tell: after every wait. record: see `rotate`; tasks are numbered through.

    Raises Stopped when `stop` is set, with what was done up to the last rest in a checkpoint; Unavailable when workers keep being
    lost; Refused when max_seconds passed before the first rest; Conflict when the directory is another run's; and what the
    solver raises.
    """
    ended = directory / ENDED
    if ended.is_file():
        return Descent(**read_json(ended))
    checkpoints = Checkpoints(
        directory, {**fingerprint, "grid": list(plan.grid)}, seconds=plan.checkpoint_seconds
    )
    try:
        team.open()
        found = _Descent(
            solver, team, rows, plan, checkpoints, _Listeners(deliver, tell, record, stop)
        ).run()
    finally:
        team.stop()
        team.close()
    write_json(ended, found._asdict())
    checkpoints.clear()
    return found


class _Listeners(NamedTuple):
    """Who hears of a training, and who may stop it."""

    deliver: Callable[[Block], None]
    tell: Callable[[Standing], None]
    record: Callable[[Span], None]
    stop: StopFlag


class _NodesLeave(Exception):
    """Workers are on nodes that are about to go."""


class _Descent:
    """A training under way. Where it stands is that of the last rest: `history`, `rate`, `epoch`, and the blocks kept there."""

    def __init__(
        self,
        solver: DSMLRSolver,
        team: Team,
        rows: Rows,
        plan: Plan,
        checkpoints: Checkpoints,
        out: _Listeners,
    ) -> None:
        self._solver = solver
        self._team = team
        self._rows = rows
        self._plan = plan
        self._checkpoints = checkpoints
        self._out = out
        self._history: list[dict[str, Any]] = []
        self._epoch = 0
        self._rate = 1.0
        self._reason: str | None = None
        self._blocks: list[tuple[str, Handle]] = []  # who made each, and its handle
        self._memories: list[tuple[str, Handle]] = []  # the same of what blocks remember
        self._trial: exact.Trial | None = (
            None  # where blocks are when exact gradients have taken over
        )
        self._crew = Crew(team, rows, plan.grid.shards)
        self._delivered = self._lost = self._visits = 0
        self._going = False  # whether this attempt has begun: from then on its own clock counts, and shards may be in the middle
        self._took = 0.0  # seconds of the last stretch
        self._durable = 0  # rests in the newest checkpoint
        self._began = 0.0
        self._before = 0.0  # when this attempt did, and the seconds of those before
        self._note = ""

    def run(self) -> Descent:
        """All of it, whatever is lost on the way."""
        self._began = time.monotonic()
        while True:
            try:
                self._crew.settle(self._out.stop)
                self._resume()
                while not self._ended:
                    self._stretch()
                self._hand_out()
                return self._told()
            except _NodesLeave:
                try:
                    self._move_out()
                except WorkerLost as lost:  # too late
                    self._recover(lost)
            except WorkerLost as lost:
                self._recover(lost)
            except Stopped as stopped:
                self._leave(stopped)

    @property
    def _ended(self) -> bool:
        """Whether there is a reason to go no further."""
        return self._reason is not None

    @property
    def _keeps(self) -> bool:
        """Whether rests are made durable."""
        return not math.isinf(self._plan.checkpoint_seconds)

    def _leave(self, stopped: Stopped) -> NoReturn:
        """Make the last rest durable, if it is not, and raise Stopped."""
        try:
            if self._durable < len(self._history):
                self._save()
        except WorkerLost as lost:
            raise stopped from lost  # the checkpoint before will do
        raise stopped

    def _resume(self) -> None:
        """Be where the newest good checkpoint says, or at the start."""
        while (found := self._checkpoints.newest()) is not None:
            try:
                held = self._checkpoints.load(
                    self._team, found, self._crew.homes, self._plan.grid.blocks
                )
            except Corrupt as error:
                self._checkpoints.set_aside(found)
                self._note = f"{error.message}; going on from the checkpoint before"
                continue
            note, n = found.note, self._plan.grid.blocks
            self._blocks, self._memories = held[:n], held[n:]
            self._trial = None if note["trial"] is None else exact.Trial(*note["trial"])
            self._history, self._epoch, self._rate = note["history"], note["epoch"], note["rate"]
            self._reason, self._durable = note["reason"], len(self._history)
            if not self._going:
                self._before, self._going = note["seconds"], True
            return
        if self._going:  # shards are somewhere in the middle, and nothing was kept to go back to
            self._crew.begin_anew()
        self._going = True
        blocks = range(self._plan.grid.blocks)
        owners = [
            self._crew.homes[block * len(self._crew.homes) // len(blocks)] for block in blocks
        ]
        asks = [Errand(owners[block], "start", *self._plan.ends_of(block)) for block in blocks]
        self._blocks = [(answer.worker, made(answer.bulk)) for answer in errands(self._team, asks)]
        self._history, self._epoch, self._rate, self._reason, self._durable = [], 0, 1.0, None, 0
        self._memories, self._trial = [], None
        self._crew.everywhere("keep")

    def _stretch(self) -> None:
        """Some epochs, and the rest after them."""
        plan, steps = self._plan, self._steps()
        nodes = self._team.nodes if plan.hybrid else None
        seed, since = plan.seed + len(self._history), time.monotonic()
        schedule = Circulate(
            self._crew.homes,
            plan.grid.blocks,
            len(steps),
            order=plan.order,
            ahead=plan.ahead,
            seed=seed,
            nodes=nodes,
        )
        try:
            stretch = rotate(
                schedule,
                self._team,
                [handle for _, handle in self._blocks],
                steps,
                stop=self._out.stop,
                tick=lambda share: self._tick(share, steps, since),
                record=self._out.record,
                first=self._visits,
                ends=None if plan.max_seconds is None else self._began + plan.max_seconds,
            )
        except Stopped as stopped:
            self._break_off(stopped)
            return
        self._visits, self._took = self._visits + stretch.visits, time.monotonic() - since
        if self._trial == exact.ENTERING:
            self._at(
                exact.enter(self._team, list(zip(stretch.makers, stretch.blocks, strict=True)))
            )
        else:
            self._rest(stretch, steps)

    def _tick(self, share: float, steps: Sequence[Step], since: float) -> None:
        """A share of a stretch, begun at `since`, is done. Raises Stopped (LEAVE) when its end would come too late for a node."""
        self._tell(share * (steps[-1].epoch - self._epoch))
        if self._must_leave(share, since):
            raise Stopped("a node is about to go", code=LEAVE)

    def _steps(self) -> list[Step]:
        """What the laps of the next stretch do."""
        if self._trial == exact.ENTERING:
            return [Step("curvature", self._epoch, self._rate)]
        if self._trial is not None:
            return [Step(verb, self._epoch + 1, self._rate) for verb in ("observe", "gradient")]
        out, epoch = [], self._epoch
        epochs = max(1, min(self._plan.rest_every, self._solver.epochs - epoch))
        for verb in self._solver.laps(epochs, True):
            epoch += verb in CHANGING
            out.append(Step(verb, epoch, self._rate))
        return out

    def _break_off(self, stopped: Stopped) -> None:
        """The stretch is lost, what was kept at the last rest is not. Raises Stopped, or Refused when the time was too short."""
        if stopped.code == LEAVE:
            raise _NodesLeave() from stopped
        if stopped.code != TIME:
            raise stopped
        if not self._history:
            raise Refused(
                f"no epoch was done in {self._plan.max_seconds} s; give it more time, or go on without a limit",
                code="NO_TIME",
            ) from stopped
        self._reason = f"the time of {self._plan.max_seconds:g} s was up"
        self._settle()
        self._save()

    def _rest(self, stretch: Stretch, steps: Sequence[Step]) -> None:
        """Everything is in its place: look at it, judge, keep it, and go on from there or from the rest before."""
        epoch, squared = steps[-1].epoch, [value for value in stretch.squared if value is not None]
        figures = [stretch.figures[shard] for shard in range(self._plan.grid.shards)]
        entry = {
            "epoch": epoch,
            "seconds": round(self._seconds(), 3),
            "rate": self._rate,
            "back": False,
        }
        entry |= observed(squared, figures, self._solver.lam, self._plan.truth)
        entry |= {} if self._trial is None else self._trial._asdict()
        self._history.append(entry)
        decision = self._solver.judge([rest_of(each) for each in self._history])
        entry["back"] = decision.back
        if decision.back:
            self._crew.everywhere("back")
        else:
            self._blocks, self._epoch = (
                list(zip(stretch.makers, stretch.blocks, strict=True)),
                epoch,
            )
            self._crew.everywhere("keep")
        self._rate, self._reason = decision.rate, decision.stop
        self._turn(decision)
        if all(each["back"] for each in self._history[-BACKS:]) and len(self._history) >= BACKS:
            self._reason = f"it went back {BACKS} times, with ever smaller steps"
            self._settle()
        self._tell(0.0)
        if self._reason is not None or self._checkpoints.due:
            self._save()
        if self._reason is None:
            self._regroup(stretch, len(steps))

    def _turn(self, decision: Decision) -> None:
        """Where exact gradients lead next, when they have taken over, or are to."""
        if decision.turn == "enter":
            self._trial = exact.ENTERING
        elif decision.turn == "accept":
            self._at(exact.accept(self._team, self._memories, self._blocks))
        elif decision.turn == "retry" and self._trial is not None:
            self._at(exact.retry(self._team, self._memories, self._trial, decision.length))

    def _settle(self) -> None:
        """Be at the point that was accepted last: the next one was not judged yet."""
        if self._trial is not None and self._trial.length > 0.0:
            self._at(exact.retry(self._team, self._memories, self._trial, 0.0))

    def _at(self, turn: exact.Turn) -> None:
        """Be where a turn has led."""
        self._memories, self._blocks, self._trial = turn

    def _save(self) -> None:
        """Make the last rest durable, unless nothing is to be."""
        if not self._keeps:
            return
        note = {
            "epoch": self._epoch,
            "rate": self._rate,
            "reason": self._reason,
            "history": self._history,
            "trial": self._trial,
            "seconds": self._seconds(),
        }
        self._checkpoints.write(
            self._team, len(self._history), note, self._blocks + self._memories, self._crew.homes
        )
        self._durable = len(self._history)

    def _regroup(self, stretch: Stretch, laps: int) -> None:
        """At a rest: leave nodes that are about to go, take in workers that came, give shards to faster ones."""
        if self._crew.leaving and self._keeps:
            raise _NodesLeave()
        if self._team.leaving() and self._durable < len(self._history):
            self._save()  # all are to go
        speeds = speeds_of(stretch.paces, self._crew.costs)
        if came := self._team.invite():
            self._crew.enlist(came, speeds)
            self._note = f"{', '.join(came)} came"
        elif self._plan.move:
            self._crew.even_out(speeds, laps * self._plan.grid.blocks)

    def _move_out(self) -> None:
        """Leave nodes that are about to go: what is at the last rest becomes durable, and the others go on from there."""
        if self._durable < len(self._history):
            self._save()
        leaving = list(self._crew.leaving)
        if not leaving:
            return  # they stay after all, or are gone
        self._crew.leave(leaving)
        self._note = f"left before their node goes: {', '.join(leaving)}"

    def _must_leave(self, share: float, since: float) -> bool:
        """Whether a node goes before the stretch, begun at `since`, comes to its end and can be made durable."""
        soonest = min(self._crew.leaving.values(), default=math.inf) if self._keeps else math.inf
        took = time.monotonic() - since
        left = took * (1.0 - share) / share if share > 0.0 else max(0.0, self._took - took)
        return soonest < left + self._checkpoints.seconds_to_write + LEAVE_SECONDS

    def _hand_out(self) -> None:
        """Deliver the finished blocks, in order; those that were delivered before a loss are not delivered again."""
        left = range(self._delivered, self._plan.grid.blocks)
        asks = []
        for block in left:
            worker, handle = self._blocks[block]
            lo, hi = self._plan.ends_of(block)
            asks.append(Errand(worker, "export", handle, self._plan.positives[lo:hi]))
        for answer in errands(self._team, asks, self._out.stop):
            self._out.deliver(fetched(self._team, answer.bulk))
            self._delivered += 1

    def _recover(self, lost: WorkerLost) -> None:
        """Go on with others, or with those that are left. Raises Unavailable after LOSSES losses for each worker, and when nobody
        is."""
        self._lost += max(1, len(lost.workers))
        self._team.interrupt()  # what the others are at is of no use any more
        self._history, self._durable = [], 0  # nothing is at rest
        if self._lost - self._team.muster().lost_with_nodes > LOSSES * len(self._team.workers):
            raise Unavailable(
                f"{self._lost} workers were lost one after the other; look at their logs and memory, then resume",
                code="WORKERS_LOST",
            ) from lost
        self._crew.recover(lost)
        self._note = lost.message

    def _seconds(self) -> float:
        """Of training, with those of earlier attempts up to their last checkpoint."""
        return self._before + time.monotonic() - self._began

    def _tell(self, ahead: float) -> None:
        """Tell how far it is: `ahead` epochs beyond the last rest that counts."""
        epoch, seconds = self._epoch + ahead, self._seconds()
        rate = epoch / seconds if seconds > 0.0 else 0.0
        eta = (self._solver.epochs - epoch) / rate if rate > 0.0 else None
        newest = self._history[-1] if self._history else {}
        self._out.tell(Standing(epoch, self._solver.epochs, seconds, rate, eta, newest, self._note))
        self._note = ""

    def _told(self) -> Descent:
        """How it ended."""
        objectives = [each["objective"] for each in self._history if not each["back"]]
        objective = (
            objectives[-1] if objectives else math.log(self._plan.n_labels)
        )  # that of W = 0: it went back to the start
        facts = self._checkpoints.damaged, self._lost, self._crew.moved
        return Descent(self._epoch, objective, self._reason or "", self._history, *facts)
