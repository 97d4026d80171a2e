"""Trainings with a ranker: what the model answers, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.ranked_model import ASKED, NAMES, UNSEEN, named_data, ranked_model
from xcray.data.build import build
from xcray.data.dataset import Dataset
from xcray.data.label_texts import LabelText, LabelTexts, set_label_texts
from xcray.data.texts import read_texts
from xcray.errors import Conflict, InputError, ParameterError
from xcray.index.search_result import SearchResult
from xcray.kernels.search.ranked_candidates import SCORE
from xcray.model.calibration import probability_source
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.ranking import CandidateFinder
from xcray.training import TrainSpec, train
from xcray.training.edit.calibrate import calibrate
from xcray.training.evaluation import EvaluationOptions, evaluate_model
from xcray.training.finished import find_finished
from xcray.training.part_training import PartTraining, TimedStop
from xcray.training.ranking.fit import fit_trees
from xcray.training.run import train_model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Build a data set of texts whose labels have names."""
    return named_data(tmp_path_factory.mktemp("named"))


@pytest.fixture(scope="module")
def model(data: Dataset) -> Model:
    """Train a model with a ranker."""
    return ranked_model(data, data.path.parent)


@pytest.fixture(scope="module")
def predictor(model: Model) -> Predictor:
    """Return its predictor."""
    return Predictor(model)


def test_weights_are_those_without_a_ranker(data: Dataset, model: Model, tmp_path: Path) -> None:
    """A resumed run has the same bits; the report has the measures of search and ranker."""
    plain = ranked_model(data, tmp_path, rank=False)
    assert (plain.W.data == model.W.data).all()
    assert plain.ranker is None
    assert model.manifest["ranker"]["search"] == plain.measures
    assert model.measures["P@1"] >= plain.measures["P@1"]
    again = ranked_model(data, tmp_path / "threads", pool="threads", workers=2)
    assert again.sha256 == model.sha256


def test_a_label_without_rows_is_found_by_its_name(predictor: Predictor) -> None:
    """The answer says what was retrieved, and what only a name has found."""
    answer = predictor.search(ASKED, 9)
    (scored,) = predictor.scored_labels(answer, predictor.probabilities(answer))
    origins = {each.label: each.origin for each in scored}
    assert scored[0].label == "id0"
    assert scored[0].name == NAMES[0]
    assert origins["id0"] == {
        "rank": 1,
        "score": pytest.approx(predictor.search(ASKED, 1, rank=False).scores[0, 0]),
        "first_word": 7,
        "words": 2,
    }
    assert origins["quokka"] == {"rank": None, "score": None, "first_word": 4, "words": 1}
    assert all(0.0 < each.probability < 1.0 for each in scored if each.probability)
    explained = predictor.explain(ASKED, "quokka")
    assert (explained.name, explained.rank, explained.contributions) == ("quokka", 0, ())
    assert explained.ranking is not None
    assert explained.ranking.features["words of the longest match"] == 1.0
    assert explained.ranking.probability == pytest.approx(
        next(each.probability for each in scored if each.label == "quokka")
    )


