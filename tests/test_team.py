"""One contract, one suite: the serial team, the threaded one and Ray's. What only Ray's has to stand is in a file of its own."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from xcray.errors import DataError, ParameterError, Stopped, Unavailable
from xcray.execution.local_team import SerialTeam, ThreadTeam
from xcray.execution.team import THING_LOST, Answer, Handle, Raised
from xcray.schedule.messages import Lost

LARGE = 200_000  # float32s: more than Ray passes within a message


class Hand:
    """Counts its verbs, makes arrays and adds to them."""

    def __init__(self, worker: str, stopped: Callable[[], bool]) -> None:
        self.worker, self.stopped, self.done = worker, stopped, []

    def make(self, value: float) -> tuple[np.ndarray, str]:
        """An array full of `value`."""
        self.done.append("make")
        return np.full(LARGE, value, np.float32), self.worker

    def add(self, block: np.ndarray, value: float) -> tuple[np.ndarray, float]:
        """A new array; tells the sum of the first and last element that came."""
        self.done.append("add")
        return block + np.float32(value), float(block[0] + block[-1])

    def total(self, blocks: Any, scale: float = 1.0) -> tuple[None, float]:
        """The sum of the first elements of some arrays."""
        return None, scale * float(sum(block[0] for block in blocks))

    def kind(self, *args: Any) -> tuple[None, list[str]]:
        """The types of what it was given."""
        return None, [type(each).__name__ for each in args]

    def history(self) -> tuple[None, list[str]]:
        """What was done so far."""
        return None, list(self.done)

    def long(self) -> tuple[None, None]:
        """Work in slices until it is told to stop."""
        ends = time.monotonic() + 60.0
        while time.monotonic() < ends:
            if self.stopped():
                raise Stopped("as asked")
            time.sleep(0.005)
        raise AssertionError("nobody told it to stop")

    def fail(self) -> tuple[None, None]:
        """Raise an error of xcray's with all that it says."""
        raise DataError("BAD_ROW", "what a row", file="rows.txt", line=7, hint="mend it")

    def slip(self) -> tuple[None, None]:
        """Raise an error that nobody meant."""
        return None, {}["nothing"]

    def _private(self) -> tuple[None, None]:
        """No verb."""
        return None, None


@dataclass(frozen=True)
class Work:
    """Makes hands; `broken` is the worker whose hand can't be made."""

    broken: str | None = None

    def hand(self, worker: str, stopped: Callable[[], bool], /) -> Hand:
        """The hand."""
        if worker == self.broken:
            raise DataError("NO_SHARD", "there is no such shard")
        return Hand(worker, stopped)

    def warm_up(self) -> None:
        """Nothing to compile."""


WORK = Work()
TEAMS: dict[str, Any] = {"serial": SerialTeam, "threads": ThreadTeam}


@pytest.fixture(params=TEAMS)
def build(request):
    """A function that makes teams of one kind; they are closed after the test."""
    made = []

    def make(workers: int = 2, work: Work = WORK) -> Any:
        team = TEAMS[request.param](work, workers)
        made.append(team)
        return team

    yield make
    for team in made:
        team.close()


@pytest.fixture
def team(build):
    """An open team of two."""
    made = build()
    made.open()
    return made


def replies(team: Any, count: int, seconds: float = 60.0) -> list[Any]:
    """The next `count` replies."""
    found: list[Any] = []
    ends = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < ends, f"only {found} came"
        found += team.wait(0.2)
    assert len(found) == count
    return found


def ask(team: Any, worker: str, verb: str, *args: Any) -> Any:
    """Ask and wait for the one reply."""
    ticket = team.ask(worker, verb, *args)
    (reply,) = replies(team, 1)
    assert isinstance(reply, Lost) or reply.ticket == ticket
    return reply


def test_workers_have_names_and_places(team):
    assert team.workers == ("worker-0", "worker-1")
    assert set(team.nodes) == {"worker-0", "worker-1"}
    assert len(set(team.nodes.values())) == 1


def test_a_thing_passes_from_hand_to_hand_and_what_is_told_comes_back(team):
    first = ask(team, "worker-0", "make", 3.0)
    assert isinstance(first, Answer)
    assert (first.worker, first.told) == ("worker-0", "worker-0")
    assert isinstance(first.bulk, Handle)
    second = ask(team, "worker-1", "add", first.bulk, 2.0)
    assert second.told == 6.0
    assert 0.0 <= first.started <= second.started
    assert min(first.seconds, second.seconds) >= 0.0
    np.testing.assert_array_equal(team.fetch(second.bulk), np.full(LARGE, 5.0, np.float32))
    np.testing.assert_array_equal(team.fetch(first.bulk), np.full(LARGE, 3.0, np.float32))


def test_many_things_go_in_a_list_and_the_driver_can_put_one(team):
    handles = [team.put(np.full(LARGE, 1.0, np.float32)), ask(team, "worker-0", "make", 2.0).bulk]
    assert ask(team, "worker-1", "total", handles, 10.0).told == 30.0
    assert ask(team, "worker-1", "total", tuple(handles)).told == 3.0
    assert ask(team, "worker-0", "kind", 1, "a", None, [1], (2,), handles[0]).told == [
        *("int", "str", "NoneType", "list", "tuple", "ndarray")
    ]


