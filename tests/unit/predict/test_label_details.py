"""Details of labels: strongest features, and cosines against dense arrays."""

from __future__ import annotations

import numpy as np
import pytest

from xcray.arrays import CSR, csr_from
from xcray.errors import NotFound, suggestion
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.predict import label_details as under_test
from xcray.predict.label_details import cosine_similarities, label_details, list_labels

NAMES = ["Bread", "bread rolls", "wine", "empty", "beer"]
FEATURES = ["flour", "oven", "grape", "hop"]
WEIGHTS = np.array(
    [[3, -4, 0, 0], [6, -8, 0, 0], [0, 1, 5, 0], [0, 0, 0, 0], [-3, 4, 0, 2]], np.float32
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model with known weights and without a class report."""
    return write_model(
        tmp_path_factory.mktemp("model") / "model",
        ModelContent(
            W=csr_from(WEIGHTS),
            b=np.arange(5, dtype=np.float32),
            label_names=NAMES,
            feature_names=FEATURES,
        ),
        TrainingRecord(solver="test", params={}, dataset_hash=""),
    )


def test_details_name_features_and_similar_labels(model: Model) -> None:
    result = label_details(model, "Bread", n_features=1, n_similar=3)
    assert result == {
        "number": 0,
        "label": "Bread",
        "positives": None,
        "gap": None,
        "weights": 2,
        "bias": 0.0,
        "features": [{"feature": "oven", "weight": -4.0}],
        "similar": [{"label": "bread rolls", "cosine": pytest.approx(1.0)}],
        "groups": [],
    }
    assert label_details(model, "empty")["similar"] == []


@pytest.mark.parametrize("block", [1, 3, 1 << 22])
def test_cosines_equal_those_of_dense_rows(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "BLOCK_WEIGHTS", block)
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(30, 12)) * (rng.random((30, 12)) < 0.2)
    W: CSR = csr_from(dense.astype(np.float32))
    lengths = np.linalg.norm(dense, axis=1)
    assert (lengths == 0).any()
    expected = dense @ dense.T / np.maximum(np.outer(lengths, lengths), 1e-30)
    for label in range(30):
        np.testing.assert_allclose(cosine_similarities(W, label), expected[label], atol=1e-6)


def test_lists_are_paged_and_searched(model: Model) -> None:
    assert [each.label for each in list_labels(model, 1, 2)] == ["bread rolls", "wine"]
    assert [each.number for each in list_labels(model, 0, None, "BREAD")] == [0, 1]
    assert [each.number for each in list_labels(model, 1, 1, "bread")] == [1]
    assert list_labels(model, 9, 2) == []


def test_unknown_names_get_a_similar_one(model: Model) -> None:
    with pytest.raises(NotFound, match="no label 'vine'; did you mean 'wine'"):
        label_details(model, "vine")
    with pytest.raises(NotFound, match="its labels have names like 'Bread'"):
        label_details(model, "xylophone")
    assert suggestion(" BEER", NAMES) == "; did you mean 'beer'?"
    assert suggestion("", NAMES) == ""