def test_names_count_where_every_label_has_rows(tmp_path: Path) -> None:
    """Copies teach the trees what the name of a label without training rows is worth."""
    rng, lines = np.random.default_rng(0), []
    for i in range(1000):
        named = f"subject{i % 20}" if i % 4 else f"hint{i % 20}"
        text = " ".join([named, *(f"word{each}" for each in rng.integers(0, 30, 5))])
        lines.append(json.dumps({"text": text, "labels": [f"id{i % 20}"]}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    data = build("jsonl", {"train": tmp_path / "rows.jsonl"}, tmp_path / "data")
    entries = [*(LabelText(f"id{i}", f"subject{i}") for i in range(20)), LabelText(*UNSEEN)]
    set_label_texts(data, LabelTexts.of(entries))
    predictor = Predictor(ranked_model(data, tmp_path))
    found = predictor.search("word1 a quokka word2", 2)
    [answer] = predictor.scored_labels(found, predictor.probabilities(found))
    (named,) = (each for each in answer if each.label == UNSEEN[0])
    assert named.probability == pytest.approx(answer[0].probability)


def test_answers_do_not_depend_on_other_texts(predictor: Predictor) -> None:
    """Neither do they on k, and filters hold for names too."""
    texts = [ASKED, "", "a polar bear", "no known word at all"]
    together = predictor.search(texts, 5)
    for i, text in enumerate(texts):
        alone: SearchResult = predictor.search(text, 3)
        assert (alone.labels[0] == together.labels[i, :3]).all()
        assert (alone.scores[0] == together.scores[i, :3]).all()
    few = predictor.search(ASKED, 5, allow=["id2", "id3"])
    shown = {each.label for each in predictor.scored_labels(few)[0]}
    assert shown == {"id2", "id3"}
    (denied,) = predictor.scored_labels(predictor.search(ASKED, 9, deny=["id0"]))
    assert not {"id0", UNSEEN[0]} & {each.label for each in denied}


def test_rows_of_features_are_answered_by_the_search(predictor: Predictor) -> None:
    """A ranker needs texts; their answers have no probabilities."""
    X = predictor.features(ASKED)
    assert not predictor.search(X, 5).is_ranked
    assert (predictor.search(X, 5).scores == predictor.search(ASKED, 5, rank=False).scores).all()
    assert predictor.table(predictor.search(ASKED, 2)).column("probabilities")
    with pytest.raises(ParameterError, match="texts"):
        predictor.probabilities(predictor.search(X, 5))


def test_evaluation_is_of_the_ranked_answers(data: Dataset, predictor: Predictor) -> None:
    """As the training measured it, also by `xcray evaluate`."""
    assert data.test is not None
    options = EvaluationOptions(ks=(1,), n_samples=20)
    entry, _ = evaluate_model(predictor.model.path, data, "test", options)
    assert entry["measures"]["P@1"] == predictor.model.measures["P@1"]
    texts = [text for batch in read_texts(data, "test") for text in batch]
    measured = predictor.evaluate(texts, data.test.Y, ks=(1,))
    # without the rows whose only label is unknown
    known = data.test.n_rows / int((data.test.Y.indptr[1:] > data.test.Y.indptr[:-1]).sum())
    assert measured["P@1"] == pytest.approx(known * entry["measures"]["P@1"])


def test_groups_and_ranker_share_a_training(
    data: Dataset, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are scored with the groups of their labels; probabilities are those of the ranker."""
    parts = list[str]()

    def train_part(spec: TrainSpec, *args: Any) -> Any:
        parts.append(spec.dataset)
        return train_model(spec, *args)

    monkeypatch.setattr("xcray.training.run.train_model", train_part)
    monkeypatch.setattr(
        "xcray.training.label_groups.plan.choose_weight", lambda *args: (0.5, {"rows": 1})
    )
    grouped = ranked_model(data, tmp_path, groups="4", calibrate=True)
    assert len(parts) == 1
    assert grouped.ranker is not None
    assert (grouped.W.data == model.W.data).all()
    assert (grouped.calibration, probability_source(grouped.manifest)) == (None, "ranker")
    asked = Predictor(grouped).encode(["a lynx, an owl and a red fox", ASKED])
    finder = CandidateFinder(grouped.require_linear(), grouped.ranker.labels)
    found = finder.candidates(asked, grouped.scorer().top_k(asked.X, 1))
    rows = np.repeat([0, 1], np.diff(found.indptr))
    scored = found.labels < grouped.search.n_labels
    assert scored.sum() > 2  # not only those that the search has retrieved
    for at in np.flatnonzero(scored):
        score = grouped.search.score(asked.X, int(found.labels[at]), int(rows[at]))
        assert found.features[at, SCORE] == score


def test_a_time_limit_can_leave_the_ranker_out(
    data: Dataset, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so, and the same run directory with more time completes the model."""
    run, outs = tmp_path / "run", (tmp_path / "without", tmp_path / "with")
    spec = TrainSpec(str(data.path), pool="serial", rank=True, max_seconds=900.0)
    with monkeypatch.context() as patched:
        patched.setattr(
            PartTraining, "until", lambda self, _: self._replace(stop=TimedStop(self.stop, 0.0))
        )
        result = train(spec, run_dir=run, out=outs[0])
    assert "time limit" in result.report["not_ranked"]
    assert Model.open(outs[0]).ranker is None
    assert find_finished(spec, outs[0]) is not None
    with pytest.raises(Conflict):
        find_finished(dataclasses.replace(spec, max_seconds=None), outs[0])
    assert train(spec, run_dir=run, out=outs[1]).sha256 == model.sha256


def test_what_a_ranker_cannot_do_is_refused(data: Dataset, model: Model, tmp_path: Path) -> None:
    """With the reason, before the training."""
    spec = TrainSpec(str(data.path), rank=True)
    with pytest.raises(ParameterError, match="stagewise makes a chain of stages"):
        dataclasses.replace(spec, solver="stagewise")
    (tmp_path / "rows.jsonl").write_text('{"text": "a cat", "labels": ["x"]}')
    bare = build("jsonl", {"train": tmp_path / "rows.jsonl"}, tmp_path / "data")
    with pytest.raises(InputError, match="xcray data labels") as caught:
        train(
            dataclasses.replace(spec, dataset=str(bare.path)),
            run_dir=tmp_path / "run",
            out=tmp_path / "out",
        )
    assert caught.value.code == "NO_LABEL_TEXTS"
    with pytest.raises(Conflict, match="ranker"):
        calibrate(model.path, data.path, tmp_path / "calibrated")


def test_trees_are_fitted_if_no_text_has_a_name() -> None:
    rng = np.random.default_rng(0)
    features = np.column_stack([rng.normal(size=400), np.full(400, np.nan)])
    trees, _ = fit_trees(features, features[:, 0] > 0, 0)
    assert set(trees.feature) == {-1, 0}
