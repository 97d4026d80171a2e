"""Rounds: one verb at all workers of a team at a time, which is all that solvers of the family "rounds" need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from xcray.errors import Stopped, Unavailable
from xcray.schedule.events import Lost
from xcray.workers.worker_group import Answer, Raised, Team

POLL: Final = 0.2  # seconds between two looks at the stop flag
LOSSES: Final = 5  # workers that may be lost in one round, for each worker


class TeamRounds:
    """Rounds over an open `team`; see `xcray.solvers.synchronous_contract.Rounds` for the contract.

    Answers are in worker order, so what is summed of them does not depend on which came first. The verbs of these solvers are
    pure functions of their arguments and of the rows a worker was made with: a lost worker is replaced, and the new one is
    asked the same again. What a lost worker made may be gone with its node; then the verb that needs it raises Unavailable
    (THING_LOST), and the training goes back to the weights it last kept.

    Example:
        >>> TeamRounds.__name__
        'TeamRounds'
    """

    def __init__(self, team: Team, stopped: Callable[[], bool] = lambda: False) -> None:
        self._team = team
        self._stopped = stopped
        self.lost = 0  # workers lost and replaced so far
        self.seconds = dict.fromkeys(team.workers, 0.0)  # of work done by each, for the report

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._team.workers)

    def call(self, verb: str, *args: Any, each: Sequence[Any] = ()) -> list[tuple[Any, Any]]:
        """The verb at every worker: (handle, told) of each, in worker order.

        each: what each worker gets as its first argument; empty for nothing. Raises Stopped when `stopped` says True, what a
        verb raised, and Unavailable when workers keep being lost.
        """
        own = dict(zip(self._team.workers, ((one,) for one in each), strict=True)) if each else {}
        out: dict[str, int] = {}  # worker -> its ticket
        answers: dict[str, Answer] = {}
        lost_before = self.lost
        self._replace(
            self._heard(0.0, out, answers), lost_before
        )  # those that were lost since the last round
        asked = list(self._team.workers)
        while len(answers) < self.size:
            for worker in asked:
                answers.pop(worker, None)  # of a lost one: what it made may be gone with it
                out[worker] = self._team.ask(worker, verb, *own.get(worker, ()), *args)
            self._check()
            asked = self._heard(POLL, out, answers)
            self._replace(asked, lost_before)
        return [(answers[worker].bulk, answers[worker].told) for worker in self._team.workers]

    def put(self, value: Any) -> Any:
        """A handle of `value`."""
        return self._team.put(value)

    def fetch(self, handle: Any) -> Any:
        """What is behind a handle, read-only."""
        return self._team.fetch(handle)

    def _check(self) -> None:
        """Raise Stopped when a stop was asked for; workers end what they are at."""
        if self._stopped():
            self._team.interrupt()
            raise Stopped("stopped between two rounds; the weights kept last are there")

    def _heard(self, seconds: float, out: dict[str, int], answers: dict[str, Answer]) -> list[str]:
        """Take what came into `answers`, if it is of this round; the workers that were lost. Raises what a verb raised."""
        lost = []
        for reply in self._team.wait(seconds):
            if isinstance(reply, Lost):
                lost.append(reply.worker)
            elif out.get(reply.worker) != reply.ticket:
                continue  # of a round that ended with an error
            elif isinstance(reply, Raised):
                self._team.interrupt()
                raise reply.error
            else:
                answers[reply.worker] = reply
                self.seconds[reply.worker] += reply.seconds
        return lost

    def _replace(self, lost: list[str], lost_before: int) -> None:
        """New workers in the places of lost ones. Raises Unavailable when that happens over and over."""
        if not lost:
            return
        self.lost += len(lost)
        if self.lost - lost_before > LOSSES * self.size:
            raise Unavailable(
                f"{self.lost - lost_before} workers were lost in one round; see the logs of the workers"
            )
        self._team.replace(*lost)
