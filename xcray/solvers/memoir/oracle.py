"""Search of rivals by an index that is built for each group of samples, and its errors."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Pattern, frozen
from xcray.index.approximate import build_index
from xcray.kernels.search.candidates import score_candidates
from xcray.kernels.sparse import pattern_range, row_range
from xcray.kernels.training.memoir import MemoirBatch
from xcray.solvers.memoir.parameters import MemoirParameters

SAMPLE_ROWS = 100  # samples of a round whose exact rival is searched, too


class OracleErrors(NamedTuple):
    """How an index found the rivals of a sample of a round.

    A margin error is the score of the exact rival less that of the one found, at least 0: the
    quantity of the paper's Theorem 1. mean, p95, largest: of the margin errors. agreement: share of
    samples with the exact rival. queries_per_second: of all samples of the round, on one thread.
    build_seconds: of its indexes. exact: 1 if the round used the exact search, without these
    figures.
    """

    round: float
    mean: float
    p95: float
    largest: float
    agreement: float
    queries_per_second: float
    build_seconds: float
    exact: float = 0.0


class IndexOracle:
    """Finds rivals under weights that do not change within a group of samples.

    It counts queries, their seconds and those of building, and compares some samples of a round
    with an exact search.
    """

    def __init__(self, params: MemoirParameters) -> None:
        self._params = params
        self.start(1)

    def start(self, groups: int) -> None:
        """Start a round; each of its groups gives an equal share of the sample."""
        self._sample = -(-SAMPLE_ROWS // groups)
        self._errors: list[Float64] = []
        self._agreed: list[np.ndarray] = []
        self._build_seconds = self._query_seconds = 0.0
        self._queries = 0

    def rivals(self, W: CSR, batch: MemoirBatch, lo: int, hi: int) -> Int32:
        """Return the rivals of samples lo .. hi - 1, -1 where the margin is met or without rivals.

        W: (K, D). The random numbers of the batch are for samples of which the index found no class
        but their own.
        """
        params, classes = self._params, batch.classes[lo:hi]
        X, own = row_range(batch.X, lo, hi), pattern_range(batch.Y, lo, hi)
        began = time.perf_counter()
        index = build_index(params.oracle, W, **self._settings())
        built = time.perf_counter()
        most = int(np.diff(own.indptr).max(initial=0))
        top = index.query(X, most + 1)
        self._query_seconds += time.perf_counter() - built
        self._build_seconds += built - began
        self._queries += hi - lo
        rivals, scores = _first_other(top.labels, top.scores, own, batch.numbers[lo:hi])
        self._compare(W, X, own, rivals, scores)
        own_scores: Float64 = np.empty((hi - lo, 1))
        score_candidates(X, W, frozen(classes[:, None], np.int32), own_scores)
        violated = own_scores[:, 0] - scores < params.margin
        return np.where((rivals >= 0) & violated, rivals, -1).astype(np.int32)

    def finish(self, number: int) -> OracleErrors:
        """Return the errors of round `number`."""
        errors = np.concatenate(self._errors)
        agreed = float(np.concatenate(self._agreed).mean()) if len(errors) else 1.0
        p95 = float(np.quantile(errors, 0.95)) if len(errors) else 0.0
        rate = self._queries / max(self._query_seconds, 1e-9)
        mean = float(errors.mean()) if len(errors) else 0.0
        largest = float(errors.max(initial=0.0))
        return OracleErrors(number, mean, p95, largest, agreed, rate, self._build_seconds)

    def _settings(self) -> dict[str, int]:
        """Return the settings of the index."""
        params = self._params
        if params.oracle != "lsh":
            return {}
        return {"bits": params.bits, "components": params.components, "seed": params.seed}

    def _compare(self, W: CSR, X: CSR, own: Pattern, rivals: Int32, scores: Float64) -> None:
        """Record the margin errors of the first samples that have a rival."""
        n = min(self._sample, X.n_rows)
        exact = (X.to_scipy()[:n].astype(np.float64) @ W.to_scipy().astype(np.float64).T).toarray()
        exact[own.to_scipy()[:n].nonzero()] = -np.inf
        best = exact.max(axis=1)
        usable = (rivals[:n] >= 0) & np.isfinite(best)
        errors = np.maximum(0.0, best - scores[:n])[usable]
        errors[errors <= 1e-6 * np.abs(best[usable])] = 0.0  # sums in another order
        self._errors.append(errors)
        self._agreed.append(errors == 0.0)


def _first_other(
    labels: Int32, scores: Float64, own: Pattern, numbers: np.ndarray
) -> tuple[Int32, Float64]:
    """Return the best class that a row does not have, and its score.

    labels, scores: (n, m), best first. A row without such a class gets a random one, with the score
    0 of a class without weights; -1 if it has all classes.
    """
    n, K = len(labels), own.n_cols
    owners = np.repeat(np.arange(n), np.diff(own.indptr))
    keys = owners * K + own.indices
    usable = (labels >= 0) & ~np.isin(np.arange(n)[:, None] * K + labels, keys)
    first = usable.argmax(axis=1)
    found = usable[np.arange(n), first]
    rivals = np.where(found, labels[np.arange(n), first], -1).astype(np.int32)
    best = np.where(found, scores[np.arange(n), first], 0.0)
    for i in np.flatnonzero(~found):
        others = np.delete(np.arange(K), own.row(int(i)))
        if len(others):
            rivals[i] = others[int(numbers[i]) % len(others)]
    return rivals, best
