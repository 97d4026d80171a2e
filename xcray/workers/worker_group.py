"""The contract of teams: workers that hold something, and do verbs on it that give and take things too large for the driver.

A pool's workers solve tasks that are all alike, and any worker may have any task. A team's worker has a hand: a shard of the
data, say, with what was computed for it. The driver asks a worker for a verb; what the verb makes (a block of weights) stays
where it was made, and the driver passes it on to the next worker by its `Handle`, without ever holding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from xcray.errors import ParameterError, Stopped, Unavailable
from xcray.schedule.events import Lost
from xcray.system.memory import Footprint
from xcray.workers.pool import WorkerStatus

THING_LOST: Final = "THING_LOST"  # code of the Unavailable that says a handle's thing is gone


class Handle:
    """A thing that a worker made or the driver put. When the last reference to the handle goes, so does the thing.

    held: what its team knows it by. Nobody else looks at it.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self, held: Any) -> None:
        self.held = held


@dataclass(frozen=True)
class Answer:
    """A verb was done. bulk: the thing it made, where it made it, None when it made none; told: what it tells the driver;
    seconds: what it took, from `started` on (seconds since the team opened), waiting for its turn and its arguments not counted."""

    ticket: int
    worker: str
    bulk: Handle | None
    told: Any
    seconds: float
    started: float = 0.0


@dataclass(frozen=True)
class Raised:
    """A verb raised `error`; its worker goes on with the next. Stopped: it was asked to end. Unavailable with the code
    THING_LOST: an argument was on a node that is gone."""

    ticket: int
    worker: str
    error: BaseException


Reply = Answer | Raised | Lost


