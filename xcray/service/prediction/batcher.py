"""Where predictions are computed: at once when they are cheap, in threads when not, together when they wait; or refused.

One desk a process, used on its event loop. What a computation will take is foreseen from what its like took before.

Cheap ones run on the event loop itself, in its next turn: handing them to a thread and back takes longer than most of them,
and under load a thread waits for the interpreter. All that came in by that turn and ask the same of the same model are one call,
so batches grow by themselves when requests come faster than they are answered, and nobody ever waits for company. Others run in
threads; those that find all threads busy are taken together when one falls free. `seconds` bounds what is computed in one turn,
and `IN_THREADS` times that what a thread takes together, so that no request waits long for its companions.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from xcray.errors import Unavailable

Together: TypeAlias = Callable[
    [list[Any]], Sequence[Any]
]  # what was given, of several -> as many results

LEARNING: Final = 0.2  # share of the newest measurement in what is foreseen
IN_THREADS: Final = 4.0  # a thread takes so many times as much together as the loop
KNOWN: Final = 4096  # kinds of computations whose pace is remembered


@dataclass(eq=False, slots=True)
class _Work:
    """One computation that waits."""

    key: Hashable
    given: Any
    weight: float
    together: Together
    joins: bool
    future: asyncio.Future[Any]


class Desk:
    """Computes for one event loop."""

    def __init__(
        self,
        threads: int,
        rows: int,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """threads: for what is not cheap. rows: at most so many wait or are computed. seconds: see above; 0: all go to threads."""
        self._threads = threads
        self._most = rows
        self._seconds = seconds
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="xcray-predict")
        self._cheap: deque[_Work] = deque()
        self._others: deque[_Work] = deque()
        self._pace: dict[Hashable, float] = {}  # seconds for a weight of one
        self._row_seconds = 0.0
        self._busy = self.rows = 0
        self._woken = False

    @contextmanager
    def place(self, rows: int) -> Iterator[None]:
        """Room for so many rows until they are answered. Raises Unavailable BUSY when there is none; one request always fits."""
        if self.rows and self.rows + rows > self._most:
            seconds = max(1, math.ceil(self.rows * self._row_seconds))
            wait = "a second" if seconds == 1 else f"{seconds} seconds"
            raise Unavailable(
                f"too many predictions are waiting: try again in {wait}",
                code="BUSY",
                retry_after=seconds,
            )
        self.rows += rows
        try:
            yield
        finally:
            self.rows -= rows

    async def compute(
        self,
        key: Hashable,
        given: Any,
        together: Together,
        *,
        weight: float = 1.0,
        joins: bool = True,
    ) -> Any:
        """`together([given])[0]`, computed now or soon. Raises what it raises.

        key: what is alike: works of one key have the same `together`, take seconds in proportion to their `weight`, and may be
        computed in one call when each of them `joins`.
        """
        loop = asyncio.get_running_loop()
        work = _Work(key, given, weight, together, joins, loop.create_future())
        pace = self._pace.get(key)
        (
            self._cheap if pace is not None and pace * weight <= self._seconds else self._others
        ).append(work)
        self._wake(loop)
        return await work.future

    def close(self) -> None:
        """Compute no more; what waits is cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for work in (*self._cheap, *self._others):
            work.future.cancel()

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `_turn` called in the next turn of the loop."""
        if not self._woken:
            self._woken = True
            loop.call_soon(self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute what is cheap, up to `seconds` of it; start what the threads have room for."""
        self._woken = False
        while self._others and self._busy < self._threads:
            works = self._next(self._others, IN_THREADS * self._seconds)
            if works:
                self._busy += 1
                started = loop.run_in_executor(self._pool, self._computed, works)
                started.add_done_callback(partial(self._ended, loop, works))
        if self._cheap and (works := self._next(self._cheap, self._seconds)):
            self._tell(works, *self._computed(works))
        if self._cheap:
            self._wake(loop)

    def _next(self, waiting: deque[_Work], seconds: float) -> list[_Work]:
        """The work that waits longest, and those alike, as many as `seconds` hold, in order. Empty when nobody awaits it."""
        first = waiting.popleft()
        if first.future.done():  # whoever asked is gone
            return []
        if not (first.joins and waiting):
            return [first]
        works, rest = [first], []
        pace = self._pace.get(first.key)
        room = seconds / pace - first.weight if pace else 0.0
        for work in waiting:
            if (
                work.key == first.key
                and work.joins
                and work.weight <= room
                and not work.future.done()
            ):
                room -= work.weight
                works.append(work)
            else:
                rest.append(work)
        waiting.clear()
        waiting.extend(rest)
        return works

    def _computed(self, works: list[_Work]) -> tuple[list[Any], float]:
        """Results, or errors in their places, and the seconds that it took. In any thread."""
        begun = self._clock()
        try:
            results: list[Any] = list(works[0].together([work.given for work in works]))
            if len(results) != len(works):
                raise RuntimeError(f"{len(results)} results of {len(works)} works")
        except Exception as error:
            if len(works) > 1:  # one of them is at fault: the others shall not feel it
                return [self._computed([work])[0][0] for work in works], self._clock() - begun
            results = [error]
        return results, self._clock() - begun

    def _ended(
        self,
        loop: asyncio.AbstractEventLoop,
        works: list[_Work],
        done: asyncio.Future[tuple[list[Any], float]],
    ) -> None:
        """A thread is free again."""
        self._busy -= 1
        if done.cancelled():
            for work in works:
                work.future.cancel()
            return
        self._tell(works, *done.result())
        if self._others:
            self._wake(loop)

    def _tell(self, works: list[_Work], results: list[Any], seconds: float) -> None:
        """Hand out results, and learn from what they took."""
        for work, result in zip(works, results, strict=True):
            if work.future.done():
                continue
            if isinstance(result, Exception):
                work.future.set_exception(result)
            else:
                work.future.set_result(result)
        pace = seconds / sum([work.weight for work in works])
        known = self._pace.get(works[0].key, pace)
        if len(self._pace) >= KNOWN:
            self._pace.clear()
        self._pace[works[0].key] = known + LEARNING * (pace - known)
        self._row_seconds += LEARNING * (seconds / len(works) - self._row_seconds)
