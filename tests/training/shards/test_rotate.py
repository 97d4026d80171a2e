"""One rotation: same bits for any assignment, unchanged inputs, clean interruption."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.worker_group_toy import to
from xcray.errors import DataError, Stopped
from xcray.schedule.rotation import ORDERS
from xcray.schedule.shard_assignment import assign_by_speed
from xcray.solvers.group_contract import Grid, Layout, PlacedBlock, Rotation
from xcray.training.shards.rebalancing import WorkerSpeeds
from xcray.workers import calls
from xcray.workers.call_queue import CallQueue, WorkerLost, call, call_many
from xcray.workers.calls import TIME_LIMIT, GroupCalls
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.parts import Parts
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import DONE, LOST

SHARDS, BLOCKS = 5, 7
VERBS = ("update", "sum", "update", "sum")
GROUPS = {"serial": SerialGroup, "threads": ThreadGroup}


class OrderSensitiveWorker:
    """A worker whose results depend on the order of passes.

    A shard depends on the order of its blocks, and a block on the order of its shards.
    """

    def __init__(self, stopped: Any) -> None:
        self._stopped = stopped
        self.states = dict[int, float]()

    def pass_block(
        self,
        block: np.ndarray,
        shards: tuple[int, ...],
        step: tuple[str, float],
        owned: bool,
        copied: bool = False,
    ) -> tuple[np.ndarray | None, list[Any]]:
        """Change the block in an update sweep, and the shards in a sum sweep."""
        report, after = [], block if owned else block.copy()
        for shard in shards:
            b = self.states.get(shard, 1.0 + shard)
            if step[0] == "update":
                after *= 0.75
                after += b * step[1]
            else:
                self.states[shard] = 0.5 * b + float(after.sum())
            report.append((shard, float(after @ after), 0.25))
        return after if step[0] == "update" else None, report

    def long(self) -> tuple[None, None]:
        """Work until a stop is requested."""
        ends = time.monotonic() + 300.0
        while time.monotonic() < ends:
            if self._stopped():
                raise Stopped("as asked")
            time.sleep(0.002)
        raise AssertionError("it was not stopped")

    def hello(self) -> tuple[None, str]:
        """Return a greeting."""
        return None, "hello"


class Slow(OrderSensitiveWorker):
    """A worker whose passes last until they are stopped, except the first three."""

    n_passes = 0

    def pass_block(self, *args: Any) -> tuple[Any, Any]:
        """Pass three blocks as `Hand` does, then work until a stop is requested."""
        self.n_passes += 1
        return super().pass_block(*args) if self.n_passes <= 3 else self.long()


class Broken(OrderSensitiveWorker):
    """A worker whose passes fail."""

    def pass_block(self, *args: Any) -> tuple[Any, Any]:
        """Raise DataError."""
        raise DataError("BAD_ROW", "what a row")


class Work:
    """Creates workers of one kind."""

    def __init__(self, kind: type[OrderSensitiveWorker] = OrderSensitiveWorker) -> None:
        self._kind = kind

    def create_worker(self, worker: str, stopped: Any) -> OrderSensitiveWorker:
        """Return a worker without the state of any shard."""
        return self._kind(stopped)

    def warm_up(self) -> None:
        """Do nothing: there are no kernels to compile."""


def opened(kind: str, workers: int, hand: type[OrderSensitiveWorker] = OrderSensitiveWorker) -> Any:
    """Return an open worker group."""
    group = GROUPS[kind](Work(hand), workers)
    group.open()
    return group


def start(group: Any) -> list[Any]:
    """Return the initial blocks."""
    return [PlacedBlock("", group.put(np.full(3, 1.0 + j, np.float32))) for j in range(BLOCKS)]


def calls_of(group: Any, homes: Any = None, **how: Any) -> GroupCalls:
    """Return the calls of workers that hold shards; an even assignment by default."""
    parts = Parts(group, SHARDS)
    parts.owners = tuple(
        homes or assign_by_speed(np.ones(SHARDS), dict.fromkeys(group.workers, 1.0))
    )
    layout = Layout(len(group.workers), grid=Grid(SHARDS, BLOCKS))
    return GroupCalls(group, **how, parts=parts, layout=layout)


def turn(
    group: Any, order: str = "ring", homes: Any = None, blocks: Any = None, **how: Any
) -> Rotation:
    """Run one interval of four sweeps."""
    tick = how.pop("tick", lambda share: None)
    calls = calls_of(group, homes, **how)
    calls.on_progress = lambda share, left: tick(share)
    steps = [(verb, 0.5) for verb in VERBS]
    return calls.rotate(blocks or start(group), steps, order=order, seed=0, epochs=1)


def bits(kind: str, workers: int, order: str, homes: Any = None) -> bytes:
    """Return all blocks after an interval, as bytes."""
    group = opened(kind, workers)
    try:
        return b"".join(
            group.fetch(block.handle).tobytes() for block in turn(group, order, homes).blocks
        )
    finally:
        group.close()


def naive() -> bytes:
    """Return all blocks after an interval, computed by nested loops.

    At step t of a sweep, block j is at shard (j S // B + t) mod S, and shards take lower blocks
    first.
    """
    W = [np.full(3, 1.0 + j, np.float32) for j in range(BLOCKS)]
    entries = {shard: 1.0 + shard for shard in range(SHARDS)}
    for verb in VERBS:
        for t in range(SHARDS):
            for j in range(BLOCKS):
                shard = (j * SHARDS // BLOCKS + t) % SHARDS
                if verb == "update":
                    W[j] *= 0.75
                    W[j] += entries[shard] * 0.5
                else:
                    entries[shard] = 0.5 * entries[shard] + float(W[j].sum())
    return b"".join(each.tobytes() for each in W)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", sorted(GROUPS))
@pytest.mark.parametrize("order", ["sync", "ring"])
def test_bits_depend_on_the_grid_alone(kind, workers, order):
    assert bits(kind, workers, order) == naive()


@pytest.mark.parametrize("cuts", [(0, 5), (1, 5), (4, 5), (2, 4)])
def test_bits_do_not_depend_on_where_shards_are(cuts):
    names = ("worker-0", "worker-1", "worker-2")
    homes = [names[sum(shard >= cut for cut in cuts)] for shard in range(SHARDS)]
    assert bits("threads", 3, "ring", homes) == naive()


@pytest.mark.parametrize("order", ORDERS)
def test_every_cell_is_passed_once_per_sweep_and_reported(order):
    spans, shares = [], []
    group = opened("threads", 2)
    try:
        result = turn(group, order, record=spans.append, tick=shares.append)
        arrays = [group.fetch(block.handle) for block in result.blocks]
        assert [array.shape for array in arrays] == [(3,)] * BLOCKS
    finally:
        group.close()
    cells = Counter((shard, block) for block, shard, _ in result.reports)
    assert cells == {(s, j): len(VERBS) for s in range(SHARDS) for j in range(BLOCKS)}
    newest = {block: report for block, _, report in result.reports}
    assert [newest[j] for j in range(BLOCKS)] == [float(array @ array) for array in arrays]
    assert {block.worker for block in result.blocks} <= set(group.workers)
    assert len({span.task.id for span in spans}) == len(spans)
    assert {span.outcome for span in spans} == {DONE}
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_input_blocks_are_not_changed():
    """An interval writes to its own blocks, because those of a sync point serve rollbacks."""
    group = opened("serial", 1)
    blocks = start(group)
    stretch = turn(group, blocks=blocks)
    assert [group.fetch(block.handle)[0] for block in blocks] == [1.0 + j for j in range(BLOCKS)]
    pairs = zip(stretch.blocks, blocks, strict=True)
    assert all(after.handle is not before.handle for after, before in pairs)


def test_an_interval_without_sweeps_returns_its_blocks():
    group = opened("serial", 1)
    blocks = start(group)
    stretch = calls_of(group).rotate(blocks, [], order="ring", seed=0, epochs=0)
    assert stretch.blocks == blocks


@pytest.mark.parametrize("reason", ["stop", "time"])
def test_an_interval_stops_within_a_slice_and_keeps_its_workers(reason, monkeypatch):
    """It is stopped when both workers have done their short passes."""
    group, stop, spans, ahead = opened("threads", 2, Slow), StopFlag(), [], [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(calls, "time", clock)

    def record(span):
        spans.append(span)
        if len(spans) == 6 and reason == "stop":
            stop.set()
        elif len(spans) == 6:
            ahead[0] = 1e6

    try:
        with pytest.raises(Stopped) as raised:
            turn(group, stopped=stop.is_set, ends=time.monotonic() + 1e5, record=record)
        assert call(group, to("worker-1", "hello")).result == "hello"
    finally:
        group.close()
    assert (raised.value.code == TIME_LIMIT) == (reason == "time")
    assert [span.outcome for span in spans].count(DONE) == 6


def test_a_lost_worker_is_reported_with_its_passes():
    group, spans = opened("serial", 2), []

    def lose(share: float) -> None:
        if 0.3 < share < 0.4 and len(spans) < 1000:
            group.simulate_loss("worker-1")

    with pytest.raises(WorkerLost) as raised:
        turn(group, record=spans.append, tick=lose)
    assert raised.value.workers == ("worker-1",)
    assert [span.worker for span in spans if span.outcome == LOST] == ["worker-1"]


def test_a_worker_lost_together_with_an_object_is_reported():
    """The loss and the call without its argument come in one batch; else it is never replaced."""

    class Together(SerialGroup):
        """A group that returns two replies at once."""

        def wait(self, seconds):
            return [*super().wait(seconds), *super().wait(seconds)]

    group = Together(Work(), 2)
    group.open()
    result = call(
        group, to("worker-1", "pass_block", start(group)[3].handle, (4,), ("update", 1.0), False)
    )
    queue = CallQueue(group)
    queue.submit("next", to("worker-0", "pass_block", result.ref, (0,), ("update", 1.0), False))
    group.simulate_loss("worker-1", with_objects=True)
    with pytest.raises(WorkerLost) as raised:
        queue.results()
    assert raised.value.workers == ("worker-1",)
    assert not queue.keys  # else the call without its argument would be waited for without end


def test_objects_lost_with_a_node_are_a_loss():
    group = opened("serial", 2)
    blocks = start(group)
    result = call(
        group, to("worker-1", "pass_block", blocks[3].handle, (4,), ("update", 1.0), False)
    )
    group.simulate_loss("worker-1", with_objects=True)
    group.wait(0.0)
    group.replace("worker-1")
    with pytest.raises(WorkerLost) as raised:
        turn(group, blocks=[*blocks[:3], PlacedBlock("worker-1", result.ref), *blocks[4:]])
    assert raised.value.workers == ()


def test_errors_of_a_pass_are_raised():
    with pytest.raises(DataError, match="what a row"):
        turn(opened("serial", 2, Broken))


def test_calls_return_in_order_and_stale_replies_are_dropped():
    group = opened("serial", 2)
    group.submit(to("worker-0", "hello"))
    asks = [to(f"worker-{n % 2}", "hello") for n in range(9)]
    assert [answer.worker for answer in call_many(group, asks)] == [ask.worker for ask in asks]


def test_speeds_are_costs_per_second():
    group = opened("serial", 2)
    calls = calls_of(group, ["worker-0"] * 4 + ["worker-1"])
    calls._parts.costs = np.array([1.0, 1.0, 1.0, 1.0, 8.0])
    calls.rotate(start(group), [("update", 0.5)], order="ring", seed=0, epochs=1)
    assert calls.speeds == {"worker-0": 4.0, "worker-1": 32.0}


def test_shards_move_when_a_worker_is_slow_and_come_back_when_it_is_not():
    """One measurement counts half, and a worker without shards gets some again in time."""
    costs, even, crew = np.ones(8), ("a",) * 4 + ("b",) * 4, ("a", "b")
    speeds = WorkerSpeeds()
    speeds.update({"a": 1.0, "b": 1.0}, crew)
    assert speeds.better_assignment(even, costs, 10) is None
    speeds.update({"a": 1.0, "b": 1 / 9}, crew)  # the estimated speed of b is now a third
    result = speeds.better_assignment(even, costs, 10)
    assert result == ("a",) * 6 + ("b",) * 2
    speeds.update({"a": 1.0, "b": 1e-6}, crew)
    assert speeds.better_assignment(result, costs, 10) == ("a",) * 8
    for _ in range(12):
        speeds.update({"a": 1.0}, crew)
    assert speeds.better_assignment(("a",) * 8, costs, 10) == even


def test_shards_do_not_move_for_little():
    costs, even, crew = np.ones(8), ("a",) * 4 + ("b",) * 4, ("a", "b")
    speeds = WorkerSpeeds()
    speeds.update({"a": 1000.0, "b": 100.0}, crew)
    assert speeds.better_assignment(even, costs, 10) is None  # it would save 0.06 s only
    assert speeds.better_assignment(even, costs, 1000) is not None
    speeds.forget("b")
    speeds.update({"a": 1000.0}, crew)  # the speed of the new worker is unknown
    assert speeds.better_assignment(even, costs, 10**6) is None
    speeds.update({"a": 1000.0, "b": 800.0}, crew)
    assert speeds.better_assignment(even, costs, 10**6) is None  # it would save a tenth