def test_what_makes_nothing_has_no_handle(team):
    assert ask(team, "worker-0", "history").bulk is None


def test_verbs_of_a_worker_run_in_the_order_they_were_asked(team):
    block = ask(team, "worker-0", "make", 0.0).bulk
    tickets = [team.ask("worker-0", *(("add", block, 1.0) if n % 2 else ("make", 1.0))) for n in range(6)]
    found = replies(team, 6)
    assert [reply.ticket for reply in found] == tickets
    assert all(earlier.started + earlier.seconds <= later.started + 0.01 for earlier, later in pairwise(found))
    assert ask(team, "worker-0", "history").told == ["make", *["make", "add"] * 3]
    assert ask(team, "worker-1", "history").told == []


def test_an_error_comes_as_it_was_raised_and_the_worker_goes_on(team):
    failed = ask(team, "worker-1", "fail")
    assert isinstance(failed, Raised)
    assert type(failed.error) is DataError
    assert (failed.error.code, failed.error.line, failed.error.hint) == ("BAD_ROW", 7, "mend it")
    assert isinstance(ask(team, "worker-1", "slip").error, KeyError)
    assert ask(team, "worker-1", "make", 1.0).told == "worker-1"


def test_what_is_no_verb_or_no_worker_is_refused(team):
    for wrong in ("_private", "__init__", "a b", ""):
        with pytest.raises(ParameterError, match="is no verb"):
            team.ask("worker-0", wrong)
    with pytest.raises(ParameterError, match="no 'worker-2' to ask"):
        team.ask("worker-2", "make", 1.0)
    unknown = ask(team, "worker-0", "sing")
    assert isinstance(unknown.error, ParameterError)
    assert "Hand has no verb 'sing'" in str(unknown.error)
    with pytest.raises(ParameterError, match="can't be replaced"):
        team.replace("worker-0")


def test_a_team_needs_a_worker(build):
    with pytest.raises(ParameterError, match="at least 1 worker"):
        build(0)


def test_waiting_for_nothing_takes_no_time(team):
    began = time.monotonic()
    assert team.wait(30.0) == []
    assert time.monotonic() - began < 10.0


def test_a_hand_that_cannot_be_made_is_said_at_the_start(build):
    team = build(work=Work(broken="worker-1"))
    with pytest.raises(DataError, match="no such shard"):
        team.open()


def test_a_stop_ends_what_is_under_way_and_begins_nothing(team):
    tickets = [team.ask("worker-0", "long"), team.ask("worker-0", "make", 1.0)]
    timer = threading.Timer(0.2, team.stop)
    timer.start()
    began = time.monotonic()
    found = replies(team, 2)
    timer.join()
    assert [reply.ticket for reply in found] == tickets
    assert all(isinstance(reply.error, Stopped) for reply in found)
    assert time.monotonic() - began < 20.0


def test_close_can_be_said_twice_and_before_open(build):
    team = build()
    team.close()
    team.open()
    assert ask(team, "worker-0", "make", 1.0).told == "worker-0"
    team.close()
    team.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xcray-worker")]


@contextmanager
def local(kind: str, workers: int = 2):
    """An open team of this process."""
    team = TEAMS[kind](Work(), workers)
    team.open()
    try:
        yield team
    finally:
        team.close()


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_the_rehearsal_of_a_loss_is_a_loss(kind):
    """A worker is lost with its tickets; it is told once, a new one of its name begins anew, and nothing late is heard."""
    with local(kind) as team:
        kept = ask(team, "worker-0", "make", 4.0).bulk
        team.ask("worker-0", "long")
        team.ask("worker-0", "make", 1.0)
        team.lose("worker-0")
        assert replies(team, 1) == [Lost("worker-0")]
        with pytest.raises(ParameterError, match="it was lost and not replaced"):
            team.ask("worker-0", "make", 1.0)
        team.replace("worker-0")
        assert team.fetch(kept)[0] == 4.0
        assert ask(team, "worker-0", "history").told == []
        assert team.wait(0.1) == []


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_the_rehearsal_of_a_lost_node_takes_its_things_along(kind):
    with local(kind) as team:
        mine, others = ask(team, "worker-0", "make", 1.0).bulk, ask(team, "worker-1", "make", 2.0).bulk
        team.lose("worker-0", with_things=True)
        assert replies(team, 1) == [Lost("worker-0")]
        assert ask(team, "worker-1", "total", [others]).told == 2.0
        error = ask(team, "worker-1", "total", [others, mine]).error
        assert isinstance(error, Unavailable)
        assert error.code == THING_LOST
        with pytest.raises(Unavailable, match="last checkpoint"):
            team.fetch(mine)


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_a_thing_goes_with_its_last_handle(kind):
    class Thing:
        """Something one can refer to weakly."""

    with local(kind) as team:
        thing = Thing()
        gone, handle = weakref.ref(thing), team.put(thing)
        del thing
        assert ask(team, "worker-0", "kind", handle).told == ["Thing"]
        assert gone() is not None
        del handle
        assert gone() is None
