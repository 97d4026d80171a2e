"""The search benchmark: order of times, and recall with ties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.search.cases import biases, learned, random_matrix, unit
from benchmarks.search.models import Subject
from benchmarks.search.plain_scan import PlainScan
from benchmarks.search.timing import (
    Engine,
    Times,
    interleaved,
    local,
    ratio,
    recall,
    summary,
)
from xcray.arrays import csr
from xcray.kernels.sparse import transpose


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Return a small model with 120 queries."""
    rng = np.random.default_rng(8)
    W, X = random_matrix(rng, 300, 80, 8, learned), unit(random_matrix(rng, 120, 80, 9))
    b = biases(rng, 300)
    model: Any = SimpleNamespace(
        W=W, b=b, postings=transpose(W), n_labels=300, n_features=80, nnz=W.nnz
    )
    return Subject("drawn", model, X)


def test_every_engine_gets_every_query_equally_often(subject: Subject) -> None:
    scan = PlainScan.build(subject.model.W, subject.model.b)
    calls: list[tuple[str, int, int]] = []

    def noting(name: str) -> Engine:
        engine = local(name, subject, lambda x, k: scan.query(x, k))

        def ask(first: int, last: int, k: int) -> Any:
            calls.append((name, first, last))
            return engine.ask(first, last, k)

        return Engine(name, ask)

    times = interleaved([noting("a"), noting("b")], 120, (5,), 2, 60.0)
    measured = [call for call in calls if call[1:] not in ((0, 2), (2, 5))]
    # Each engine is first in turn.
    assert "".join(call[0] for call in measured) == "abbabaababba"
    exact = scan.query(subject.X, 5)
    for name in "ab":
        assert not np.isnan(times[name, 5].ns).any()
        assert np.array_equal(times[name, 5].labels, exact.labels)
        assert recall(times[name, 5], subject, exact.scores[:, -1]) == 1.0
        assert summary(times[name, 5])["queries"] == 120


def test_ratio_is_the_median_over_common_queries() -> None:
    labels, nan = np.zeros((4, 1), np.int64), np.nan
    one = Times(np.array([[2.0, 9.0, 30.0, nan], [4.0, 6.0, 20.0, nan]]), labels)
    other = Times(np.array([[1.0, 3.0, 5.0, 1.0], [1.0, 2.0, 5.0, 1.0]]), labels)
    assert ratio(one, other) == 3.0  # the median of 2, 3, 4


def test_recall_accepts_any_of_tied_labels() -> None:
    W = csr([0, 1, 2, 3, 4], [0, 0, 0, 0], [3.0, 1.0, 1.0, 0.5], 1)
    model: Any = SimpleNamespace(W=W, b=np.zeros(4, np.float32), n_labels=4)
    tied = Subject("tied", model, csr([0, 1], [0], [1.0], 1))
    for labels, share in (
        ([0, 1], 1.0),
        ([0, 2], 1.0),
        ([0, 3], 0.5),
        ([0, 0], 0.5),
        ([-1, -1], 0.0),
    ):
        assert recall(Times(np.ones((1, 1)), np.array([labels])), tied, np.array([1.0])) == share
