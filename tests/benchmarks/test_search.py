"""The search benchmark: order of times, recall with ties, sizes in bytes, and failing peers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.search import instructions as search_instructions
from benchmarks.search import peers as search_peers
from benchmarks.search import profile as search_profile
from benchmarks.search.cases import biases, learned, random_matrix, unit
from benchmarks.search.equality import searcher
from benchmarks.search.models import Subject, arrays_of, csr_bytes, index_bytes, repeated, row, some
from benchmarks.search.timing import (
    Engine,
    Times,
    bandwidth,
    batches,
    interleaved,
    local,
    ratio,
    recall,
    summary,
)
from xcray.arrays import CSR, csr
from xcray.index.inverted import InvertedIndex


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Return a small model with 120 queries."""
    rng = np.random.default_rng(8)
    W, X = random_matrix(rng, 300, 80, 8, learned), unit(random_matrix(rng, 120, 80, 9))
    index = InvertedIndex.build(W, biases(rng, 300))
    b = biases(np.random.default_rng(1), 300)
    model: Any = SimpleNamespace(
        W=W, b=b, postings=index.postings, n_labels=300, n_features=80, nnz=W.nnz
    )
    return Subject("drawn", model, X)


def test_every_engine_gets_every_query_equally_often(subject: Subject) -> None:
    scan = InvertedIndex.build(subject.model.W, subject.model.b)
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
    assert [call[0] for call in measured] == [
        "a",
        "b",
        "b",
        "a",
        "b",
        "a",
        "a",
        "b",
        "a",
        "b",
        "b",
        "a",
    ]
    exact = scan.query(subject.X, 5)
    for name in "ab":
        assert not np.isnan(times[name, 5].ns).any()
        assert np.array_equal(times[name, 5].labels, exact.labels)
        assert recall(times[name, 5], subject, exact.scores[:, -1]) == 1.0
        assert summary(times[name, 5])["queries"] == 120


def test_a_slow_engine_gets_a_part_of_each_block() -> None:
    def ask(first: int, last: int, k: int) -> Any:
        return [10**9] * (last - first), [[0] * k] * (last - first)

    times = interleaved([Engine("slow", ask)], 100, (1,), 2, 40.0)["slow", 1]
    assert np.flatnonzero(~np.isnan(times.ns[0])).tolist() == [*range(10), *range(50, 60)]
    assert summary(times) == {
        "p50": 1000.0,
        "p99": 1000.0,
        "mean": 1000.0,
        "least_p50": 1000.0,
        "least_p99": 1000.0,
        "least_mean": 1000.0,
        "queries": 20,
    }


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


def test_batches_report_rates_and_their_ratio() -> None:
    report = batches(
        Engine("even", lambda *_: ([], []), lambda rows, k, threads: rows / 100.0 / threads),
        50,
        5,
        3,
    )
    assert (report["per_second_1"], report["per_second_2"], report["speedup"]) == (
        100.0,
        200.0,
        2.0,
    )


def test_bandwidth_is_plausible() -> None:
    assert 1e8 < bandwidth(4, 2) < 1e13


def test_rows_are_drawn_repeated_and_cut_out(subject: Subject) -> None:
    X = csr([0, 1, 1, 3], [0, 1, 2], [1.0, 2.0, 3.0], 3)
    assert sorted(np.diff(some(X, 5).indptr).tolist()) == [1, 2]
    assert repeated(X, 5).to_scipy().toarray().tolist() == [
        [1, 0, 0],
        [0, 0, 0],
        [0, 2, 3],
        [1, 0, 0],
        [0, 0, 0],
    ]
    assert row(X, 2).to_scipy().toarray().tolist() == [[0, 2, 3]]


def test_bytes_of_an_index_count_shared_memory_once(subject: Subject) -> None:
    W, b = subject.model.W, subject.model.b
    one = InvertedIndex.build(W, b)
    expected = sum(part.nbytes for matrix in (W, one.postings) for part in matrix[:3]) + 2 * 4 * 300
    assert index_bytes(one) == expected
    assert index_bytes((one, [one, W])) == expected
    assert index_bytes(searcher(W, b)) >= W.nnz * 4
    assert len(list(arrays_of(CSR(*W), set()))) == 3
    assert csr_bytes(subject.model) == 8 * W.nnz + 8 * 301


def test_an_unusable_peer_reports_the_reason(subject: Subject, tmp_path: Path) -> None:
    W, b, numbers = search_peers.part_of(subject, 10)
    assert numbers.tolist() == [0, 33, 66, 99, 132, 166, 199, 232, 265, 299]
    assert (W.n_rows, len(b)) == (10, 10)
    search_peers.write(subject, W, b, tmp_path)
    with pytest.raises(search_peers.Unusable, match="nobody"):
        search_peers.Peer("nobody", Path(sys.executable), tmp_path, 60.0)
    with search_peers.running(subject, ["pecos"], {"pecos": "no wheel"}, Path(), tmp_path, 1.0) as (
        engines,
        why,
        built,
    ):
        assert (engines, why, built) == ([], {"pecos": "no wheel"}, {})


def test_large_models_are_loaded_by_one_peer_at_a_time() -> None:
    model: Any = SimpleNamespace(nnz=10**9)
    assert search_peers.groups(Subject("large", model, csr([0], [], [], 1)), ["a", "b"]) == [
        ["a"],
        ["b"],
    ]
    model.nnz = 10
    assert search_peers.groups(Subject("small", model, csr([0], [], [], 1)), ["a", "b"]) == [
        ["a", "b"]
    ]


def test_counts_of_valgrind_are_added_up() -> None:
    lines = [
        "desc: x",
        "events: Ir Dr",
        "fl=a",
        "fn=???",
        "3 10 4",
        "4 5 1",
        "fn=main",
        "7 100 9",
        "fn=???",
        "0 1 0",
        "summary: 116 14",
    ]
    assert search_instructions.sums(lines) == {"Ir": 116.0, "Dr": 14.0, "kernels": 16.0}


def test_samples_are_placed_on_lines_and_functions(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("import x\n\n\ndef outer(a):\n    b = a\n    return b\n")
    assert search_profile.place_of(f"{source}:5") == ("outer", "5: b = a")
    assert search_profile.place_of(f"{source}:1 (discriminator 2)") == ("kernel", "1: import x")
    assert search_profile.place_of("??:0") == ("calls, without a line",)
    assert search_profile.place_of(f"{source}:?") == ("calls, without a line",)
