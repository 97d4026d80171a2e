"""Search of rivals by an index that is built for each group of samples, and its errors."""

from __future__ import annotations

import time

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Pattern, frozen
from xcray.index.approximate import build_index
from xcray.kernels.search.candidates import score_candidates
from xcray.kernels.sparse import pattern_range, row_range
from xcray.kernels.training.memoir import MemoirBatch
from xcray.solvers.memoir.margin_errors import (
    SAMPLE_ROWS,
    Capacity,
    OracleErrors,
    measure_errors,
)
from xcray.solvers.memoir.parameters import MemoirParameters


class IndexOracle:
    """Finds rivals under weights that do not change within a group of samples.

    It counts queries, their seconds and those of building, and compares some samples of a round
    with an exact search. threads: of the queries, if the index can use them.
    """

    def __init__(self, params: MemoirParameters, capacity: Capacity, threads: int = 1) -> None:
        self._params, self._capacity, self._threads = params, capacity, threads
        self.start(1)

    def start(self, groups: int) -> None:
        """Start a round; its groups, or some of them, give equal shares of the sample."""
        self._sample = -(-SAMPLE_ROWS // groups)
        self._every, self._groups = max(1, groups // SAMPLE_ROWS), 0
        self._leads: list[Float64] = []
        self._build_seconds = self._query_seconds = 0.0
        self._queries = 0

    def rivals(self, W: CSR, batch: MemoirBatch, lo: int, hi: int) -> Int32:
        """Return the rivals of samples lo .. hi - 1, see `memoir.code_rival`.

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
        own_scores: Float64 = np.empty((hi - lo, 1))
        score_candidates(X, W, frozen(classes[:, None], np.int32), own_scores)
        leads = own_scores[:, 0] - scores
        if self._groups % self._every == 0:
            self._compare(W, X, own, rivals, leads, scores)
        self._groups += 1
        codes = np.where((rivals >= 0) & (leads >= params.margin), -2 - rivals, rivals)
        return codes.astype(np.int32)

    def finish(self, number: int, norm: float) -> OracleErrors:
        """Return the errors of round `number`. norm: |W|."""
        rate = self._queries / max(self._query_seconds, 1e-9)
        leads = np.concatenate(self._leads)
        return measure_errors(number, leads, self._capacity, norm, rate, self._build_seconds)

    def _settings(self) -> dict[str, int]:
        """Return the settings of the index."""
        params = self._params
        if params.oracle != "lsh":
            return {"threads": self._threads}
        return {"bits": params.bits, "components": params.components, "seed": params.seed}

    def _compare(
        self, W: CSR, X: CSR, own: Pattern, rivals: Int32, leads: Float64, scores: Float64
    ) -> None:
        """Record the leads of the first samples that have a rival, over it and the exact one."""
        n = min(self._sample, X.n_rows)
        exact = (X.to_scipy()[:n].astype(np.float64) @ W.to_scipy().astype(np.float64).T).toarray()
        exact[own.to_scipy()[:n].nonzero()] = -np.inf
        missed = exact.max(axis=1) - scores[:n]
        self._leads.append(np.stack([leads[:n], leads[:n] - missed], axis=1)[rivals[:n] >= 0])


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
