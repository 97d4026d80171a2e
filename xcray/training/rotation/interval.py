"""One stretch: the schedule says which block passes which shards, the team does it, and what the shards tell is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from xcray.errors import Stopped
from xcray.schedule.events import Done, Finish, Task
from xcray.schedule.rotation import Circulate, Visit
from xcray.solvers.rotation_contract import LapFigures, Step
from xcray.workers.pool import StopFlag
from xcray.workers.rpc import PATIENCE, WorkerLost, heard
from xcray.workers.timeline import DONE, LOST, STOPPED, Span
from xcray.workers.worker_group import Answer, Handle, Team

TIME: Final = "TIME"  # code of the Stopped that says the time is up


class Pace(NamedTuple):
    """What a worker did in a stretch: `cells` (shard -> how many blocks it saw) in `seconds` (shard -> of work)."""

    cells: dict[int, int]
    seconds: dict[int, float]


class Stretch(NamedTuple):
    """What came of a stretch. blocks: a handle of each, at rest; makers: the worker that touched each one last; squared: |W|^2 of
    each block, where it was told; figures: of each shard's last lap that had some, by shard; paces: by worker; visits: how many."""

    blocks: list[Handle]
    makers: list[str]
    squared: list[float | None]
    figures: dict[int, LapFigures]
    paces: dict[str, Pace]
    visits: int


def rotate(
    schedule: Circulate,
    team: Team,
    blocks: Sequence[Handle],
    steps: Sequence[Step],
    *,
    stop: StopFlag,
    tick: Callable[[float], None] = lambda share: None,
    record: Callable[[Span], None] = lambda span: None,
    first: int = 0,
    ends: float | None = None,
) -> Stretch:
    """Run `schedule` on `team` until all is at rest.

    blocks: one handle each; what is behind them is not changed. steps: what each lap does. tick: told after every wait which
    share of the cells is done. record: told each visit, as a task numbered `first` + its number in the stretch, whose one label
    is the number of the block. ends: by `time.monotonic`; then it breaks off.
    Raises Stopped when `stop` is set, and when the time is up, with the code TIME; WorkerLost; and what a visit raised. After
    any of these the hands are somewhere in the middle: they must be told to go back before the next stretch.
    """
    loop = _Loop(schedule, team, blocks, steps, record, first)
    loop.obey(schedule.begin())
    try:
        while not loop.finished:
            replies = team.wait(PATIENCE)
            if stop.is_set():
                raise Stopped("stopped on request; the next run goes on from the last checkpoint")
            if ends is not None and time.monotonic() > ends:
                raise Stopped("the time is up", code=TIME)
            for answer in heard(replies, loop.tickets):
                loop.hear(answer)
            tick(schedule.done_cells / max(schedule.total_cells, 1))
    except WorkerLost as lost:
        loop.record_under_way(lost.workers)
        raise
    except Stopped:  # also of who was told how far it is
        team.interrupt()
        loop.record_under_way(())
        raise
    return loop.stretch._replace(visits=loop.visits)


class _Loop:
    """What one stretch holds: the handle of each block, and who is asked for which visit."""

    def __init__(
        self,
        schedule: Circulate,
        team: Team,
        blocks: Sequence[Handle],
        steps: Sequence[Step],
        record: Callable[[Span], None],
        first: int,
    ) -> None:
        self._schedule = schedule
        self._team = team
        self._steps = steps
        self._record = record
        self._first = first
        n = len(blocks)
        paces = {worker: Pace({}, {}) for worker in team.workers}
        self.stretch = Stretch(list(blocks), [""] * n, [None] * n, {}, paces, 0)
        self._owned = [False] * n  # made in this stretch: nobody else has it
        self._verb = "carry" if len(set(team.nodes.values())) > 1 else "visit"
        self.tickets: dict[int, Visit] = {}
        self._ends: dict[
            str, float
        ] = {}  # worker -> when its last visit ended, by the team's clock
        self._seen = (0.0, time.monotonic())  # a moment by the team's clock, and by ours
        self.finished = False
        self.visits = 0

    def obey(self, commands: Sequence[Visit | Finish]) -> None:
        """Ask for visits. A finish that has a reason was heard as WorkerLost before."""
        for command in commands:
            if isinstance(command, Finish):
                self.finished = True
                continue
            self.visits += 1
            handle, owned = self.stretch.blocks[command.block], self._owned[command.block]
            step = self._steps[command.lap]
            self.tickets[
                self._team.ask(command.worker, self._verb, handle, command.shards, step, owned)
            ] = command

    def hear(self, answer: Answer) -> None:
        """A visit is done: keep what it made and told, and do what the schedule says."""
        visit = self.tickets.pop(answer.ticket)
        if answer.bulk is not None:  # else the block is as it was
            self.stretch.blocks[visit.block] = answer.bulk
            self._owned[visit.block] = True
        self.stretch.makers[visit.block] = answer.worker
        pace = self.stretch.paces[answer.worker]
        for shard, told, seconds in answer.told:
            pace.cells[shard] = pace.cells.get(shard, 0) + 1
            pace.seconds[shard] = pace.seconds.get(shard, 0.0) + seconds
            if told.squared is not None:
                self.stretch.squared[visit.block] = told.squared
            if told.lap is not None:
                self.stretch.figures[shard] = told.lap
        self._ends[answer.worker] = answer.started + answer.seconds
        self._seen = self._ends[answer.worker], time.monotonic()
        self._record(Span(answer.worker, self._task(visit), answer.started, answer.seconds, DONE))
        self.obey(self._schedule.on(Done(answer.worker, visit.id, answer.seconds)))

    def record_under_way(self, lost: Sequence[str]) -> None:
        """What workers were at when the stretch broke off, as far as it is known: the first visit that each had left."""
        then, moment = self._seen
        now, told = then + time.monotonic() - moment, set[str]()
        for visit in self._schedule.under_way():
            if visit.worker not in told:
                told.add(visit.worker)
                began = self._ends.get(visit.worker, now)
                outcome = LOST if visit.worker in lost else STOPPED
                self._record(
                    Span(visit.worker, self._task(visit), began, max(0.0, now - began), outcome)
                )

    def _task(self, visit: Visit) -> Task:
        """A visit as the timeline has it."""
        return Task(self._first + visit.id, (visit.block,), 0.0)


def speeds_of(paces: dict[str, Pace], costs: Any) -> dict[str, float]:
    """The speed of each worker that did something: `costs` (S,) of a shard's cells done in a second."""
    speeds = {}
    for worker, pace in paces.items():
        seconds = sum(pace.seconds.values())
        if seconds > 0.0:
            speeds[worker] = (
                sum(float(costs[shard]) * cells for shard, cells in pace.cells.items()) / seconds
            )
    return speeds
