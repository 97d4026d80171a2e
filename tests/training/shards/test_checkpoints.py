"""Checkpoints of trainings by shards: complete or not used, written by workers or by the driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from xcray.errors import Conflict, Corrupt
from xcray.solvers.rotation_contract import PlacedBlock, WeightBlock
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.training.shards import checkpoints as checkpoint_module
from xcray.training.shards.checkpoints import N_KEPT, Checkpoints
from xcray.training.shards.shard_worker import ShardWorker, arrays_to_block, block_to_arrays
from xcray.workers.local_group import SerialGroup
from xcray.workers.rpc import WorkerLost

HOMES = ("worker-0", "worker-0", "worker-1")
BLOCKS = 4


class Blind(ShardWorker):
    """A shard worker on a node that does not see the run directory."""

    def save_shard(self, shard, directory, name):
        return super().save_shard(shard, directory + "/not-here", name)

    def load_shard(self, shard, directory, name, digest):
        return super().load_shard(shard, directory + "/not-here", name, digest)

    def save_block(self, block, directory, name):
        return super().save_block(block, directory + "/not-here", name)

    def load_block(self, directory, name, digest):
        return super().load_block(directory + "/not-here", name, digest)


class Shards:
    """A solver's worker whose shards have one array each."""

    def __init__(self) -> None:
        self.b = {}

    def add_shard(self, number, rows, held_out):
        self.b[number] = np.linspace(number, number + 1, 5)

    def state(self, number):
        return {"b": self.b[number]}

    def restore(self, number, state):
        self.b[number] = state["b"]


class Work:
    """Creates workers that hold such shards, without any data."""

    grid, n_features = None, 0

    def __init__(self, kind=ShardWorker) -> None:
        self._kind = kind

    def create_worker(self, worker, stopped):
        self.solver = SimpleNamespace(create_worker=lambda *args: Shards())
        hand = self._kind(self, stopped)
        rows = SimpleNamespace(rows=[], X=SimpleNamespace(nnz=0))
        for shard, home in enumerate(HOMES):
            if home == worker:
                hand.receive_shard(shard, (rows, None))
        hand.take_snapshots()
        return hand

    def warm_up(self):
        """Do nothing: there are no kernels to compile."""


def block(number: int, seed: int = 0) -> WeightBlock:
    """Return random weights of three labels, with some state."""
    rng = np.random.default_rng([seed, number])
    W = rng.normal(size=(6, 3)).astype(np.float32)
    return WeightBlock(3 * number, 3 * number + 3, W, (W * W, np.zeros((0, 3), np.float32)))


@pytest.fixture(params=[ShardWorker, Blind], ids=["seen", "blind"])
def group(request):
    """Yield an open group of two workers."""
    group = SerialGroup(Work(request.param), 2)
    group.open()
    yield group
    group.close()


