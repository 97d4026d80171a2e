"""Trainings by indexed block coordinate descent: every pool, the command line, the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.training import TrainSpec, train
from xcray.training.run import TrainResult

PARAMS = {"selection": "forest", "first_rows": 20, "query_rows": 10}


@pytest.fixture(scope="module")
def reference(
    tiny: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainSpec, TrainResult]:
    """Return the specification and the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    spec = TrainSpec(str(tiny.path), solver="indexed-bcd", pool="serial", params=PARAMS)
    return spec, train(spec, run_dir=folder / "run", out=folder / "model")


def test_report_and_class_table(tiny: Dataset, reference: tuple[TrainSpec, TrainResult]) -> None:
    _, result = reference
    report, classes = result.report, Model.open(result.model_path).classes
    assert report["classes_certified"] == report["classes"] == tiny.n_labels
    assert report["converged"]
    assert 0.0 < report["largest_gap"] <= 0.001
    assert 0 < report["support_vectors"] < tiny.n_labels * tiny.train.n_rows
    assert report["rows_read"] > 0
    assert classes is not None
    columns = {"positives", "rounds", "sweeps", "queries", "rows_read", "active", "support"}
    assert columns | {"outliers", "objective"} <= set(classes.column_names)
    np.testing.assert_array_equal(classes["positives"].to_numpy(), tiny.label_counts)
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_give_the_same_model(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path, workers: int
) -> None:
    spec, result = reference
    spec = replace(spec, pool="threads", workers=workers)
    other = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert other.sha256 == result.sha256


@pytest.mark.drill
def test_ray_gives_the_same_model(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path, ray: object
) -> None:
    spec, result = reference
    spec = replace(spec, pool="ray", workers=2)
    other = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job="bcd")
    assert other.sha256 == result.sha256


def test_the_command_line_trains_it(
    tiny: Dataset,
    reference: tuple[TrainSpec, TrainResult],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    params = [word for name, value in PARAMS.items() for word in ("-p", f"{name}={value}")]
    words = ["train", str(tiny.path), "--out", str(tmp_path / "model"), "--solver", "indexed-bcd"]
    assert main([*words, *params, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == reference[1].sha256
