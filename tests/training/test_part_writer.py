"""Workers write large blocks into the run directory; the driver gets their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.arrays import csr, frozen
from xcray.errors import Stopped
from xcray.kernels.training.ppdsparse.state import STATE
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.run_directory import TOKEN_FILE
from xcray.training.block_store import BlockStore
from xcray.training.part_writer import SHARED_BYTES, PartWriter, writing_task
from xcray.workers.solver_task import SolverTask


class _Ones:
    """Gives each label two weights of one."""

    def solve(self, local: Any, labels: Any, stopped: Any) -> SolvedLabels:
        """Return the weights, or raise Stopped."""
        if stopped():
            raise Stopped("stopped")
        n = len(labels)
        W = csr(2 * np.arange(n + 1), np.tile([1, 4], n), np.ones(2 * n), 7)
        bias, records = frozen(-np.array(labels), np.float64), np.zeros(n, STATE)
        return SolvedLabels(frozen(labels, np.int32), W, bias, records)

    def warm_up(self, local: Any = None) -> None:
        """Do nothing."""


def _task(run_dir: Path, workers: int) -> PartWriter:
    """Return the task of a run."""
    task = SolverTask(PPDSparseSolver(), "data", "hash", runner=_Ones())
    return writing_task(task, run_dir, workers)


def _solve(task: PartWriter, labels: list[int]) -> SolvedLabels:
    """Return what the driver receives."""
    return task.decode_result(task.solve(None, np.array(labels, np.int32)))


def _store(run_dir: Path) -> BlockStore:
    """Return the parts of 6 labels and 7 features."""
    return BlockStore(run_dir, {}, n_labels=6, n_features=7)


def test_a_worker_writes_its_share_and_the_driver_only_what_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three labels have 48 bytes; a quarter of SHARED_BYTES is the least here."""
    monkeypatch.setattr("xcray.training.part_writer.SHARED_BYTES", 4 * 40)
    store, task = _store(tmp_path), _task(tmp_path, 4)
    large, small = _solve(task, [3, 0, 1]), _solve(task, [2, 5])
    assert (large.part != "", len(large.W.indices)) == (True, 0)
    assert (small.part, len(small.W.indices)) == ("", 4)
    store.add(large)
    assert store.missing.tolist() == [2, 4, 5]
    assert _store(tmp_path).missing.tolist() == [2, 4, 5]  # it is already durable
    for block in (_solve(task, [3, 0, 1]), small, _solve(task, [4])):  # one label comes twice
        store.add(block)
    store.sync()
    assert len(list(tmp_path.glob("part-*"))) == 2
    expected = _Ones().solve(None, range(6), lambda: False)
    for each in (store, _store(tmp_path)):
        assert each.merge(tmp_path / "weights.arrow").digest() == expected.digest()


@pytest.mark.parametrize("harm", ["other", "missing", "full"])
def test_the_driver_gets_the_weights_if_the_directory_is_another_one_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A directory of the same path on another machine has another token, or none."""
    task = _task(tmp_path, SHARED_BYTES)
    if harm == "other":
        _task(tmp_path, 1)
    elif harm == "missing":
        (tmp_path / TOKEN_FILE).unlink()
    else:

        def write(*args: Any) -> str:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("xcray.training.part_writer.write_part", write)
    block = _solve(task, [0, 1])
    assert (block.part, len(block.W.indices)) == ("", 4)
    assert not list(tmp_path.glob("part-*"))
