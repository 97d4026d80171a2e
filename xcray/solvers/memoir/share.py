"""The share of a worker in the searches of MEMOIR, and its threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from xcray.errors import Stopped


class Share(NamedTuple):
    """The share of the work of worker `number` of `workers`, which uses `threads` threads."""

    number: int = 0
    workers: int = 1
    threads: int = 1

    def part(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the part of the range lo .. hi - 1 of this worker."""
        ends = (lo + (hi - lo) * (self.number + i) // self.workers for i in (0, 1))
        return next(ends), next(ends)

    def run_threads(
        self,
        lo: int,
        hi: int,
        search: Callable[[int, int, int], int],
        stopped: Callable[[], bool],
    ) -> None:
        """Search samples lo .. hi - 1 on all threads of this worker.

        search: called with the thread, the next sample and the end of the thread's part; returns
        the sample at which it goes on. Raises Stopped, and what a search raises, after all threads
        have ended.
        """

        def run(thread: int) -> None:
            at, end = Share(thread, self.threads).part(lo, hi)
            while at < end:
                check_stop(stopped)
                at = search(thread, at, end)

        if self.threads == 1:
            run(0)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(run, range(self.threads)))


def check_stop(stopped: Callable[[], bool]) -> None:
    """Raise Stopped if `stopped` returns True."""
    if stopped():
        raise Stopped("stopped within a round; the next run continues after the last saved round")
