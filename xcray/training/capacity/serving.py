"""Serving capacity model: memory of an API process, and requests per core and second.

A query reads the posting lists of its features: a share of the W weights, or all lists of its
features if all weights are present. Exact search reads most of them, or adds dense rows of all K
labels if the model is dense (docs/search.md). HTTP, JSON and parsing a row come on top; they
dominate for models of few labels. `benchmarks.sizing.serve` compares the model with measurements.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from xcray.errors import ParameterError
from xcray.index.search import (
    DENSE_WEIGHT_DIVISOR,
    MAX_DENSE_CELLS,
    SMALL_MODEL_CELLS,
    SMALL_MODEL_LABELS,
)
from xcray.training.capacity.preflight import MIB, model_bytes

# An API process without a model: 110 MiB of its own, the rest pages of libraries.
API_BYTES: Final = 330 * MIB
ANSWERING_BYTES: Final = 64 * MIB  # additional private memory after the first answer
SCAN_BYTES_PER_LABEL: Final = 32  # in each thread that searches
LIBRARY_BYTES: Final = 220 * MIB  # pages of libraries that processes of one pod share
# Share of all weights in the posting lists of a query's features. 0.002 to 0.013 on four text sets.
MIN_POSTING_SHARE: Final = 0.005
# Core seconds of an HTTP request of one row without the search.
REQUEST_SECONDS: Final = 175e-6
ROW_SECONDS: Final = 15e-6  # per additional row: reading it, writing its answer
ENTRY_SECONDS: Final = 0.1e-6  # per entry of a row in JSON
POSTING_SECONDS: Final = 0.8e-9  # per posting: 0.54 to 1.07 ns on four models
CELL_SECONDS: Final = 0.1e-9  # per cell of dense rows: 0.05 to 0.2 ns


class ServingLoad(NamedTuple):
    """Model and request to serve.

    labels, features, weights: K, D, W of the model. entries: of a query's row. rows: of a request.
    postings: read by a query; None derives them from MIN_POSTING_SHARE.
    """

    labels: int
    features: int
    weights: int
    entries: float
    rows: int = 1
    postings: float | None = None


class ServingCapacity(NamedTuple):
    """Capacity of one API process.

    Bytes: process, an API process without the model; model, its mapped files; plain, dense weight
    rows in memory. Core seconds: search, per query; request, per HTTP request with all its rows.
    requests: per core and second.
    """

    process: int
    model: int
    plain: int
    postings: float
    search: float
    request: float
    requests: float

    @property
    def memory(self) -> int:
        """Return the bytes of a pod with one process, one thread and this model."""
        return self.process + self.model + self.plain

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**self._asdict(), "memory": self.memory}


def estimate_serving(load: ServingLoad, threads: int = 1) -> ServingCapacity:
    """Estimate the serving capacity. Raises ParameterError for impossible numbers."""
    K, D, W = load.labels, load.features, load.weights
    for name, low in (("labels", 1), ("features", 1), ("weights", 0), ("entries", 0), ("rows", 1)):
        value = getattr(load, name)
        if not (math.isfinite(value) and low <= value <= 1e15):
            raise ParameterError(f"{name} must be a number from {low} to 1e15, not {value}")
    if W > K * D:
        raise ParameterError(
            f"there are more weights than labels times features: {W:,} of {K * D:,}"
        )
    dense = uses_dense_search(K, D, W)
    share = max(MIN_POSTING_SHARE, load.entries / D)
    postings = load.postings if load.postings is not None else min(1.0, share) * W
    search = CELL_SECONDS * load.entries * K if dense else POSTING_SECONDS * postings
    request = (
        REQUEST_SECONDS
        + (load.rows - 1) * ROW_SECONDS
        + load.rows * (ENTRY_SECONDS * load.entries + search)
    )
    process = API_BYTES + ANSWERING_BYTES + SCAN_BYTES_PER_LABEL * K * threads
    return ServingCapacity(
        process, model_bytes(W, K, D), 4 * K * D * dense, postings, search, request, 1.0 / request
    )


def uses_dense_search(labels: int, features: int, weights: int) -> bool:
    """Return whether such a model is searched by dense rows, see `SearchIndex`."""
    cells = labels * features
    return 0 < cells <= MAX_DENSE_CELLS and (
        (labels <= SMALL_MODEL_LABELS and cells <= SMALL_MODEL_CELLS)
        or weights * DENSE_WEIGHT_DIVISOR >= cells
    )
