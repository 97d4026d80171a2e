"""Small-world graph of nmslib as an index for maximum inner products."""

from __future__ import annotations

import numpy as np

from xcray.arrays import CSR, TopK, frozen
from xcray.errors import missing_extra
from xcray.index.approximate.contract import check_width, rank_candidates
from xcray.kernels.sparse import take_rows


class NmslibIndex:
    """A graph in which neighbours have large inner products, searched greedily.

    Rows of W without entries are left out. Needs nmslib (`pip install 'xcray[memoir]'`). Its Python
    package can neither delete rows nor search rows that are added after `createIndex`, which builds
    the whole graph again; `xcray.kernels.training.memoir_graph` can.

    Source: Malkov, Ponomarenko, Logvinov, Krylov, "Approximate nearest neighbor algorithm based on
    navigable small world graphs", Information Systems 45, 2014; method "sw-graph" of nmslib.
    """

    def __init__(
        self,
        W: CSR,
        neighbours: int = 10,
        ef_construction: int = 100,
        ef_search: int = 100,
        threads: int = 1,
    ) -> None:
        """Build the graph of W (K, D) on one thread. Raises Unavailable without nmslib.

        neighbours, ef_construction, ef_search: NN, efConstruction and efSearch of nmslib. threads:
        of a query; they do not change its answers.
        """
        try:
            import nmslib
        except ModuleNotFoundError as error:
            raise missing_extra(error) from None
        self._W, self._threads = W, threads
        self._numbers = frozen(np.flatnonzero(np.diff(W.indptr)), np.int64)
        self._graph = nmslib.init(
            method="sw-graph", space="negdotprod_sparse", data_type=nmslib.DataType.SPARSE_VECTOR
        )
        if len(self._numbers):
            self._graph.addDataPointBatch(take_rows(W, self._numbers).to_scipy())
            settings = {"NN": neighbours, "efConstruction": ef_construction}
            self._graph.createIndex({**settings, "indexThreadQty": 1})
            self._graph.setQueryTimeParams({"efSearch": ef_search})

    def query(self, X: CSR, k: int) -> TopK:
        """See `InnerProductIndex`."""
        check_width(X, self._W)
        candidates = np.full((X.n_rows, min(k, self._W.n_rows)), -1, np.int32)
        wanted = min(k, len(self._numbers))
        with_entries = np.flatnonzero(np.diff(X.indptr))
        if wanted and len(with_entries):
            rows = take_rows(X, frozen(with_entries, np.int64)).to_scipy()
            answers = self._graph.knnQueryBatch(rows, k=wanted, num_threads=self._threads)
            for i, (found, _) in zip(with_entries, answers, strict=True):
                candidates[i, : len(found)] = self._numbers[found]
        return rank_candidates(X, self._W, candidates, k)
