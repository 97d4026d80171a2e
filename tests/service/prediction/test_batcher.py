"""Where predictions are computed: at once, together, in threads, or not at all. Time is a number that the tests turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from xcray.errors import Unavailable
from xcray.service.prediction.batcher import Desk


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Model:
    """Computes what it is given; notes with whom, and in which thread; takes `row_seconds` a row."""

    def __init__(self, clock: Clock, row_seconds: float = 0.0001) -> None:
        self.clock = clock
        self.row_seconds = row_seconds
        self.calls: list[list[Any]] = []
        self.threads: list[bool] = []
        self.go = threading.Event()
        self.go.set()
        self.reached = threading.Semaphore(0)

    def __call__(self, given: list[Any]) -> list[Any]:
        self.calls.append(list(given))
        self.threads.append(threading.current_thread() is not threading.main_thread())
        self.reached.release()
        assert self.go.wait(30)
        self.clock.now += self.row_seconds * len(given)
        if "bad" in given:
            raise ValueError("bad row")
        return [f"answer to {each}" for each in given]


def run(
    story: Callable[[Desk, Model], Awaitable[None]],
    *,
    threads: int = 1,
    rows: int = 8,
    seconds: float = 0.002,
    **how: Any,
) -> Model:
    """Play a story at a desk."""
    clock = Clock()
    model = Model(clock, **how)

    async def play() -> None:
        desk = Desk(threads, rows, seconds, clock)
        try:
            await story(desk, model)
        finally:
            model.go.set()
            desk.close()

    asyncio.run(play())
    return model


async def reached(model: Model, times: int = 1) -> None:
    """Once the model has been called so many times more."""
    for _ in range(times):
        assert await asyncio.to_thread(model.reached.acquire, True, 30)


def test_the_first_of_a_kind_goes_to_a_thread_and_cheap_ones_then_stay() -> None:
    async def story(desk: Desk, model: Model) -> None:
        for i in range(3):
            assert await desk.compute("k", i, model) == f"answer to {i}"

    model = run(story)
    assert model.threads == [True, False, False]
    assert model.calls == [[0], [1], [2]]


def test_what_comes_in_one_turn_is_one_call_and_kinds_are_kept_apart() -> None:
    async def story(desk: Desk, model: Model) -> None:
        await desk.compute("a", "warm", model)
        await desk.compute("b", "warm", model)
        kinds = ["a", "b", "a", "a", "b"]
        found = await asyncio.gather(
            *(desk.compute(kind, f"{kind}{i}", model) for i, kind in enumerate(kinds))
        )
        assert found == [f"answer to {kind}{i}" for i, kind in enumerate(kinds)]

    assert run(story).calls[2:] == [["a0", "a2", "a3"], ["b1", "b4"]]


def test_a_batch_holds_no_more_than_its_seconds() -> None:
    """A row takes 0.5 ms, 2 ms are allowed: four rows together, or two that weigh double."""

    async def story(desk: Desk, model: Model) -> None:
        await desk.compute("k", "warm", model)
        await asyncio.gather(*(desk.compute("k", i, model) for i in range(10)))
        await asyncio.gather(*(desk.compute("k", i, model, weight=1.99) for i in range(3)))

    calls = run(story, row_seconds=0.0005, rows=100).calls
    assert [len(call) for call in calls[1:4]] == [4, 4, 2]
    assert all(len(call) <= 4 for call in calls[4:])


def test_what_is_not_cheap_goes_to_threads() -> None:
    async def story(desk: Desk, model: Model) -> None:
        for i in range(3):
            await desk.compute("k", i, model)

    assert run(story, row_seconds=0.5).threads == [True, True, True]


def test_with_no_seconds_everything_goes_to_threads() -> None:
    async def story(desk: Desk, model: Model) -> None:
        for i in range(3):
            await desk.compute("k", i, model)

    assert run(story, seconds=0.0).threads == [True, True, True]


def test_those_that_wait_for_a_thread_are_taken_together() -> None:
    """A weight of 20 is cheap, one of 21 is not: while one is computed others gather; what joins fits into four times what is cheap
    (the first taught that a weight takes a little less)."""

    async def story(desk: Desk, model: Model) -> None:
        await desk.compute("k", "warm", model)
        model.go.clear()
        model.reached = threading.Semaphore(0)
        first = asyncio.create_task(desk.compute("k", "first", model, weight=30.0))
        await reached(model)
        others = [
            asyncio.create_task(desk.compute("k", i, model, weight=21.0, joins=i != 1))
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


def test_cheap_ones_pass_by_a_busy_thread() -> None:
    async def story(desk: Desk, model: Model) -> None:
        slow = Model(model.clock)
        slow.go.clear()
        await desk.compute("k", "warm", model)
        waiting = asyncio.create_task(desk.compute("slow", "x", slow))
        await reached(slow)
        assert await desk.compute("k", "quick", model) == "answer to quick"
        assert not waiting.done()
        slow.go.set()
        assert await waiting == "answer to x"

    assert run(story).threads == [True, False]


def test_a_fault_stays_with_its_request() -> None:
    async def story(desk: Desk, model: Model) -> None:
        await desk.compute("k", "warm", model)
        found = await asyncio.gather(
            *(desk.compute("k", each, model) for each in ("a", "bad", "c")), return_exceptions=True
        )
        assert [str(each) for each in found] == ["answer to a", "bad row", "answer to c"]
        assert isinstance(found[1], ValueError)

    assert run(story).calls[1:] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


def test_results_that_are_too_few_are_an_error_not_a_silence() -> None:
    async def story(desk: Desk, model: Model) -> None:
        with pytest.raises(RuntimeError, match="0 results of 1 works"):
            await desk.compute("k", 1, lambda given: [])

    run(story)


def test_nobody_computes_for_those_who_are_gone() -> None:
    async def story(desk: Desk, model: Model) -> None:
        model.go.clear()
        first = asyncio.create_task(desk.compute("k", "first", model))
        await reached(model)
        gone = asyncio.create_task(desk.compute("k", "gone", model))
        await asyncio.sleep(0)
        gone.cancel()
        stays = asyncio.create_task(desk.compute("k", "stays", model))
        await asyncio.sleep(0)
        model.go.set()
        await asyncio.gather(first, stays)

    assert run(story).calls == [["first"], ["stays"]]


def test_rows_beyond_the_bound_are_told_to_come_again() -> None:
    async def story(desk: Desk, model: Model) -> None:
        with desk.place(5), desk.place(3):
            with pytest.raises(Unavailable, match="try again in a second") as caught, desk.place(1):
                raise AssertionError("there was room")
            assert (caught.value.code, caught.value.details["retry_after"]) == ("BUSY", 1)
        assert desk.rows == 0
        with desk.place(1000), pytest.raises(Unavailable), desk.place(1):  # alone, any request fits
            raise AssertionError("there was room")
        with pytest.raises(KeyError), desk.place(8):
            raise KeyError
        with desk.place(8):
            assert desk.rows == 8

    run(story)


def test_how_long_to_wait_is_learned() -> None:
    async def story(desk: Desk, model: Model) -> None:
        for i in range(40):
            await desk.compute("k", i, model)
        with desk.place(8), pytest.raises(Unavailable) as caught, desk.place(1):
            raise AssertionError("there was room")
        assert caught.value.details["retry_after"] == 16

    run(story, row_seconds=2.0)
