"""Trainings by indexed block coordinate descent: revisions, and rows on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import build_forest_directory
from xcray.errors import Conflict, Stopped
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.training import TrainSpec, train
from xcray.training.capacity import preflight
from xcray.training.independent import IndependentLabels
from xcray.training.run import TrainResult
from xcray.training.strategy import TrainingContext
from xcray.workers.pool import StopFlag

PARAMS = {"selection": "forest", "first_rows": 20, "query_rows": 10}


def test_a_run_of_another_revision_is_refused(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TrainSpec(str(tiny.path), solver="indexed-bcd", pool="serial", params=PARAMS)
    folders, stop = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}, StopFlag()
    with monkeypatch.context() as earlier:
        earlier.setattr(IndexedBCDSolver, "revision", IndexedBCDSolver.revision - 1)
        with pytest.raises(Stopped):
            train(spec, **folders, stop=stop, progress=lambda step: step.done and stop.set())
    kept = sorted(path.name for path in (tmp_path / "run").glob("part-*"))
    assert kept
    with pytest.raises(Conflict, match=r"other revision.*choose a new one"):
        train(spec, **folders)
    assert sorted(path.name for path in (tmp_path / "run").glob("part-*")) == kept


def test_records_with_other_fields_need_another_revision() -> None:
    fields = (
        "label positives rounds sweeps queries rows_read bytes_read "
        "n_active support outliers changing objective primal dual gap null"
    )
    names = IndexedBCDSolver.records.dtype.names or ()
    assert (IndexedBCDSolver.revision, " ".join(names)) == (6, fields)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a synthetic data set with 4,000 rows and a metric forest."""
    synthetic = {"rows": 4_000, "features": 200, "labels": 5, "seed": 7}
    folder = tmp_path_factory.mktemp("larger") / "data"
    dataset = build("synthetic", {}, folder, BuildOptions.from_dict({"synthetic": synthetic}))
    build_forest_directory(dataset, 16)
    return dataset


@pytest.fixture(scope="module")
def whole(larger: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Return the result of a serial training with all rows of `larger` in memory."""
    folder = tmp_path_factory.mktemp("whole")
    return train(paged_spec(larger, "serial"), run_dir=folder / "run", out=folder / "model")


def paged_spec(dataset: Dataset, pool: str) -> TrainSpec:
    """Return the specification of a training that can read pages."""
    params = {**PARAMS, "leaf_rows": 16}
    return TrainSpec(str(dataset.path), solver="indexed-bcd", pool=pool, workers=2, params=params)


def compare_with_paged(
    dataset: Dataset, whole: TrainResult, place: Path, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare a training with one whose workers have a quarter of the bytes of the rows."""
    limit = 2 * (dataset.train.X.nnz + dataset.train.n_rows)
    monkeypatch.setattr(IndependentLabels, "rows_limit", lambda strategy: limit)
    spec = paged_spec(dataset, pool)
    paged = train(spec, run_dir=place / "paged", out=place / "other", job="paged")
    assert whole.report["bytes_read"] == 0 < paged.report["bytes_read"]
    assert paged.sha256 == whole.sha256


@pytest.mark.parametrize("pool", ["serial", "threads"])
def test_rows_on_disk_give_the_same_model(
    larger: Dataset,
    whole: TrainResult,
    tmp_path: Path,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare_with_paged(larger, whole, tmp_path, pool, monkeypatch)


@pytest.mark.drill
def test_rows_on_disk_give_the_same_model_on_ray(
    larger: Dataset,
    whole: TrainResult,
    tmp_path: Path,
    ray: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare_with_paged(larger, whole, tmp_path, "ray", monkeypatch)


def test_the_memory_limit_leaves_bytes_for_the_rows(
    larger: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "anonymous_bytes", lambda: 100 << 20)

    def rows_limit(memory_limit: int | str | None, workers: int) -> int | None:
        values = {"memory_limit": memory_limit, "workers": workers}
        spec = TrainSpec(str(larger.path), solver="indexed-bcd", **values)
        solver = IndexedBCDSolver()
        context = TrainingContext(spec, larger, solver, tmp_path, "job")
        return IndependentLabels(context, solver).rows_limit()

    one, two = (rows_limit("10GiB", workers) for workers in (1, 2))
    assert rows_limit(None, 1) is None
    assert rows_limit(1, 1) == 1
    assert one is not None
    assert two is not None
    assert 9 << 30 < one < 10 << 30
    assert 2 * two < one < 2.1 * two