class HandWork(Protocol):
    """What makes a worker's hand. It travels to other processes: small (paths, names, parameters), its bulk is in files."""

    def hand(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """The hand of `worker`, made where it will work. Its public methods are the verbs: they return (bulk, told), and raise
        Stopped soon after `stopped` says True. Arrays among their arguments may be read-only, and are shared with whoever else
        holds them: a verb copies what it changes and what it keeps."""

    def warm_up(self) -> None:
        """Compile or load the kernels."""


class Team(Protocol):
    """Workers named `worker-0` and so on. One thread calls it; `stop` is the one call that others may make.

    workers: the names; nodes: worker to a name of the machine it is at, once open. A worker does its verbs one after the
    other, in the order they were asked. A lost worker is reported once, none of its tickets is reported after, and it is not
    asked again until it is replaced.
    """

    @property
    def workers(self) -> tuple[str, ...]:
        """Names, in order; the same for the life of the team."""

    @property
    def present(self) -> tuple[str, ...]:
        """Those of them that are there and can be asked, in order."""

    @property
    def nodes(self) -> dict[str, str]:
        """Where each worker is."""

    def open(self) -> None:
        """Start the workers and wait until all are ready, or those that it is to begin with. Raises Unavailable when they can't be
        had, and what making a hand raised."""

    def ask(self, worker: str, verb: str, *args: Any) -> int:
        """Ask `worker` for a verb; a ticket that one reply of `wait` will carry. An argument may be a Handle, or a list or tuple
        that holds some: the verb gets the things themselves. Raises ParameterError for a worker or verb that can't be."""

    def wait(self, seconds: float) -> list[Reply]:
        """What happened since the last call; waits at most about `seconds` for something. May be empty, and is at once when no
        ticket is out. Raises Unavailable when workers keep being lost."""

    def put(self, value: Any) -> Handle:
        """A thing that the driver made, for workers to take."""

    def fetch(self, handle: Handle) -> Any:
        """The thing itself, read-only, in the driver. Raises Unavailable (THING_LOST) when it is gone."""

    def footprints(self) -> dict[str, Footprint]:
        """What workers in processes of their own hold, as far as they have answered; asks them anew, and waits for nobody."""

    def muster(self) -> WorkerStatus:
        """Who is there now; asks nobody that could be slow more often than every few seconds."""

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """New workers of the same names in the places of lost ones, with new hands; waits until they are ready, as `open`. at_once:
        raises Unavailable at once where no place is to be had soon, for others can go on without them."""

    def invite(self) -> list[str]:
        """Workers that were missing and are present since the last call. Others that are missing are asked for where there is room,
        and nobody waits for them: they are told by a later call."""

    def leaving(self) -> dict[str, float]:
        """Workers on machines that are about to go, and seconds until they do, infinity when that is not known; asks nobody that
        could be slow more often than every second."""

    def dismiss(self, *workers: str) -> None:
        """Let workers go, with what they hold, and what they made where nobody else has it. They are missing then, not lost."""

    def interrupt(self) -> None:
        """Ask workers to end what was asked of them so far, within a kernel slice: it is reported as Raised with Stopped, or as the
        Answer that came before. What is asked from now on is done: a driver that breaks off may have things saved."""

    def stop(self) -> None:
        """Ask workers to end what they are at within a kernel slice; it and all else that is asked is reported as Raised with
        Stopped, or as the Answer that came before."""

    def close(self) -> None:
        """End what `open` started; idempotent. Handles lose their things."""


class Slot(NamedTuple):
    """The place of a thing among a verb's arguments: the `number` of the thing."""

    number: int


def team_names(workers: int) -> tuple[str, ...]:
    """`worker-0` and so on. Raises ParameterError when there would be none."""
    if workers < 1:
        raise ParameterError(f"a team needs at least 1 worker, not {workers}")
    return tuple(f"worker-{number}" for number in range(workers))


def check_replace(lost: Iterable[str], workers: Iterable[str], living: Iterable[str]) -> None:
    """Raise ParameterError for a worker that can't be replaced: it is not of this team, or still there."""
    wrong = [worker for worker in lost if worker not in workers or worker in living]
    if wrong:
        raise ParameterError(
            f"{', '.join(wrong)} can't be replaced: only a worker of this team that was reported lost can"
        )


def taken_apart(
    worker: str, verb: str, args: Sequence[Any], workers: Iterable[str]
) -> tuple[tuple[Any, ...], list[Handle]]:
    """Arguments with a Slot for each Handle, and the handles: things travel beside the arguments, not in them.

    Raises ParameterError for a worker that is not of `workers`, or a verb that is no public method's name.
    """
    if worker not in workers:
        raise ParameterError(
            f"there is no {worker!r} to ask: it is not of this team, or it was lost and not replaced"
        )
    if verb.startswith("_") or not verb.isidentifier():
        raise ParameterError(f"{verb!r} is no verb: name a public method of the hand")
    handles: list[Handle] = []

    def slot(each: Any) -> Any:
        if not isinstance(each, Handle):
            return each
        handles.append(each)
        return Slot(len(handles) - 1)

    return tuple(_each(arg, slot) for arg in args), handles


def _each(arg: Any, change: Callable[[Any], Any]) -> Any:
    """A changed argument, or a list or tuple with each of its elements changed; named tuples are arguments like others."""
    return type(arg)(change(each) for each in arg) if type(arg) in (list, tuple) else change(arg)


def do(
    hand: Any, verb: str, args: Sequence[Any], things: Sequence[Any], stopped: Callable[[], bool]
) -> tuple[Any, Any]:
    """Let a hand do a verb with the things in their slots, unless the team was stopped: (bulk, told). Raises Stopped,
    ParameterError for a verb it has not, and what the verb raises."""
    if stopped():
        raise Stopped("stopped on request; this was not begun")
    method = getattr(hand, verb, None)
    if not callable(method):
        raise ParameterError(f"{type(hand).__name__} has no verb {verb!r}")
    whole = [
        _each(arg, lambda each: things[each.number] if isinstance(each, Slot) else each)
        for arg in args
    ]
    bulk, told = method(*whole)
    return bulk, told


def thing_lost(why: object = "") -> Unavailable:
    """The error for a handle whose thing is gone."""
    said = str(why).strip().splitlines()
    return Unavailable(
        f"a block is gone with the node that held it{': ' + said[0] if said else ''}; go back to the last checkpoint",
        code=THING_LOST,
    )
