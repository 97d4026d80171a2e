"""The predictor: all input types, explanations, and parts that sum to the score."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.naive import search
from tests.support.flat_models import write_fields
from xcray.arrays import TopK, csr, csr_from, pattern_from
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import InputError, NotCalibrated, NotFound, ParameterError, ShapeMismatch
from xcray.model.calibration import Calibration
from xcray.model.linked_copy import with_calibration
from xcray.model.model import Model
from xcray.predict import Contribution, Predictor, ScoredLabel, to_arrow

REPORT: dict[str, Any] = {
    "rows": {"fitted": 1, "measured": 1, "left_out": 0},
    "bins": [],
    "places": [1, 2],
    "report": {},
}
TEXTS = [
    "read rows of a csv file",
    "write rows to a csv file",
    "parse a date and a time",
    "local time zone",
]


def model(path: Path, W: Any, b: Any, **more: Any) -> Model:
    """Return a model of these weights, with generated names if none are given."""
    W = csr_from(W)
    names = {
        "label_names": [f"label-{i}" for i in range(W.n_rows)],
        "feature_names": [f"feature-{j}" for j in range(W.n_cols)],
    }
    return write_fields(
        path,
        W=W,
        b=b,
        **{"solver": "ppdsparse", "params": {}, "dataset_hash": "d", **names, **more},
    )


@pytest.fixture
def random(tmp_path: Path, rng: np.random.Generator) -> Predictor:
    """Return a predictor over a random model of 50 labels and 30 features."""
    W = np.where(rng.random((50, 30)) < 0.3, rng.normal(size=(50, 30)), 0).astype(np.float32)
    return Predictor(model(tmp_path / "random", W, rng.normal(size=50)))


@pytest.fixture
def reader(tmp_path: Path) -> Predictor:
    """Return a predictor of texts: label `csv` likes csv and rows, `time` likes time and date."""
    text = TextPipeline.fit(TEXTS)
    weight = {"csv": (2, 0), "rows": (1, -0.5), "time": (-1, 2), "date": (0, 1.5)}
    W = np.array(
        [[weight.get(term, (0, 0))[label] for term in text.terms.to_pylist()] for label in (0, 1)],
        np.float32,
    )
    names = {"label_names": ["csv", "time"], "feature_names": text.terms}
    return Predictor(model(tmp_path / "text", W, [-0.25, -0.5], text=text, **names))


def test_rows_in_every_form_give_the_same_answer(
    random: Predictor, rng: np.random.Generator
) -> None:
    dense = np.where(rng.random((6, 30)) < 0.4, rng.normal(size=(6, 30)), 0).astype(np.float32)
    expected = search.top_k(csr_from(dense), random.model.W, random.model.b, 5)
    forms = [
        dense,
        dense.tolist(),
        dense.astype(np.float64),
        csr_from(dense),
        np.asfortranarray(dense),
    ]
    forms += [sp.csr_matrix(dense), sp.csc_matrix(dense), sp.coo_matrix(dense), sp.csr_array(dense)]
    for rows in forms:
        top = random.predict(rows)
        np.testing.assert_array_equal(top.labels, expected.labels)
        np.testing.assert_array_equal(top.scores, expected.scores)


def test_unsorted_and_repeated_indices_of_scipy_are_fixed_on_a_copy(random: Predictor) -> None:
    rows = sp.csr_matrix(
        (np.array([1, 2, 3], np.float32), np.array([7, 2, 7]), np.array([0, 3])), shape=(1, 30)
    )
    clean = sp.csr_matrix(
        (np.array([2, 4], np.float32), np.array([2, 7]), np.array([0, 2])), shape=(1, 30)
    )
    np.testing.assert_array_equal(random.predict(rows).scores, random.predict(clean).scores)
    assert rows.indices.tolist() == [7, 2, 7]


def test_a_query_has_few_python_layers(random: Predictor) -> None:
    """On a small model, most of the time of a query is that of its calls (163 before)."""
    row = sp.csr_matrix(np.ones((1, 30), np.float32))
    calls = list[str]()

    def note(frame: Any, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_qualname)

    for repeat in range(2):  # the first one loads kernels
        if repeat:
            sys.setprofile(note)
        try:
            random.scored_labels(random.predict(row, 2))
        finally:
            sys.setprofile(None)
    assert len(calls) <= 125


def test_k_is_clipped_to_the_labels(random: Predictor) -> None:
    assert random.predict(np.zeros((2, 30)), k=99).labels.shape == (2, 50)
    assert random.predict(np.zeros((0, 30)), k=3).labels.shape == (0, 3)
    assert random.predict([], k=3).labels.shape == (0, 3)


def test_texts_in_names_out(reader: Predictor) -> None:
    answers = reader.scored_labels(
        reader.predict(["csv rows", "what time is it", "of unknown words"], k=2)
    )
    assert [[scored.label for scored in row] for row in answers] == [
        ["csv", "time"],
        ["time", "csv"],
        ["csv", "time"],
    ]
    assert answers[2] == [ScoredLabel("csv", -0.25), ScoredLabel("time", -0.5)]
    assert reader.scored_labels(reader.predict("csv rows", k=2)) == answers[:1]
    assert reader.scored_labels(reader.predict(("csv rows",), k=2)) == answers[:1]
    column = np.array(["csv rows"], object)  # as of a data frame
    assert reader.scored_labels(reader.predict(column, k=2)) == answers[:1]


def test_a_saved_and_opened_model_reads_text_the_same(reader: Predictor) -> None:
    again = Predictor(str(reader.model.path))
    np.testing.assert_array_equal(again.predict(TEXTS).scores, reader.predict(TEXTS).scores)
    assert repr(again.model).endswith("text', labels=2, features=13)")


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        (["some text"], "NO_TEXT", "no text pipeline: use rows of 30 features"),
        ("some text", "NO_TEXT", "no text pipeline"),
        (np.zeros((1, 29)), "SHAPE_MISMATCH", "n_features=30"),
        (sp.csr_matrix((1, 31)), "SHAPE_MISMATCH", "n_features=30"),
        (csr([0, 1], [40], [1], 41), "SHAPE_MISMATCH", "n_features=30"),
        (csr([0, 1], [40], [1], 30), "SHAPE_MISMATCH", "outside"),
        (np.zeros(30), "SHAPE_MISMATCH", "reshape"),
        (np.full((1, 30), np.nan), "NOT_FINITE", "not finite"),
        ([["a"] * 30], "ROWS", "can't be read"),
        (["a", 1], "ROWS", "row 1 is 1: give a text for each row"),
        ([[1.0], [1.0, 2.0]], "ROWS", "can't be read"),
        (None, "SHAPE_MISMATCH", "2 dimensions"),
    ],
)
def test_unreadable_rows_name_the_fix(random: Predictor, rows: Any, code: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        random.predict(rows)
    assert caught.value.code == code


def test_options_out_of_range(random: Predictor) -> None:
    for wrong in (
        lambda: random.predict(np.zeros((1, 30)), k=0),
        lambda: Predictor(random.model, threads=0),
    ):
        with pytest.raises(ParameterError, match="at least 1"):
            wrong()
    with pytest.raises(ParameterError, match="top"):
        random.explain(np.zeros((1, 30)), 0, top=-1)
    with pytest.raises(NotFound, match="labels 0 to 49"):
        random.explain(np.zeros((1, 30)), 50)
    with pytest.raises(NotFound, match="no label 'sys'"):
        random.explain(np.zeros((1, 30)), "sys")
    with pytest.raises(ShapeMismatch, match="one row, got 2"):
        random.explain(np.zeros((2, 30)), 0)


def test_an_explanation_by_hand(tmp_path: Path) -> None:
    W = [[1, -3, 0, 0.5], [0, 0, 2, 0], [0, 0, 0, 8]]
    predictor = Predictor(model(tmp_path / "m", np.array(W, np.float32), [0.25, 0, 0]))
    why = predictor.explain([[2, 1, 0, 1]], "label-0", top=2, k=2)
    assert (why.label, why.name, why.score, why.bias) == (0, "label-0", -0.25, 0.25)
    assert why.contributions == (
        Contribution("feature-1", 1, -3, -3),
        Contribution("feature-0", 2, 1, 2),
    )
    assert (why.rest, why.n_rest) == (0.5, 1)
    assert (why.rank, why.gap_to_top, why.gap_to_kth, why.k) == (
        3,
        8.25,
        0.25,
        2,
    )  # scores: -0.25, 0, 8
    assert json.loads(json.dumps(why.as_dict()))["contributions"][0]["feature"] == "feature-1"


def test_explanations_sum_to_the_scores_of_the_search(
    random: Predictor, rng: np.random.Generator
) -> None:
    rows = np.where(rng.random((5, 30)) < 0.5, rng.normal(size=(5, 30)), 0).astype(np.float32)
    full = random.predict(rows, k=50)
    for i in range(5):
        for place, label in enumerate(full.labels[i].tolist(), 1):
            for top in (0, 3, 100):
                why = random.explain(rows[i : i + 1], label, top=top)
                total = math.fsum(
                    [why.bias, why.rest, *(part.contribution for part in why.contributions)]
                )
                assert why.score == full.scores[i, place - 1]
                assert total == pytest.approx(why.score, rel=0, abs=1e-12)
                assert why.rank == place
                assert why.gap_to_top == full.scores[i, 0] - why.score
                assert why.gap_to_kth == full.scores[i, 4] - why.score
                assert len(why.contributions) == min(top, len(why.contributions) + why.n_rest)
            sizes = [abs(part.contribution) for part in why.contributions]
            assert sizes == sorted(sizes, reverse=True)
            assert all(part.contribution == part.x * part.weight for part in why.contributions)


def test_the_words_behind_an_answer(reader: Predictor) -> None:
    why = reader.explain("read csv rows at a time", "csv")
    assert why.contributions[0].feature == "csv"
    assert {part.feature for part in why.contributions} == {"csv", "rows", "time"}
    assert (why.rank, why.gap_to_top) == (1, 0)
    assert reader.explain(["read csv rows"], "time").gap_to_top > 0


def test_evaluate_measures_the_best_labels(random: Predictor, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(20, 30)).astype(np.float32)
    top: TopK = random.predict(rows, 5)
    truth = np.zeros((20, 50), np.float32)
    truth[np.arange(20), top.labels[:, 0]] = 1
    truth[:10, :] = 0
    truth[np.arange(10), top.labels[:10, 2]] = 1  # label at rank 3 is true for ten rows
    measures = random.evaluate(rows, pattern_from(truth), ks=(1, 3))
    assert measures["P@1"] == 0.5
    assert measures["P@3"] == pytest.approx(1 / 3)
    with pytest.raises(ShapeMismatch, match="rows x labels"):
        random.evaluate(rows[:5], pattern_from(truth))


def test_answers_as_arrow(random: Predictor, rng: np.random.Generator) -> None:
    rows = np.where(rng.random((6, 30)) < 0.4, rng.normal(size=(6, 30)), 0).astype(np.float32)
    answer = random.search(rows, 4)
    table, named = random.table(answer), random.scored_labels(answer.top)
    assert table.column_names == [
        "labels",
        "scores",
        "exact",
        "bound_gap",
        "labels_scored",
        "postings_read",
    ]
    assert table.column("labels").to_pylist() == [[one.label for one in row] for row in named]
    assert table.column("scores").to_pylist() == answer.scores.tolist()
    assert table.column("exact").to_pylist() == [True] * 6
    assert table.column("labels_scored").to_pylist() == answer.labels_scored.tolist()
    probabilities = rng.random((6, 4))
    numbered = to_arrow(
        answer._replace(bound_gap=np.array([0.5, np.inf, -1, np.nan, 0, 2])), None, probabilities
    )
    assert numbered.column("labels").to_pylist() == answer.labels.tolist()
    assert numbered.column("probabilities").to_pylist() == probabilities.tolist()
    assert numbered.column("bound_gap").to_pylist() == [0.5, None, -1, None, 0, 2]
    with pytest.raises(ShapeMismatch, match="probabilities"):
        to_arrow(answer, None, probabilities[:, :3])
    nothing = random.table(random.search(np.zeros((0, 30)), 4))
    assert (nothing.num_rows, nothing.schema) == (0, table.schema)


def test_probabilities_of_a_calibrated_model(
    random: Predictor, rng: np.random.Generator, tmp_path: Path
) -> None:
    parts = [
        np.array(values)
        for values in (
            [1, 2],
            [0, 2, 4, 6],
            [-1.0, 1, -1, 1, -1, 1],
            [0.1, 0.9, 0.5, 0.6, 0.2, 0.3],
        )
    ]
    curves = Calibration(np.zeros(50, np.int32), *parts)
    calibrated = Predictor(
        with_calibration(
            random.model, tmp_path / "calibrated", curves, {"measures": {"ECE@1": 0.5}, **REPORT}
        )
    )
    rows = rng.normal(size=(9, 30)).astype(np.float32)
    answer = calibrated.search(rows, 3)
    np.testing.assert_array_equal(answer.scores, random.search(rows, 3).scores)
    probabilities = calibrated.probabilities(answer)
    clipped = np.clip(answer.scores, -1, 1)
    np.testing.assert_allclose(probabilities[:, 0], 0.55 + 0.05 * clipped[:, 0])
    np.testing.assert_allclose(probabilities[:, 1:], 0.25 + 0.05 * clipped[:, 1:])
    np.testing.assert_allclose(
        calibrated.probabilities(answer.top, filtered=True), 0.5 + 0.4 * clipped
    )
    assert [
        [one.probability for one in row] for row in calibrated.scored_labels(answer, probabilities)
    ] == probabilities.tolist()
    assert {one.probability for row in calibrated.scored_labels(answer) for one in row} == {None}
    assert calibrated.table(answer).column("probabilities").to_pylist() == probabilities.tolist()
    assert (
        calibrated.table(answer, filtered=True).column("probabilities").to_pylist()
        == (0.5 + 0.4 * clipped).tolist()
    )
    with pytest.raises(NotCalibrated, match="xcray calibrate"):
        random.probabilities(answer)
    thresholds = {"min_score": 0.2, "min_probability": 0.5}
    kept = (answer.scores >= 0.2) & (probabilities >= 0.5)
    assert 0 < kept.sum() < kept.size
    listed = calibrated.scored_labels(answer, probabilities, **thresholds)
    assert [[one.score for one in row] for row in listed] == [
        scores[keep].tolist() for scores, keep in zip(answer.scores, kept, strict=True)
    ]
    table = calibrated.table(answer, **thresholds)
    assert table.column("labels").to_pylist() == [[one.label for one in row] for row in listed]
    assert table.column("probabilities").to_pylist() == [
        [one.probability for one in row] for row in listed
    ]
    with pytest.raises(ParameterError, match=r"give those of predictor\.probabilities"):
        calibrated.scored_labels(answer, min_probability=0.5)
    with pytest.raises(NotCalibrated, match="xcray calibrate"):
        random.table(answer, min_probability=0.5)
