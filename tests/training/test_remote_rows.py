"""Trainings whose rows stay in object storage: bits, what is copied, outages, other solvers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.killed_training import kill_in_the_middle
from tests.support.s3 import BUCKET, FaultProxy
from xcray.arrays import frozen
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.errors import InputError, Unavailable
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory
from xcray.solvers.indexed_bcd.remote_copy import cached_copy_without_rows
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.storage.objectstore import client
from xcray.storage.objectstore.client import StoragePath
from xcray.system.user_directories import cache_directory
from xcray.training import TrainSpec, train
from xcray.training.independent import IndependentLabels
from xcray.training.run import TrainResult
from xcray.workers.solver_task import SolverTask

PARAMS = {"selection": "forest", "first_rows": 20, "query_rows": 10, "leaf_rows": 16}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a synthetic data set with a test part and a metric forest."""
    synthetic = {"rows": 1_600, "features": 200, "labels": 3, "seed": 7}
    options = {"synthetic": synthetic, "test_fraction": 0.1}
    folder = tmp_path_factory.mktemp("whole") / "news"
    dataset = build("synthetic", {}, folder, BuildOptions.from_dict(options))
    build_forest_directory(dataset, 16)
    return dataset


@pytest.fixture(scope="module")
def reference(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Return the result of a training on the rows on disk."""
    folder = tmp_path_factory.mktemp("reference")
    return train(spec_of(dataset.path), run_dir=folder / "run", out=folder / "model")


def spec_of(path: Path, pool: str = "serial") -> TrainSpec:
    """Return the specification of a training on a data set directory."""
    return TrainSpec(str(path), solver="indexed-bcd", pool=pool, workers=2, params=PARAMS)


@pytest.fixture
def paged(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give each worker the memory of half of the rows; return its bytes."""
    limit = 8 * (dataset.train.X.nnz + dataset.train.n_rows) // 2
    monkeypatch.setattr(IndependentLabels, "rows_limit", lambda strategy: limit)
    return limit


def pushed(dataset: Dataset, folder: str) -> str:
    """Push the data set to a folder of the bucket; return its URI."""
    uri = f"s3://{BUCKET}/trainings/{folder}"
    push_dataset(dataset.path, StoragePath.parse(uri) / "news")
    return f"{uri}/news"


@pytest.mark.parametrize("pool", [pytest.param("serial", marks=pytest.mark.drill), "threads"])
def test_the_model_is_that_of_the_rows_on_disk(
    dataset: Dataset,
    reference: TrainResult,
    proxy: FaultProxy,
    paged: int,
    tmp_path: Path,
    pool: str,
) -> None:
    path = cached_copy_without_rows(pushed(dataset, f"bits-{pool}"))
    result = train(spec_of(path, pool), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 == reference.sha256
    assert result.measures == reference.measures
    assert result.report["requests"] > 0
    assert result.report["bytes_read"] > 0
    read = {path.rpartition("/news/")[2] for method, path in proxy.requests if method == "GET"}
    assert any(path.endswith("metric-forest/pages.arrow") for path in read)
    assert not any(path.endswith(("train/x_rows.arrow", "train/x_columns.arrow")) for path in read)


@pytest.mark.parametrize("pool", ["serial", "threads"])
def test_rows_that_fit_are_read_and_counted_once(
    dataset: Dataset, reference: TrainResult, proxy: FaultProxy, tmp_path: Path, pool: str
) -> None:
    path = cached_copy_without_rows(pushed(dataset, f"fit-{pool}"))
    proxy.requests.clear()
    result = train(spec_of(path, pool), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 == reference.sha256
    n_requests = sum(name.endswith("pages.arrow") for _, name in proxy.requests)
    assert result.report["requests"] == n_requests > 0
    assert (
        result.report["bytes_requested"] == result.report["bytes_read"] == 8 * dataset.train.X.nnz
    )


@pytest.mark.drill
def test_killed_in_the_middle_and_resumed_it_has_the_same_bits(
    dataset: Dataset, reference: TrainResult, proxy: FaultProxy, paged: int, tmp_path: Path
) -> None:
    spec = spec_of(cached_copy_without_rows(pushed(dataset, "killed")))
    kill_in_the_middle(spec, tmp_path, paged)
    assert any(path.endswith("pages.arrow") for _, path in proxy.requests)
    resumed = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert resumed.sha256 == reference.sha256
    assert resumed.report["requests"] > 0


@pytest.mark.drill
def test_workers_of_ray_read_the_pages(
    dataset: Dataset,
    reference: TrainResult,
    paged: int,
    tmp_path: Path,
    ray: object,
) -> None:
    uri = f"file://{tmp_path / 'store'}"
    push_dataset(dataset.path, StoragePath.parse(uri) / "news")
    path = cached_copy_without_rows(f"{uri}/news")
    for workers in (1, 2, 4):
        spec, place = replace(spec_of(path, "ray"), workers=workers), tmp_path / str(workers)
        result = train(spec, run_dir=place / "run", out=place / "model", job=f"remote-{workers}")
        assert result.sha256 == reference.sha256
        assert result.report["requests"] > 0


def test_a_node_without_a_copy_makes_its_own(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path / 'store'}"
    push_dataset(dataset.path, StoragePath.parse(uri) / "news")
    copy = Dataset.open(cached_copy_without_rows(f"{uri}/news"))
    monkeypatch.setenv("XCRAY_CACHE", str(tmp_path / "other-node"))
    solver, facts = IndexedBCDSolver(**PARAMS), (copy.content_hash, None, 1 << 30)
    state = SolverTask(solver, "/no/such/path", *facts, copy.remote).open()
    assert state is not None
    assert list((tmp_path / "other-node" / "datasets").glob("*-without-rows"))
    label = frozen([1], np.int32)
    ours, theirs = (solver.solve(each, label) for each in (state, solver.load_dataset(dataset)))
    assert ours.W.data.tobytes() == theirs.W.data.tobytes()
    assert SolverTask(solver, "/no/such/path", *facts).open() is None


def test_an_outage_in_the_middle_keeps_finished_labels(
    dataset: Dataset,
    reference: TrainResult,
    proxy: FaultProxy,
    paged: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MAX_ATTEMPTS", 2)
    path, done = cached_copy_without_rows(pushed(dataset, "middle")), list[int]()

    def broken(environ: dict[str, Any], answer: Any) -> Any:
        if environ["PATH_INFO"].endswith("pages.arrow"):
            raise ConnectionResetError("no answer")
        return answer

    def cut(progress: Any) -> None:
        if progress.phase == "TRAINING" and progress.done:
            done.append(progress.done)
            proxy.fault = broken

    spec, folders = spec_of(path), {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Unavailable) as error:
        train(spec, **folders, progress=cut)
    assert error.value.code == "STORAGE_AWAY"
    assert "pages.arrow did not answer" in error.value.message
    proxy.fault, first = None, list[int]()
    result = train(spec, **folders, progress=lambda each: first.append(each.done))
    assert max(done) in first
    assert result.sha256 == reference.sha256


def test_what_needs_the_rows_is_refused_at_the_start(dataset: Dataset, tmp_path: Path) -> None:
    uri = f"file://{tmp_path / 'store'}"
    push_dataset(dataset.path, StoragePath.parse(uri) / "news")
    path = str(cached_copy_without_rows(f"{uri}/news"))
    for spec, what in (
        (TrainSpec(path), "ppdsparse"),
        (TrainSpec(path, solver="dsmlr"), "dsmlr"),
        (TrainSpec(path, solver="indexed-bcd", calibrate=True), "--calibrate"),
    ):
        with pytest.raises(InputError, match=f"{what}.*xcray data pull file:") as error:
            train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
        assert error.value.code == "ROWS_REMOTE"


def test_the_command_copies_what_the_solver_needs(
    dataset: Dataset,
    reference: TrainResult,
    proxy: FaultProxy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri, out = pushed(dataset, "command"), tmp_path / "model"
    bcd = ["--solver", "indexed-bcd", "--pool", "serial", "--memory-limit", "8GiB"]
    params = [word for name, value in PARAMS.items() for word in ("-p", f"{name}={value}")]
    assert main(["train", uri, "-o", str(out), *bcd, *params]) == 0
    assert "the training rows are read from the storage" in capsys.readouterr().err
    assert main(["train", uri, "-o", str(out), *bcd, *params, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == reference.sha256
    (partial,) = (cache_directory() / "datasets").glob("[!.]*")
    assert not (partial / "train" / "x_rows.arrow").exists()
    other = tmp_path / "ppdsparse"
    assert main(["train", uri, "-o", str(other), "--pool", "serial"]) == 0
    assert "copying s3://" in capsys.readouterr().err
    whole = next(each for each in partial.parent.glob("[!.]*") if each != partial)
    assert Dataset.open(whole, verify=True).remote is None
    assert main(["train", f"{uri}:7", "-o", str(tmp_path / "none")]) == 2
    assert "no complete version 7" in capsys.readouterr().err
