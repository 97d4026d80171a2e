"""`xcray models approximate` and `predict --index`: the recall in the card, answers, refusals."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.index.approximate import ExactIndex
from xcray.model.model import Model
from xcray.predict import Predictor, approximate
from xcray.training import TrainSpec, train


@pytest.fixture(scope="module")
def model(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a trained model."""
    folder = tmp_path_factory.mktemp("model")
    spec = TrainSpec(str(tiny.path), pool="serial")
    return Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)


class HalfIndex:
    """An index that finds only labels with an even number."""

    def __init__(self, _: str, W: Any) -> None:
        self._exact = ExactIndex(W)

    def query(self, X: Any, k: int) -> Any:
        """Return the best k even labels; odd ones are missing at the end."""
        top = self._exact.query(X, self._exact._W.n_rows)
        rows = [np.flatnonzero(row % 2 == 0)[:k] for row in top.labels]
        return type(top)(
            np.array([top.labels[i, chosen] for i, chosen in enumerate(rows)]),
            np.array([top.scores[i, chosen] for i, chosen in enumerate(rows)]),
        )


def test_what_an_index_misses_is_measured_and_in_the_card(
    model: Model, tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "build_index", HalfIndex)
    copy, facts = approximate.record_index(model, tiny, tmp_path / "copy")
    assert tiny.test is not None
    exact = Predictor(model).predict(tiny.test.X, 5)
    even = exact.labels % 2 == 0
    assert facts["recall@1"] == pytest.approx(even[:, 0].mean(), abs=1e-4)
    assert facts["recall@5"] == pytest.approx(even.mean(), abs=1e-4)
    assert facts["margin_error"] > 0.0
    assert copy.sha256 == model.sha256
    card = (copy.path / "card.md").read_text()
    assert f"recall@1 {100 * facts['recall@1']:.2f}" in card
    assert "It is not\nthe default" in card
    predictor = Predictor(copy, index="sw-graph")
    found = predictor.search(tiny.test.X, 5)
    assert (found.labels % 2 == 0).all()
    assert not found.exact.any()
    for i in range(5):
        scores = predictor.scorer.scores(tiny.test.X, found.labels[i].tolist())[i]
        np.testing.assert_allclose(found.scores[i], scores, atol=1e-6)
    # the default stays exact
    np.testing.assert_array_equal(Predictor(copy).predict(tiny.test.X, 5).labels, exact.labels)


def test_rows_with_missing_labels_are_searched_exactly(
    model: Model, tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NothingFound(HalfIndex):
        def query(self, X: Any, k: int) -> Any:
            top = super().query(X, k)
            return top._replace(labels=np.full_like(top.labels, -1))

    monkeypatch.setattr(approximate, "build_index", NothingFound)
    copy, facts = approximate.record_index(model, tiny, tmp_path / "copy")
    assert facts["recall@1"] == facts["recall@5"] == 1.0
    assert tiny.test is not None
    assert Predictor(copy, index="sw-graph").search(tiny.test.X, 3).exact.all()


def test_an_index_whose_recall_is_not_known_is_refused(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ParameterError, match="models approximate"):
        Predictor(model, index="sw-graph")
    rows = tmp_path / "rows.txt"
    rows.write_text("0 1:1\n")
    assert main(["predict", str(model.path), "--file", str(rows), "--index", "sw-graph"]) != 0
    assert "models approximate" in capsys.readouterr().err
    with pytest.raises(ParameterError, match="one of sw-graph"):
        approximate.ApproximateScorer(model, "lsh")


def test_the_graph_answers_on_the_command_line(
    model: Model,
    tiny: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not importlib.util.find_spec("nmslib"):  # its wheels are for x86_64 only
        monkeypatch.setattr(approximate, "build_index", lambda name, W: ExactIndex(W))
    copy = tmp_path / "copy"
    assert main(["models", "approximate", str(model.path), str(tiny.path), "-o", str(copy)]) == 0
    facts = Model.open(copy).manifest["approximate_index"]
    assert facts["recall@1"] > 0.8
    capsys.readouterr()
    rows = tmp_path / "rows.txt"
    assert tiny.test is not None
    features, values = tiny.test.X.row(0)
    pairs = " ".join(f"{f + 1}:{x}" for f, x in zip(features, values, strict=True))
    rows.write_text(f"0 {pairs}\n")
    options = ["predict", str(copy), "--file", str(rows), "-k", "1", "--json"]
    assert main([*options, "--index", "sw-graph"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert len(found) == 1
    predictor = Predictor(Model.open(copy), index="sw-graph")
    with pytest.raises(ParameterError, match="no filters"):
        predictor.search(tiny.test.X, 1, allow=[1])
