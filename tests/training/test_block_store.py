"""Committed blocks: none is lost, and damaged blocks or those of other runs are rejected."""

from __future__ import annotations

import os

import numpy as np
import pytest

from xcray.arrays import csr, frozen
from xcray.errors import Conflict
from xcray.kernels.training.ppdsparse.state import STATE
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training import block_store
from xcray.training.block_store import BlockStore

RUN = {"solver": "ppdsparse", "params": {"lam": 0.01}, "dataset": "abc"}


def block(labels, seed: int = 0) -> SolvedLabels:
    """Return random weights over 7 features for `labels`, which depend on the label only."""
    rows = [
        np.flatnonzero(np.random.default_rng([seed, label]).random(7) < 0.5) for label in labels
    ]
    data = [
        np.random.default_rng([seed, label, 1]).normal(size=len(row))
        for label, row in zip(labels, rows, strict=True)
    ]
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    records = np.zeros(len(labels), STATE)
    records["label"] = labels
    W = csr(indptr, np.concatenate([[], *rows]), np.concatenate([[], *data]), 7)
    return SolvedLabels(
        frozen(labels, np.int32), W, frozen(-np.array(labels, float), np.float64), records
    )


def parts(path, run=RUN) -> BlockStore:
    """Return the parts of a run with 6 labels and 7 features."""
    return BlockStore(path, run, n_labels=6, n_features=7)


def merged(result: BlockStore, path, **how) -> SolvedLabels:
    """Return all labels of the parts in `result`, merged through a file in `path`."""
    return result.merge(path / "weights.arrow", **how)


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "rename"])
def test_damaged_parts_are_set_aside_and_solved_again(tmp_path, harm):
    result, one = parts(tmp_path), block([0, 1, 2])
    result.commit(block([0, 1]), block([2]))
    victim = next(tmp_path.glob("part-*"))
    result.commit(block([3, 4, 5]))
    content = bytearray(victim.read_bytes())
    if harm == "flip":
        # Change a weight, because Arrow's padding does not matter.
        content[content.index(one.W.data.tobytes())] ^= 1
        victim.write_bytes(content)
    elif harm == "cut":
        victim.write_bytes(content[: len(content) // 2])
    elif harm == "empty":
        victim.write_bytes(b"")
    else:
        victim.rename(tmp_path / f"part-{'0' * 32}.arrow")
    again = parts(tmp_path)
    assert len(again.damaged) == 1
    assert len(again.missing) == 3
    again.commit(block(again.missing.tolist()))
    assert merged(again, tmp_path).digest() == block(range(6)).digest()


def test_another_runs_directory_is_refused(tmp_path):
    parts(tmp_path).commit(block([0]))
    with pytest.raises(Conflict, match="other params"):
        parts(tmp_path, {**RUN, "params": {"lam": 0.1}})
    with pytest.raises(Conflict, match=r"other revision.*choose a new one.*with that xcray"):
        parts(tmp_path, {**RUN, "revision": 7})


def test_half_written_files_are_not_parts_and_go(tmp_path):
    result = parts(tmp_path)
    result.commit(block([0]))
    (tmp_path / ".part-abc.arrow.123.part").write_bytes(b"half")
    assert parts(tmp_path).missing.tolist() == [1, 2, 3, 4, 5]
    assert not list(tmp_path.glob(".part-*"))


def test_blocks_share_a_part_for_half_a_second_or_a_share_of_the_run(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(block_store.time, "monotonic", lambda: clock[0])
    result = parts(tmp_path)

    def files_at(seconds, label, **how) -> int:
        clock[0] = seconds
        result.add(block([label]))
        result.sync(**how)
        return len(list(tmp_path.glob("part-*")))

    assert files_at(0.2, 0, at_once=False) == 0
    assert files_at(0.5, 1, at_once=False) == 1
    assert files_at(1000.0, 2, at_once=False) == 2  # the last write is long ago
    assert files_at(1004.0, 3, at_once=False) == 2
    monkeypatch.setattr(block_store, "PENDING_BYTES", 1)
    assert files_at(1004.1, 4, at_once=False) == 3
    assert files_at(1004.2, 5) == 4  # the end of a run
    result.sync()
    assert merged(parts(tmp_path), tmp_path).digest() == block(range(6)).digest()


def test_blocks_with_checksums_become_one_part_without_a_pass_over_their_weights(
    tmp_path, monkeypatch
):
    """The driver of many workers only writes: also in pieces, if the system takes some bytes."""
    blocks = [block(labels) for labels in ([4, 0], [5], [1, 2, 3])]
    checked = [each._replace(checksum=each.digest()) for each in blocks]
    result, synced, fsync = parts(tmp_path), [], os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(SolvedLabels, "digest", lambda _: pytest.fail("computed by the driver"))
        patch.setattr(os, "fsync", lambda handle: synced.append(fsync(handle)))
        patch.setattr(os, "writev", lambda file, views: os.write(file, views[0][:5]))
        for each in checked:
            result.add(each)
        result.sync()
    assert len(synced) == 2  # the file and its directory
    assert len(list(tmp_path.glob("part-*"))) == 1
    assert merged(parts(tmp_path), tmp_path).digest() == block(range(6)).digest()


def test_a_block_with_the_checksum_of_another_one_is_set_aside(tmp_path):
    wrong = block([1])._replace(checksum=block([2]).digest())
    parts(tmp_path).commit(block([0]), wrong)
    again = parts(tmp_path)
    assert len(again.damaged) == 1
    assert again.missing.tolist() == list(range(6))
