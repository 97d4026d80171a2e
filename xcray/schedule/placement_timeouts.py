"""What to do about workers that were asked for and do not come: said in words, tried another way, given up in the end.

Who asks a cluster for a worker hears nothing until it has a place. There are many reasons why one never gets it though a node is up
and free: the request was lost, the node never heard of the job, the view of what is free is old or counts a node that is dead.
None of them can be told from here; but that there was room all along, and nobody came, can. Then those that wait are called off and
asked for anew; should that be in vain too, the nodes that took nobody are left out for some minutes, so that others are filled or
asked for. Where nobody at all is ready for as long as a start may take, it is given up, with what was waited for.

Nothing here reads a clock, or knows Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

STUCK_SECONDS: Final = 20.0  # of room on a node and nobody who takes it, before it is tried another way: longer than a slow start
SHUN_SECONDS: Final = 300.0  # that a node is left out which took nobody, again
SURPLUS_SECONDS: Final = 5.0  # of there being too many that wait, before some are called off: what is free is known a moment late
SAID_SECONDS: Final = 10.0  # of waiting, before it is worth a word


class Way(NamedTuple):
    """What is to be done now. anew: workers to call off and ask for again; shun: nodes that are to get nobody for SHUN_SECONDS;
    over: that it is given up; why: what is waited for, in words, empty when nothing is."""

    anew: tuple[str, ...] = ()
    shun: tuple[str, ...] = ()
    over: bool = False
    why: str = ""


class Patience:
    """Watches one pool's waiting; all times in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._alone: float | None = None  # since when nobody is ready
        self._open: dict[
            str, float
        ] = {}  # node -> since when it has had room while somebody waited and nobody came
        self._tried: set[str] = set()  # nodes for which those that waited have been asked for anew
        self._waited: set[str] = set()
        self._surplus: float | None = None

    def look(
        self,
        now: float,
        asked: Mapping[str, float],
        ready: int,
        rooms: Collection[str],
        start: float,
    ) -> Way:
        """What to do. asked: workers that have no place, by when they were asked for; ready: workers that can work; rooms: nodes
        that have room for one; start: seconds that a start may take when nobody is ready."""
        self._alone = None if ready else now if self._alone is None else self._alone
        came = self._waited - asked.keys()  # had a place, or were called off
        self._waited = set(asked)
        if came or not asked:
            self._open = {}
        self._tried &= set(rooms)
        self._open = {node: self._open.get(node, now) for node in rooms if asked}
        why = self._words(now, asked, rooms)
        if self._alone is not None and now - self._alone > start:
            return Way(over=True, why=why)
        stuck = [node for node, since in self._open.items() if now - since >= STUCK_SECONDS]
        anew = tuple(worker for worker, since in asked.items() if now - since >= STUCK_SECONDS)
        if not stuck or not anew:
            return Way(why=why)
        shun = tuple(node for node in stuck if node in self._tried)
        self._tried = (self._tried | set(stuck)) - set(shun)
        self._open, self._waited = {}, set()
        return Way(anew, shun, why=why)

    def surplus(self, now: float, too_many: int) -> int:
        """How many of those that wait are to be called off, of `too_many`: none before there have been too many for a while."""
        self._surplus = None if too_many <= 0 else now if self._surplus is None else self._surplus
        return (
            too_many if self._surplus is not None and now - self._surplus >= SURPLUS_SECONDS else 0
        )

    def _words(self, now: float, asked: Mapping[str, float], rooms: Collection[str]) -> str:
        """What is waited for."""
        longest = now - min(asked.values(), default=now)
        if longest < SAID_SECONDS:
            return ""
        who = (
            f"{len(asked)} worker{'s' * (len(asked) > 1)} wait{'s' * (len(asked) == 1)} for a place"
        )
        since = min((self._open.get(node, now) for node in rooms), default=now)
        if not rooms:
            return f"{who}: no node has room"
        return f"{who}: {len(rooms)} node{'s' * (len(rooms) > 1)} had room for {now - since:.0f} s, and Ray has placed nobody there"
