"""Public functions and classes say what they take when they are given something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.live_service import plain_model
from xcray import (
    BatchPredictSpec,
    Client,
    Dataset,
    Model,
    ParameterError,
    PPDSparse,
    Predictor,
    TrainSpec,
    calibrate,
    evaluate,
    predict_batch,
    train,
)

ESTIMATOR = PPDSparse()
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda _: Predictor(3), "model must be an open Model, or the path"),  # type: ignore[arg-type]
    (lambda _: Predictor(ESTIMATOR), "not PPDSparse"),  # type: ignore[arg-type]
    (lambda path: Predictor(path, threads="2"), "threads must be a whole number"),  # type: ignore[arg-type]
    (lambda path: Predictor(path).predict(np.zeros((1, 6)), k="2"), "k must be"),  # type: ignore[arg-type]
    (lambda path: Model.open(Model.open(path)), "path must be the path of a model"),  # type: ignore[arg-type]
    (lambda path: calibrate(Model.open(path), path, "o"), "not Model"),  # type: ignore[arg-type]
    (lambda _: Dataset.open(None), "path must be the path of a data set"),  # type: ignore[arg-type]
    (lambda _: train("data", run_dir=Path("r"), out=Path("o")), "a TrainSpec"),  # type: ignore[arg-type]
    (lambda path: TrainSpec(Model.open(path)), "dataset must be the path"),  # type: ignore[arg-type]
    (lambda _: TrainSpec("data", params=["C"]), "params must be a mapping"),  # type: ignore[arg-type]
    (lambda _: predict_batch("rows", run_dir=Path("r"), out=Path("o")), "a BatchPredictSpec"),  # type: ignore[arg-type]
    (lambda path: BatchPredictSpec(Model.open(path), "a.csv"), "model must be the path"),  # type: ignore[arg-type]
    (lambda _: evaluate([["a"]], [["a"]]), "top must be a TopK"),  # type: ignore[arg-type]
    (lambda _: PPDSparse.load(3), "path must be"),  # type: ignore[arg-type]
    (lambda _: Client(8000), "url must be the address"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_an_argument_of_another_type_is_named(
    call: Callable[[Any], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain_model(tmp_path / "model")
    with pytest.raises(ParameterError, match=message):
        call(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_paths_of_specs_are_strings() -> None:
    assert TrainSpec(Path("data")).dataset == "data"  # type: ignore[arg-type]
    assert BatchPredictSpec(Path("m"), Path("a.csv")).input == "a.csv"  # type: ignore[arg-type]
