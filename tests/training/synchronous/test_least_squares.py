"""Least-squares solvers through whole trainings: the same bits on any pool, and after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.training import TrainSpec, train

PARAMS: dict[str, dict[str, Any]] = {
    "least-squares": {},
    "generalized-least-squares": {"lam": 1e-3},
}
each_solver = pytest.mark.parametrize("solver", PARAMS)


def spec_of(data: Dataset, solver: str, **changes: Any) -> TrainSpec:
    """Return the specification of a small training."""
    settings = {"params": PARAMS[solver], "pool": "serial", **changes}
    return TrainSpec(dataset=str(data.path), solver=solver, **settings)


@pytest.fixture(scope="module")
def trained(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of each solver on one thread."""
    folder = tmp_path_factory.mktemp("least-squares")
    return {
        name: train(spec_of(tiny, name), run_dir=folder / name / "run", out=folder / name / "model")
        for name in PARAMS
    }


@each_solver
def test_the_model_is_accurate_and_says_its_link(trained: dict[str, Any], solver: str) -> None:
    result = trained[solver]
    link = "identity" if solver == "least-squares" else "softmax"
    assert Model.open(result.model_path).link == link
    assert result.measures["P@1"] > 0.8
    assert result.report["stopped"] == "the gradient is small"


@each_solver
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(
    tiny: Dataset, trained: dict[str, Any], tmp_path: Path, solver: str, workers: int
) -> None:
    spec = spec_of(tiny, solver, pool="threads", workers=workers)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 == trained[solver].sha256


@each_solver
def test_the_number_of_shards_changes_rounding_only(
    tiny: Dataset, trained: dict[str, Any], tmp_path: Path, solver: str
) -> None:
    spec = spec_of(tiny, solver, params={**PARAMS[solver], "shards": 3})
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 != trained[solver].sha256
    ours, theirs = (Model.open(each.model_path) for each in (result, trained[solver]))
    assert np.allclose(ours.W.to_scipy().toarray(), theirs.W.to_scipy().toarray(), atol=1e-5)
    assert np.allclose(ours.b, theirs.b, atol=1e-5)