def save(selection, group, number, metadata=None):
    """Write a checkpoint of random blocks."""
    blocks = [
        PlacedBlock(HOMES[j * len(HOMES) // BLOCKS], group.put(block(j, number)))
        for j in range(BLOCKS)
    ]
    selection.write(group, number, metadata or {"epoch": number}, blocks, HOMES)


def opened(tmp_path, **changes):
    """Return the checkpoints of one run."""
    return Checkpoints(tmp_path / "kept", {"run": 1, **changes}, seconds=0.0)


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "n": np.array([2**40]),
        "none": np.zeros((0, 4), np.float64),
    }
    digest = write_arrays(tmp_path / "x.arrow", arrays)
    result = read_arrays(tmp_path / "x.arrow", digest)
    assert {name: (array.dtype, array.tolist()) for name, array in result.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }
    assert not result["a"].flags.writeable


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "text"])
def test_a_damaged_file_is_corrupt(tmp_path, harm):
    path = tmp_path / "x.arrow"
    digest = write_arrays(path, {"a": np.arange(1000, dtype=np.float32)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(
        {"flip": content, "cut": content[:900], "remove": b"", "text": b"no arrow"}[harm]
    )
    if harm == "remove":
        path.unlink()
    with pytest.raises(Corrupt, match="is not what was written"):
        read_arrays(path, digest)


def test_blocks_are_packed_and_unpacked():
    was = block(2)
    result = arrays_to_block(block_to_arrays(was))
    assert (result.lo, result.hi, len(result.state)) == (6, 9, 2)
    assert all(
        np.array_equal(a, b)
        for a, b in zip((was.W, *was.state), (result.W, *result.state), strict=True)
    )


def test_the_first_one_is_due_after_a_second_of_work(group, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    checkpoints = Checkpoints(tmp_path / "kept", {}, seconds=60.0)
    due = []
    for second in (0.9, 1.1, 59.0, 61.2):
        now[0] = second
        due.append(checkpoints.due)
        if second == 1.1:
            save(checkpoints, group, 1)
    assert due == [False, True, False, True]
    now[0] = 100.0
    resumed = Checkpoints(tmp_path / "kept", {}, seconds=60.0)
    now[0] = 102.0
    assert not resumed.due  # there is one to go back to


def test_what_is_saved_is_loaded(group, tmp_path):
    checkpoints = opened(tmp_path)
    assert checkpoints.newest() is None
    save(checkpoints, group, 1, {"epoch": 7, "history": [{"objective": 0.1}]})
    for life in group._live.values():  # changes after the checkpoint do not count
        held = life.calls.worker._worker.b
        held.update({shard: b + 1.0 for shard, b in held.items()})
    result = opened(tmp_path).newest()
    assert result.metadata == {"epoch": 7, "history": [{"objective": 0.1}]}
    blocks = checkpoints.load(group, result, HOMES, BLOCKS)
    assert [worker for worker, _ in blocks] == ["worker-0", "worker-0", "worker-0", "worker-1"]
    for j, (_, handle) in enumerate(blocks):
        assert np.array_equal(group.fetch(handle).W, block(j, 1).W)
    for shard, home in enumerate(HOMES):
        assert np.array_equal(
            group._live[home].calls.worker._worker.b[shard], np.linspace(shard, shard + 1, 5)
        )


def test_the_state_of_a_block_is_loaded_with_the_block(group, tmp_path):
    checkpoints = opened(tmp_path)
    save(checkpoints, group, 1)
    result = checkpoints.load(group, checkpoints.newest(), HOMES, 3)
    assert [worker for worker, _ in result] == ["worker-0", "worker-0", "worker-1", "worker-0"]


def test_older_checkpoints_are_removed_when_newer_ones_are_durable(group, tmp_path):
    checkpoints = opened(tmp_path)
    for number in range(1, 5):
        save(checkpoints, group, number)
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"checkpoint-{number:06d}" for number in range(5 - N_KEPT, 5)] + ["run.json"]
    checkpoints.clear()
    assert checkpoints.newest() is None


@pytest.mark.parametrize("name", ["checkpoint.json", "block-00002.arrow", "shard-00001.arrow"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken(group, tmp_path, name):
    checkpoints = opened(tmp_path)
    save(checkpoints, group, 1)
    save(checkpoints, group, 2)
    path = tmp_path / "kept" / "checkpoint-000002" / name
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b'"epoch": 2', b'"epoch": 3')
        if name == "checkpoint.json"
        else content[:-200] + bytes(200)
    )
    checkpoints = opened(tmp_path)
    result = checkpoints.newest()
    if name != "checkpoint.json":
        with pytest.raises(Corrupt, match=name):
            checkpoints.load(group, result, HOMES, BLOCKS)
        checkpoints.set_aside(result)
        result = checkpoints.newest()
    assert result.metadata == {"epoch": 1}
    assert checkpoints.damaged == ["checkpoint-000002"]
    assert (tmp_path / "kept" / "checkpoint-000002.damaged").is_dir()
    assert len(checkpoints.load(group, result, HOMES, BLOCKS)) == BLOCKS


def test_an_interrupted_checkpoint_is_not_used(group, tmp_path):
    checkpoints = opened(tmp_path)
    save(checkpoints, group, 1)
    group.simulate_loss("worker-1")
    with pytest.raises(WorkerLost, match="worker-1"):
        checkpoints.write(
            group,
            2,
            {},
            [PlacedBlock("worker-0", group.put(block(j))) for j in range(BLOCKS)],
            ("worker-0",) * 3,
        )
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "checkpoint-000001",
        "run.json",
    ]
    assert opened(tmp_path).newest().metadata == {"epoch": 1}


def test_files_of_a_dead_driver_are_removed(tmp_path):
    opened(tmp_path)
    left = tmp_path / "kept" / ".checkpoint-000003.0123abcd.part"
    left.mkdir()
    assert opened(tmp_path).newest() is None
    assert not left.exists()


def test_another_runs_directory_is_refused(tmp_path):
    opened(tmp_path)
    with pytest.raises(Conflict, match="other lam"):
        opened(tmp_path, lam=2)


def test_time_decides_when_the_next_is_due(tmp_path):
    assert Checkpoints(tmp_path / "a", {}, seconds=0.0).due
    assert not Checkpoints(tmp_path / "b", {}, seconds=1e9).due
    large = Checkpoints(tmp_path / "c", {}, seconds=1e-9)
    assert large.due
    large._write_seconds = 1e9  # after a slow write, the next waits ten times as long
    assert not large.due


def test_numbers_of_a_note_come_back_with_all_their_digits(group, tmp_path):
    checkpoints = opened(tmp_path)
    save(checkpoints, group, 1, {"history": [0.1 + 0.2]})
    assert checkpoints.newest().metadata == {"history": [0.1 + 0.2]}
