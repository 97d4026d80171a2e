"""Models and a data set that version 0.1.0 wrote are read by this version: docs/compatibility.md.

Never write these files again (tests/data/README.md): a format that cannot read them needs a reader
of the old one.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.printed import ROOT
from xcray import Dataset, Model, Predictor

DATA = ROOT / "tests" / "data"
TEXTS = ["rows and columns of an object", "keys"]
# of each model: content hash, and two labels of each text with scores and probabilities
ANSWERS = {
    "model": (
        "db05ce7a986ceedf",
        [["csv", "json"], ["json", "html"]],
        [[1.301789226, 0.136980526], [0.980922341, -0.88941328]],
        [[0.990566038, 0.986780686], [0.990566038, 0.007352941]],
    ),
    "ranked": (
        "5bc598439a2391b5",
        [["csv", "json"], ["json", "html"]],
        [[5.206055638, 5.206055638], [5.206055638, -5.650230358]],
        [[0.994546643, 0.994546643], [0.994546643, 0.003504383]],
    ),
    "chain": (
        "b7e519dcf6e3947f",
        [["csv", "json"], ["json", "xml"]],
        [[2.466197655, 0.87305984], [2.49828529, 0.02314896]],
        [[0.80953104, 0.16456692], [0.87424240, 0.07356882]],
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_model_of_version_0_1_0_gives_the_answers_of_that_version(kind: str) -> None:
    model = Model.open(DATA / f"{kind}-0.1.0", verify=True)
    assert model.manifest["versions"]["xcray"] == "0.1.0"
    content, names, scores, probabilities = ANSWERS[kind]
    assert model.manifest["sha256"].startswith(content)
    predictor = Predictor(model)
    answer = predictor.search(TEXTS, k=2, probabilities=True)
    assert answer.exact.all()
    assert [[each.label for each in row] for row in predictor.scored_labels(answer)] == names
    # idf, lengths of rows and products of matrices come from libraries of the machine
    np.testing.assert_allclose(answer.scores, scores, rtol=1e-4)
    np.testing.assert_allclose(predictor.probabilities(answer), probabilities, rtol=1e-4)


def test_other_files_of_a_model_of_version_0_1_0_are_read() -> None:
    model = Model.open(DATA / "model-0.1.0")
    np.testing.assert_allclose(model.label_thresholds, 4 * [0.1402769], rtol=1e-6)
    assert model.duals is not None
    assert model.display_names is not None
    assert set(model.display_names.to_pylist()) > {"comma-separated values", "html"}
    explanation = Predictor(model).explain("keys of rows", "json")
    assert [each.feature for each in explanation.contributions] == ["keys", "rows"]


def test_a_data_set_of_version_0_1_0_is_read() -> None:
    data = Dataset.open(DATA / "data-0.1.0", verify=True)
    assert data.content_hash.startswith("191ce0b4aba34045")
    assert data.label_names.to_pylist() == ["csv", "json"]
    assert data.train.X.to_scipy().shape == (4, 4)
    assert data.train.Y.indices.tolist() == [0, 0, 1, 1]
