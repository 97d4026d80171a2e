"""Exact scores of single labels whose rows are short, long, and on features of any number."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tests.naive import search as naive
from xcray.arrays import CSR, csr_from
from xcray.index.search import SearchIndex

N_FEATURES = 3 * 65536 + 7


def _matrix(n_rows: int, per_row: int, seed: int) -> CSR:
    """Return rows whose features are close together, with the same low 16 bits, and elsewhere."""
    rng = np.random.default_rng(seed)
    near = [s * 65536 + step for s in range(1, 4) for step in range(-40, 7)]
    rows = np.repeat(np.arange(n_rows), per_row)
    columns = np.where(
        rng.random(len(rows)) < 0.5,
        rng.choice(near, len(rows)),
        rng.integers(0, N_FEATURES, len(rows)),
    )
    # the same low 16 bits
    columns = np.where(rng.random(len(rows)) < 0.2, (columns % 3) * 65536 + 5, columns)
    values = rng.normal(size=len(rows)).astype(np.float32)
    return csr_from(sp.csr_matrix((values, (rows, columns)), shape=(n_rows, N_FEATURES)))


@pytest.mark.parametrize("per_row", [3, 200, 900])
def test_scores_are_those_of_the_naive_search_to_the_bit(per_row: int) -> None:
    """Compare one label at a time, and searches."""
    W, X = _matrix(300, per_row, 0), _matrix(8, 150, 1)
    b = np.random.default_rng(2).normal(size=300).astype(np.float32)
    search, scores = SearchIndex.build(W, b), naive.all_scores(X, W, b)
    for label in range(0, 300, 7):
        assert search.score(X, label, 3) == scores[3, label]
    found, expected = search.query(X, 10), naive.best(scores, 10)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.scores, expected.scores)
