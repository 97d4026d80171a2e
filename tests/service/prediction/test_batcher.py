"""The batcher: computations on the event loop, in batches, in threads, and refusals.

The tests control the clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.clocks import Clock
from xcray.errors import Unavailable
from xcray.service.prediction.batcher import Batcher


class Model:
    """Computes its payloads in `row_seconds` per row; records batches and threads."""

    def __init__(self, clock: Clock, row_seconds: float = 0.0001) -> None:
        self.clock = clock
        self.row_seconds = row_seconds
        self.calls: list[list[Any]] = []
        self.threads: list[bool] = []
        self.go = threading.Event()
        self.go.set()
        self.wait_for_calls = threading.Semaphore(0)

    def __call__(self, values: list[Any]) -> list[Any]:
        self.calls.append(list(values))
        self.threads.append(threading.current_thread() is not threading.main_thread())
        self.wait_for_calls.release()
        assert self.go.wait(600)
        self.clock.seconds += self.row_seconds * len(values)
        if "bad" in values:
            raise ValueError("bad row")
        return [f"answer to {each}" for each in values]


def run(
    story: Callable[[Batcher, Model], Awaitable[None]],
    *,
    threads: int = 1,
    rows: int = 8,
    seconds: float = 0.002,
    **how: Any,
) -> Model:
    """Run a scenario with a batcher."""
    clock = Clock()
    model = Model(clock, **how)

    async def play() -> None:
        batcher = Batcher(threads, rows, seconds, clock)
        try:
            await story(batcher, model)
        finally:
            model.go.set()
            batcher.close()

    asyncio.run(play())
    return model


async def wait_for_calls(model: Model, times: int = 1) -> None:
    """Wait until the model has been called this many more times."""
    for _ in range(times):
        assert await asyncio.to_thread(model.wait_for_calls.acquire, True, 600)


def test_the_first_item_of_a_kind_uses_a_thread_and_cheap_ones_the_loop() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        for i in range(3):
            assert await batcher.submit("k", i, model) == f"answer to {i}"

    model = run(story)
    assert model.threads == [True, False, False]
    assert model.calls == [[0], [1], [2]]


def test_the_item_of_the_only_request_is_computed_at_once() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        requests = batcher.requests = {"own"}
        await batcher.submit("a", 0, model)  # its duration is not known yet
        coroutine = batcher.submit("a", 1, model)
        with pytest.raises(StopIteration) as done:  # without an iteration of the loop
            coroutine.send(None)
        assert done.value.value == "answer to 1"
        requests.add("event stream")
        batcher.other_requests = 1
        coroutine = batcher.submit("a", 2, model)
        with pytest.raises(StopIteration):
            coroutine.send(None)
        requests.add("another")
        results = await asyncio.gather(*(batcher.submit("a", i, model) for i in (3, 4)))
        assert results == ["answer to 3", "answer to 4"]

    assert run(story).calls == [[0], [1], [2], [3, 4]]


def test_durations_are_processor_time_of_the_thread() -> None:
    """Time in which another process has the core does not make a kind look expensive."""
    in_threads = list[bool]()

    def compute(values: list[Any]) -> list[Any]:
        in_threads.append(threading.current_thread() is not threading.main_thread())
        time.sleep(0.2)
        return values

    async def story() -> None:
        batcher = Batcher(1, 8, 0.15)
        for i in range(3):
            await batcher.submit("a", i, compute)
        batcher.close()

    asyncio.run(story())
    assert in_threads == [True, False, False]


def test_items_of_one_loop_iteration_are_one_call_per_kind() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        await batcher.submit("a", "warm", model)
        await batcher.submit("b", "warm", model)
        kinds = ["a", "b", "a", "a", "b"]
        result = await asyncio.gather(
            *(batcher.submit(kind, f"{kind}{i}", model) for i, kind in enumerate(kinds))
        )
        assert result == [f"answer to {kind}{i}" for i, kind in enumerate(kinds)]

    assert run(story).calls[2:] == [["a0", "a2", "a3"], ["b1", "b4"]]


def test_a_batch_respects_its_time_limit() -> None:
    """A row takes 0.5 ms and a batch 2 ms: four rows per batch, or two of double weight."""

    async def story(batcher: Batcher, model: Model) -> None:
        await batcher.submit("k", "warm", model)
        await asyncio.gather(*(batcher.submit("k", i, model) for i in range(10)))
        await asyncio.gather(*(batcher.submit("k", i, model, weight=1.99) for i in range(3)))

    calls = run(story, row_seconds=0.0005, rows=100).calls
    assert [len(call) for call in calls[1:4]] == [4, 4, 2]
    assert all(len(call) <= 4 for call in calls[4:])


def test_expensive_items_use_threads() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        for i in range(3):
            await batcher.submit("k", i, model)

    assert run(story, row_seconds=0.5).threads == [True, True, True]


def test_with_a_time_limit_of_zero_all_items_use_threads() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        for i in range(3):
            await batcher.submit("k", i, model)

    assert run(story, seconds=0.0).threads == [True, True, True]


def test_items_that_wait_for_a_thread_are_batched() -> None:
    """Items that wait for a thread are computed together.

    A weight of 20 is cheap, one of 21 is not. Batchable items fit into four times the cheap limit
    (the first call showed that a weight takes slightly less time).
    """

    async def story(batcher: Batcher, model: Model) -> None:
        await batcher.submit("k", "warm", model)
        model.go.clear()
        model.wait_for_calls = threading.Semaphore(0)
        first = asyncio.create_task(batcher.submit("k", "first", model, weight=30.0))
        await wait_for_calls(model)
        others = [
            asyncio.create_task(batcher.submit("k", i, model, weight=21.0, batchable=i != 1))
            for i in range(6)
        ]
        await asyncio.sleep(0)
        model.go.set()
        assert await asyncio.gather(first, *others) == [
            "answer to first",
            *(f"answer to {i}" for i in range(6)),
        ]

    assert run(story, row_seconds=0.0021, seconds=0.0021 * 20).calls[1:] == [
        ["first"],
        [0, 2, 3, 4],
        [1],
        [5],
    ]


def test_cheap_items_do_not_wait_for_a_busy_thread() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        slow = Model(model.clock)
        slow.go.clear()
        await batcher.submit("k", "warm", model)
        waiting = asyncio.create_task(batcher.submit("slow", "x", slow))
        await wait_for_calls(slow)
        assert await batcher.submit("k", "quick", model) == "answer to quick"
        assert not waiting.done()
        slow.go.set()
        assert await waiting == "answer to x"

    assert run(story).threads == [True, False]


def test_an_error_affects_only_its_request() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        await batcher.submit("k", "warm", model)
        result = await asyncio.gather(
            *(batcher.submit("k", each, model) for each in ("a", "bad", "c")),
            return_exceptions=True,
        )
        assert [str(each) for each in result] == ["answer to a", "bad row", "answer to c"]
        assert isinstance(result[1], ValueError)

    assert run(story).calls[1:] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


def test_too_few_results_are_an_error() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        with pytest.raises(RuntimeError, match="0 results for 1 work items"):
            await batcher.submit("k", 1, lambda inputs: [])

    run(story)


def test_cancelled_items_are_not_computed() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        model.go.clear()
        first = asyncio.create_task(batcher.submit("k", "first", model))
        await wait_for_calls(model)
        gone = asyncio.create_task(batcher.submit("k", "gone", model))
        await asyncio.sleep(0)
        gone.cancel()
        stays = asyncio.create_task(batcher.submit("k", "stays", model))
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(first, stays)

    assert run(story).calls == [["first"], ["stays"]]


def test_rows_above_the_limit_get_a_retry_time() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        with batcher.admit(5), batcher.admit(3):
            with (
                pytest.raises(Unavailable, match="try again in a second") as caught,
                batcher.admit(1),
            ):
                raise AssertionError("there was room")
            assert (caught.value.code, caught.value.details["retry_after"]) == ("BUSY", 1)
        assert batcher.pending_rows == 0
        # A single request of any size fits.
        with (
            batcher.admit(1000),
            pytest.raises(Unavailable),
            batcher.admit(1),
        ):
            raise AssertionError("there was room")
        with pytest.raises(KeyError), batcher.admit(8):
            raise KeyError
        with batcher.admit(8):
            assert batcher.pending_rows == 8

    run(story)


def test_the_retry_time_follows_the_measured_speed() -> None:
    async def story(batcher: Batcher, model: Model) -> None:
        for i in range(40):
            await batcher.submit("k", i, model)
        with batcher.admit(8), pytest.raises(Unavailable) as caught, batcher.admit(1):
            raise AssertionError("there was room")
        assert caught.value.details["retry_after"] == 16

    run(story, row_seconds=2.0)
