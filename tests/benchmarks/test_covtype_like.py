"""The generated set of the benchmark of indexed block coordinate descent."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from sklearn.svm import LinearSVC

from benchmarks.indexed_bcd.covtype_like import AREAS, NUMERIC, SOILS, generate


def test_classes_overlap_and_rows_have_the_features_of_covtype() -> None:
    train, test = generate(30_000)
    dense = train.X.to_scipy().toarray()
    assert dense.shape == (20_000, 54)
    assert len(test.y) == 10_000
    assert dense.min() >= 0.0
    assert dense.max() <= 1.0
    ends = np.cumsum([NUMERIC, AREAS, SOILS])
    for first, last in pairwise(ends):
        assert (dense[:, first:last].sum(1) == 1.0).all()
    assert 0.47 < (train.y > 0).mean() < 0.51
    model = LinearSVC(C=0.1, dual=False).fit(train.X.to_scipy(), train.y)
    errors = [(model.predict(each.X.to_scipy()) != each.y).mean() for each in (train, test)]
    assert all(0.22 < error < 0.26 for error in errors)
    again, _ = generate(30_000)
    assert again.X.data.tobytes() == train.X.data.tobytes()
    assert again.y.tobytes() == train.y.tobytes()
