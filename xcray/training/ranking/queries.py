"""The answers of search and ranker on the held-out rows of a data set."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

import numpy as np

from xcray.arrays import CSR, TopK, csr
from xcray.data.dataset import Dataset
from xcray.data.texts import read_texts
from xcray.index.scorer import SparseScorer
from xcray.index.search import SearchIndex
from xcray.model.directory import LinearPart
from xcray.model.ranker import Ranker
from xcray.predict.ranking import TextRanker
from xcray.system.cores import available_cores

ROWS: Final = 64  # that are answered between two ticks


def search_query(
    index: SearchIndex, tick: Callable[[], None] = lambda: None
) -> Callable[[CSR, int], TopK]:
    """Return the function that answers rows by the search, on all cores.

    tick: called after each ROWS rows.
    """

    def query(X: CSR, k: int) -> TopK:
        tops = []
        for first in range(0, max(X.n_rows, 1), ROWS):
            indptr = X.indptr[first : first + ROWS + 1]
            entries = slice(int(indptr[0]), int(indptr[-1]))
            rows = csr(indptr - indptr[0], X.indices[entries], X.data[entries], X.n_cols)
            tops.append(index.query(rows, k, threads=available_cores()).top)
            tick()
        return TopK(*map(np.concatenate, zip(*tops, strict=True)))

    return query


def ranked_query(ranker: Ranker, data: Dataset, index: SearchIndex) -> Callable[[CSR, int], TopK]:
    """Return the function that answers the held-out rows of a data set of texts.

    index: of the weights of the model.
    """
    text = data.text
    assert text is not None
    scorer = SparseScorer(index, threads=available_cores())
    ranked = TextRanker(ranker, LinearPart(index.W, index.b, index), scorer)

    def query(X: CSR, k: int) -> TopK:
        return ranked.search(text.read(chain.from_iterable(read_texts(data, "test"))), k).top

    return query
