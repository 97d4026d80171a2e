"""Models that are chains of stages: written, opened, verified, and used by every reader."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.chain_models import LABELS, ROWS, STAGES, D, K, replay, staged_content
from xcray.errors import Corrupt, ParameterError, ShapeMismatch
from xcray.index.staged import StagedScorer, link_of
from xcray.model.manifest import seal_manifest
from xcray.model.model import Model
from xcray.model.write import TrainingRecord, write_model
from xcray.predict import Predictor
from xcray.predict.label_details import label_details, list_labels
from xcray.storage.atomic import file_digests

RECORD = TrainingRecord("stagewise", {"blocks": 2}, "0" * 64)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return write_model(tmp_path / "m", staged_content(), RECORD)


def reseal(path: Path, change: Any) -> None:
    """Change a manifest as its owner could: valid checksums, other content."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["seal"]
    change(manifest)
    manifest["files"] = file_digests(path, skip=["manifest.json"])
    (path / "manifest.json").write_text(seal_manifest(manifest))


def test_scores_are_those_of_the_chain_in_float64(model: Model) -> None:
    opened = Model.open(model.path)
    result = Predictor(opened).search(ROWS, K)
    want = replay(ROWS)
    for row, labels, scores in zip(want, result.labels, result.scores, strict=True):
        assert labels.tolist() == np.argsort(-row, kind="stable").tolist()
        assert scores == pytest.approx(row[labels], rel=1e-12, abs=1e-12)
    assert result.exact.all()


def test_facts_of_a_chain(model: Model) -> None:
    assert (model.n_labels, model.n_features, len(model.stages)) == (K, D, len(STAGES))
    assert model.nnz == sum(np.size(getattr(s.W, "data", s.W)) for s in STAGES)
    assert [each.weights for each in list_labels(model)] == [model.nnz // K] * K
    assert isinstance(model.scorer(), StagedScorer)
    assert "index" not in model.manifest
    card = (model.path / "card.md").read_text()
    assert "# Model card\n\nA chain of 2 stages over 4 labels and 6 inputs." in card
    assert "explain" not in card


@pytest.mark.parametrize("name", ["W", "b", "search", "postings"])
def test_a_chain_has_no_matrix_of_weights(model: Model, name: str) -> None:
    with pytest.raises(ParameterError, match=r"m is a chain of 2 stages.*needs a linear model"):
        getattr(model, name)


@pytest.mark.parametrize(("link", "simplex"), [("softmax", False), ("probability", True)])
def test_probabilities_follow_the_link(tmp_path: Path, link: str, simplex: bool) -> None:
    last = STAGES[-1]._replace(calibration=STAGES[-1].calibration if simplex else None)
    stages = (*STAGES[:-1], last)
    content = staged_content(stages, link=link_of(stages, "softmax"))
    write_model(tmp_path / "m", content, TrainingRecord("stagewise", {}, "0" * 64))
    predictor = Predictor(Model.open(tmp_path / "m"))
    assert predictor.model.link == link
    scores = replay(ROWS, stages)
    expected = scores if simplex else np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    answer = predictor.search(ROWS, K, probabilities=True)
    found = np.take_along_axis(expected, answer.labels, axis=1)
    assert predictor.probabilities(answer) == pytest.approx(found, rel=1e-5)
    assert predictor.probabilities(answer).sum(axis=1) == pytest.approx(1.0)
    assert "probabilities" in predictor.table(answer).column_names


def test_label_details_are_refused(model: Model) -> None:
    with pytest.raises(ParameterError, match="chain of 2 stages"):
        label_details(model, LABELS[0])


def test_sizes_must_agree(tmp_path: Path) -> None:
    content = staged_content()
    with pytest.raises(ShapeMismatch, match="outputs of the stages"):
        write_model(tmp_path / "m", replace(content, label_names=LABELS[1:]), RECORD)
    with pytest.raises(ShapeMismatch, match="stage 0"):
        write_model(tmp_path / "m", replace(content, feature_names=["x"]), RECORD)
    assert not (tmp_path / "m").exists()


def test_every_file_is_verified(model: Model) -> None:
    for name in [*model.manifest["files"]]:
        content = (model.path / name).read_bytes()
        (model.path / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(Corrupt, match=Path(name).name):
            Model.open(model.path)
        (model.path / name).write_bytes(content)
    Model.open(model.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(shape=[K + 1, D]),
        lambda manifest: manifest.update(shape=[K, D + 1]),
        lambda manifest: manifest.update(stages=manifest["stages"][::-1]),
        lambda manifest: manifest.update(stages=manifest["stages"][:1] * 2),
        lambda manifest: manifest["stages"][0].update(features="0" * 64),
        lambda manifest: manifest["stages"][0].update(weights="weights.arrow"),
        lambda manifest: manifest.update(stages=[]),
        lambda manifest: manifest.pop("stages"),
    ],
)
def test_forged_manifests_are_refused(model: Model, change: Any) -> None:
    reseal(model.path, change)
    with pytest.raises(Corrupt):
        Model.open(model.path)
