"""Verbs that a driver asks of its team and waits for, outside of any schedule: opening, saving, loading, handing over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from xcray.errors import Stopped, Unavailable
from xcray.schedule.events import Lost
from xcray.workers.pool import StopFlag
from xcray.workers.worker_group import THING_LOST, Answer, Handle, Raised, Reply, Team

PATIENCE: Final = 0.2  # seconds between two looks at the stop flag
AHEAD: Final = 2  # verbs that a worker holds: its next is there when it has done one


class WorkerLost(Unavailable):
    """Workers were lost, or a node with what they had made: it all goes back to the last checkpoint. workers: names, maybe none."""

    code = "WORKERS_LOST"

    def __init__(self, *workers: str) -> None:
        super().__init__(
            f"{', '.join(workers) or 'a node'} was lost: going on from the last checkpoint"
        )
        self.workers = workers


class Errand:
    """A verb for a worker, with its arguments."""

    def __init__(self, worker: str, verb: str, *args: Any) -> None:
        self.worker = worker
        self.verb = verb
        self.args = args


def errands(team: Team, asks: Sequence[Errand], stop: StopFlag | None = None) -> Iterator[Answer]:
    """Ask for all of `asks`, at most AHEAD at a time of each worker; their answers, in the order of `asks`.

    Replies to anything else are dropped: one list of errands at a time. Raises WorkerLost, what a verb raised, and Stopped when
    `stop` is set.
    """
    waiting: dict[str, deque[int]] = {}
    for number, ask in enumerate(asks):
        waiting.setdefault(ask.worker, deque()).append(number)
    out: dict[int, int] = {}  # ticket -> which of the asks
    found: dict[int, Answer] = {}

    def send(worker: str) -> None:
        number = waiting[worker].popleft()
        out[team.ask(worker, asks[number].verb, *asks[number].args)] = number

    for worker, numbers in waiting.items():
        for _ in range(min(AHEAD, len(numbers))):
            send(worker)
    for number in range(len(asks)):
        while number not in found:
            for reply in heard(team.wait(PATIENCE), out):
                found[out.pop(reply.ticket)] = reply
                if waiting[reply.worker]:
                    send(reply.worker)
            if stop is not None and stop.is_set():
                raise Stopped("stopped on request; the next run goes on from the last checkpoint")
        yield found.pop(number)


def run(team: Team, ask: Errand) -> Answer:
    """One errand, waited for. Raises as `errands`."""
    (answer,) = errands(team, [ask])
    return answer


def made(handle: Handle | None) -> Handle:
    """The thing that a verb should have made. Raises ValueError when it made none: a fault of the hand."""
    if handle is None:
        raise ValueError("a verb that makes something made nothing")
    return handle


def fetched(team: Team, handle: Handle | None) -> Any:
    """What is behind a handle that a verb made. Raises WorkerLost when it is gone with its node."""
    try:
        return team.fetch(made(handle))
    except Unavailable as error:
        if error.code == THING_LOST:
            raise WorkerLost() from error
        raise


def heard(replies: Sequence[Reply], tickets: Any) -> list[Answer]:
    """The answers to `tickets`. Raises WorkerLost when one of the replies says so, and what a verb of these tickets raised."""
    lost = [reply.worker for reply in replies if isinstance(reply, Lost)]
    if lost:
        raise WorkerLost(*lost)
    answers = []
    for reply in replies:
        if isinstance(reply, Lost) or reply.ticket not in tickets:
            continue  # of a stretch that was broken off
        if isinstance(reply, Raised):
            gone = isinstance(reply.error, Unavailable) and reply.error.code == THING_LOST
            raise WorkerLost() if gone else reply.error
        answers.append(reply)
    return answers
