"""Synthetic data: deterministic, independent of chunks, with the promised shape, learnable."""

from __future__ import annotations

import numpy as np
import pytest

from xcray.data import synthetic
from xcray.data.synthetic import SyntheticParams, generate, generate_chunks
from xcray.errors import ParameterError

SMALL = SyntheticParams(rows=5000, features=700, labels=90, nnz_per_row=12, seed=3)


def stacked(params, size):
    """Return the arrays of all chunks, concatenated, with lengths instead of indptr."""
    parts = list(generate_chunks(params, size))
    return [np.concatenate([column(x, y) for x, y in parts]) for column in COLUMNS]


COLUMNS = (
    lambda x, y: np.diff(x.indptr),
    lambda x, y: x.indices,
    lambda x, y: x.data,
    lambda x, y: np.diff(y.indptr),
    lambda x, y: y.indices,
)


@pytest.mark.parametrize("size", [617, 4096, 4999])
def test_rows_do_not_depend_on_the_chunk_size(size):
    for one, other in zip(stacked(SMALL, 5000), stacked(SMALL, size), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_do_not_depend_on_how_many_follow():
    X, Y = generate(SMALL)
    few_X, few_Y = generate(
        SyntheticParams(rows=100, features=700, labels=90, nnz_per_row=12, seed=3)
    )
    np.testing.assert_array_equal(few_X.data, X.data[: few_X.nnz])
    np.testing.assert_array_equal(few_Y.indices, Y.indices[: few_Y.nnz])


def test_seed_makes_other_rows():
    X, _ = generate(SMALL)
    other, _ = generate(SyntheticParams(rows=5000, features=700, labels=90, nnz_per_row=12, seed=4))
    assert X.nnz != other.nnz or (X.indices != other.indices).any()


def test_canonical_unit_rows():
    X, Y = generate(SMALL)
    assert X.shape == (5000, 700)
    assert Y.shape == (5000, 90)
    np.testing.assert_allclose(np.sqrt(X.to_scipy().power(2).sum(axis=1)), 1.0, rtol=1e-5)
    for matrix in (X, Y):
        row_of = np.repeat(np.arange(matrix.n_rows), np.diff(matrix.indptr))
        same_row = row_of[1:] == row_of[:-1]
        assert (np.diff(matrix.indices)[same_row] > 0).all()
        assert np.diff(matrix.indptr).min() >= 1


def test_frequencies_follow_their_power_laws():
    X, Y = generate(
        SyntheticParams(
            rows=40_000, features=2000, labels=500, signal=0.0, label_noise=0.0, labels_per_row=1
        )
    )
    labels = np.bincount(Y.indices, minlength=500)
    expected = np.arange(1, 501) ** -1.0
    np.testing.assert_allclose(
        labels[:20] / labels.sum(), (expected / expected.sum())[:20], rtol=0.15
    )
    features = np.bincount(X.indices, minlength=2000)
    assert features[0] > features[10] > features[100] > features[1000]


def test_a_linear_model_learns_it_and_noise_costs():
    from sklearn.linear_model import RidgeClassifier

    def score(noise):
        params = SyntheticParams(
            rows=3000,
            features=500,
            labels=8,
            labels_per_row=1,
            label_exponent=0.3,
            label_noise=noise,
        )
        X, Y = generate(params)
        S = X.to_scipy()
        y = Y.indices  # one draw per row, so one label per row
        return RidgeClassifier().fit(S[:2000], y[:2000]).score(S[2000:], y[2000:])

    clean, noisy = score(0.0), score(0.5)
    assert clean > 0.9
    assert noisy < clean - 0.2


def test_no_rows():
    X, Y = generate(SyntheticParams(rows=0, features=7, labels=3))
    assert (X.shape, Y.shape) == ((0, 7), (0, 3))


@pytest.mark.parametrize(
    "bad",
    [
        {"rows": -1},
        {"labels": 0},
        {"signal": 1.5},
        {"label_noise": -0.1},
        {"rows": 2.5},
        {"rows": True},
        {"nnz_per_row": float("nan")},
    ],
)
def test_values_out_of_range(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        SyntheticParams(**bad)


def test_chunks_of_nothing():
    with pytest.raises(ParameterError, match="rows_per_chunk"):
        next(generate_chunks(SMALL, 0))
    assert synthetic.BLOCK_ROWS == 4096  # part of the definition of the data
