"""Thresholds per label: optimal on their rows, shared by rare labels, used for decisions."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.arrays import Pattern, frozen, pattern_from
from xcray.cli import main as cli
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ParameterError
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training.calibration.isotonic import RankedLabels
from xcray.training.calibration.label_thresholds import (
    LabelCounts,
    ThresholdObjective,
    best_thresholds,
    count_labels,
    frequency_groups,
    round_down,
)
from xcray.training.edit.calibrate import calibrate, fit_thresholds
from xcray.training.edit.labels import rename_labels

ONE_GROUP = frozen(np.zeros(3), np.int32)


def toy(seed: int, n: int = 14, K: int = 3) -> tuple[RankedLabels, Pattern]:
    """Return answers with all labels, of scores with ties that say something of the truth."""
    rng = np.random.default_rng(seed)
    true = rng.random((n, K)) < [0.5, 0.3, 0.15]
    scores = np.round(2 * rng.random((n, K)) + true, 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    answers = (order, *(np.take_along_axis(each, order, 1) for each in (scores, true)))
    labels, by_score, correct = answers
    ranked = RankedLabels(frozen(labels, np.int32), frozen(by_score, np.float64), correct)
    return ranked, pattern_from(true)


def naive(answers: RankedLabels, Y: Pattern, thresholds: Any) -> LabelCounts:
    """Return the counts by definition."""
    true = np.asarray(Y.to_scipy().todense(), bool)
    scores = np.full(true.shape, -np.inf)
    np.put_along_axis(scores, answers.labels, answers.scores, axis=1)
    given = scores >= thresholds
    return LabelCounts((given & true).sum(0), given.sum(0), true.sum(0))


@pytest.mark.parametrize("seed", range(8))
def test_without_shrinkage_no_other_thresholds_are_better(seed: int) -> None:
    answers, Y = toy(seed)
    tried = [np.append(np.unique(answers.scores[answers.labels == k]), np.inf) for k in range(3)]
    every = [naive(answers, Y, np.array(each)).measures(3) for each in product(*tried)]
    for name in ("macro-F1", "micro-F1"):
        (fitted,) = best_thresholds(answers, Y, ONE_GROUP, [0.0], ThresholdObjective(name))
        found = count_labels(answers, Y, fitted)
        for mine, expected in zip(found, naive(answers, Y, fitted), strict=True):
            np.testing.assert_array_equal(mine, expected)
        best = max(each[name] for each in every)
        assert found.measures(3)[name] == pytest.approx(best, abs=1e-12)
    (fitted,) = best_thresholds(answers, Y, ONE_GROUP, [0.0], ThresholdObjective("precision", 0.8))
    found = count_labels(answers, Y, fitted)
    assert (found.hits >= 0.8 * found.predicted).all()
    for k in range(3):
        counts = [naive(answers, Y, np.where(np.arange(3) == k, t, np.inf)) for t in tried[k]]
        precise = [each.hits[k] for each in counts if each.hits[k] >= 0.8 * each.predicted[k]]
        assert found.hits[k] == max(precise)


def test_a_label_with_few_answers_takes_the_threshold_of_its_group() -> None:
    rng = np.random.default_rng(0)
    true = rng.random((400, 2)) < 0.5
    true[:, 1] = False
    true[0, 1] = True
    scores = np.where(true, 1.0, 0.0) + 0.01 * rng.random((400, 2))
    scores[1:, 1] = -5.0
    scores[0, 1] = 3.0  # its only correct answer is far above those of the other label
    order = np.argsort(-scores, axis=1)
    by_score, correct = (np.take_along_axis(each, order, 1) for each in (scores, true))
    answers = RankedLabels(frozen(order, np.int32), frozen(by_score, np.float64), correct)
    Y, group = pattern_from(true), frozen([0, 0], np.int32)
    alone, shared = best_thresholds(answers, Y, group, [0.0, 16.0], ThresholdObjective("macro-F1"))
    assert alone[1] == 3.0
    assert shared[1] == pytest.approx(1.0, abs=0.01)
    absent = frozen([0, 0, 0], np.int32)  # a third label without any answer
    wide = pattern_from(np.column_stack([true, np.zeros(400, bool)]))
    (fitted,) = best_thresholds(answers, wide, absent, [16.0], ThresholdObjective("macro-F1"))
    assert fitted[2] == pytest.approx(1.0, abs=0.01)


def test_groups_hold_labels_of_similar_frequency() -> None:
    group = frequency_groups(
        frozen([1, 1, 50, 2, 900], np.int64), frozen([10, 200, 300, 5, 600], np.int64)
    )
    assert group[0] == group[1] <= group[3] < group[2] < group[4]
    assert set(frequency_groups(frozen([3, 9], np.int64), frozen([0, 0], np.int64))) == {0}


def test_a_score_at_its_threshold_reaches_it() -> None:
    scores = np.random.default_rng(1).normal(size=1000)
    assert (scores >= round_down(scores)).all()
    assert (np.abs(scores - round_down(scores)) < 1e-6).all()


def test_decisions_of_a_model_with_thresholds(
    data: Dataset, plain: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(
            ["thresholds", str(plain.path), str(data.path), "-o", str(tmp_path / "m"), "--json"]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    model = Model.open(tmp_path / "m", verify=True)
    fitted = model.manifest["label_thresholds"]
    assert printed["label_thresholds"] == fitted
    assert (fitted["objective"], fitted["model"]) == ("macro-F1", plain.sha256)
    assert model.sha256 != plain.sha256
    assert model.measures == plain.measures
    assert "## Decisions" in (model.path / "card.md").read_text()
    predictor, test = Predictor(model), data["test"]
    result = predictor.search(test.X, 30)
    assert model.label_thresholds is not None
    keep = result.scores >= model.label_thresholds[result.labels]
    rows = predictor.scored_labels(result, label_thresholds=True)
    assert [len(row) for row in rows] == keep.sum(axis=1).tolist()
    table = predictor.table(result, label_thresholds=True)
    assert table.column("labels").to_pylist() == [[each.label for each in row] for row in rows]
    # measured by cross validation on the test rows: about as good as on the same rows
    answers = RankedLabels(result.labels, result.scores, np.zeros_like(keep))
    true = {(i, k) for i in range(test.n_rows) for k in test.Y.row(i).tolist()}
    correct = [[(i, k) in true for k in row] for i, row in enumerate(result.labels.tolist())]
    answers = answers._replace(correct=np.array(correct))
    same = count_labels(answers, test.Y, model.label_thresholds).measures(30)
    assert fitted["measures"]["macro-F1"] == pytest.approx(same["macro-F1"], abs=0.05)
    with pytest.raises(ParameterError, match="no thresholds per label"):
        Predictor(plain).scored_labels(result, label_thresholds=True)


def test_curves_and_thresholds_share_a_model(data: Dataset, plain: Model, tmp_path: Path) -> None:
    decided = fit_thresholds(plain.path, data.path, tmp_path / "t", objective="micro-F1")
    both = calibrate(decided.path, data.path, tmp_path / "tc")
    other = calibrate(plain.path, data.path, tmp_path / "c")
    again = fit_thresholds(other.path, data.path, tmp_path / "ct", objective="micro-F1")
    assert both.sha256 == again.sha256 not in (decided.sha256, other.sha256)
    assert both.calibration is not None
    assert both.label_thresholds is not None
    np.testing.assert_array_equal(both.label_thresholds, decided.label_thresholds)
    renamed = rename_labels(decided.path, tmp_path / "renamed", {decided.labels[0]: "other"})
    assert "xcray thresholds" in renamed.report["no_thresholds"]
    assert Model.open(renamed.model_path).label_thresholds is None


def test_what_cannot_be_fitted_is_refused(
    data: Dataset, plain: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how in (
        {"objective": "accuracy"},
        {"objective": "precision"},
        {"precision": 0.5},
        {"objective": "precision", "precision": 1.5},
    ):
        with pytest.raises(ParameterError):
            fit_thresholds(plain.path, data.path, tmp_path / "m", **how)
    with pytest.raises(Conflict):
        fit_thresholds(plain.path, data.path, tmp_path / "m", part="train")
    monkeypatch.setattr("xcray.training.edit.calibrate.FOLDS", 10**6)
    with pytest.raises(InputError, match="thresholds need 1000000"):
        fit_thresholds(plain.path, data.path, tmp_path / "m")
