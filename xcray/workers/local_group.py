"""Teams in this process: serial, and a thread a worker (kernels release the GIL)."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from xcray.schedule.events import Lost
from xcray.system.memory import Footprint
from xcray.workers.pool import StopFlag, WorkerStatus
from xcray.workers.worker_group import (
    Answer,
    Handle,
    HandWork,
    Raised,
    Reply,
    check_replace,
    do,
    taken_apart,
    team_names,
    thing_lost,
)

HERE: Final = "here"  # the one node there is
GONE: Final = object()  # held by a handle whose thing was lost in a rehearsal


class _Asked(NamedTuple):
    """A verb that waits for its turn."""

    ticket: int
    worker: str
    verb: str
    args: tuple[Any, ...]
    handles: list[Handle]


class _Life:
    """One worker, from its start to its end: a replacement of the same name is another life."""

    def __init__(self, worker: str, work: HandWork, stop: StopFlag) -> None:
        self.worker = worker
        self.hand = None
        self._work = work
        self._team_stop = stop
        self.ended = StopFlag()
        self._ticket = 0
        self._off = -1  # what it is at; tickets up to this one are to end

    def begin(self) -> None:
        """Make the hand, in the thread that will use it."""
        self.hand = self._work.hand(self.worker, self._stopped)

    def interrupt(self, ticket: int) -> None:
        """End what was asked up to this ticket."""
        self._off = ticket

    def _stopped(self) -> bool:
        """Whether this worker is to end what it is at."""
        return self._team_stop.is_set() or self.ended.is_set() or self._ticket <= self._off

    def answer(self, asked: _Asked, now: Callable[[], float]) -> Answer | Raised:
        """Do a verb here and now; whatever it raises becomes a Raised."""
        started = now()
        self._ticket = asked.ticket
        try:
            things = [_thing(handle) for handle in asked.handles]
            bulk, told = do(self.hand, asked.verb, asked.args, things, self._stopped)
        except Exception as error:
            return Raised(asked.ticket, self.worker, error)
        made = None if bulk is None else Handle(bulk)
        return Answer(asked.ticket, self.worker, made, told, now() - started, started)


class _LocalTeam(ABC):
    """What teams of this process share: workers that are this process, and things that are passed as they are."""

    def __init__(self, work: HandWork, workers: int) -> None:
        self._work = work
        self._names = team_names(workers)
        self._stop = StopFlag()
        self._lives: dict[str, _Life] = {}
        self._due: dict[int, str] = {}  # ticket -> the worker it was given for
        self._told: list[Reply] = []
        self._made: dict[str, WeakSet[Handle]] = {}
        self._tickets = 0
        self._opened = 0.0

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._names

    @property
    def present(self) -> tuple[str, ...]:
        """Those that were not lost in a rehearsal."""
        return tuple(worker for worker in self._names if worker in self._lives)

    @property
    def nodes(self) -> dict[str, str]:
        """One node: this process."""
        return dict.fromkeys(self._names, HERE)

    def open(self) -> None:
        """Compile the kernels once, and make the hands."""
        self._opened = time.monotonic()
        self._work.warm_up()
        self._start(self._names)

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """New hands in new lives."""
        check_replace(lost, self._names, self._lives)
        self._start(lost)

    def invite(self) -> list[str]:
        """Nobody: threads that are gone are replaced."""
        return []

    def leaving(self) -> dict[str, float]:
        """Nobody: this process stays."""
        return {}

    def dismiss(self, *workers: str) -> None:
        """End their lives."""
        for worker in workers:
            self._end(worker)

    def _end(self, worker: str) -> None:
        """End a life; its tickets are not told of."""
        self._lives.pop(worker).ended.set()
        self._due = {ticket: asked for ticket, asked in self._due.items() if asked != worker}

    def _start(self, workers: tuple[str, ...]) -> None:
        """Begin new lives."""
        lives = [_Life(worker, self._work, self._stop) for worker in workers]
        self._begin(lives)
        self._lives |= {life.worker: life for life in lives}

    @abstractmethod
    def _begin(self, lives: list[_Life]) -> None:
        """Make the hands of new lives. Raises what making one raises."""

    @abstractmethod
    def _queue(self, asked: _Asked) -> None:
        """Give a verb to its worker."""

    def ask(self, worker: str, verb: str, *args: Any) -> int:
        """See `Team`."""
        plain, handles = taken_apart(worker, verb, args, self._lives)
        self._tickets += 1
        self._due[self._tickets] = worker
        self._queue(_Asked(self._tickets, worker, verb, plain, handles))
        return self._tickets

    def _replies(self, found: list[Answer | Raised]) -> list[Reply]:
        """What is to be told, without late answers of lives that were lost."""
        out, self._told = self._told, []
        for reply in found:
            if self._due.pop(reply.ticket, None) is not None:
                if isinstance(reply, Answer) and reply.bulk is not None:
                    self._made.setdefault(reply.worker, WeakSet()).add(reply.bulk)
                out.append(reply)
        return out

    def now(self) -> float:
        """Seconds since the team opened."""
        return time.monotonic() - self._opened

    def put(self, value: Any) -> Handle:
        """A handle of this very value."""
        return Handle(value)

    def fetch(self, handle: Handle) -> Any:
        """The very value."""
        return _thing(handle)

    def footprints(self) -> dict[str, Footprint]:
        """None: the workers are this process."""
        return {}

    def muster(self) -> WorkerStatus:
        """The lives there are; threads are not lost but in rehearsals."""
        return WorkerStatus(len(self._names), len(self._lives))

    def lose(self, worker: str, *, with_things: bool = False) -> None:
        """As if the worker's process died; `with_things`: as if its node died, with all that its verbs made and is still held.

        For rehearsals of what follows a loss: workers of this process die only with it.
        """
        self._end(worker)
        for handle in self._made.pop(worker, ()) if with_things else ():
            handle.held = GONE
        self._told.append(Lost(worker))

    def interrupt(self) -> None:
        """Verbs under way end at their next slice; those that wait do not begin, later ones do."""
        for life in list(self._lives.values()):
            life.interrupt(self._tickets)

    def stop(self) -> None:
        """Verbs under way end at their next slice; those that wait do not begin."""
        self._stop.set()

    def close(self) -> None:
        """Let go of the hands."""
        for life in self._lives.values():
            life.ended.set()
        self._lives.clear()
        self._due.clear()


class SerialTeam(_LocalTeam):
    """All workers are the calling thread: `wait` does one verb, in the order they were asked. For tests and for debuggers."""

    def __init__(self, work: HandWork, workers: int) -> None:
        super().__init__(work, workers)
        self._asked: deque[_Asked] = deque()

    def _begin(self, lives: list[_Life]) -> None:
        """Make the hands here."""
        for life in lives:
            life.begin()

    def _queue(self, asked: _Asked) -> None:
        """Keep a verb for a later `wait`."""
        self._asked.append(asked)

    def wait(self, seconds: float) -> list[Reply]:
        """Do the verb whose turn it is; `seconds` is not used, for nothing happens elsewhere."""
        while self._asked and not self._told:
            asked = self._asked.popleft()
            if asked.ticket in self._due:  # not of a lost worker
                return self._replies([self._lives[asked.worker].answer(asked, self.now)])
        return self._replies([])


class ThreadTeam(_LocalTeam):
    """One thread a worker."""

    def __init__(self, work: HandWork, workers: int) -> None:
        super().__init__(work, workers)
        self._queues: dict[str, queue.SimpleQueue[_Asked | None]] = {}
        self._threads: list[threading.Thread] = []
        self._found: queue.SimpleQueue[Answer | Raised] = queue.SimpleQueue()

    def _begin(self, lives: list[_Life]) -> None:
        """Start a thread for each life, and wait until all hands are made."""
        ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for life in lives:
            asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
            self._queues[life.worker] = asked
            thread = threading.Thread(
                target=self._work_life,
                args=(life, asked, ready),
                name=f"xcray-{life.worker}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        errors = [error for _ in lives if (error := ready.get()) is not None]
        if errors:
            self.close()
            raise errors[0]

    def _work_life(
        self,
        life: _Life,
        asked: queue.SimpleQueue[_Asked | None],
        ready: queue.SimpleQueue[BaseException | None],
    ) -> None:
        """A thread's life: make the hand, then verbs until None."""
        try:
            life.begin()
        except Exception as error:
            ready.put(error)
            return
        ready.put(None)
        while (each := asked.get()) is not None:
            self._found.put(life.answer(each, self.now))
            del (
                each
            )  # its handles: what it was asked with is freed now, not when something else is asked

    def _queue(self, asked: _Asked) -> None:
        """Give a verb to its thread."""
        self._queues[asked.worker].put(asked)

    def wait(self, seconds: float) -> list[Reply]:
        """The first reply within `seconds`, and all others that are there with it."""
        found: list[Answer | Raised] = []
        try:
            if self._due and not self._told:
                found.append(self._found.get(timeout=seconds))
            while True:
                found.append(self._found.get_nowait())
        except queue.Empty:
            return self._replies(found)

    def _end(self, worker: str) -> None:
        """The thread ends at its next slice, and what it still answers is not told."""
        super()._end(worker)
        self._queues.pop(worker).put(None)

    def close(self) -> None:
        """Stop and join the threads."""
        super().close()
        for asked in self._queues.values():
            asked.put(None)
        for thread in self._threads:
            thread.join()
        self._queues.clear()
        self._threads.clear()


def _thing(handle: Handle) -> Any:
    """What a handle holds. Raises Unavailable when a rehearsal lost it."""
    if handle.held is GONE:
        raise thing_lost()
    return handle.held
