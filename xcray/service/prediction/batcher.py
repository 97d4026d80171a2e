"""Dynamic batching and admission control for predictions.

One batcher per process, used on its event loop. The duration of a computation is predicted from
earlier computations of the same kind.

Cheap computations run on the event loop itself: at once if the process answers no other prediction,
else in the next iteration. Handing them to a thread and back takes longer than most of them, and
under load a thread waits for the interpreter lock. All cheap requests with the same key that have
arrived by that iteration are computed in one call. Batches therefore grow when requests arrive
faster than they are answered, and no request ever waits for others to arrive.

Durations are processor time of the thread: on the clock of the wall, a moment in which another
process had the core would make a kind of computation look expensive.

Expensive computations run in threads. Requests that find all threads busy are batched when a thread
becomes free. `inline_seconds` limits the computation per loop iteration, and `THREAD_BATCH_FACTOR`
times that limits a batch in a thread, so that no request waits long for the others of its batch.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from xcray.errors import Unavailable

# payloads of several requests -> one result per payload
BatchFn: TypeAlias = Callable[[list[Any]], Sequence[Any]]

SMOOTHING: Final = 0.2  # weight of the newest measurement in the predicted duration
THREAD_BATCH_FACTOR: Final = 4.0  # limit of a batch in a thread, in units of `inline_seconds`
MAX_KEYS: Final = 4096  # keys whose duration is remembered


@dataclass(eq=False, slots=True)
class _WorkItem:
    """One computation that waits."""

    key: Hashable
    payload: Any
    weight: float
    compute_batch: BatchFn
    batchable: bool
    future: asyncio.Future[Any]


class Batcher:
    """Dynamic batcher of one event loop."""

    def __init__(
        self,
        threads: int,
        max_rows: int,
        inline_seconds: float,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Create a batcher and its threads.

        threads: for expensive computations. max_rows: limit of rows that wait or are computed.
        inline_seconds: computation per loop iteration; 0 sends everything to the threads.
        """
        self._threads = threads
        self._max_rows = max_rows
        self._inline_seconds = inline_seconds
        self._clock = clock
        self.requests: Sized | None = None  # all that the process answers now, if the server knows
        self.other_requests = 0  # those among them that are no predictions, like event streams
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="xcray-predict")
        self._cheap: deque[_WorkItem] = deque()
        self._expensive: deque[_WorkItem] = deque()
        self._seconds_per_weight: dict[Hashable, float] = {}  # duration of a work item of weight 1
        self._row_seconds = 0.0
        self._busy_threads = self.pending_rows = 0
        self._tick_scheduled = False

    @contextmanager
    def admit(self, rows: int) -> Iterator[None]:
        """Reserve capacity for `rows` rows until they are answered.

        Raises Unavailable BUSY if the limit is exceeded. A single request is always admitted.
        """
        if self.pending_rows and self.pending_rows + rows > self._max_rows:
            seconds = max(1, math.ceil(self.pending_rows * self._row_seconds))
            wait = "a second" if seconds == 1 else f"{seconds} seconds"
            raise Unavailable(
                f"too many predictions are waiting: try again in {wait}",
                code="BUSY",
                retry_after=seconds,
            )
        self.pending_rows += rows
        try:
            yield
        finally:
            self.pending_rows -= rows

    async def submit(
        self,
        key: Hashable,
        payload: Any,
        compute_batch: BatchFn,
        *,
        weight: float = 1.0,
        batchable: bool = True,
        waits: bool = False,
    ) -> Any:
        """Return `compute_batch([payload])[0]`, computed now or soon. Raises what it raises.

        key: kind of computation. Work items of one key share `compute_batch`, and their durations
        are proportional to their `weight`. They can be computed in one call if all of them are
        `batchable`. waits: for other services, so that it needs a thread however cheap it is.
        """
        seconds_per_weight = self._seconds_per_weight.get(key, math.inf)
        is_cheap = not waits and seconds_per_weight * weight <= self._inline_seconds
        if is_cheap and self.requests is not None and len(self.requests) - self.other_requests < 2:
            started = self._clock()
            (result,) = compute_batch([payload])
            self._learn(key, weight, 1, self._clock() - started)
            return result
        loop = asyncio.get_running_loop()
        item = _WorkItem(key, payload, weight, compute_batch, batchable, loop.create_future())
        (self._cheap if is_cheap else self._expensive).append(item)
        self._schedule_tick(loop)
        return await item.future

    def close(self) -> None:
        """Stop computing; waiting work items are cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for item in (*self._cheap, *self._expensive):
            item.future.cancel()

    def _schedule_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule `_tick` for the next iteration of the loop."""
        if not self._tick_scheduled:
            self._tick_scheduled = True
            loop.call_soon(self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Compute cheap items for up to `inline_seconds` and start batches in idle threads."""
        self._tick_scheduled = False
        while self._expensive and self._busy_threads < self._threads:
            batch = self._next_batch(self._expensive, THREAD_BATCH_FACTOR * self._inline_seconds)
            if batch:
                self._busy_threads += 1
                future = loop.run_in_executor(self._pool, self._run_batch, batch)
                future.add_done_callback(partial(self._on_thread_done, loop, batch))
        if self._cheap and (batch := self._next_batch(self._cheap, self._inline_seconds)):
            self._deliver(batch, *self._run_batch(batch))
        if self._cheap:
            self._schedule_tick(loop)

    def _next_batch(self, waiting: deque[_WorkItem], seconds: float) -> list[_WorkItem]:
        """Remove and return the oldest item, with others of its key that fit into `seconds`.

        Items stay in order. Empty if the caller of the oldest item is gone.
        """
        first = waiting.popleft()
        if first.future.done():  # its caller was cancelled
            return []
        if not (first.batchable and waiting):
            return [first]
        batch, rest = [first], []
        seconds_per_weight = self._seconds_per_weight.get(first.key)
        budget = seconds / seconds_per_weight - first.weight if seconds_per_weight else 0.0
        for item in waiting:
            if (
                item.key == first.key
                and item.batchable
                and item.weight <= budget
                and not item.future.done()
            ):
                budget -= item.weight
                batch.append(item)
            else:
                rest.append(item)
        waiting.clear()
        waiting.extend(rest)
        return batch

    def _run_batch(self, batch: list[_WorkItem]) -> tuple[list[Any], float]:
        """Return results (or errors in their places) and the seconds taken. Runs in any thread."""
        started = self._clock()
        try:
            results: list[Any] = list(batch[0].compute_batch([item.payload for item in batch]))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for {len(batch)} work items")
        except Exception as error:
            # compute one by one, so that one failing item does not affect the others
            if len(batch) > 1:
                return [self._run_batch([item])[0][0] for item in batch], self._clock() - started
            results = [error]
        return results, self._clock() - started

    def _on_thread_done(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_WorkItem],
        done: asyncio.Future[tuple[list[Any], float]],
    ) -> None:
        """Deliver the results of a batch that a thread has finished."""
        self._busy_threads -= 1
        if done.cancelled():
            for item in batch:
                item.future.cancel()
            return
        self._deliver(batch, *done.result())
        if self._expensive:
            self._schedule_tick(loop)

    def _deliver(self, batch: list[_WorkItem], results: list[Any], seconds: float) -> None:
        """Set the results of a batch."""
        for item, result in zip(batch, results, strict=True):
            if item.future.done():
                continue
            if isinstance(result, Exception):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)
        self._learn(batch[0].key, sum([item.weight for item in batch]), len(batch), seconds)

    def _learn(self, key: Hashable, weight: float, n_items: int, seconds: float) -> None:
        """Update the predicted duration of a key by that of a computation."""
        measured = seconds / weight
        predicted = self._seconds_per_weight.get(key, measured)
        if len(self._seconds_per_weight) >= MAX_KEYS:
            self._seconds_per_weight.clear()
        self._seconds_per_weight[key] = predicted + SMOOTHING * (measured - predicted)
        self._row_seconds += SMOOTHING * (seconds / n_items - self._row_seconds)
