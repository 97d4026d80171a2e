"""Shard assignment: workers that leave or join change no bit."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tests.support.moving_group import Moving
from tests.support.shard_toy import Toy, ToyWork, TrainingRun, trained
from xcray.solvers import make_solver
from xcray.system.cores import available_cores
from xcray.training import TrainSpec
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext
from xcray.workers.ray import cluster_state as ray_nodes

NOW = -1e9  # seconds left of a node whose deadline has passed


class EpochAction:
    """Runs an action once at an epoch; records notes, and the workers active after it."""

    def __init__(self, epoch: float, act: Any) -> None:
        self._epoch = epoch
        self._act = act
        self.notes = list[str]()
        self.workers = set[str]()

    def on_progress(self, progress: Any) -> None:
        """Record the note of a `RunProgress`, and run the action when it is due."""
        self.notes += [progress.note] if progress.note else []
        if self._act is not None and progress.done >= self._epoch:
            self._act()
            self._act, self.workers = None, set()

    def record(self, span: Any) -> None:
        """Record the worker of a span; see `GroupCalls`."""
        self.workers.add(span.worker)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Return the training by one worker."""
    return trained(tmp_path_factory.mktemp("alone"), "serial", 1)


def run(
    folder: Any, group: Moving, action: EpochAction, order: str = "ring", between: float = 1e9
) -> TrainingRun:
    """Run a training in which the action of `action` runs."""
    return trained(
        folder,
        group,
        work=ToyWork(Toy(order=order)),
        between=between,
        on_progress=action.on_progress,
        record=action.record,
    )


@pytest.mark.parametrize("order", ["ring", "sync"])
@pytest.mark.parametrize("seconds", [inf, 1e6, NOW], ids=["whenever", "later", "now"])
def test_a_draining_node_is_left_with_a_checkpoint_and_no_bit_changes(
    reference, tmp_path, order, seconds
):
    """The node is left at the end of an interval, or in the middle if the end would be too late.

    Nothing counts as lost.
    """
    group = Moving(ToyWork(), 3)
    action = EpochAction(2.3, lambda: group.going.update({"worker-1": seconds}))
    result = run(tmp_path, group, action, order)
    assert result.bits == reference.bits
    assert group.changes == ["left worker-1"]
    assert action.notes == ["left before their node goes: worker-1"]
    assert result.outcome.lost == 0
    assert [entry["epoch"] for entry in result.outcome.history] == [1, 2, 3, 4, 5, 6]


def test_a_node_lost_before_the_first_sync_point_restarts_the_training(reference, tmp_path):
    group = Moving(ToyWork(), 2)
    action = EpochAction(0.3, lambda: group.going.update({"worker-0": NOW}))
    assert run(tmp_path, group, action).bits == reference.bits
    assert group.changes == ["left worker-0"]


def test_workers_continue_if_all_nodes_are_draining(reference, tmp_path):
    """Finished work is durable, because a checkpoint is written before one is due."""
    group, values = Moving(ToyWork(), 2), list[str]()
    action = EpochAction(2.0, lambda: group.going.update({"worker-0": NOW, "worker-1": NOW}))
    inner = action.on_progress

    def look(progress: Any) -> None:
        inner(progress)
        values.extend(path.name for path in tmp_path.glob("checkpoint-[0-9]*[0-9]"))

    action.on_progress = look  # type: ignore[method-assign]
    assert run(tmp_path, group, action).bits == reference.bits
    assert group.changes == []
    assert "checkpoint-000003" in values


def test_no_worker_leaves_without_checkpoints(reference, tmp_path):
    group = Moving(ToyWork(), 2)
    action = EpochAction(2.0, lambda: group.going.update({"worker-0": NOW}))
    assert run(tmp_path, group, action, between=math.inf).bits == reference.bits
    assert group.changes == []


@pytest.mark.parametrize("order", ["ring", "sync"])
def test_a_late_worker_gets_shards_at_the_next_sync_point(reference, tmp_path, order):
    group = Moving(ToyWork(), 4, began=2)
    action = EpochAction(2.0, lambda: group.room.extend(["worker-2", "worker-3"]))
    result = run(tmp_path, group, action, order)
    assert result.bits == reference.bits
    assert group.changes == ["came worker-2 worker-3"]
    assert action.notes == ["worker-2, worker-3 joined"]
    assert {"worker-2", "worker-3"} <= action.workers
    assert result.outcome.moved >= 2


def test_one_node_leaves_and_another_joins(reference, tmp_path):
    """The name of a worker that left is used again on another node."""
    group = Moving(ToyWork(), 2)

    def act() -> None:
        group.going["worker-1"] = inf

    action = EpochAction(2.0, act)
    inner = action.on_progress

    def back(progress: Any) -> None:
        inner(progress)
        if group.changes == ["left worker-1"] and progress.done >= 4.0:
            group.going.clear()
            group.room = ["worker-1"]
            action.workers.clear()

    action.on_progress = back  # type: ignore[method-assign]
    assert run(tmp_path, group, action).bits == reference.bits
    assert group.changes == ["left worker-1", "came worker-1"]
    assert "worker-1" in action.workers


def test_seconds_of_training_count_once_if_workers_leave(tmp_path):
    """The seconds in a checkpoint are those of earlier attempts, not of the current one."""
    group, began = Moving(ToyWork(Toy(pause=0.01)), 2), time.monotonic()
    action = EpochAction(4.3, lambda: group.going.update({"worker-1": NOW}))
    result = trained(tmp_path, group, work=ToyWork(Toy(pause=0.01)), on_progress=action.on_progress)
    took = time.monotonic() - began
    seconds = [entry["seconds"] for entry in result.outcome.history]
    assert group.changes == ["left worker-1"]
    assert seconds == sorted(seconds)
    assert seconds[3] > 0.1
    assert seconds[-1] <= took + 0.001


def test_without_a_number_the_processors_of_a_joined_cluster_count(tiny, tmp_path, monkeypatch):
    """A given number of workers wins over the cores; each worker has at least one shard.

    No cluster is queried for an estimate.
    """
    request = list[str]()
    monkeypatch.setattr(ray_nodes, "cluster_cores_at", lambda address: request.append(address) or 6)
    spec = TrainSpec(str(tiny.path), solver="dsmlr", pool="ray", ray_address="10.0.0.1:6379")

    def workers(spec: TrainSpec, **more: Any) -> int:
        return make_strategy(
            TrainingContext(
                spec, tiny, make_solver("dsmlr", dict(spec.params)), tmp_path, "job", **more
            )
        ).workers

    assert workers(spec) == 6
    assert workers(replace(spec, params={"shards": 4})) == 4
    assert request == ["10.0.0.1:6379"] * 2
    assert workers(replace(spec, workers=3)) == 3
    assert (
        workers(spec, cluster=False)
        == workers(replace(spec, ray_address=None))
        == min(available_cores(), 2 * available_cores())
    )
    assert len(request) == 2
