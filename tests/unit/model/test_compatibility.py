"""A model and a data set that version 0.1.0 wrote are read by this version: docs/compatibility.md.

Never write these files again: a format that cannot read them needs a reader of the old one.
"""

from __future__ import annotations

import numpy as np

from tests.support.printed import ROOT
from xcray import Dataset, Model, Predictor

DATA = ROOT / "tests" / "data"


def test_a_model_of_version_0_1_0_gives_the_answers_of_that_version() -> None:
    model = Model.open(DATA / "model-0.1.0", verify=True)
    assert model.manifest["versions"]["xcray"] == "0.1.0"
    assert model.manifest["sha256"].startswith("16bc8ffeaa7e41df")
    predictor = Predictor(model)
    answer = predictor.search(["rows and columns of an object", "keys", ""], k=2)
    assert answer.exact.all()
    names = [[each.label for each in row] for row in predictor.scored_labels(answer)]
    assert names == [["csv", "json"], ["json", "csv"], ["csv", "json"]]
    scores = [
        [0.6426464262698914, -0.6351467583069592],
        [1.2039353353902698, -1.198519293218851],
        [0.021782930940389633, 0.007804582826793194],
    ]
    # idf and lengths of rows come from the mathematical library of the machine
    np.testing.assert_allclose(answer.scores, scores, rtol=1e-6)
    probabilities = [[9 / 11, 2 / 11], [29 / 34, 9 / 65], [0.5, 0.5]]
    np.testing.assert_allclose(predictor.probabilities(answer), probabilities, rtol=1e-6)
    explanation = predictor.explain("keys of rows", "json")
    assert [each.feature for each in explanation.contributions] == ["keys", "rows"]


def test_a_data_set_of_version_0_1_0_is_read() -> None:
    data = Dataset.open(DATA / "data-0.1.0", verify=True)
    assert data.content_hash.startswith("191ce0b4aba34045")
    assert data.label_names.to_pylist() == ["csv", "json"]
    assert data.train.X.to_scipy().shape == (4, 4)
    assert data.train.Y.indices.tolist() == [0, 0, 1, 1]
