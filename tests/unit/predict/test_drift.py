"""Drift: recent answers against those to the held-out rows of the training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.live_service import TEXTS, text_model
from xcray.arrays import TopK, frozen
from xcray.model.model import Model
from xcray.predict.drift import (
    MAX_CHARS,
    WINDOW_ROWS,
    DriftCounter,
    drift_counter,
    reference_of,
    stability_index,
)


def top_of(scores: np.ndarray, labels: np.ndarray | None = None) -> TopK:
    """Return one answer per row."""
    chosen = np.zeros(len(scores)) if labels is None else labels
    return TopK(frozen(chosen[:, None], np.int32), frozen(scores[:, None], np.float64))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return text_model(tmp_path_factory.mktemp("drift") / "m")


def counter_of(model: Model, scores: np.ndarray, texts: tuple[str, ...] = TEXTS) -> DriftCounter:
    """Return a counter with these scores as the held-out ones."""
    assert model.text is not None
    X = model.text.transform(texts)
    reference = reference_of(top_of(scores), X, np.ones(4), model.text, texts)
    return DriftCounter(model, reference)


def test_the_index_is_that_of_the_formula() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    expected = 0.3 * math.log(2.5) + 0.0 - 0.3 * math.log(0.4)
    assert stability_index(p, q) == pytest.approx(expected)
    assert stability_index(p, p) == 0.0
    assert math.isfinite(stability_index([1.0, 0.0], [0.0, 1.0]))


def test_figures_are_those_of_recent_rows(model: Model) -> None:
    rng = np.random.default_rng(0)
    counter = counter_of(model, rng.normal(size=5000))
    assert counter.drift() is None
    for _ in range(WINDOW_ROWS):
        counter.add([TEXTS[0]], top_of(rng.normal(size=1)), [False])
    counter.add(["rows " * MAX_CHARS], top_of(np.zeros(1)), [False])
    assert max(map(len, counter._texts)) == MAX_CHARS
    first = counter.drift()
    assert first is not None
    assert first.indices["score"] < 0.05
    assert (first.empty, first.unknown) == ((0.0, 0.0), (0.0, 0.0))
    # two further windows of other scores, of empty rows and of unknown words
    for _ in range(2):
        texts = ["zebra rows"] * WINDOW_ROWS
        scores = rng.normal(size=WINDOW_ROWS) + 1.0
        counter.add(texts, top_of(scores), [True, False] * (WINDOW_ROWS // 2))
        counter._texts.extend(texts)
    second = counter.drift()
    assert second is not None
    assert second.indices["score"] > 0.5
    assert (second.empty, second.unknown) == ((0.5, 0.0), (0.5, 0.0))
    assert min(second.indices["empty"], second.indices["unknown"]) > 0.25


def test_labels_are_compared_by_their_training_rows(model: Model) -> None:
    """A table of labels without training rows, or none, gives no figure."""
    counter = counter_of(model, np.zeros(10))
    counter.add([TEXTS[0]], top_of(np.zeros(WINDOW_ROWS)), [False] * WINDOW_ROWS)
    figures = counter.drift()
    assert figures is not None
    assert "label" not in figures.indices
    assert drift_counter(model) is None
