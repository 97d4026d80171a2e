"""What answering from a model takes, from its numbers: memory of an API process, and requests that a core answers in a second.

A query meets the postings of its features: of W weights a share, or the features that it has where all weights are there. Exact
search reads most of them, or adds plain rows of all K labels where the model is dense (docs/search.md). What HTTP, JSON, and
reading a row take comes on top, and is most of it for models of few labels. `benchmarks.sizing --serve` holds it against models.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from xcray.errors import ParameterError
from xcray.index.search import DENSE_CELLS, DENSE_SHARE, FEW_CELLS, FEW_LABELS
from xcray.training.capacity.preflight import MIB, model_bytes

API: Final = (
    330 * MIB
)  # an API process before it has a model: 110 of its own, the rest pages of libraries
ANSWERING: Final = 64 * MIB  # more of its own, once it has answered
SCANNED: Final = 32  # bytes a label, in each thread that searches
LIBRARIES: Final = 220 * MIB  # pages of libraries that processes of one pod share
MET: Final = 0.005  # of all weights, in the posting lists of a query's features: 0.002 to 0.013 on four sets of text
REQUEST: Final = 175e-6  # seconds of a core for a request of one row over HTTP, but for the search
ROW: Final = 15e-6  # for each row of a request of many: reading it, writing its answer
AN_ENTRY: Final = 0.1e-6  # for an entry of a row in JSON
POSTING: Final = 0.8e-9  # for a posting: 0.54 to 1.07 on four models
CELL: Final = 0.1e-9  # for a cell of plain rows: 0.05 to 0.2


class Asked(NamedTuple):
    """What answers. labels, features, weights: K, D, W of the model; entries: of a query's row; rows: of a request. postings: that
    a query meets; None: see MET."""

    labels: int
    features: int
    weights: int
    entries: float
    rows: int = 1
    postings: float | None = None


class Answering(NamedTuple):
    """Bytes: process, an API process without the model; model, its mapped files; plain, rows of weights made in memory. Seconds of
    a core: search, for a query; request, for one over HTTP with all its rows. requests: that a core answers in a second."""

    process: int
    model: int
    plain: int
    postings: float
    search: float
    request: float
    requests: float

    @property
    def memory(self) -> int:
        """Bytes of a pod with one process, one thread and this model."""
        return self.process + self.model + self.plain

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**self._asdict(), "memory": self.memory}


def answering(asked: Asked, threads: int = 1) -> Answering:
    """What answering takes. Raises ParameterError for numbers that no model has."""
    K, D, W = asked.labels, asked.features, asked.weights
    for name, low in (("labels", 1), ("features", 1), ("weights", 0), ("entries", 0), ("rows", 1)):
        value = getattr(asked, name)
        if not (math.isfinite(value) and low <= value <= 1e15):
            raise ParameterError(f"{name} must be a number from {low} to 1e15, not {value}")
    if W > K * D:
        raise ParameterError(
            f"there are more weights than labels times features: {W:,} of {K * D:,}"
        )
    dense = is_dense(K, D, W)
    share = max(MET, asked.entries / D)
    postings = asked.postings if asked.postings is not None else min(1.0, share) * W
    search = CELL * asked.entries * K if dense else POSTING * postings
    request = REQUEST + (asked.rows - 1) * ROW + asked.rows * (AN_ENTRY * asked.entries + search)
    process = API + ANSWERING + SCANNED * K * threads
    return Answering(
        process, model_bytes(W, K, D), 4 * K * D * dense, postings, search, request, 1.0 / request
    )


def is_dense(labels: int, features: int, weights: int) -> bool:
    """Whether such a model is searched by plain rows, see `SearchIndex`."""
    cells = labels * features
    return 0 < cells <= DENSE_CELLS and (
        (labels <= FEW_LABELS and cells <= FEW_CELLS) or weights * DENSE_SHARE >= cells
    )
