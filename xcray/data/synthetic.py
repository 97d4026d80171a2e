"""Synthetic data shaped like real text: Zipf features, power-law labels, label noise.

Every label owns a few characteristic features. A row draws its labels by frequency. Each of its
features is drawn either from the features of one of its labels or from the Zipf background. So a
linear model can learn everything except the noise. Rows come from a counter-based generator
(Philox) with one stream per block of BLOCK_ROWS rows. So a row does not depend on the number of
rows generated together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Pattern, csr, distinct, pattern
from xcray.errors import ParameterError
from xcray.parameters import check_parameters, parameter

# rows that share a random stream; another number would change the data
BLOCK_ROWS = 4096


@dataclass(frozen=True)
class SyntheticParams:
    """Parameters of the generator.

    Raises ParameterError for values out of range.
    """

    rows: int = parameter(10_000, "rows", low=0, high=10**9)
    features: int = parameter(5_000, "features, D", low=1, high=2**31 - 1)
    labels: int = parameter(1_000, "labels, K", low=1, high=2**31 - 1)
    nnz_per_row: float = parameter(
        30.0, "mean draws of features per row; repeats become weight", low=1, high=10_000
    )
    labels_per_row: float = parameter(
        2.0, "mean draws of labels per row, at least one each", low=1, high=1_000
    )
    feature_exponent: float = parameter(
        1.0, "frequency of the r-th feature ~ r^-exponent", low=0, high=5
    )
    label_exponent: float = parameter(
        1.0, "frequency of the r-th label ~ r^-exponent", low=0, high=5
    )
    own_features: int = parameter(5, "characteristic features per label", low=1, high=1_000)
    signal: float = parameter(
        0.5, "share of a row's features drawn from those of its labels", low=0, high=1
    )
    label_noise: float = parameter(
        0.05, "share of label draws replaced by a uniformly random label", low=0, high=1
    )
    seed: int = parameter(0, "random seed", low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        check_parameters(self)


class _SharedTables(NamedTuple):
    """Tables shared by all rows.

    features, labels: cumulative frequencies; own: (K, own_features) characteristic features per
    label.
    """

    features: Float64
    labels: Float64
    own: Any


def generate(params: SyntheticParams) -> tuple[CSR, Pattern]:
    """Return X (rows x features; float32 rows of length 1) and Y (rows x labels).

    Equal parameters give equal data.
    """
    parts = list(generate_chunks(params, max(params.rows, 1)))
    if not parts:
        return csr([0], [], [], params.features), pattern([0], [], params.labels)
    return parts[0]


def generate_chunks(params: SyntheticParams, rows_per_chunk: int) -> Iterator[tuple[CSR, Pattern]]:
    """Yield the rows of `generate` in order, `rows_per_chunk` at a time (fewer in the last chunk).

    Memory holds one chunk and one block. Raises ParameterError if rows_per_chunk is below 1.
    """
    if rows_per_chunk < 1:
        raise ParameterError(f"rows_per_chunk is {rows_per_chunk}; it must be at least 1")
    tables = _tables(params)
    for start in range(0, params.rows, rows_per_chunk):
        stop = min(start + rows_per_chunk, params.rows)
        pieces = [
            _rows_in_block(params, tables, block, start, stop)
            for block in range(start // BLOCK_ROWS, (stop - 1) // BLOCK_ROWS + 1)
        ]
        x_cells, x_values, y_cells = (
            np.concatenate(column) for column in zip(*pieces, strict=True)
        )
        x_ptr, x_columns = _to_csr(x_cells, params.features, start, stop)
        y_ptr, y_columns = _to_csr(y_cells, params.labels, start, stop)
        yield (
            csr(x_ptr, x_columns, x_values, params.features),
            pattern(y_ptr, y_columns, params.labels),
        )


def _tables(params: SyntheticParams) -> _SharedTables:
    """Return the shared tables, drawn from stream 0; blocks start at stream 1."""
    rng = random_stream(params.seed, 0)
    shape = (params.labels, min(params.own_features, params.features))
    own = rng.integers(0, params.features, shape)
    return _SharedTables(
        _cumulative(params.features, params.feature_exponent),
        _cumulative(params.labels, params.label_exponent),
        own,
    )


def _rows_in_block(
    params: SyntheticParams, tables: _SharedTables, block: int, start: int, stop: int
) -> tuple[Any, Any, Any]:
    """Return the rows of a block that lie in [start, stop).

    The result is cells of X (row * D + feature), their values, and cells of Y.
    """
    x_cells, x_values, y_cells = _generate_block(params, tables, block)
    x_lo, x_hi = np.searchsorted(x_cells, [start * params.features, stop * params.features])
    y_lo, y_hi = np.searchsorted(y_cells, [start * params.labels, stop * params.labels])
    return x_cells[x_lo:x_hi], x_values[x_lo:x_hi], y_cells[y_lo:y_hi]


def _generate_block(
    params: SyntheticParams, tables: _SharedTables, block: int
) -> tuple[Any, Any, Any]:
    """Return a whole block.

    It always has BLOCK_ROWS rows, so that its draws do not depend on the number of rows wanted.
    """
    rng = random_stream(params.seed, block + 1)
    rows = block * BLOCK_ROWS + np.arange(BLOCK_ROWS, dtype=np.int64)
    n_labels = 1 + rng.poisson(params.labels_per_row - 1.0, BLOCK_ROWS)
    true = _draw(rng, tables.labels, int(n_labels.sum()))
    noisy = np.where(
        rng.random(len(true)) < params.label_noise, rng.integers(0, params.labels, len(true)), true
    )
    y_cells = distinct(np.repeat(rows, n_labels) * params.labels + noisy)

    n_draws = 1 + rng.poisson(params.nnz_per_row - 1.0, BLOCK_ROWS)
    row_of = np.repeat(np.arange(BLOCK_ROWS), n_draws)
    background = _draw(rng, tables.features, len(row_of))
    first = np.concatenate(([0], np.cumsum(n_labels)[:-1]))
    label = true[first[row_of] + (rng.random(len(row_of)) * n_labels[row_of]).astype(np.int64)]
    own = tables.own[label, rng.integers(0, tables.own.shape[1], len(row_of))]
    drawn = np.where(rng.random(len(row_of)) < params.signal, own, background)
    x_cells, counts = np.unique(rows[row_of] * params.features + drawn, return_counts=True)
    return (
        x_cells,
        _unit_rows(counts.astype(np.float64), x_cells // params.features - rows[0]),
        y_cells,
    )


def _unit_rows(values: Float64, row_of: Any) -> Any:
    """Return rows scaled to length 1."""
    return (
        values / np.sqrt(np.bincount(row_of, values * values, minlength=BLOCK_ROWS))[row_of]
    ).astype(np.float32)


def _to_csr(cells: Any, n_cols: int, start: int, stop: int) -> tuple[Any, Any]:
    """Return indptr and columns of the rows [start, stop).

    cells: row * n_cols + column, ascending.
    """
    edges = np.arange(start, stop + 1, dtype=np.int64) * n_cols
    return np.searchsorted(cells, edges), cells % n_cols


def _cumulative(n: int, exponent: float) -> Float64:
    """Return cumulative frequencies of ranks 1 to n under r^-exponent; the last is 1."""
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    total: Float64 = np.cumsum(weights)
    total /= total[-1]
    return total


def _draw(rng: np.random.Generator, cumulative: Float64, size: int) -> Any:
    """Draw ranks (from 0) by cumulative frequency."""
    return np.searchsorted(cumulative, rng.random(size), side="right")


def random_stream(seed: int, number: int) -> np.random.Generator:
    """Return an independent random stream.

    The seed is the key, the number the high word of the counter.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=number << 192))
