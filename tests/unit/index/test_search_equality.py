"""The search against brute force on adversarial models: labels, score bits, certificate."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.cases import (
    FAMILIES,
    TINY,
    Case,
    biases,
    learned,
    random_matrix,
    spread_out,
    trained,
    unit,
)
from benchmarks.search.equality import (
    SearchArguments,
    bits,
    check,
    differences,
    dishonest,
    many,
    same,
    searcher,
)
from benchmarks.search.plain_scan import PlainScan
from tests.naive import search as naive
from xcray.arrays import CSR, TopK, csr, csr_from
from xcray.errors import InputError, ParameterError, ShapeMismatch
from xcray.index import search, weight_scan
from xcray.index.filters import LabelFilter
from xcray.index.search import SearchIndex
from xcray.index.search_result import SearchResult
from xcray.index.weight_scan import Scan, scan_postings, scan_weights
from xcray.kernels.entry_points import has_usual_arrays
from xcray.kernels.search.choose_scan import SHORT_POSTINGS
from xcray.kernels.search.validate_lists import first_invalid

VALUES = st.sampled_from(
    [
        0.5,
        -0.5,
        1.0,
        -1.0,
        0.1,
        0.7071067,
        1.4142135,
        3e38,
        -3e38,
        1e30,
        TINY,
        -TINY,
        1e-40,
        0.0,
        -0.0,
    ]
)
BIASES = st.sampled_from([0.0, -0.0, 1.0, -1.0, -1.0, 0.25, TINY, -3e38, 1e30])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Case, SearchArguments]:
    """Draw small queries, weights and biases, k, a filter or none, a deadline or none."""
    n, n_features, n_labels = (
        draw(st.integers(0, 4)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 12)),
    )

    def matrix(rows: int) -> CSR:
        cells = [sorted(draw(st.sets(st.integers(0, n_features - 1)))) for _ in range(rows)]
        flat = [column for row in cells for column in row]
        values = draw(st.lists(VALUES, min_size=len(flat), max_size=len(flat)))
        return csr(np.cumsum([0, *(len(row) for row in cells)]), flat, values, n_features)

    b = np.array(draw(st.lists(BIASES, min_size=n_labels, max_size=n_labels)), np.float32)
    allowed = draw(st.none() | st.sets(st.integers(0, n_labels - 1), min_size=1).map(sorted))
    request = SearchArguments(
        draw(st.integers(1, 14)),
        allowed,
        draw(st.integers(1, 2)),
        draw(st.sampled_from([None, None, 0.0, 1.0])),
    )
    return Case(matrix(n_labels), b, matrix(n)), request


@settings(max_examples=250, deadline=None, derandomize=True)
@given(problems())
def test_small_searches_are_brute_force_to_the_bit(problem: tuple[Case, SearchArguments]) -> None:
    case, request = problem
    answer = request.of(searcher(case.W, case.b), case.X, case.W.n_rows)
    judge = differences if request.deadline_ms is None else dishonest
    assert judge(answer, naive.all_scores(case.X, case.W, case.b), request) == []


@pytest.mark.parametrize("scan", [scan_weights, scan_postings], ids=["few rows", "many rows"])
@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems())
def test_numpy_without_kernels_gives_brute_force_to_the_bit(
    scan: Scan, problem: tuple[Case, SearchArguments]
) -> None:
    (case, request), K = problem, problem[0].W.n_rows
    among = None if request.allowed is None else LabelFilter.of(K, request.allowed)
    with (
        mock.patch.object(search, "is_compiled", return_value=False),
        mock.patch.object(search, "COMPILE_SECONDS", math.inf),
        mock.patch.object(search, "choose_scan", return_value=(scan, 0.0)),
    ):
        answer = searcher(case.W, case.b).query(case.X, request.k, label_filter=among)
    scores = naive.all_scores(case.X, case.W, case.b)
    assert differences(answer, scores, request._replace(deadline_ms=None)) == []


def cold_index(monkeypatch: pytest.MonkeyPatch, used: list[str]) -> tuple[Case, SearchIndex]:
    """Return a case and an index without compiled kernels that notes which search answers."""
    rng = np.random.default_rng(3)
    W = random_matrix(rng, 400, 500, 25, learned)
    case = Case(W, biases(rng, 400), random_matrix(rng, 50, 500, 9))
    index = searcher(case.W, case.b)
    monkeypatch.setattr(SearchIndex, "is_compiled", False)
    monkeypatch.setattr(SearchIndex, "_numpy_seconds", 0.0)

    def noted(owner: object, name: str, note: str) -> None:
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: (used.append(note), function(*args)))

    noted(weight_scan, "scan_weights", "NumPy")
    noted(index, "_search_all", "kernels")
    return case, index


def test_kernels_are_compiled_when_numpy_has_taken_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str]()
    case, index = cold_index(monkeypatch, used)
    seconds = case.X.n_rows * case.W.nnz / search.MAX_SCAN_WEIGHTS
    monkeypatch.setattr(search, "COMPILE_SECONDS", 2.5 * seconds)
    answers = [index.query(case.X, 5) for _ in range(3)]
    assert used == ["NumPy", "NumPy", "kernels"]
    for answer in answers:
        assert np.array_equal(answer.labels, answers[-1].labels)
        assert answer.scores.tobytes() == answers[-1].scores.tobytes()
    index._is_compiling = True  # in another thread: there is nothing to gain from waiting
    index.query(case.X, 5)
    index.query(case.X, 5, deadline_ms=1e6)  # NumPy cannot stop at a deadline
    monkeypatch.setattr(search, "MAX_SCAN_WEIGHTS", case.W.nnz - 1)  # it would take much memory
    index.query(case.X, 5)
    monkeypatch.undo()
    assert used[3:] == ["NumPy", "kernels", "kernels"]


def test_an_index_compiles_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str]()
    _, index = cold_index(monkeypatch, used)
    assert index.answers_while_compiling
    index.compile()
    # without a deadline a row is short, with one it is not
    assert (used, index._is_compiling) == (["kernels", "kernels"], False)
    monkeypatch.setattr(SearchIndex, "is_compiled", True)
    assert not index.answers_while_compiling


def test_rows_with_arrays_of_other_types_have_the_same_bits() -> None:
    """A query without dispatch needs the usual types; others are dispatched."""
    rng = np.random.default_rng(5)
    case = Case(
        random_matrix(rng, 400, 500, 25, learned),
        biases(rng, 400),
        random_matrix(rng, 50, 500, 9),
    )
    index = searcher(case.W, case.b)
    first, second = index.query(case.X, 5), index.query(case.X, 5)
    assert index._short_kernel is not None
    assert index._short_kernel.entry_point is not None
    padded = np.zeros(4 * len(case.X.data) + 1, np.uint8)
    padded[1:] = case.X.data.view(np.uint8)
    unaligned = padded[1:].view(np.float32)
    unaligned.flags.writeable = False  # as `case.X`: no kernels are compiled for other types
    assert not unaligned.flags.aligned
    assert not has_usual_arrays(case.X._replace(data=unaligned))
    third = index.query(case.X._replace(data=unaligned), 5)
    for other in (second, third):
        assert np.array_equal(first.labels, other.labels)
        assert first.scores.tobytes() == other.scores.tobytes()


def test_short_and_long_rows_of_one_batch() -> None:
    """Rows with few postings are searched by a kernel of their own, until one has many."""
    rng = np.random.default_rng(6)
    W = random_matrix(rng, 300, 120, 100, learned)
    rows = [random_matrix(rng, 1, 120, n) for n in (3, 0, 110, 5)]
    X = csr_from(sp.vstack([row.to_scipy() for row in rows]))
    index = SearchIndex.build(W, biases(rng, 300), dense=False)
    assert index.query(rows[0], 5).postings_read[0] < SHORT_POSTINGS
    assert index.query(rows[2], 5).postings_read[0] > SHORT_POSTINGS
    request = SearchArguments(k=5)
    answer = request.of(index, X, 300)
    assert differences(answer, naive.all_scores(X, W, index.b), request) == []


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problems(), st.integers(0, 2**32 - 1))
def test_small_searches_among_many_labels_are_brute_force_to_the_bit(
    problem: tuple[Case, SearchArguments], seed: int
) -> None:
    (small, request), rng = problem, np.random.default_rng(seed)
    case = spread_out(small, rng)
    some = None if request.allowed is None else np.flatnonzero(rng.random(case.W.n_rows) < 0.5)
    request = request._replace(allowed=some)
    answer = request.of(searcher(case.W, case.b), case.X, case.W.n_rows)
    judge = differences if request.deadline_ms is None else dishonest
    assert judge(answer, naive.all_scores(case.X, case.W, case.b), request) == []


# `python -m benchmarks.search --equality` runs all families on tens of thousands of labels; these
# are searches that end in different ways.
SPREAD = {
    f"{name}_spread_out" for name in ("cancelling", "nearly_tied", "denormal", "dense", "hot")
}


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if "spread" not in name or name in SPREAD]
)
def test_each_family_of_hard_cases_is_searched_exactly(name: str) -> None:
    compared, wrong = check(FAMILIES[name](np.random.default_rng(0)), np.random.default_rng(0))
    assert compared >= 40
    assert wrong == []


def test_many_counts_what_it_compared() -> None:
    result = many(200, seed=3, families=("ties", "dense"))
    assert result["queries"] == sum(result["families"].values()) >= 200
    assert result["mismatches"] == 0
    assert result["wrong"] == []


@pytest.fixture(scope="module")
def model() -> Case:
    """Return a model on which pruning skips many labels."""
    return trained(np.random.default_rng(17))


@pytest.fixture(scope="module")
def scores(model: Case) -> Any:
    """Return every score of every row of `model`, by brute force."""
    return naive.all_scores(model.X, model.W, model.b)


@pytest.mark.parametrize("k", [1, 5, 33, 64, 100, 101])
def test_every_k_gives_the_head_of_the_whole_ranking(model: Case, scores: Any, k: int) -> None:
    assert (
        differences(searcher(model.W, model.b).query(model.X, k), scores, SearchArguments(k)) == []
    )


@pytest.mark.parametrize("k", [1, 5])
def test_lists_of_narrow_models_with_short_rows_are_cut(k: int) -> None:
    """A few rows are scored exactly, and most postings stay unread; some features are dense."""
    rng = np.random.default_rng(11)
    W = random_matrix(rng, 40_000, 500, 12, learned, skew=1.5)
    X = unit(random_matrix(rng, 40, 500, 6, skew=1.5))
    index = searcher(W, biases(rng, 40_000))
    assert (index.lists.width, index.dense) == (2, None)
    answer = index.query(X, k)
    lengths = np.bincount(W.indices, minlength=500)
    postings = np.add.reduceat(lengths[X.indices], X.indptr[:-1])
    assert np.median(answer.postings_read / postings) < 0.4
    assert differences(answer, naive.all_scores(X, W, index.b), SearchArguments(k)) == []


def test_a_list_of_clipped_weights_has_room_in_its_block() -> None:
    """127 clipped weights need more bytes than 128, the most that this model can have."""
    n_labels, most = 8_192, 64
    rng = np.random.default_rng(5)
    W = rng.random((n_labels, 4), np.float32) + np.float32(0.1)
    W[: most - 1, 0] = 2 + rng.random(most - 1, np.float32)
    W[most - 1 : -most, 0] = 1
    W[-most:, 0] = -2 - rng.random(most, np.float32)
    W[0, 1:] = 0  # the other features are shorter
    X = csr_from(rng.random((5, 4), np.float32))
    index = searcher(csr_from(W), biases(rng, n_labels))
    assert first_invalid(index.lists) == -1
    scores = naive.all_scores(X, csr_from(W), index.b)
    assert differences(index.query(X, 5), scores, SearchArguments(5)) == []


@pytest.mark.parametrize("k", [1, 100])
def test_batches_threads_and_single_rows_agree(model: Case, k: int) -> None:
    index = searcher(model.W, model.b)
    rows = [csr_from(model.X.to_scipy()[i]) for i in range(model.X.n_rows)]
    alone = [index.query(row, k) for row in rows]
    for threads in (1, 3):
        whole = index.query(model.X, k, threads=threads)
        for i, one in enumerate(alone):
            assert same(one.top, TopK(whole.labels[i : i + 1], whole.scores[i : i + 1]))
            assert whole.exact[i]
            assert one.exact[0]


def test_a_batch_of_many_calls_of_a_kernel_is_its_rows_in_order(model: Case) -> None:
    index, order = (
        searcher(model.W, model.b),
        np.random.default_rng(0).integers(0, model.X.n_rows, 1_100),
    )
    whole = index.query(model.X, 5)
    for threads in (1, 2, 4):
        answer = index.query(csr_from(model.X.to_scipy()[order]), 5, threads=threads)
        assert same(answer.top, TopK(whole.labels[order], whole.scores[order]))
        assert np.array_equal(bits(answer.bound_gap), bits(whole.bound_gap[order]))


def test_callers_at_the_same_time_do_not_disturb_each_other(model: Case) -> None:
    index = searcher(model.W, model.b)
    deny = LabelFilter.of(model.W.n_rows, deny=index.query(model.X, 3).labels.ravel())
    kinds: list[dict[str, Any]] = [
        {"k": 1},
        {"k": 5},
        {"k": 100},
        {"k": 5, "label_filter": deny},
        {"k": 7, "threads": 2},
    ]
    expected = [index.query(model.X, **kind).top for kind in kinds]
    with ThreadPoolExecutor(4) as pool:
        calls = [
            (at % len(kinds), pool.submit(index.query, model.X, **kinds[at % len(kinds)]))
            for at in range(40)
        ]
        assert all(same(call.result().top, expected[kind]) for kind, call in calls)


def test_a_view_of_rows_is_searched_as_itself(model: Case) -> None:
    index, X = searcher(model.W, model.b), model.X
    whole = index.query(X, 5)
    part = index.query(CSR(X.indptr[11:31], X.indices, X.data, X.n_cols), 5)
    assert same(part.top, TopK(whole.labels[11:30], whole.scores[11:30]))


def test_rows_after_hard_rows_are_searched_as_if_alone() -> None:
    """Working memory of one query must not affect the next: dense, empty, huge and tiny rows."""
    rng = np.random.default_rng(23)
    W = random_matrix(rng, 3_000, 200, 12, learned, skew=1.0)
    b = biases(rng, 3_000)
    kinds = [
        np.ones((1, 200)),
        np.zeros((1, 200)),
        np.full((1, 200), 1e30),
        -np.ones((1, 200)),
        unit(random_matrix(rng, 1, 200, 12)).to_scipy().toarray(),
    ]
    X = csr_from(np.concatenate([kinds[at] for at in rng.integers(0, 5, 80)]).astype(np.float32))
    scores, index = naive.all_scores(X, W, b), searcher(W, b)
    for k in (5, 100, 1):
        assert differences(index.query(X, k), scores, SearchArguments(k)) == []


@pytest.mark.parametrize("deadline_ms", [0.0, 0.02, 0.2, 1e6])
@pytest.mark.parametrize("k", [1, 100])
def test_a_deadline_leaves_scores_exact_and_the_gap_valid(
    model: Case, scores: Any, k: int, deadline_ms: float
) -> None:
    """A search stopped at any time returns k labels, their exact scores, and a valid gap."""
    request = SearchArguments(k, None, 1, deadline_ms)
    answer = request.of(searcher(model.W, model.b), model.X, model.W.n_rows)
    assert answer.labels.shape == (model.X.n_rows, k)
    assert (differences if deadline_ms == 1e6 else dishonest)(answer, scores, request) == []


def test_a_deadline_keeps_to_the_filter(model: Case, scores: Any) -> None:
    best = np.unique(naive.best(scores, 3).labels)
    for allowed in (best, np.setdiff1d(np.arange(model.W.n_rows), best), best[:2]):
        request = SearchArguments(5, allowed, 1, 0.0)
        assert (
            dishonest(
                request.of(searcher(model.W, model.b), model.X, model.W.n_rows), scores, request
            )
            == []
        )


@pytest.mark.parametrize("share", [0.0005, 0.3, 0.999])
def test_filters_of_any_size_leave_the_order_of_the_rest(
    model: Case, scores: Any, share: float
) -> None:
    n_labels = model.W.n_rows
    allowed = np.flatnonzero(np.random.default_rng(5).random(n_labels) < share)
    index = searcher(model.W, model.b)
    for k in (1, 5, 100):
        assert (
            differences(
                SearchArguments(k, allowed).of(index, model.X, n_labels),
                scores,
                SearchArguments(k, allowed),
            )
            == []
        )
        denied = index.query(
            model.X,
            k,
            label_filter=LabelFilter.of(n_labels, deny=np.setdiff1d(np.arange(n_labels), allowed)),
        )
        assert same(denied.top, naive.best(scores, k, allowed))


def test_no_rows_give_an_empty_answer(model: Case) -> None:
    answer = searcher(model.W, model.b).query(csr([0], [], [], model.X.n_cols), 5, threads=2)
    assert answer.labels.shape == answer.scores.shape == (0, 5)
    assert (
        answer.exact.shape
        == answer.labels_scored.shape
        == answer.postings_read.shape
        == answer.bound_gap.shape
        == (0,)
    )


def test_answers_have_their_types_and_are_read_only(model: Case) -> None:
    answer = searcher(model.W, model.b).query(model.X, 5)
    assert [part.dtype for part in answer] == [
        np.int32,
        np.float64,
        np.bool_,
        np.int64,
        np.int64,
        np.float64,
        np.float64,
        np.float64,
        np.int64,
    ]
    assert not any(part.flags.writeable for part in answer)


VALID = csr([0, 1], [0], [1.0], 5)


@pytest.mark.parametrize(
    ("X", "options", "error", "says"),
    [
        (csr([0, 1], [0], [1.0], 6), {}, ShapeMismatch, "n_features=5"),
        (
            csr([0, 0, 1], [5], [1.0], 5),
            {},
            ShapeMismatch,
            "row 1 of X: a column index lies outside",
        ),
        (csr([0, 1], [-1], [1.0], 5), {}, ShapeMismatch, "outside"),
        (csr([0, 2], [3, 1], [1.0, 1.0], 5), {}, ShapeMismatch, "do not ascend"),
        (csr([0, 2], [3, 3], [1.0, 1.0], 5), {}, ShapeMismatch, "repeat"),
        (csr([0, 2, 1], [0, 1], [1.0, 1.0], 5), {}, ShapeMismatch, "offsets"),
        (csr([-1, 1], [0, 1], [1.0, 1.0], 5), {}, ShapeMismatch, "offsets"),
        (csr([0, 1], [0], [float("nan")], 5), {}, InputError, "not finite"),
        (csr([0, 1], [0], [float("inf")], 5), {}, InputError, "not finite"),
        (VALID, {"k": 0}, ParameterError, "at least 1"),
        (VALID, {"threads": 0}, ParameterError, "at least 1"),
    ],
)
def test_what_no_search_can_answer_is_refused(
    X: CSR, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    index = searcher(csr([0, 1, 2], [0, 4], [1.0, 1.0], 5), np.zeros(2, np.float32))
    with pytest.raises(error, match=says):
        index.query(X, **options)


def test_best_other_by_hand() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 0.0, -1.0]])
    assert naive.best_other(scores, np.array([[0], [1]])).tolist() == [2.0, 0.0]
    assert naive.best_other(scores, np.array([[0], [1]]), [0, 1]).tolist() == [1.0, 0.0]
    assert naive.best_other(scores, np.array([[0], [1]]), [0]).tolist() == [-np.inf, 0.0]
    assert naive.best(scores, 2, [2, 1, 1]).labels.tolist() == [[2, 1], [1, 2]]


def spoilt(answer: SearchResult, **parts: Any) -> SearchResult:
    """Return the result with one part changed in its first row."""
    changed = {name: part.copy() for name, part in answer._asdict().items()}
    for name, change in parts.items():
        changed[name][0] = change(changed[name][0])
    return SearchResult(**changed)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"labels": lambda row: row[::-1]}, "label"),
        (
            {"labels": lambda row: np.where(np.arange(5) == 4, 2999, row)},
            "score that is not the label's",
        ),
        ({"scores": lambda row: np.nextafter(row, np.inf)}, "score"),
        ({"exact": lambda _: False}, "not exact"),
        ({"bound_gap": lambda gap: np.nextafter(gap, np.inf)}, "above the truth"),
        ({"bound_gap": lambda _: np.nan}, "NaN"),
        ({"bound_gap": lambda _: -0.5}, "negative gap"),
        ({"labels_scored": lambda _: 4}, "fewer labels scored"),
    ],
)
def test_the_judge_finds_what_is_wrong(parts: dict[str, Any], says: str) -> None:
    rng = np.random.default_rng(2)
    W, b, X = (
        random_matrix(rng, 3_000, 100, 10, learned),
        biases(rng, 3_000),
        unit(random_matrix(rng, 4, 100, 10)),
    )
    scores = naive.all_scores(X, W, b)
    top = PlainScan.build(W, b).query(X, 5)
    gap = top.scores[:, -1] - naive.best_other(scores, top.labels)
    good = SearchResult(*top, np.full(4, True), np.full(4, 3000), np.zeros(4, np.int64), gap)
    assert differences(good, scores, SearchArguments(5)) == []
    assert any(
        says in line for line in differences(spoilt(good, **parts), scores, SearchArguments(5))
    )


def test_the_judge_sees_the_sign_of_zero() -> None:
    assert (bits([0.0]) != bits([-0.0])).all()
