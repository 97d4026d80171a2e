"""The cost model against batch least squares, and the order of the backlog."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from xcray.schedule.backlog import MAX_BATCH_LABELS, Backlog
from xcray.schedule.cost_model import (
    FULL_WEIGHT_SECONDS,
    MEMORY_BATCHES,
    MIN_RATE_SHARE,
    PRIOR_SECONDS,
    RIDGE,
    UNSEEN_RIDGE,
    CostModel,
    Speed,
)


def batches(rates, n=300, seed=0, noise=0.2):
    """Return the terms of batches of very different sizes, and the seconds they took."""
    rng = np.random.default_rng(seed)
    terms = 10.0 ** rng.uniform(-1, 1, (n, len(rates))) / np.asarray(rates)
    return terms, terms @ rates * np.exp(noise * rng.normal(size=n))


def test_the_rates_are_those_of_least_squares_with_weights_and_a_ridge():
    """The recursion equals scipy's nnls on all batches at once, with the documented weights."""
    guess, truth = [3e-8, 1e-8, 5e-9], np.array([1e-8, 4e-8, 1e-9])
    terms, seconds = batches(truth)
    model, rows, goals = CostModel(guess), [], []
    z, took, guessed = terms * guess, PRIOR_SECONDS, PRIOR_SECONDS
    for i in range(len(terms)):
        foreseen = model.price(terms[i])
        share = min(1.0, FULL_WEIGHT_SECONDS / foreseen)
        clipped = np.clip(seconds[i], foreseen / 8.0, foreseen * 8.0)
        model.update(terms[i], seconds[i])
        keep = 1.0 - 1.0 / MEMORY_BATCHES
        rows, goals = (
            [math.sqrt(keep) * row for row in rows],
            [math.sqrt(keep) * goal for goal in goals],
        )
        rows.append(z[i] * math.sqrt(share / foreseen))
        goals.append(clipped * math.sqrt(share / foreseen))
        guessed, took = keep * guessed + share * z[i].sum(), keep * took + share * clipped
    diagonal = np.sum(np.square(rows), axis=0)
    ridge = np.sqrt(RIDGE * (diagonal + UNSEEN_RIDGE * diagonal.mean()))
    scale = took / guessed
    A, b = np.vstack([*rows, np.diag(ridge)]), np.concatenate([goals, ridge * scale])
    # A shift turns the bound theta >= floor into the bound 0 of nnls.
    floor = MIN_RATE_SHARE * scale
    expected = nnls(A, b - A @ np.full(3, floor))[0] + floor
    np.testing.assert_allclose(np.array(model.rates) / guess, expected, rtol=1e-6)
    np.testing.assert_allclose(model.rates, truth, rtol=0.3)


def test_a_common_factor_of_the_guess_is_corrected_after_a_few_batches():
    model = CostModel([1.0, 1.0])
    for _ in range(3):
        model.update([1.0, 1.0], 0.5)
    assert model.price([1.0, 1.0]) == pytest.approx(0.5, rel=0.1)


def test_the_latest_batches_count_most():
    model = CostModel([1.0])
    for seconds in (1.0, 4.0):
        for _ in range(600):
            model.update([1.0], seconds)
    assert model.rates[0] == pytest.approx(4.0, rel=0.05)


def test_terms_that_never_differ_keep_the_proportions_of_the_guess():
    model = CostModel([1.0, 3.0])
    for _ in range(100):
        model.update([1.0, 1.0], 8.0)
    assert model.rates[1] / model.rates[0] == pytest.approx(3.0, rel=0.3)
    assert model.price([1.0, 1.0]) == pytest.approx(8.0, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(0, 1e15), min_size=3, max_size=3),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=40,
    )
)
def test_rates_stay_positive_and_finite_whatever_is_learned(samples):
    model = CostModel([1e-9, 1e-8, 1e-3])
    for terms, seconds in samples:
        model.update(terms, seconds)
        assert all(0.0 < rate < math.inf for rate in model.rates)


def test_the_speed_of_a_worker_is_learned_and_follows_it():
    pace = Speed()
    for _ in range(30):
        pace.update(0.25, 1.0)
    assert pace.factor == pytest.approx(0.25, rel=0.05)
    for _ in range(60):
        pace.update(0.25, 0.25)
    assert pace.factor == pytest.approx(1.0, rel=0.05)
    pace.update(40.0, 10.0)  # one expensive label counts as one batch
    assert pace.factor < 1.4


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32), st.floats(0.0, 5.0))
def test_a_backlog_gives_everything_once_in_order_within_the_limit(n, seed, limit):
    rng = np.random.default_rng(seed)
    terms, rates = rng.random((n, 2)) * (rng.random((n, 2)) < 0.8), [1.0, 0.5]
    prices = terms @ rates
    backlog, front, back = Backlog(range(n), terms, rates), [], []
    assert backlog.remaining_terms == pytest.approx(tuple(terms.sum(axis=0)))
    while backlog:
        from_back = bool(rng.random() < 0.3)
        if rng.random() < 0.1:
            backlog.sort(rates)
        batch = backlog.take(rates, limit, from_back=from_back)
        own = batch.labels.tolist()
        assert batch.total == pytest.approx(tuple(terms[own].sum(axis=0)))
        assert len(own) == 1 or prices[own].sum() <= limit + 1e-9
        if from_back:
            back = own + back
        else:
            front += own
    order = front + back
    assert sorted(order) == list(range(n))
    assert (np.diff(prices[order]) <= 1e-12).all()


def test_a_batch_takes_as_many_labels_as_fit_up_to_a_cap():
    backlog = Backlog(range(10_000), np.full(10_000, 1e-6), [1.0])
    assert len(backlog.take([1.0], 1e-4 + 1e-9).labels) == 100
    assert len(backlog.take([1.0], 1e-3 + 1e-9).labels) == 1000
    assert len(backlog.take([1.0], 9.0).labels) == MAX_BATCH_LABELS


def test_drift_is_the_part_of_the_cost_that_moved_between_terms():
    backlog = Backlog([0, 1], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0])
    assert backlog.order_drift([5.0, 5.0]) == 0.0
    assert backlog.order_drift([3.0, 1.0]) == pytest.approx(0.25)
    assert (
        Backlog([0, 1], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], values=[1, 2]).order_drift([3.0, 1.0])
        == 0.0
    )
