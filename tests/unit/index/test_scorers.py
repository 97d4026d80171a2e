"""Scorers of one matrix and of chains of stages, against naive float64 formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from xcray.arrays import CSR, Float32, Float64, csr_from
from xcray.errors import InputError, NotFound, ParameterError, ShapeMismatch
from xcray.features.fourier import random_fourier
from xcray.index import staged
from xcray.index.filters import LabelFilter
from xcray.index.scorer import Scorer, SparseScorer
from xcray.index.search import SearchIndex
from xcray.index.search_result import best_positions
from xcray.index.simplex import project_on_simplex
from xcray.index.staged import Stage, StageCalibration, StagedScorer

N, D, K, OUTPUTS = 9, 6, 4, 5
RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> Float32:
    """Return random float32 numbers of this shape."""
    return RANDOM.normal(size=shape).astype(np.float32)


X = numbers(N, D) * (RANDOM.random((N, D)) < 0.7)
W, W_FOURIER, W_LAST = numbers(D, K), numbers(OUTPUTS, K), numbers(D, K)
FOURIER = random_fourier(D, OUTPUTS, 4.0, seed=1)
CALIBRATION = StageCalibration(numbers(3 * K, K), numbers(K))
OWN = StageCalibration(numbers(3, K) / 300, np.full(K, 0.5, np.float32), simplex=False)
STAGES = (
    Stage(csr_from(W * (np.abs(W) > 0.5)), numbers(K)),
    Stage(W_FOURIER, numbers(K), FOURIER, CALIBRATION),
    Stage(W_LAST, numbers(K), None, OWN),
)
LINEAR = (STAGES[0], STAGES[2]._replace(calibration=None))


def naive_projection(v: Float64) -> Float64:
    """Return the projection of v on the simplex: the best of all supports."""
    best, distance = v, np.inf
    for size in range(1, len(v) + 1):
        for support in itertools.combinations(range(len(v)), size):
            p = np.zeros(len(v))
            chosen = list(support)
            p[chosen] = v[chosen] + (1.0 - v[chosen].sum()) / size
            if (p >= 0).all() and np.square(p - v).sum() < distance:
                best, distance = p, np.square(p - v).sum()
    return best


def naive_scores(stages: tuple[Stage, ...]) -> Float64:
    """Return the scores (N, K) of X by the formula of the chain, all in float64."""
    yhat = np.zeros((N, K))
    for W_t, b, features, calibration in stages:
        Z = X if features is None else np.asarray(features.transform(X))
        dense = W_t.to_scipy().toarray() if isinstance(W_t, CSR) else W_t
        yhat = yhat + Z.astype(np.float64) @ dense.astype(np.float64) + b
        if calibration is not None:
            C, powers = calibration.C.astype(np.float64), [yhat, yhat**2, yhat**3]
            if calibration.simplex:
                yhat = np.hstack(powers) @ C + calibration.c
                yhat = np.array([naive_projection(row) for row in yhat])
            else:
                own = sum(power * row for power, row in zip(powers, C, strict=True))
                yhat = np.clip(own + calibration.c, 0.0, 1.0)
    return yhat


def scorer_of(name: str) -> tuple[Scorer, Float64]:
    """Return a scorer and its naive scores of X."""
    if name == "sparse":
        scorer = SparseScorer(SearchIndex.build(csr_from(W.T), STAGES[0].b))
        return scorer, naive_scores((Stage(W, STAGES[0].b),))
    stages = STAGES if name == "staged" else LINEAR
    return StagedScorer(stages, D), naive_scores(stages)


SCORERS = ("sparse", "staged", "linear stages")


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("dense", [True, False])
def test_scores_and_best_labels_are_those_of_the_formula(name: str, dense: bool) -> None:
    scorer, exact = scorer_of(name)
    rows = X if dense else csr_from(X)
    assert (scorer.n_inputs, scorer.n_labels) == (D, K)
    assert scorer.scores(rows, [2, 0]) == pytest.approx(exact[:, [2, 0]], abs=1e-5)
    result = scorer.top_k(rows, 3)
    best = np.argsort(-exact.round(5), axis=1, kind="stable")[:, :3]
    assert result.labels.tolist() == best.tolist()
    assert result.scores == pytest.approx(np.take_along_axis(exact, best, 1), abs=1e-5)
    assert result.exact.all()
    assert (result.bound_gap >= 0).all()


@pytest.mark.parametrize("name", SCORERS)
def test_a_filter_leaves_only_its_labels(name: str) -> None:
    scorer, exact = scorer_of(name)
    result = scorer.top_k(csr_from(X), 5, label_filter=LabelFilter.of(K, [3, 1]))
    order = np.argsort(-exact[:, [1, 3]].round(5), axis=1, kind="stable")
    assert result.labels.tolist() == np.array([1, 3])[order].tolist()


@pytest.mark.parametrize("name", SCORERS)
def test_invalid_requests_are_refused(name: str) -> None:
    scorer, _ = scorer_of(name)
    rows = csr_from(X)
    for k, deadline in ((0, None), (1, -1.0), (1, math.inf), (1, 1e300)):
        with pytest.raises(ParameterError):
            scorer.top_k(rows, k, deadline_ms=deadline)
    with pytest.raises(ShapeMismatch, match="filter is for 9 labels"):
        scorer.top_k(rows, label_filter=LabelFilter.of(9, [1]))
    with pytest.raises(ShapeMismatch):
        scorer.top_k(csr_from(X[:, 1:]))
    with pytest.raises(InputError, match="finite"):
        scorer.top_k(np.where(X == X.max(), np.float32(np.nan), X))
    with pytest.raises(NotFound):
        scorer.scores(rows, [K])


@pytest.mark.parametrize("name", SCORERS)
def test_the_rank_of_a_label_is_its_place_among_all(name: str) -> None:
    scorer, exact = scorer_of(name)
    for label in range(K):
        expected = 1 + int((exact[0] > exact[0, label] + 1e-9).sum())
        assert scorer.rank(X[:1], label) == expected
    with pytest.raises(ShapeMismatch, match="one row"):
        scorer.rank(X, 0)
    with pytest.raises(NotFound):
        scorer.rank(X[:1], K)


def test_scores_of_a_row_do_not_depend_on_its_batch() -> None:
    scorer = StagedScorer(STAGES, D)
    whole = scorer.top_k(X, K).scores
    single = np.vstack([scorer.top_k(X[i : i + 1], K).scores for i in range(N)])
    assert whole.tobytes() == single.tobytes()


def test_rows_not_finished_at_the_deadline_are_not_exact() -> None:
    result = StagedScorer(STAGES, D).top_k(X, 2, deadline_ms=0.0)
    assert not result.exact.any()
    assert result.labels.tolist() == [[0, 1]] * N
    assert (result.bound_gap == -np.inf).all()


@pytest.mark.parametrize("name", ["sparse", "linear stages"])
def test_contributions_add_up_to_the_score(name: str) -> None:
    scorer, exact = scorer_of(name)
    parts = scorer.contributions(csr_from(X[:1]), 1)
    assert parts.features.tolist() == np.flatnonzero(X[0]).tolist()
    assert parts.bias + parts.x @ parts.weights == pytest.approx(exact[0, 1], abs=1e-5)


def test_contributions_are_refused_with_the_reason() -> None:
    with pytest.raises(ParameterError, match="stage 1 has features of its own"):
        StagedScorer(STAGES, D).contributions(X[:1], 0)
    with pytest.raises(ParameterError, match="stage 0 has a calibration"):
        StagedScorer(STAGES[2:], D).contributions(X[:1], 0)
    with pytest.raises(ShapeMismatch, match="one row"):
        StagedScorer(LINEAR, D).contributions(X, 0)


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        (Stage(numbers(D + 1, K), numbers(K)), "W of stage 0"),
        (Stage(W, numbers(K), FOURIER), "W of stage 0"),
        (Stage(W, numbers(K), random_fourier(D + 1, D, 4.0, seed=1)), "7 inputs, the model 6"),
        (Stage(W, numbers(K), None, CALIBRATION._replace(C=numbers(K, K))), "C of stage 0"),
        (Stage(W, numbers(K), None, CALIBRATION._replace(c=numbers(1))), "c of stage 0"),
    ],
)
def test_stages_whose_shapes_do_not_fit_are_refused(stage: Stage, problem: str) -> None:
    with pytest.raises(ShapeMismatch, match=problem):
        StagedScorer([stage], D)
    with pytest.raises(ShapeMismatch, match="at least one stage"):
        StagedScorer([], D)


def test_projection_on_the_simplex_is_the_nearest_point() -> None:
    V = 2.0 * np.random.default_rng(3).normal(size=(50, 4))
    naive = np.array([naive_projection(v) for v in V])
    assert project_on_simplex(V) == pytest.approx(naive, abs=1e-12)


@pytest.mark.parametrize("k", [0, 1, 7, 500, 1000, 2000])
def test_best_positions_are_those_of_a_stable_sort(k: int) -> None:
    scores = RANDOM.integers(0, 40, 1000).astype(np.float64)  # with many ties
    assert best_positions(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()


def test_weights_kept_in_float64_give_the_scores_of_those_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubled = StagedScorer(STAGES, D)
    monkeypatch.setattr(staged, "MAX_DOUBLE_BYTES", 0)
    single = StagedScorer(STAGES, D)
    assert doubled.n_bytes > single.n_bytes
    for rows in (X, csr_from(X)):
        expected = single.scores(rows, range(K))
        assert doubled.scores(rows, range(K)) == pytest.approx(expected, rel=1e-13, abs=1e-13)
