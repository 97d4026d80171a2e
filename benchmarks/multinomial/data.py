"""The problems of `benchmarks.multinomial`: rows, targets, held-out rows, and the norm's weight.

A row with m labels has targets 1/m. lam is the largest power of ten whose optimum has a micro-F1 on
the held-out rows within 1 % of the best power's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset
from xcray.arrays import CSR, Pattern, csr_from, pattern
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose, transpose_pattern
from xcray.solvers.group_contract import TrainingRows


class ProblemSource(NamedTuple):
    """How a problem is derived from a data set.

    row_norm: how rows are normalised. lam: weight of the norm. labels, rows: maximum number of the
    most frequent labels, and of the rows with one of them; 0: all. patience: factor on the time
    limit, compared with the other problems.
    """

    source: str
    row_norm: str
    lam: float
    labels: int = 0
    rows: int = 0
    patience: float = 1.0


PROBLEMS = {
    "news20-counts": ProblemSource("news20_bydate", "none", 1e-3),  # the paper's NEWS20
    "news20": ProblemSource("news20_bydate", "l2", 1e-6),
    "mnist": ProblemSource("mnist", "none", 1e-3, patience=2.0),  # pixels from 0 to 1
    "clef": ProblemSource("clef_imclef07a", "none", 1e-3),  # the paper's CLEF, unchanged
    # about as many labels and rows as LSHTC1-small
    "gutenberg": ProblemSource("gutenberg_lcsh", "l2", 1e-5, labels=1139, rows=5_000),
}
GENERATED = {"generated-sparse": 1e-4, "generated-dense": 1e-3}


class Problem(NamedTuple):
    """Rows with their held-out rows, the weight of the norm, and see `ProblemSource`."""

    name: str
    rows: TrainingRows
    lam: float
    patience: float = 1.0


def problem(name: str, data: Path | None, folder: Path) -> Problem:
    """Return the problem `name`; see `benchmarks.harness.dataset` for `data` and `folder`."""
    if name in GENERATED:
        return generated(name)
    made = PROBLEMS[name]
    split = dataset(made.source, data, folder)
    parts = [(split[part].X, split[part].Y) for part in ("train", "test")]
    if made.labels:
        labels = np.sort(np.argsort(-split.label_counts, kind="stable")[: made.labels])
        parts = [(X, of_labels(Y, labels)) for X, Y in parts]
    (X, Y), held = (
        of_rows(*rows, labelled(rows[1], most))
        for rows, most in zip(parts, (made.rows, 0), strict=True)
    )
    if made.labels:
        used = np.flatnonzero(np.bincount(X.indices, minlength=X.n_cols))
        X, held = of_features(X, used), (of_features(held[0], used), held[1])
    held_out = (normalize_rows(held[0], made.row_norm), held[1], None)
    rows = TrainingRows(normalize_rows(X, made.row_norm), Y, None, held_out)
    return Problem(name, rows, made.lam, made.patience)


def generated(name: str) -> Problem:
    """Return a small problem of noisy linear classes; every tenth row has two labels."""
    rng, n = np.random.default_rng(0), 1600
    d, k, share = (40, 10, 1.0) if name == "generated-dense" else (150, 20, 0.1)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < share)
    scores = X @ rng.normal(size=(d, k)) + rng.normal(size=(n, k))
    sizes = np.where(np.arange(n) % 10 == 0, 2, 1)
    best = np.argsort(-scores, axis=1)
    labels = [np.sort(row[:size]) for row, size in zip(best, sizes, strict=True)]
    whole = (csr_from(X), pattern(np.cumsum([0, *sizes]), np.concatenate(labels), k))
    own, held = (of_rows(*whole, np.arange(*ends)) for ends in ((0, 1200), (1200, n)))
    return Problem(name, TrainingRows(*own, None, (*held, None)), GENERATED[name])


def of_rows(X: CSR, Y: Pattern, rows: Any) -> tuple[CSR, Pattern]:
    """Return some rows."""
    return take_rows(X, rows), take_pattern_rows(Y, rows)


def of_labels(Y: Pattern, labels: Any) -> Pattern:
    """Return the columns `labels` of Y, renumbered."""
    return transpose_pattern(take_pattern_rows(transpose_pattern(Y), labels))


def of_features(X: CSR, features: Any) -> CSR:
    """Return the columns `features` of X, renumbered."""
    return transpose(take_rows(transpose(X), features))


def labelled(Y: Pattern, most: int) -> Any:
    """Return the numbers of the rows with labels; a sample of at most `most`, if not 0."""
    rows = np.flatnonzero(np.diff(Y.indptr))
    return np.sort(np.random.default_rng(0).permutation(rows)[:most]) if most else rows
