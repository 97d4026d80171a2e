"""Comparison of search results with brute force: labels, score bits, order and certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.search.cases import FAMILIES, Case
from benchmarks.search.plain_scan import PlainScan
from tests.naive import search as naive
from xcray.arrays import CSR, TopK
from xcray.index.filters import LabelFilter
from xcray.index.search import SearchIndex
from xcray.index.search_result import SearchResult

KS = (1, 2, 3, 5, 10, 20, 50, 100, 1000)
MAX_REPORTED = 20  # mismatches reported in full


class SearchArguments(NamedTuple):
    """Arguments of one search.

    k; allowed: the labels allowed (None: all); threads; deadline_ms: milliseconds (None: no
    deadline).
    """

    k: int
    allowed: Any = None
    threads: int = 1
    deadline_ms: float | None = None

    def of(self, index: SearchIndex, X: CSR, n_labels: int) -> SearchResult:
        """Return the result of an index with `n_labels` labels."""
        among = None if self.allowed is None else LabelFilter.of(n_labels, self.allowed)
        return index.query(
            X, self.k, threads=self.threads, deadline_ms=self.deadline_ms, label_filter=among
        )

    def __str__(self) -> str:
        allowed = "all" if self.allowed is None else f"{len(self.allowed)} of them"
        return f"k={self.k} threads={self.threads} deadline={self.deadline_ms} labels={allowed}"


def searcher(W: CSR, b: Any) -> SearchIndex:
    """Return the search under test, by lists even where plain rows would be better.

    W: weights by label; b: biases.
    """
    return SearchIndex.build(W, b, dense=False)


def by_rows(W: CSR, b: Any) -> SearchIndex:
    """Return the search by plain rows of weights, even where lists would be better."""
    return SearchIndex.build(W, b, dense=True)


def bits(values: Any) -> Any:
    """Return float64 as integers, equal only if all bits are equal, including the sign of zero."""
    return np.ascontiguousarray(values, np.float64).view(np.int64)


def differences(answer: SearchResult, scores: Any, query: SearchArguments) -> list[str]:
    """Return the errors of a result without a deadline, one line each.

    scores: (n, K) float64 of all labels by brute force.
    """
    expected = naive.best(scores, query.k, query.allowed)
    if answer.labels.shape != expected.labels.shape:
        return [f"labels are {answer.labels.shape}, not {expected.labels.shape}"]
    out = []
    for i in np.flatnonzero((answer.labels != expected.labels).any(axis=1)):
        at = int(np.argmax(answer.labels[i] != expected.labels[i]))
        result, best = int(answer.labels[i, at]), int(expected.labels[i, at])
        out.append(
            f"row {i} place {at}: label {result} ({scores[i, result]!r}), not {best} ({scores[i, best]!r})"
        )
    for i in np.flatnonzero((bits(answer.scores) != bits(expected.scores)).any(axis=1)):
        at = int(np.argmax(bits(answer.scores)[i] != bits(expected.scores)[i]))
        out.append(
            f"row {i} place {at}: score {float(answer.scores[i, at])!r}, not {float(expected.scores[i, at])!r}"
        )
    out += [f"row {i}: not exact without a deadline" for i in np.flatnonzero(~answer.exact)]
    return out + dishonest(answer, scores, query)


def dishonest(answer: SearchResult, scores: Any, query: SearchArguments) -> list[str]:
    """Return the false statements of a result, with or without a deadline, one line each.

    Its labels must be allowed, distinct and in order, with their exact scores; it must have scored
    at least these; an exact row must have the best labels; and the gap must be a valid bound: no
    other label can be better than the gap allows.
    """
    n, k = answer.labels.shape
    n_labels = scores.shape[1]
    n_allowed = n_labels if query.allowed is None else np.count_nonzero(np.bincount(query.allowed))
    out = (
        []
        if k == min(query.k, n_allowed)
        else [f"{k} labels answered of {n_allowed} allowed and {query.k} asked for"]
    )
    if not k or not n:
        return out
    true = np.take_along_axis(scores, answer.labels.astype(np.int64), axis=1)
    falling = np.diff(answer.scores, axis=1)
    ordered = (falling < 0) | ((falling == 0) & (np.diff(answer.labels, axis=1) > 0))
    best, gap = naive.best(scores, k, query.allowed), answer.bound_gap
    laws = {
        "a score that is not the label's": (bits(true) == bits(answer.scores)).all(axis=1),
        "labels out of order, or twice": ordered.all(axis=1),
        "fewer labels scored than answered": answer.labels_scored >= k,
        "more labels scored than there are": answer.labels_scored <= scores.shape[1],
        "negative postings read": answer.postings_read >= 0,
        "exact, but not the best labels": ~answer.exact
        | (answer.labels == best.labels).all(axis=1),
        "exact with a negative gap": ~answer.exact | (gap >= 0),
        "a gap that is NaN": ~np.isnan(gap),
        "a gap above the truth": gap
        <= answer.scores[:, -1] - naive.best_other(scores, answer.labels, query.allowed),
    }
    if query.allowed is not None:
        laws["a label that is not allowed"] = np.isin(answer.labels, query.allowed).all(axis=1)
    return out + [
        f"row {i}: {law}" for law, selection in laws.items() for i in np.flatnonzero(~selection)
    ]


def questions(rng: np.random.Generator, n_labels: int, scores: Any) -> Iterator[SearchArguments]:
    """Yield the searches of one case: several k, and filters from one label to all except one.

    They include the best labels excluded, and only the worst allowed.
    """
    for k in rng.choice(KS, 3, replace=False):
        yield SearchArguments(int(k), None, int(rng.integers(1, 3)))
    some = np.flatnonzero(rng.random(n_labels) < rng.choice([0.001, 0.01, 0.5, 0.99]))
    best = np.unique(naive.best(scores[:8], 20).labels)
    worst = np.unique(naive.best(-scores[:8], 6).labels)
    lists = [some, np.delete(np.arange(n_labels), best), worst, rng.integers(0, n_labels, 1)]
    usable = [labels for labels in lists if len(labels)]
    chosen = usable[int(rng.integers(0, len(usable)))]
    yield SearchArguments(int(rng.choice(KS)), chosen, int(rng.integers(1, 3)))
    yield SearchArguments(
        int(rng.choice(KS)),
        chosen if rng.random() < 0.3 else None,
        1,
        float(rng.choice([0.0, 0.05, 0.5, 5.0])),
    )


def check(
    case: Case, rng: np.random.Generator, make: Callable[[CSR, Any], SearchIndex] = searcher
) -> tuple[int, list[str]]:
    """Run the searches of a case; return the number of compared queries, and the errors.

    The number is rows x searches.
    """
    index, scan = make(case.W, case.b), PlainScan.build(case.W, case.b)
    scores, wrong, compared = naive.all_scores(case.X, case.W, case.b), [], 0
    for request in questions(rng, case.W.n_rows, scores):
        answer = request.of(index, case.X, case.W.n_rows)
        lines = (differences if request.deadline_ms is None else dishonest)(answer, scores, request)
        if (
            request.allowed is None
            and request.deadline_ms is None
            and not same(answer.top, scan.query(case.X, request.k))
        ):
            lines.append("other than the plain scan")
        wrong += [f"{request}: {line}" for line in lines]
        compared += case.X.n_rows
    return compared, wrong


def same(result: TopK, expected: TopK) -> bool:
    """Return whether labels and bits of scores are equal."""
    return np.array_equal(result.labels, expected.labels) and np.array_equal(
        bits(result.scores), bits(expected.scores)
    )


def many(
    expected: int, seed: int = 0, families: tuple[str, ...] = tuple(FAMILIES)
) -> dict[str, Any]:
    """Compare at least `expected` queries, all families in turn with new seeds.

    "wrong" contains the first mismatches and how to reproduce them.
    """
    compared: Counter[str] = Counter()
    wrong: list[str] = []
    mismatches, round_, began = 0, 0, perf_counter()
    while compared.total() < expected:
        for name in families:
            case = FAMILIES[name](np.random.default_rng([seed, round_]))
            done, lines = check(case, np.random.default_rng([seed, round_, 1]))
            compared[name] += done
            mismatches += len(lines)
            wrong += [
                f"{name} seed [{seed}, {round_}]: {line}"
                for line in lines[: MAX_REPORTED - len(wrong)]
            ]
        round_ += 1
        if round_ % 5 == 0:
            print(
                f"{compared.total()} queries, {mismatches} mismatches, {perf_counter() - began:.0f} s",
                flush=True,
            )
    return {
        "queries": compared.total(),
        "mismatches": mismatches,
        "families": dict(compared),
        "seed": seed,
        "wrong": wrong,
    }
