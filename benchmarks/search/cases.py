"""Difficult models and queries for a search; each family targets one possible error.

A family is a function from a random generator to a `Case`. The same generator gives the same case.
`FAMILIES` lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xcray.arrays import CSR, Float32, csr, csr_from, distinct

TINY = float(np.float32(1e-45))  # the smallest denormal
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)
EDGE = 1 << 16  # labels from this number on do not fit in 16 bits

Rng = np.random.Generator


class Case(NamedTuple):
    """W: (K, D) weights by label; b: (K,) float32; X: (n, D) queries."""

    W: CSR
    b: Float32
    X: CSR


def random_matrix(
    rng: Rng, rows: int, columns: int, per_row: float, values: Any = None, skew: float = 0.0
) -> CSR:
    """Return a random matrix of about `per_row` cells per row.

    values: values to choose from, or a function of (rng, count). skew: 0 draws columns uniformly;
    with larger values the first columns are more frequent, like words.
    """
    total = int(rng.poisson(per_row * rows))
    cells = rng.random(total) ** (1.0 + skew) * columns
    keys = distinct(rng.integers(0, rows, total) * columns + cells.astype(np.int64))
    if values is None:
        data = rng.normal(size=len(keys))
    else:
        data = (
            values(rng, len(keys))
            if callable(values)
            else rng.choice(np.asarray(values, np.float64), len(keys))
        )
    at, indices = np.divmod(keys, columns)
    return csr(
        np.concatenate([[0], np.cumsum(np.bincount(at, minlength=rows))]), indices, data, columns
    )


def biases(rng: Rng, n: int) -> Float32:
    """Return biases as in trained models: about -1, most of them nearly equal."""
    return (-1.0 + 0.05 * rng.random(n) ** 4).astype(np.float32)


def learned(rng: Rng, n: int) -> Any:
    """Return weights as in trained models: mostly positive, a few large, many small."""
    return np.exp(rng.normal(-2.0, 1.0, n)) * np.where(rng.random(n) < 0.75, 1.0, -0.4)


def unit(X: CSR) -> CSR:
    """Scale rows to length 1 with positive values, as in tf-idf."""
    data = np.abs(X.data.astype(np.float64))
    row = np.repeat(np.arange(X.n_rows), np.diff(X.indptr))
    length = np.sqrt(np.bincount(row, data**2, X.n_rows))
    return csr(X.indptr, X.indices, data / length[row], X.n_cols)


def trained(rng: Rng) -> Case:
    """Draw a typical trained model and text: pruning is effective and must not prune too much."""
    n_labels, n_features = int(rng.integers(2_000, 20_000)), 3_000
    W = random_matrix(rng, n_labels, n_features, 25, learned, skew=1.5)
    return Case(
        W,
        biases(rng, n_labels),
        unit(random_matrix(rng, 60, n_features, int(rng.integers(5, 120)), skew=2.0)),
    )


def planted(rng: Rng) -> Case:
    """Draw each query as a noisy copy of a label's weights, the clear winner.

    The scores of the others are close to the bias.
    """
    n_labels, n_features = 6_000, 4_000
    W = random_matrix(rng, n_labels, n_features, 20, learned, skew=1.0)
    chosen = W.to_scipy()[rng.integers(0, n_labels, 60)]
    noise = random_matrix(rng, 60, n_features, 20, [0.02, 0.05], skew=2.0).to_scipy()
    return Case(W, biases(rng, n_labels), unit(csr_from(abs(chosen) + noise)))


def signed(rng: Rng) -> Case:
    """Draw weights and query values of both signs, with many shared features."""
    return Case(
        random_matrix(rng, 400, 120, 30),
        rng.normal(size=400).astype(np.float32),
        random_matrix(rng, 60, 120, 12),
    )


def ties(rng: Rng) -> Case:
    """Draw few distinct values and copied label rows: scores tie and the lower label must win."""
    few = random_matrix(rng, 60, 40, 6, [0.5, -0.5, 1.0, 0.25], skew=1.0).to_scipy()
    W = csr_from(few[rng.integers(0, 60, 900)])
    return Case(
        W,
        rng.choice(np.array([-1.0, -1.0, 0.0], np.float32), 900),
        random_matrix(rng, 60, 40, 5, [0.5, 1.0, -1.0]),
    )


def all_negative(rng: Rng) -> Case:
    """Draw only negative weights: every label that a query touches is worse than the others."""
    W = random_matrix(rng, 800, 100, 8, [-0.25, -1.0, -0.001])
    return Case(
        W,
        rng.choice(np.array([-1.0, -0.5, -2.0], np.float32), 800),
        random_matrix(rng, 60, 100, 10, [0.5, 1.0]),
    )


def wild_biases(rng: Rng) -> Case:
    """Draw a few extreme biases: bounds with the largest bias are useless."""
    b = np.exp(rng.normal(0, 3, 700)) * rng.choice([-1.0, 1.0], 700)
    b[rng.integers(0, 700, 6)] = [1e30, -1e30, LARGEST, -LARGEST, 50.0, 0.0]
    return Case(
        random_matrix(rng, 700, 150, 12, learned),
        b.astype(np.float32),
        random_matrix(rng, 60, 150, 15),
    )


def equal_biases(rng: Rng) -> Case:
    """Use one bias for all labels, sometimes -0.0: thousands of untouched labels tie."""
    bias = np.float32(rng.choice([-1.0, 0.0, -0.0, 3.0]))
    return Case(
        random_matrix(rng, 5_000, 800, 3, learned, 1.0),
        np.full(5_000, bias),
        random_matrix(rng, 60, 800, 6, skew=1.0),
    )


def gaps(rng: Rng) -> Case:
    """Include labels without weights, empty features, empty rows, and stored zeros."""
    n_labels, n_features = 1_500, 300
    W = sp.csr_matrix(
        random_matrix(rng, n_labels, n_features, 6, [0.0, 0.5, -0.0, 1.0, -0.3]).to_scipy()
    )
    selection = sp.diags((rng.random(n_labels) < 0.1).astype(np.float32))
    used = sp.diags((rng.random(n_features) < 0.3).astype(np.float32))
    X = random_matrix(rng, 60, n_features, 4, [0.0, 1.0, -0.0, 0.2])
    return Case(csr_from(selection @ W @ used), biases(rng, n_labels), X)


def unknown(rng: Rng) -> Case:
    """Draw queries of features that no label has, alone or together with a known one."""
    W = random_matrix(rng, 600, 50, 5, learned)
    wide = csr(W.indptr, W.indices, W.data, 5_000)
    X = csr_from(
        sp.hstack(
            [
                random_matrix(rng, 60, 50, 0.7).to_scipy(),
                random_matrix(rng, 60, 4_950, 20).to_scipy(),
            ]
        )
    )
    return Case(wide, rng.normal(size=600).astype(np.float32), X)


def dense(rng: Rng) -> Case:
    """Include features of every label, labels with every feature, and full queries."""
    n_labels, n_features = 500, 60
    W = (rng.random((n_labels, n_features)) < 0.05) * rng.normal(size=(n_labels, n_features))
    W[:, :3], W[rng.integers(0, n_labels, 5)] = (
        rng.normal(size=(n_labels, 3)),
        rng.normal(size=n_features),
    )
    X = (rng.random((40, n_features)) < 0.2) * rng.normal(size=(40, n_features))
    X[:5] = rng.normal(size=(5, n_features))
    return Case(
        csr_from(W.astype(np.float32)), biases(rng, n_labels), csr_from(X.astype(np.float32))
    )


def denormal(rng: Rng) -> Case:
    """Draw weights and values below the smallest normal number, which count nevertheless."""
    values = [TINY, -TINY, 1e-40, SMALLEST_NORMAL, -1e-39, 0.0]
    b = rng.choice(np.array([0.0, -0.0, TINY, -TINY], np.float32), 300)
    return Case(
        random_matrix(rng, 300, 60, 8, values), b, random_matrix(rng, 60, 60, 8, [*values, 1.0])
    )


def scales(rng: Rng) -> Case:
    """Mix 1e30 and 1e-30 in weights, values and biases, which no single scale can quantise."""

    def values(rng: Rng, n: int) -> Any:
        return rng.choice([-1.0, 1.0], n) * 10.0 ** rng.uniform(-30, 30, n)

    b = rng.choice(np.array([0.0, -1.0, 1e30, -1e30, 1e-30], np.float32), 400)
    return Case(random_matrix(rng, 400, 80, 8, values), b, random_matrix(rng, 60, 80, 8, values))


def cancelling(rng: Rng) -> Case:
    """Draw large terms that cancel, so that small terms and the order of the sum decide."""
    n_labels, n_features = 300, 40
    W = rng.normal(size=(n_labels, n_features)) * (rng.random((n_labels, n_features)) < 0.4)
    huge = rng.choice([1e8, 3e9, 1e16, 0.0], n_labels)
    W[:, 5], W[:, 31] = huge, -huge
    X = rng.normal(size=(40, n_features)) * (rng.random((40, n_features)) < 0.5)
    X[:, 5] = X[:, 31] = 1.0
    return Case(
        csr_from(W.astype(np.float32)),
        np.zeros(n_labels, np.float32),
        csr_from(X.astype(np.float32)),
    )


def nearly_tied(rng: Rng) -> Case:
    """Draw labels that differ only in the last bits of a float32.

    Sums in float32 change their order.
    """
    n_labels, n_features = 800, 60
    cells = rng.random((1, n_features)) < 0.6
    base = np.abs(rng.normal(1.0, 0.2, (1, n_features))).astype(np.float32)
    steps = rng.integers(-2, 3, (n_labels, n_features))
    W = ((base.view(np.int32) + steps).astype(np.int32)).view(np.float32) * cells
    return Case(
        csr_from(W),
        np.full(n_labels, -1.0, np.float32),
        unit(random_matrix(rng, 60, n_features, 30)),
    )


def steps(rng: Rng) -> Case:
    """Draw weights at and near powers of sqrt(2), where codes of weight ranges begin and end."""
    powers = np.float32(2.0) ** (np.arange(-40, 41) / 2).astype(np.float32)
    edges = np.concatenate(
        [powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(1e30))]
    )
    W = random_matrix(rng, 3_000, 500, 10, edges, skew=1.0)
    return Case(W, biases(rng, 3_000), unit(random_matrix(rng, 60, 500, 12, skew=1.0)))


def one_value(rng: Rng) -> Case:
    """Make all weights equal: every posting list is one plateau, cut anywhere or nowhere."""
    return Case(
        random_matrix(rng, 4_000, 300, 6, [0.7], 1.0),
        biases(rng, 4_000),
        unit(random_matrix(rng, 60, 300, 10, skew=1.0)),
    )


def false_friends(rng: Rng) -> Case:
    """Draw labels whose strongest weight is offset by others.

    Early leaders lose, and the threshold starts low.
    """
    n_labels, n_features = 2_000, 100
    W = rng.normal(0.05, 0.05, (n_labels, n_features)) * (rng.random((n_labels, n_features)) < 0.3)
    friends = rng.choice(n_labels, 300, replace=False)
    W[friends, rng.integers(0, n_features, 300)] = 5.0
    W[friends[:, None], rng.integers(0, n_features, (300, 30))] = -1.0
    return Case(
        csr_from(W.astype(np.float32)),
        biases(rng, n_labels),
        unit(random_matrix(rng, 60, n_features, 40)),
    )


def many_small(rng: Rng) -> Case:
    """Give the best label a hundred small weights, others one large: unread postings add up."""
    n_labels, n_features = 3_000, 200
    W = random_matrix(rng, n_labels, n_features, 3, [0.9, 0.8, 1.0]).to_scipy().tolil()
    for label in rng.integers(0, n_labels, 8):
        W[label] = np.full(n_features, 0.06) + 0.01 * rng.random(n_features)
    return Case(
        csr_from(W.tocsr()), biases(rng, n_labels), unit(random_matrix(rng, 40, n_features, 150))
    )


def negative_queries(rng: Rng) -> Case:
    """Draw negative query values: the strongest weights of a list are its worst."""
    X = unit(random_matrix(rng, 60, 400, 20, skew=1.0))
    sign = np.where(rng.random(X.nnz) < 0.7, -1.0, 1.0)
    return Case(
        random_matrix(rng, 2_500, 400, 12, learned, 1.0),
        biases(rng, 2_500),
        csr(X.indptr, X.indices, X.data * sign, 400),
    )


def stretched(rng: Rng) -> Case:
    """Draw a trained model and rows of length 1e-40 to 1e35: float32 sums underflow or overflow."""
    W = random_matrix(rng, 4_000, 500, 15, learned, skew=1.0)
    X = unit(random_matrix(rng, 60, 500, 20, skew=1.0))
    length = np.repeat(10.0 ** rng.uniform(-40, 35, 60), np.diff(X.indptr))
    return Case(W, biases(rng, 4_000), csr(X.indptr, X.indices, X.data * length, 500))


def drowned(rng: Rng) -> Case:
    """Draw biases a billion times the scores: all labels would be equal in float32."""
    W = random_matrix(rng, 2_000, 300, 10, lambda rng, n: 1e-3 * learned(rng, n), skew=1.0)
    return Case(W, np.full(2_000, 1e6, np.float32), unit(random_matrix(rng, 60, 300, 12, skew=1.0)))


def hot(rng: Rng) -> Case:
    """Mix features of most labels with many rare ones, for a prime number of labels."""
    n_labels = 6_007
    often = np.where(
        rng.random((n_labels, 12)) < 0.7, 0.3 * learned(rng, n_labels * 12).reshape(n_labels, 12), 0
    )
    W = sp.hstack(
        [sp.csr_matrix(often), random_matrix(rng, n_labels, 900, 10, learned, 1.0).to_scipy()]
    )
    X = sp.hstack(
        [
            random_matrix(rng, 40, 12, 4, [0.1, 0.2, -0.1]).to_scipy(),
            unit(random_matrix(rng, 40, 900, 12, skew=1.0)).to_scipy(),
        ]
    )
    return Case(csr_from(W), biases(rng, n_labels), csr_from(X))


def wide_lists(rng: Rng) -> Case:
    """Draw lists of tens of thousands of weights over the whole range of float32.

    Every scale has its share, and no list is short.
    """

    def values(rng: Rng, n: int) -> Any:
        return rng.choice([-1.0, 1.0, 1.0], n) * 2.0 ** rng.uniform(-149, 127, n)

    n_labels = int(rng.choice([20_000, 66_001]))
    return Case(
        random_matrix(rng, n_labels, 5, 6, values),
        np.zeros(n_labels, np.float32),
        random_matrix(rng, 10, 5, 2, [1.0, 1e-20, 1e10, -1.0]),
    )


def alike(rng: Rng) -> Case:
    """Give all labels the same weights except for one: thousands of scores are close to the k-th.

    No label can be pruned.
    """
    n_labels, n_features = 3_000, 100
    W = np.tile(np.abs(rng.normal(0.3, 0.1, n_features)), (n_labels, 1))
    W[np.arange(n_labels), rng.integers(0, n_features, n_labels)] += rng.normal(0, 0.01, n_labels)
    return Case(
        csr_from(W.astype(np.float32)),
        biases(rng, n_labels),
        unit(random_matrix(rng, 30, n_features, 25)),
    )


def one_label(rng: Rng) -> Case:
    """Draw K = 1: there is only one label."""
    return Case(
        random_matrix(rng, 1, 30, 10),
        np.array([rng.normal()], np.float32),
        random_matrix(rng, 40, 30, 8),
    )


def one_feature(rng: Rng) -> Case:
    """Draw D = 1: one list, with positive, negative or zero values."""
    values = [0.5, -0.5, 0.0, 1.0, TINY, 1e30]
    return Case(
        random_matrix(rng, 700, 1, 0.9, values),
        rng.normal(size=700).astype(np.float32),
        random_matrix(rng, 40, 1, 0.9, values),
    )


def few_labels(rng: Rng) -> Case:
    """Draw fewer labels than most values of k."""
    n = int(rng.integers(2, 12))
    return Case(
        random_matrix(rng, n, 40, 10, learned),
        rng.normal(size=n).astype(np.float32),
        unit(random_matrix(rng, 60, 40, 8)),
    )


def beyond_16_bits(rng: Rng) -> Case:
    """Draw about 2^16 labels: numbers that fit in 16 bits, just fit, and do not fit."""
    n_labels = int(rng.choice([EDGE - 1, EDGE, EDGE + 1, 70_000, 2 * EDGE + 1]))
    W = random_matrix(rng, n_labels, 2_000, 4, learned, skew=1.0)
    return Case(W, biases(rng, n_labels), unit(random_matrix(rng, 12, 2_000, 25, skew=1.0)))


def long_lists(rng: Rng) -> Case:
    """Draw few features and many labels: lists that contain nearly every label."""
    n_labels = int(rng.choice([30_000, 66_000]))
    return Case(
        random_matrix(rng, n_labels, 6, 12, learned),
        rng.normal(-1, 0.1, n_labels).astype(np.float32),
        random_matrix(rng, 10, 6, 3),
    )


def long_queries(rng: Rng) -> Case:
    """Draw queries of one feature and of five thousand."""
    W = random_matrix(rng, 1_200, 8_000, 60, learned, skew=0.5)
    X = sp.vstack(
        [
            random_matrix(rng, 10, 8_000, 8_000, skew=0.0).to_scipy(),
            random_matrix(rng, 20, 8_000, 1, skew=1.0).to_scipy(),
        ]
    )
    return Case(W, biases(rng, 1_200), unit(csr_from(X)))


def spread_out(case: Case, rng: Rng) -> Case:
    """Spread the labels of a case, in the same order, among more than 2^16; keep the first queries.

    The other labels have no weights. Their biases are those of some labels, or lower than all. This
    applies each difficulty of a small case to a search over many labels.
    """
    n_labels = EDGE + int(rng.integers(1, 3_000))
    places = np.sort(rng.choice(n_labels, case.W.n_rows, replace=False))
    lengths = np.zeros(n_labels, np.int64)
    lengths[places] = np.diff(case.W.indptr)
    W = csr(np.concatenate([[0], np.cumsum(lengths)]), case.W.indices, case.W.data, case.W.n_cols)
    others = (
        rng.choice(case.b, n_labels)
        if rng.random() < 0.5
        else np.full(n_labels, np.minimum(case.b.min(), -3.0))
    )
    b = others.astype(np.float32)
    b[places] = case.b
    return Case(W, b, csr_from(case.X.to_scipy()[:12]))


def wide(make: Callable[[Rng], Case]) -> Callable[[Rng], Case]:
    """Return a family whose cases are spread out."""
    return lambda rng: spread_out(make(rng), rng)


NARROW: dict[str, Callable[[Rng], Case]] = {
    make.__name__: make
    for make in (
        trained,
        planted,
        signed,
        ties,
        all_negative,
        wild_biases,
        equal_biases,
        gaps,
        unknown,
        dense,
        denormal,
        scales,
        cancelling,
        nearly_tied,
        steps,
        one_value,
        false_friends,
        many_small,
        negative_queries,
        stretched,
        drowned,
        hot,
        wide_lists,
        alike,
        one_label,
        one_feature,
        few_labels,
        beyond_16_bits,
        long_lists,
        long_queries,
    )
}
LARGE = ("beyond_16_bits", "long_lists", "wide_lists")  # large by themselves
FAMILIES = NARROW | {
    f"{name}_spread_out": wide(make) for name, make in NARROW.items() if name not in LARGE
}
