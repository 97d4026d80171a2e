"""`xcray evaluate`: measures against the textbook, intervals, differences, command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.naive import metrics as naive
from tests.support.report_data import series_of
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.text.pipeline import empty_rows
from xcray.errors import InputError, NotFound, ParameterError, ShapeMismatch
from xcray.measures import f1, predicted_sets
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.drift import WINDOW_ROWS, drift_counter
from xcray.training import TrainSpec, train
from xcray.training.edit.labels import remove_labels, rename_labels
from xcray.training.evaluation import EvaluationOptions, compare_models, evaluate_models

FEW = EvaluationOptions(n_samples=40)


@pytest.fixture(scope="module")
def folder(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of `tiny`, and one that lacks ten labels."""
    folder = tmp_path_factory.mktemp("evaluation")
    spec = TrainSpec(str(tiny.path), pool="serial")
    train(spec, run_dir=folder / "run", out=folder / "whole")
    names = Model.open(folder / "whole").label_names.to_pylist()
    remove_labels(folder / "whole", folder / "less", names[:10])
    return folder


def test_the_held_out_rows_of_a_training_have_no_drift(tiny: Dataset, folder: Path) -> None:
    """A model whose change was not measured has nothing to compare with."""
    assert tiny.test is not None
    model = Model.open(folder / "whole")
    counter, X = drift_counter(model), tiny.test.X
    assert counter is not None
    top = Predictor(model).search(X, 3).top
    for _ in range(-(-WINDOW_ROWS // X.n_rows)):
        counter.add(X, top, empty_rows(X).tolist())
    drift = counter.drift()
    assert drift is not None
    assert set(drift.indices) == {"score", "label", "empty"}
    assert max(drift.indices.values()) == pytest.approx(0.0, abs=1e-12)
    assert drift_counter(Model.open(folder / "less")) is None


def test_measures_equal_the_textbook(tiny: Dataset, folder: Path) -> None:
    assert tiny.test is not None
    truth = tiny.test.Y
    top = Predictor(Model.open(folder / "whole")).predict(tiny.test.X, 5)
    ranked, true = top.labels.tolist(), [set(truth.row(i).tolist()) for i in range(truth.n_rows)]
    weights = [naive.inverse_propensity(n, tiny.train.n_rows) for n in tiny.label_counts.tolist()]
    [entry] = evaluate_models([folder / "whole"], tiny.path, FEW)["models"]
    for k in (1, 3, 5):
        sets = f1(predicted_sets(top, truth.n_cols, k=k), truth)
        expected = {
            f"P@{k}": naive.precision(ranked, true, k),
            f"nDCG@{k}": naive.ndcg(ranked, true, k),
            f"PSP@{k}": naive.psp(ranked, true, k, weights),
            f"micro-F1@{k}": sets["micro-F1"],
            f"macro-F1@{k}": sets["macro-F1"],
        }
        for name, value in expected.items():
            assert entry["measures"][name] == pytest.approx(value, abs=1e-12), name
    parts = sum(group["P@5"] for group in entry["by_frequency"])
    assert parts == pytest.approx(entry["measures"]["P@5"])
    assert [group["group"] for group in entry["by_frequency"]] == ["tail", "middle", "head"]
    assert entry["ms_per_row"] > 0


def test_ranks_of_true_labels_are_their_cumulative_distribution(
    tiny: Dataset, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.test is not None
    truth, k = tiny.test.Y, min(20, tiny.n_labels)
    top = Predictor(Model.open(folder / "whole")).predict(tiny.test.X, k).labels.tolist()
    ranks = [
        top[i].index(label) + 1 if label in top[i] else k + 1
        for i in range(truth.n_rows)
        for label in truth.row(i).tolist()
    ]
    options = FEW._replace(ks=(1, k))
    [entry] = evaluate_models([folder / "whole"], tiny.path, options)["models"]
    assert list(entry["ranks"]) == ["1", "2", "5", "10", "20"]
    for rank, share in entry["ranks"].items():
        assert share == pytest.approx(np.mean([each <= int(rank) for each in ranks]))
    words = ["evaluate", str(folder / "whole"), str(tiny.path), "-k", "20", "--samples", "0"]
    assert main([*words, "--picture", str(tmp_path / "ranks.svg")]) == 0
    assert "true labels up to rank 20" in capsys.readouterr().out
    assert "Ranks of true labels" in (tmp_path / "ranks.svg").read_text()
    assert entry["memory_bytes"] >= 0


def test_standard_errors_agree_with_the_formula_for_a_mean(tiny: Dataset, folder: Path) -> None:
    assert tiny.test is not None
    top = Predictor(Model.open(folder / "whole")).predict(tiny.test.X, 1)
    hits = [label in tiny.test.Y.row(i) for i, [label] in enumerate(top.labels.tolist())]
    options = EvaluationOptions(n_samples=1000, seed=3)
    document = evaluate_models([folder / "whole"], tiny.path, options)
    interval = document["models"][0]["intervals"]["P@1"]
    assert interval["standard_error"] == pytest.approx(np.std(hits) / len(hits) ** 0.5, rel=0.15)
    assert interval["low"] < document["models"][0]["measures"]["P@1"] < interval["high"]


def test_the_same_seed_gives_the_same_intervals_and_a_model_equals_itself(
    tiny: Dataset, folder: Path
) -> None:
    twice = evaluate_models([folder / "whole", folder / "whole"], tiny.path, FEW)["models"]
    assert twice[0]["intervals"] == twice[1]["intervals"]
    assert all(
        each == {"difference": 0, "standard_error": 0, "low": 0, "high": 0}
        for each in twice[1]["differences"].values()
    )
    other = evaluate_models([folder / "whole"], tiny.path, FEW._replace(seed=1))["models"][0]
    assert other["measures"] == twice[0]["measures"]
    assert other["intervals"] != twice[0]["intervals"]


def test_labels_that_a_model_lacks_count_as_misses(tiny: Dataset, folder: Path) -> None:
    document = evaluate_models([folder / "whole", folder / "less"], tiny.path, FEW)
    whole, less = document["models"]
    assert (whole["labels_missing"], less["labels_missing"]) == (0, 10)
    assert less["differences"]["micro-F1@5"]["difference"] < 0
    assert less["differences"]["micro-F1@5"]["difference"] == pytest.approx(
        less["measures"]["micro-F1@5"] - whole["measures"]["micro-F1@5"]
    )


def test_input_that_does_not_fit_is_refused(tiny: Dataset, folder: Path, tmp_path: Path) -> None:
    names = Model.open(folder / "whole").label_names.to_pylist()
    rename_labels(folder / "whole", tmp_path / "other", {name: f"x{name}" for name in names})
    with pytest.raises(NotFound, match="no label of data set"):
        evaluate_models([tmp_path / "other"], tiny.path)
    with pytest.raises(ParameterError, match="at least 0 bootstrap samples"):
        evaluate_models([folder / "whole"], tiny.path, EvaluationOptions(n_samples=-1))
    sizes = {"rows": 50, "features": 30, "labels": 5, "seed": 1}
    build("synthetic", {}, tmp_path / "wide", BuildOptions.from_dict({"synthetic": sizes}))
    with pytest.raises(ShapeMismatch, match="30 features"):
        evaluate_models([folder / "whole"], tmp_path / "wide")


def test_a_gate_that_would_check_nothing_is_refused(
    tiny: Dataset, folder: Path, tmp_path: Path
) -> None:
    models = [folder / "whole", folder / "less"]
    with pytest.raises(ParameterError, match="not a condition of a gate"):
        compare_models(models, tiny.path, "")
    options = {"test_fraction": 0, "synthetic": {"rows": 40, "features": 200, "labels": 40}}
    other = build("synthetic", {}, tmp_path / "data", BuildOptions.from_dict(options))
    with pytest.raises(InputError, match="held-out rows") as caught:
        compare_models(models, other.path, "P@1 >= 0")
    assert caught.value.code == "NO_HELD_OUT"


def test_the_command_prints_tables_json_and_a_picture(
    tiny: Dataset, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(folder / "whole"), str(folder / "less"), str(tiny.path)]
    assert main([*words, "--samples", "20", "--picture", str(tmp_path / "models.svg")]) == 0
    text = capsys.readouterr().out
    for part in (
        "test rows of data",
        "P@1",
        "macro-F1@5",
        "ms per row",
        "difference to whole",
        "tail",
    ):
        assert part in text
    assert set(series_of((tmp_path / "models.svg").read_text())) == {"whole", "less"}
    assert main([*words, "--samples", "0", "-k", "2", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(document["models"][0]["measures"]) == {
        *("P@2", "nDCG@2", "recall@2", "F1@2", "PSP@2", "micro-F1@2", "macro-F1@2")
    }
    assert document["models"][0]["intervals"] == {}
