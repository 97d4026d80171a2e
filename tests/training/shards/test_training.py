"""Training by shards: same bits on any workers, through stops, losses, damage and moved shards."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.moving_group import OneByOne
from tests.support.shard_toy import GRID, LABELS, Toy, ToyWork, TrainingRun, trained
from xcray.errors import DataError, Refused, Stopped, Unavailable
from xcray.workers import calls
from xcray.workers.local_group import SerialGroup
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import DONE, LOST, Timeline, balance, read_streams

ORDERS = ("sync", "ring")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> TrainingRun:
    """Return the training by one worker in this thread."""
    return trained(tmp_path_factory.mktemp("alone"), "serial", 1)


def test_blocks_are_delivered_in_order_with_their_counts(reference):
    ends = [(block.lo, block.hi) for block in reference.blocks]
    assert (ends[0][0], ends[-1][1]) == (0, LABELS)
    assert all(earlier[1] == later[0] for earlier, later in pairwise(ends))
    assert [n for block in reference.blocks for n in block.positives] == list(range(LABELS))
    assert reference.outcome.reason == "all epochs are done"
    assert reference.outcome.epochs == 6


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("group", ["serial", "threads"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_bits_do_not_depend_on_workers_or_the_barrier(
    reference, tmp_path, group, workers, order
):
    result = trained(tmp_path, group, workers, ToyWork(Toy(order=order)))
    assert result.bits == reference.bits
    assert [entry["objective"] for entry in result.outcome.history] == [
        entry["objective"] for entry in reference.outcome.history
    ]


def test_workers_that_do_not_see_the_data_get_it_from_the_driver(reference, tmp_path):
    assert trained(tmp_path, "threads", 2, ToyWork(data_visible=False)).bits == reference.bits


def test_shards_that_move_at_every_sync_point_change_no_bit(reference, tmp_path, monkeypatch):
    turns = iter(range(100))

    def speeds(self, costs):
        return {"worker-0": 1.0, "worker-1": (512.0, 1 / 512)[next(turns) % 2]}

    monkeypatch.setattr(calls._RunningRotation, "speeds", speeds)
    result = trained(tmp_path, "threads", 2, between=0.0)
    assert result.outcome.moved >= 5
    assert result.bits == reference.bits


def test_the_history_has_each_sync_point(reference):
    epochs = [entry["epoch"] for entry in reference.outcome.history]
    assert epochs == [1, 2, 3, 4, 5, 6]
    newest = reference.outcome.history[-1]
    squared = sum(float((block.W.astype(np.float64) ** 2).sum()) for block in reference.blocks)
    losses = newest["objective"] - 0.5 * Toy().lam * squared
    assert losses > 0.0
    assert newest["held_out"] == 0.125 * GRID.shards
    # The toy predicts the first of three rows wrongly.
    assert (newest["P@1"], newest["P@2"]) == pytest.approx((2 / 3, 1 / 3))
    assert 0.0 < newest["macro-F1"] < newest["micro-F1"] == 2 / 3
    assert reference.outcome.objective == newest["objective"]
    assert all(
        earlier["seconds"] <= later["seconds"]
        for earlier, later in pairwise(reference.outcome.history)
    )


def test_without_held_out_rows_there_are_no_held_out_metrics(tmp_path):
    result = trained(tmp_path, truth=None).outcome
    assert set(result.history[0]) == {"epoch", "seconds", "rate", "back", "objective"}


def test_longer_intervals_have_fewer_sync_points(tmp_path):
    result = trained(tmp_path, work=ToyWork(Toy(sync_every=4))).outcome
    assert [entry["epoch"] for entry in result.history] == [4, 6]


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_rollback_continues_from_the_sync_point_before(reference, tmp_path, seconds):
    """A rollback at sync point 3 continues from sync point 2 with half the rate.

    It makes no difference whether sync point 2 has a checkpoint.
    """
    work = ToyWork(Toy(back=(3, 4)))
    result = trained(tmp_path, "threads", 2, work, between=seconds)
    assert [(entry["epoch"], entry["rate"], entry["back"]) for entry in result.outcome.history] == [
        *((1, 1.0, False), (2, 1.0, False), (3, 1.0, True), (3, 0.5, True)),
        *((3, 0.25, False), (4, 0.25, False), (5, 0.25, False), (6, 0.25, False)),
    ]
    assert [entry["objective"] for entry in result.outcome.history[:3]] == [
        entry["objective"] for entry in reference.outcome.history[:3]
    ]
    assert result.bits != reference.bits
    assert result.bits == trained(tmp_path / "again", "serial", 3, work).bits


def test_a_rollback_from_the_first_sync_point_is_the_start(reference, tmp_path):
    result = trained(tmp_path, work=ToyWork(Toy(back=(1,))))
    assert [entry["epoch"] for entry in result.outcome.history] == [1, 1, 2, 3, 4, 5, 6]


class Halt:
    """Sets the stop flag in the middle of the interval after a number of sync points."""

    def __init__(self, sync_points: int) -> None:
        self.stop = StopFlag()
        self._sync_points = sync_points

    def on_progress(self, progress) -> None:
        """Set the stop flag if a `RunProgress` is far enough."""
        done = progress.newest.get("epoch", 0)
        if done == self._sync_points and progress.done > done:
            self.stop.set()


def stopped_at(
    folder: Path, sync_points: int, group: str = "serial", work: ToyWork | None = None, **changes
) -> None:
    """Run a training that is stopped in the middle of an interval."""
    halt = Halt(sync_points)
    with pytest.raises(Stopped):
        trained(folder, group, 2, work, **changes, stop=halt.stop, on_progress=halt.on_progress)


@pytest.mark.parametrize(("sync_points", "seconds"), [(0, 0.0), (2, 1e9), (3, 0.0), (5, 1e9)])
def test_a_stop_at_any_sync_point_and_a_resume_change_no_bit(
    reference, tmp_path, sync_points, seconds
):
    """A stop saves the last sync point, even if no checkpoint is due."""
    stopped_at(tmp_path, sync_points, between=seconds)
    entries = []
    result = trained(
        tmp_path,
        "threads",
        3,
        on_progress=lambda progress: entries.append(progress.newest.get("epoch", 0)),
    )
    assert entries[0] >= sync_points
    assert result.bits == reference.bits
    assert [each["objective"] for each in result.outcome.history] == [
        each["objective"] for each in reference.outcome.history
    ]


@pytest.mark.parametrize("ahead", [0.0, 0.4])
def test_a_progress_callback_can_stop_the_training(reference, tmp_path, ahead):
    """The callback can stop at a sync point or in an interval; the last sync point is saved."""

    def on_progress(progress):
        if progress.newest.get("epoch") == 2 and progress.done >= 2 + ahead:
            raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        trained(tmp_path, "threads", 2, on_progress=on_progress)
    assert (tmp_path / "checkpoint-000002").is_dir()
    assert trained(tmp_path).bits == reference.bits


def test_a_stop_after_a_rollback_is_resumed_the_same(tmp_path):
    work = ToyWork(Toy(back=(3, 6)))
    whole = trained(tmp_path / "whole", work=work)
    stopped_at(tmp_path / "broken", 3, work=work)
    assert trained(tmp_path / "broken", work=work).bits == whole.bits


def test_a_stop_while_blocks_are_delivered_delivers_all_of_them_next_time(reference, tmp_path):
    stop, result = StopFlag(), []

    def deliver(block):
        result.append(block)
        stop.set()

    with pytest.raises(Stopped):
        trained(tmp_path, stop=stop, deliver=deliver)
    assert len(result) == 1
    assert trained(tmp_path).bits == reference.bits


def test_the_newest_checkpoint_is_damaged_and_the_one_before_is_taken(reference, tmp_path):
    stopped_at(tmp_path, 4, between=0.0)
    path = tmp_path / "checkpoint-000004" / "block-00001.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    notes = []
    result = trained(tmp_path, on_progress=lambda progress: notes.append(progress.note))
    assert result.bits == reference.bits
    assert result.outcome.damaged == ["checkpoint-000004"]
    assert [note for note in notes if note] == [
        "checkpoint-000004 is damaged: going on from the last checkpoint (epoch 3)"
    ]


def test_training_restarts_if_all_checkpoints_are_damaged(reference, tmp_path):
    stopped_at(tmp_path, 2, between=0.0)
    for path in tmp_path.glob("checkpoint-*/checkpoint.json"):
        path.write_bytes(b"{}")
    result = trained(tmp_path)
    assert result.bits == reference.bits
    assert sorted(result.outcome.damaged) == ["checkpoint-000001", "checkpoint-000002"]


class Lossy:
    """Loses workers of a local group in the middle of the intervals after given epochs."""

    def __init__(self, group, losses: dict[int, str], with_objects: bool) -> None:
        self.group = group
        self.notes = []
        self._losses = dict(losses)
        self._with_objects = with_objects

    def on_progress(self, progress) -> None:
        """Record the note of a `RunProgress`, and lose a worker when one is due."""
        self.notes += [progress.note] if progress.note else []
        done = progress.newest.get("epoch", 0)
        if done in self._losses and done + 0.2 < progress.done < done + 0.9:
            self.group.simulate_loss(self._losses.pop(done), with_objects=self._with_objects)


@pytest.mark.parametrize("with_objects", [False, True], ids=["worker", "node"])
@pytest.mark.parametrize("seconds", [0.0, math.inf], ids=["checkpoints", "none"])
def test_losses_change_no_bit(reference, tmp_path, seconds, with_objects):
    """The training restarts without a checkpoint, and continues from one if it exists."""
    work, spans, again = (
        ToyWork(Toy(pause=0.002)),
        [],
        "starting again, there was no checkpoint yet",
    )
    lossy = Lossy(OneByOne(work, 2), {0: "worker-1", 2: "worker-0", 4: "worker-1"}, with_objects)
    result = trained(
        tmp_path,
        lossy.group,
        work=work,
        between=seconds,
        on_progress=lossy.on_progress,
        record=spans.append,
    )
    assert result.bits == reference.bits
    assert result.outcome.lost >= 3
    assert [entry["epoch"] for entry in result.outcome.history] == [1, 2, 3, 4, 5, 6]
    late = again if seconds else "going on from the last checkpoint (epoch 4)"
    assert lossy.notes[0] == f"worker-1 was lost: {again}"
    assert lossy.notes[-1] == f"worker-1 was lost: {late}"
    assert LOST in {span.outcome for span in spans}


def test_a_worker_lost_while_blocks_are_delivered(reference, tmp_path):
    work, result, lost = ToyWork(), [], []
    group = SerialGroup(work, 2)

    def deliver(block):
        result.append(block)
        if len(result) == 2 and not lost:
            lost.append("worker-1")
            group.simulate_loss("worker-1", with_objects=True)

    outcome = trained(tmp_path, group, work=work, deliver=deliver, discard=result.clear).outcome
    assert TrainingRun(outcome, result).bits == reference.bits


class Never(SerialGroup):
    """A worker group that replaces no lost worker."""

    def replace(self, *lost: str, at_once: bool = False) -> None:
        """Start the first workers, and raise Unavailable for all others."""
        if self._live:
            raise Unavailable("there is no CPU")
        super().replace(*lost, at_once=at_once)


def test_others_do_the_work_of_workers_without_replacement(reference, tmp_path):
    work = ToyWork()
    lossy = Lossy(Never(work, 3), {1: "worker-1", 3: "worker-0"}, with_objects=True)
    assert (
        trained(
            tmp_path,
            lossy.group,
            work=work,
            between=0.0,
            on_progress=lossy.on_progress,
        ).bits
        == reference.bits
    )
    assert lossy.notes == [
        "worker-1 was lost: going on from the last checkpoint (epoch 1)",
        "worker-0 was lost: going on from the last checkpoint (epoch 3)",
    ]


@pytest.mark.parametrize(
    ("seconds", "repeated"), [(0.0, 0), (math.inf, 2)], ids=["checkpoints", "none"]
)
def test_work_before_a_checkpoint_counts_once_and_the_rest_is_lost(tmp_path, seconds, repeated):
    """A worker is lost in the third epoch: without a checkpoint two whole epochs are repeated."""
    passes = []
    trained(tmp_path / "undisturbed", record=passes.append)
    group = SerialGroup(ToyWork(), 2)
    lossy = Lossy(group, {2: "worker-1"}, with_objects=False)
    (tmp_path / "run").mkdir()
    with Timeline(tmp_path / "run") as timeline:
        trained(
            tmp_path / "run",
            group,
            between=seconds,
            on_progress=lossy.on_progress,
            timeline=timeline,
        )
    rows = read_streams(tmp_path / "run")
    outcomes = rows.column("outcome").to_pylist()
    per_epoch = len(passes) // 6
    assert outcomes.count(DONE) == len(passes)
    assert repeated < outcomes.count(LOST) / per_epoch < repeated + 1
    lost = sum(row["seconds"] for row in rows.to_pylist() if row["outcome"] != DONE)
    assert balance(rows, 2)["work_lost_seconds"] == pytest.approx(lost, abs=0.001)


def test_repeated_losses_end_the_training(tmp_path):
    work = ToyWork()
    group = SerialGroup(work, 2)

    def lose(progress):
        if 0.2 < progress.done < 0.9:
            group.simulate_loss("worker-0")

    with pytest.raises(Unavailable, match="one after the other"):
        trained(tmp_path, group, work=work, on_progress=lose)


def test_errors_of_a_solver_are_raised(tmp_path, monkeypatch):
    def broken(self, number, epoch):
        raise DataError("BAD", "no judgement")

    monkeypatch.setattr(Toy, "judge", broken)
    with pytest.raises(DataError, match="no judgement"):
        trained(tmp_path)


@pytest.mark.parametrize("sync_points", [1, 3])
def test_the_last_sync_point_is_delivered_when_the_time_is_up(
    reference, tmp_path, sync_points, monkeypatch
):
    """The clock of the loop jumps after the given number of sync points."""
    jump = [0.0]
    monkeypatch.setattr(
        "xcray.workers.calls.time.monotonic",
        lambda real=calls.time.monotonic: real() + jump[0],
    )

    def on_progress(progress):
        if progress.newest.get("epoch", 0) == sync_points and progress.done > sync_points:
            jump[0] = 1e6

    result = trained(tmp_path, max_seconds=1e5, on_progress=on_progress)
    assert (result.outcome.epochs, len(result.outcome.history), result.outcome.reason) == (
        sync_points,
        sync_points,
        "the time of 100000 s was up",
    )
    assert result.outcome.objective == reference.outcome.history[sync_points - 1]["objective"]
    assert len(result.blocks) == GRID.blocks


def test_no_time_at_all_is_refused(tmp_path):
    with pytest.raises(Refused, match="give it more time"):
        trained(tmp_path, "threads", 1, ToyWork(Toy(pause=0.2)), max_seconds=0.0)


def test_progress_ascends_to_its_end(tmp_path):
    values = []
    trained(tmp_path, on_progress=values.append)
    assert all(earlier.done <= later.done for earlier, later in pairwise(values))
    assert (values[-1].done, values[-1].total, values[-1].eta) == (6.0, 6, 0.0)
    assert {progress.newest.get("epoch") for progress in values} == {None, 1, 2, 3, 4, 5, 6}


def test_nonfinite_numbers_are_stored_as_none(tmp_path, monkeypatch):
    """The state of a diverged training can be judged, stored and reported."""
    monkeypatch.setattr(Toy, "loss", lambda self, b: math.inf)
    result = trained(tmp_path).outcome
    assert result.objective is None
    assert [entry["objective"] for entry in result.history] == [None] * 6
