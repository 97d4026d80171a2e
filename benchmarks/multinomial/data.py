"""The problems of `benchmarks.multinomial`: rows, targets, held-out rows, and the norm's weight.

A row with m labels has targets 1/m. lam is the largest power of ten whose optimum has a micro-F1 on
the held-out rows within 1 % of the best power's (from the table of `python -m
benchmarks.multinomial --lambdas 1e-2 1e-3 ...`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset
from xcray.arrays import CSR, Pattern, csr, frozen, pattern
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern


class ProblemSource(NamedTuple):
    """How a problem is derived from a data set.

    normalised: rows scaled to length 1. labels, rows: maximum number of the most frequent labels,
    and of the rows with one of them; 0: all. lam: weight of the norm. patience: factor on the time
    limit, compared with the other problems.
    """

    source: str
    normalised: bool
    labels: int
    rows: int
    lam: float
    patience: float = 1.0


PROBLEMS = {
    "news20-counts": ProblemSource("news20_bydate", False, 0, 0, 1e-3),  # the paper's NEWS20
    "news20": ProblemSource("news20_bydate", True, 0, 0, 1e-6),
    "mnist": ProblemSource("mnist", False, 0, 0, 1e-3, 2.0),  # pixels from 0 to 1
    "clef": ProblemSource("clef_imclef07a", False, 0, 0, 1e-3),  # the paper's CLEF, unchanged
    "gutenberg": ProblemSource(
        "gutenberg_lcsh", True, 1139, 5_000, 1e-5
    ),  # about as many labels and rows as LSHTC1-small
}
GENERATED = {"generated-sparse": 1e-4, "generated-dense": 1e-3}


class Problem(NamedTuple):
    """A training problem.

    X (N x D), Y (N x K): training rows; X_held, Y_held: held-out rows; lam: weight of the norm;
    note: how it was derived; patience: see `Made`.
    """

    name: str
    X: CSR
    Y: Pattern
    X_held: CSR
    Y_held: Pattern
    lam: float
    note: str
    patience: float = 1.0


def problem(name: str, data: Path | None, folder: Path, lam: float | None = None) -> Problem:
    """Return the problem `name`; see `benchmarks.harness.dataset` for `data` and `folder`."""
    if name in GENERATED:
        return generated(name, lam or GENERATED[name])
    result = PROBLEMS[name]
    split = dataset(result.source, data, folder)
    assert split.test is not None
    X, Y, X_held, Y_held = split.train.X, split.train.Y, split.test.X, split.test.Y
    if result.labels:
        labels = np.sort(np.argsort(-split.label_counts, kind="stable")[: result.labels])
        Y, Y_held = of_labels(Y, labels), of_labels(Y_held, labels)
    rows, state = labelled(Y, result.rows), labelled(Y_held, 0)
    X, Y, X_held, Y_held = (
        take_rows(X, rows),
        take_pattern_rows(Y, rows),
        take_rows(X_held, state),
        take_pattern_rows(Y_held, state),
    )
    if result.labels:
        X, X_held = of_features(X, X_held)
    if result.normalised:
        X, X_held = of_length_1(X), of_length_1(X_held)
    note = f"{result.source}, {'rows of length 1' if result.normalised else 'as it is'}"
    return Problem(name, X, Y, X_held, Y_held, lam or result.lam, note, result.patience)


def generated(name: str, lam: float) -> Problem:
    """Return a small problem of noisy linear classes.

    In the sparse one every tenth row has two labels.
    """
    rng, dense = np.random.default_rng(0), name == "generated-dense"
    n, d, k = (1600, 40, 10) if dense else (1600, 150, 20)
    X = (
        rng.normal(size=(n, d))
        if dense
        else rng.exponential(size=(n, d)) * (rng.random((n, d)) < 0.1)
    )
    scores = X @ rng.normal(size=(d, k)) + rng.normal(size=(n, k))
    order = np.argsort(-scores, axis=1)
    several = np.where(np.arange(n) % 10 == 0, 1 if dense else 2, 1)
    labels = [np.sort(order[row, :m]) for row, m in enumerate(several)]
    Y = pattern(np.concatenate([[0], np.cumsum(several)]), np.concatenate(labels), k)
    indptr = np.concatenate([[0], np.cumsum((X != 0).sum(axis=1))])
    matrix = csr(indptr, np.nonzero(X)[1], X[X != 0], d)
    own, state = (np.arange(*ends) for ends in ((0, 1200), (1200, n)))
    parts = [
        take(what, rows)
        for rows in (own, state)
        for take, what in ((take_rows, matrix), (take_pattern_rows, Y))
    ]
    return Problem(name, *parts, lam, "made here")


def of_labels(Y: Pattern, labels: Any) -> Pattern:
    """Return the columns `labels` of Y, renumbered."""
    return transpose_pattern(take_pattern_rows(transpose_pattern(Y), labels))


def of_features(X: CSR, X_held: CSR) -> tuple[CSR, CSR]:
    """Return X and X_held without the features that no row of X has."""
    XT = transpose(X)
    there = np.flatnonzero(np.diff(XT.indptr))
    return transpose(take_rows(XT, there)), transpose(take_rows(transpose(X_held), there))


def labelled(Y: Pattern, most: int) -> Any:
    """Return the numbers of the rows with labels; a sample of at most `most`, if not 0."""
    rows = np.flatnonzero(np.diff(Y.indptr))
    return np.sort(np.random.default_rng(0).permutation(rows)[:most]) if most else rows


def of_length_1(X: CSR) -> CSR:
    """Divide each row by its Euclidean length."""
    squares = np.append(np.asarray(X.data, np.float64) ** 2, 0.0)
    lengths = np.sqrt(np.add.reduceat(squares, X.indptr[:-1]) * (np.diff(X.indptr) > 0))
    return X._replace(
        data=frozen(X.data / np.repeat(np.maximum(lengths, 1e-30), np.diff(X.indptr)), np.float32)
    )
