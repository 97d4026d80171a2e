"""Checkpoints of trainings by shards: complete or not used, written by workers or by the driver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from xcray.errors import Corrupt
from xcray.solvers.group_contract import PlacedBlock, WeightBlock
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.checkpoints import CheckpointFolder
from xcray.training.shards.checkpoints import load_checkpoint, save_checkpoint
from xcray.training.shards.shard_worker import ShardWorker, arrays_to_block, block_to_arrays
from xcray.workers.call_queue import WorkerLost
from xcray.workers.local_group import SerialGroup

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

    def __init__(self, kind=ShardWorker) -> None:
        self._kind = kind

    def create_worker(self, worker, stopped):
        hand = self._kind(Shards(), lambda: None)
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


def save(folder, group, number):
    """Write a checkpoint of random blocks."""
    blocks = [
        PlacedBlock(HOMES[j * len(HOMES) // BLOCKS], group.put(block(j, number)))
        for j in range(BLOCKS)
    ]
    save_checkpoint(folder, group, number, {"epoch": number}, blocks, HOMES)


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


def test_what_is_saved_is_loaded(group, tmp_path):
    save(CheckpointFolder(tmp_path), group, 1)
    for life in group._live.values():  # changes after the checkpoint do not count
        held = life.calls.worker._worker.b
        held.update({shard: b + 1.0 for shard, b in held.items()})
    saved = CheckpointFolder(tmp_path).newest_files()
    assert saved.note == {"epoch": 1}
    blocks = load_checkpoint(group, saved, HOMES, BLOCKS)
    assert [block.worker for block in blocks] == ["worker-0", "worker-0", "worker-0", "worker-1"]
    for j, (_, handle) in enumerate(blocks):
        assert np.array_equal(group.fetch(handle).W, block(j, 1).W)
    for shard, home in enumerate(HOMES):
        assert np.array_equal(
            group._live[home].calls.worker._worker.b[shard], np.linspace(shard, shard + 1, 5)
        )


def test_the_state_of_a_block_is_loaded_with_the_block(group, tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, group, 1)
    result = load_checkpoint(group, folder.newest_files(), HOMES, 3)
    assert [block.worker for block in result] == ["worker-0", "worker-0", "worker-1", "worker-0"]


@pytest.mark.parametrize("name", ["block-00002.arrow", "shard-00001.arrow"])
def test_a_damaged_file_is_named(group, tmp_path, name):
    folder = CheckpointFolder(tmp_path)
    save(folder, group, 2)
    path = tmp_path / "checkpoint-000002" / name
    path.write_bytes(path.read_bytes()[:-200] + bytes(200))
    with pytest.raises(Corrupt, match=name):
        load_checkpoint(group, folder.newest_files(), HOMES, BLOCKS)


def test_an_interrupted_checkpoint_is_not_used(group, tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, group, 1)
    group.simulate_loss("worker-1")
    blocks = [PlacedBlock("worker-0", group.put(block(j))) for j in range(BLOCKS)]
    with pytest.raises(WorkerLost, match="worker-1"):
        save_checkpoint(folder, group, 2, {}, blocks, ("worker-0",) * 3)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001"]
