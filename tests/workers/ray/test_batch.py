"""Batch prediction on Ray: same bytes as one thread, after deaths and without shared files."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest
import ray as ray_module

from tests.support.batch_inputs import D, digests, run, sparse, table_of, written
from tests.support.live_service import plain_model
from xcray.arrays import frozen
from xcray.batch import BatchPredictSpec, predict_batch
from xcray.errors import DataError, Unavailable
from xcray.workers.ray.pool import RayPool

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray"), pytest.mark.drill]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model over D numbered features."""
    return plain_model(tmp_path_factory.mktemp("plain") / "model", D)


def test_the_bytes_are_those_of_one_thread_through_the_death_of_a_worker(
    tmp_path, model, monkeypatch
):
    path = written(tmp_path / "in.parquet", table_of(sparse(120)))
    alone, _ = run(tmp_path, model, path, "alone")
    killed, whole = [], RayPool.submit

    def submit(self, call):
        ticket = whole(self, call)
        if not killed:
            killed.append(call.worker)
            os.kill(ray_module.get(self._actors[call.worker].pid.remote()), signal.SIGKILL)
        return ticket

    monkeypatch.setattr(RayPool, "submit", submit)
    manifest, _ = run(tmp_path, model, path, "ray", pool="ray", workers=2)
    assert digests(manifest) == digests(alone)
    assert manifest["report"]["workers"] == 2
    assert killed


def test_a_bad_row_at_a_worker_is_reported_with_its_position(tmp_path, model):
    path = tmp_path / "in.svm"
    path.write_text("1 1:1\n" * 20 + "1 7:1\n")
    with pytest.raises(DataError, match=r"in\.svm:21:3: index 7") as raised:
        run(tmp_path, model, path, pool="ray", workers=1)
    assert raised.value.code == "SVM_INDEX_RANGE"


def test_a_node_without_the_model_is_reported(tmp_path, model, monkeypatch):
    """The files disappear between planning and the start of the workers."""
    path = written(tmp_path / "in.parquet", table_of(sparse(20)))

    class Elsewhere(RayPool):
        """A pool whose task names a model that does not exist."""

        def __init__(self, work, *rest, **more):
            from dataclasses import replace

            super().__init__(replace(work, model=str(tmp_path / "nowhere")), *rest, **more)

    monkeypatch.setattr("xcray.workers.ray.pool.RayPool", Elsewhere)
    with pytest.raises(Unavailable, match="file system that all nodes share"):
        run(tmp_path, model, path, pool="ray", workers=1)


def test_a_task_opens_in_another_directory(tmp_path, model, monkeypatch):
    """A task opens in another working directory, because its relative paths are resolved."""
    from xcray.batch.run import _BatchRun
    from xcray.workers.pool import StopFlag

    monkeypatch.chdir(tmp_path)
    written(tmp_path / "in.parquet", table_of(sparse(20)))
    spec = BatchPredictSpec(os.path.relpath(model.path), "in.parquet", part_rows=7)
    work = _BatchRun(spec, tmp_path / "run", lambda _: None, StopFlag(), "test").task
    monkeypatch.chdir(tmp_path.parent)
    local = work.open()
    assert local is not None
    with nullcontext():
        parts = work.decode_result(work.solve(local, frozen([2, 0], "int32")))
    assert [part.chunk for part in parts] == [2, 0]
    predict_batch(
        BatchPredictSpec(str(model.path), str(tmp_path / "in.parquet"), part_rows=7),
        run_dir=tmp_path / "b",
        out=tmp_path / "out",
    )
    assert parts[1].content.tobytes() == (tmp_path / "out" / "part-00000.parquet").read_bytes()
