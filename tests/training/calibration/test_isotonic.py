"""Calibration curves and their measures, compared with naive code and simulations; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import calibration as naive
from xcray.errors import Corrupt, InputError, ParameterError, ShapeMismatch
from xcray.model.calibration import CALIBRATION, Calibration
from xcray.storage.arrow import write_table
from xcray.training.calibration import isotonic, measures
from xcray.training.calibration.isotonic import (
    MIN_ANSWERS,
    RankedLabels,
    fit_curves,
    fit_curves_of,
    frequency_bins,
)

FEW = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda n: n / 4), st.booleans()), min_size=1, max_size=40
)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def simulated(
    rng: np.random.Generator,
    rows: int,
    *,
    by_bin: float = 0.0,
    by_place: float = 0.0,
    k: int = 10,
    labels: int = 200,
) -> tuple[RankedLabels, Any, Any]:
    """Simulate answers whose true probabilities are known.

    P(correct) = sigmoid(2 score - 1 + by_bin [frequent label] + by_place [first rank]). Labels from
    100 on are frequent (1000 training rows instead of 10). Returns answers, label counts, and the
    true probabilities.
    """
    scores = -np.sort(-rng.normal(size=(rows, k)), axis=1)
    chosen = rng.integers(0, labels, size=(rows, k)).astype(np.int32)
    truth = sigmoid(2 * scores - 1 + by_bin * (chosen >= 100) + by_place * (np.arange(k) == 0))
    counts = np.where(np.arange(labels) >= 100, 1000, 10)
    return RankedLabels(chosen, scores, rng.random((rows, k)) < truth), counts, truth


def calibration(**changes: Any) -> Calibration:
    """Return a calibration of six curves: two bins, separate curves for ranks 1 and 2."""
    values: dict[str, Any] = {
        "bins": np.array([0, 1, 1, 0], np.int32),
        "places": np.array([1, 2]),
        "starts": np.array([0, 2, 3, 5, 8, 9, 11]),
        "scores": np.array([-1.0, 1, 0, -2, 2, -1, 0, 3, 0, -1, 1]),
        "probabilities": np.array([0.1, 0.3, 0.5, 0.2, 0.9, 0.1, 0.4, 0.8, 0.7, 0.0, 1.0]),
    }
    return Calibration(**{**values, **changes})


# Measures.


@given(pairs=FEW, n_bins=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_ece_is_the_naive_one_in_any_order(pairs: list[tuple[float, bool]], n_bins: int) -> None:
    predicted, right = sigmoid([score for score, _ in pairs]), np.array([r for _, r in pairs])
    result = measures.ece(predicted, right, n_bins)
    assert result == pytest.approx(naive.ece(predicted.tolist(), right.tolist(), n_bins), abs=1e-12)
    order = np.random.default_rng(len(pairs)).permutation(len(predicted))
    assert measures.ece(predicted[order], right[order], n_bins) == pytest.approx(result, abs=1e-12)
    groups = measures.reliability(predicted, right, n_bins)
    assert groups.counts.sum() == len(predicted)
    assert (np.diff(groups.predicted) > 0).all()


def test_ece_by_hand() -> None:
    predicted, right = [[0.1, 0.1], [0.7, 0.9]], [[False, True], [True, True]]
    assert measures.ece(predicted, right, 2) == pytest.approx((abs(0.2 - 1) + abs(1.6 - 2)) / 4)
    assert measures.ece(predicted, right, 1) == pytest.approx(abs(1.8 - 3) / 4)
    assert measures.brier(predicted, right) == pytest.approx((0.01 + 0.81 + 0.09 + 0.01) / 4)
    assert measures.ece([], [], 15) == measures.brier([], []) == measures.ece_floor([]) == 0


def test_the_floor_is_the_ece_of_a_perfect_forecast(rng: np.random.Generator) -> None:
    predicted = rng.beta(0.5, 2, size=(2000, 3))
    shown = np.mean(
        [measures.ece(predicted, rng.random(predicted.shape) < predicted) for _ in range(60)]
    )
    assert measures.ece_floor(predicted) == pytest.approx(shown, rel=0.06)


@pytest.mark.parametrize(
    "wrong", [([0.5, 1.2], [True, True]), ([0.5, np.nan], [True, True]), ([-0.1], [False])]
)
def test_invalid_probabilities_are_refused(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ParameterError, match="0 to 1"):
        measures.ece(*wrong)
    with pytest.raises(ParameterError, match="at least 1"):
        measures.reliability([0.5], [True], 0)
    for measure in (measures.ece, measures.brier):
        with pytest.raises(ShapeMismatch, match="answers"):
            measure([0.5, 0.5], [True])


# One curve.


@given(pairs=FEW)
@settings(max_examples=60, deadline=None)
def test_a_curve_is_isotonic_regression_with_two_extra_points(
    pairs: list[tuple[float, bool]],
) -> None:
    scores, right = np.array([s for s, _ in pairs]), np.array([r for _, r in pairs])
    xs, ys = isotonic._fit_curve(scores, right)
    expected = naive.isotonic([*scores, scores.max(), scores.min()], [*right, 0, 1])
    for score, value in expected.items():
        assert np.interp(score, xs, ys) == pytest.approx(float(value), abs=1e-9)
    assert (np.diff(xs) > 0).all()
    assert (np.diff(ys) >= 0).all()
    assert 0 < ys[0] <= ys[-1] < 1  # never 0 or 1


def test_a_curve_without_data_is_one_half() -> None:
    xs, ys = isotonic._fit_curve(np.empty(0), np.empty(0, bool))
    assert (xs.tolist(), ys.tolist()) == ([0], [0.5])


# Frequency bins: labels that share a curve.


def test_bins_hold_equally_many_right_answers(rng: np.random.Generator) -> None:
    counts = rng.integers(1, 500, size=300)
    labels = rng.integers(0, 300, size=(2000, 5)).astype(np.int32)
    answers = RankedLabels(labels, np.zeros(labels.shape), rng.random(labels.shape) < 0.4)
    bins = frequency_bins(answers, counts, 4)
    right = np.bincount(bins[labels[answers.correct]])
    assert len(right) == 4
    assert right.min() > 0.9 * right.max()
    order = np.argsort(counts)
    assert (np.diff(bins[order]) >= 0).all()  # rarer labels are in lower bins
    assert all(len(set(bins[counts == count])) == 1 for count in counts)  # equal counts, one bin


def test_thin_bins_are_merged(rng: np.random.Generator) -> None:
    answers, counts, _ = simulated(rng, 60)
    for n_bins in (2, 8):
        bins = frequency_bins(answers, counts, n_bins, (1, 2))
        for begin, end in ((0, 1), (1, None)):
            part = answers.at_places(begin + 1, end)
            for b in range(int(bins.max()) + 1):
                own = part.correct[bins[part.labels] == b]
                assert int(bins.max()) == 0 or min(own.sum(), (~own).sum()) >= MIN_ANSWERS
    # 60 first ranks are too few for two curves with 50 correct answers each.
    assert frequency_bins(answers, counts, 8, (1, 2)).max() == 0


# Selection of bins and ranks.


def test_effects_that_are_not_in_the_data_are_not_fitted(rng: np.random.Generator) -> None:
    answers, counts, truth = simulated(rng, 4000)
    result = fit_curves(answers, counts)
    assert (result.n_bins, len(result.places)) == (1, 0)
    assert np.abs(result.estimate(answers.labels, answers.scores) - truth).mean() < 0.02


def test_frequency_and_place_are_found(rng: np.random.Generator) -> None:
    answers, counts, truth = simulated(rng, 6000, by_bin=1.5, by_place=-1.5)
    result = fit_curves(answers, counts)
    assert result.n_bins >= 2
    assert result.places[:2].tolist() == [1, 2]
    fresh, _, true = simulated(rng, 4000, by_bin=1.5, by_place=-1.5)
    predicted = result.estimate(fresh.labels, fresh.scores)
    assert np.abs(predicted - true).mean() < 0.03
    assert measures.ece(predicted[:, :1], fresh.correct[:, :1]) < 2.5 * measures.ece_floor(
        predicted[:, :1]
    )
    plain = fit_curves_of(answers, np.zeros_like(result.bins), ())
    assert (
        measures.brier(predicted, fresh.correct)
        < measures.brier(plain.estimate(fresh.labels, fresh.scores), fresh.correct) - 0.005
    )
    assert np.abs(truth - result.estimate(answers.labels, answers.scores)).mean() < 0.03


def test_the_choice_of_curves_is_deterministic(rng: np.random.Generator) -> None:
    answers, counts, _ = simulated(rng, 800, by_bin=1.0)
    assert fit_curves(answers, counts, 3).sha256 == fit_curves(answers, counts, 3).sha256


def test_too_few_right_answers(rng: np.random.Generator) -> None:
    answers, counts, _ = simulated(rng, 300)
    right = np.zeros_like(answers.correct)
    right[: MIN_ANSWERS - 1, 0] = True
    with pytest.raises(
        InputError,
        match=f"{MIN_ANSWERS - 1} correct answers to fit on, calibration needs {MIN_ANSWERS}",
    ) as caught:
        fit_curves(answers._replace(correct=right), counts)
    assert caught.value.code == "TOO_FEW_ANSWERS"
    right[MIN_ANSWERS - 1, 0] = True
    assert fit_curves(answers._replace(correct=right), counts).find_problem(len(counts)) is None


# Evaluation of curves.


def test_estimate_uses_the_curve_of_bin_and_rank(rng: np.random.Generator) -> None:
    result = calibration()
    assert (result.find_problem(4), result.n_bins) == (None, 2)
    labels = rng.integers(0, 4, size=(50, 3))
    scores = rng.normal(scale=2, size=(50, 3))
    for filtered in (False, True):
        predicted = result.estimate(labels, scores, filtered=filtered)
        for i, j in np.ndindex(labels.shape):
            group = 0 if filtered else 1 if j == 0 else 2
            lo, hi = result.starts[2 * group + result.bins[labels[i, j]] :][:2]
            expected = naive.read(
                result.scores[lo:hi].tolist(), result.probabilities[lo:hi].tolist(), scores[i, j]
            )
            assert predicted[i, j] == pytest.approx(expected, abs=1e-12)
    assert result.estimate(np.zeros((0, 5), int), np.zeros((0, 5))).shape == (0, 5)
    with pytest.raises(ShapeMismatch, match="rows x ranks"):
        result.estimate(labels[0], scores[0])


def test_a_probability_does_not_depend_on_k(
    rng: np.random.Generator,
) -> None:
    answers, counts, _ = simulated(rng, 500, by_place=1.0)
    result = fit_curves(answers, counts)
    whole = result.estimate(answers.labels, answers.scores)
    for k in (1, 3):
        np.testing.assert_array_equal(
            result.estimate(answers.labels[:, :k], answers.scores[:, :k]), whole[:, :k]
        )


def test_a_higher_score_is_never_less_likely(rng: np.random.Generator) -> None:
    answers, counts, _ = simulated(rng, 1000, by_bin=1.0, by_place=1.0)
    result, scores = fit_curves(answers, counts), np.linspace(-5, 5, 400)[:, None]
    for label in (0, 150):
        for place in (0, 1, 5):
            rows = np.full((400, place + 1), label)
            predicted = result.estimate(rows, np.repeat(scores, place + 1, axis=1))[:, place]
            assert (np.diff(predicted) >= 0).all()


# The file.


def test_there_and_back(tmp_path: Any) -> None:
    calibration().save(tmp_path / CALIBRATION)
    result = Calibration.load(tmp_path / CALIBRATION, 4)
    assert result.sha256 == calibration().sha256
    assert result.sha256 != calibration(probabilities=np.linspace(0, 0, 11)).sha256
    for name, values in calibration()._asdict().items():
        np.testing.assert_array_equal(getattr(result, name), values)
    assert not result.scores.flags.writeable


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bins": np.array([0, 1, 2, 0], np.int32)}, "bins"),
        ({"bins": np.array([0, -1, 1, 0], np.int32)}, "bins"),
        ({"bins": np.array([0, 1, 1], np.int32)}, "3 labels, not for 4"),
        ({"places": np.array([2, 3])}, "ranks"),
        ({"places": np.array([1, 1])}, "ranks"),
        ({"starts": np.array([0, 2, 2, 5, 8, 9, 11])}, "lacks knots for a curve"),
        ({"starts": np.array([0, 2, 3, 5, 8, 9])}, "lacks knots for a curve"),
        ({"starts": np.array([0, 2, 3, 5, 8, 9, 12])}, "one score and one probability per knot"),
        ({"scores": np.array([1.0, 1, 0, -2, 2, -1, 0, 3, 0, -1, 1])}, "ascend"),
        ({"scores": np.array([-1.0, np.inf, 0, -2, 2, -1, 0, 3, 0, -1, 1])}, "ascend"),
        ({"scores": np.array([-1.0, 1, np.nan, -2, 2, -1, 0, 3, 0, -1, 1])}, "ascend"),
        (
            {"probabilities": np.array([0.3, 0.1, 0.5, 0.2, 0.9, 0.1, 0.4, 0.8, 0.7, 0.0, 1.0])},
            "fall",
        ),
        (
            {"probabilities": np.array([0.1, 0.3, 0.5, 0.2, 0.9, 0.1, 0.4, 0.8, 0.7, 0.0, 1.5])},
            "0 to 1",
        ),
        (
            {"probabilities": np.array([0.1, 0.3, np.nan, 0.2, 0.9, 0.1, 0.4, 0.8, 0.7, 0.0, 1.0])},
            "0 to 1",
        ),
    ],
)
def test_invalid_curves_are_detected_on_reading(
    tmp_path: Any, changes: dict[str, Any], says: str
) -> None:
    calibration(**changes).save(tmp_path / CALIBRATION)
    with pytest.raises(Corrupt, match=says):
        Calibration.load(tmp_path / CALIBRATION, 4)


def test_a_table_with_other_columns_is_refused(tmp_path: Any) -> None:
    write_table(tmp_path / CALIBRATION, pa.table({"bins": [[1]]}))
    with pytest.raises(Corrupt, match="five lists"):
        Calibration.load(tmp_path / CALIBRATION, 1)
