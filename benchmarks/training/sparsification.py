"""The sparsifications of the PPDSparse paper: negatives found against postings read.

`python -m benchmarks.training.sparsification [--data DIR] [--sets bibtex cooking]`

For labels that PPDSparse has solved, the negatives that violate the margin most are searched with
an approximation of the scores X w, and counted among the exact ones:

- Algorithm 3 (section 4.2): R features are drawn with probabilities |w_j| / |w|_1, and their
  postings are read once each;
- two levels (section 5.3): of each posting list of w only entries above a threshold are read;
- weights by size: the posting lists of the largest |w_j| |x^j|, without chance.

`read` is the share of the postings of w that are read, `recall` that of the exact worst negatives
among as many found. `training` is what PPDSparse reads in all rounds of a label, sweeps included,
in units of the postings of w: one exact search reads 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.harness import dataset, run_benchmark, table
from benchmarks.peers.data import sample
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.solvers import make_solver

WORST = 50  # negatives that are searched
DRAWS = (50, 100, 200, 500, 1000)
SHARES = (0.1, 0.2, 0.3, 0.5, 0.8)  # of the postings of w that are to be read
Found = list[tuple[str, float, float]]  # method, share read, recall


def search_of_label(X: sp.csc_matrix, w: Any, negatives: Any, random: Any) -> Found:
    """Search the worst negatives of one label in each way.

    X: (N, D); w: (D,); negatives: (N,) bool.
    """
    used = np.flatnonzero(w)
    columns, lengths = X[:, used], np.diff(X.indptr)[used]
    products = columns.multiply(w[used]).tocsc()
    exact = _worst(np.asarray(products.sum(axis=1)).ravel(), negatives)
    whole, sizes = float(lengths.sum()), np.abs(w[used])

    def entry(method: str, scores: Any, read: float) -> tuple[str, float, float]:
        found = np.isin(_worst(np.asarray(scores).ravel(), negatives), exact)
        return method, read / whole, float(found.mean())

    out: Found = []
    for n in DRAWS:
        counts = np.bincount(
            random.choice(len(used), n, p=sizes / sizes.sum()), minlength=len(used)
        )
        sparse = np.sign(w[used]) * counts * sizes.sum() / n
        out.append(entry(f"Algorithm 3, R = {n}", columns @ sparse, lengths[counts > 0].sum()))
    by_gain = np.argsort(-sizes * np.sqrt(np.asarray(columns.power(2).sum(axis=0)).ravel()))
    for share in SHARES:
        limit = np.quantile(np.abs(columns.data), 1.0 - share)
        kept = products.copy()
        kept.data[np.abs(columns.data) < limit] = 0.0
        read = np.count_nonzero(np.abs(columns.data) >= limit)
        out.append(entry(f"two levels, {share:.0%}", kept.sum(axis=1), read))
        first = by_gain[: max(1, np.searchsorted(np.cumsum(lengths[by_gain]), share * whole))]
        scores = columns[:, first] @ w[used][first]
        out.append(entry(f"by size, {share:.0%}", scores, lengths[first].sum()))
    return out


def study(name: str, data: Dataset, labels: int) -> list[dict[str, Any]]:
    """Return the mean share read and recall of each way over a sample of labels."""
    solver = make_solver("ppdsparse-paper", {})
    local = solver.load_dataset(data)
    numbers = frozen(sample(data.label_counts, labels), np.int32)
    block = solver.solve(local, numbers)
    X, W = local.problem.X.to_scipy().tocsc(), block.W.to_scipy().toarray()
    Y, random = data.train.Y.to_scipy().tocsc(), np.random.default_rng(0)
    results: dict[str, list[tuple[float, float]]] = {}
    for label, w in zip(numbers.tolist(), W.astype(np.float64), strict=True):
        negatives = np.asarray(Y[:, label].todense()).ravel() == 0
        if np.count_nonzero(w) and negatives.sum() > WORST:
            for method, read, recall in search_of_label(X, w, negatives, random):
                results.setdefault(method, []).append((read, recall))
    floor = np.diff(X.indptr)[block.W.indices].sum()
    training = float(block.records["work"].sum() / floor)
    return [
        {"set": name, "method": method, "read": read, "recall": recall, "training": training}
        for method, each in results.items()
        for read, recall in [np.mean(each, axis=0).tolist()]
    ]


def _worst(scores: Any, negatives: Any) -> Any:
    """Return the rows of the negatives with the highest scores; ties by row."""
    scores = np.where(negatives, scores, -np.inf)
    return np.argsort(-scores, kind="stable")[:WORST]


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Study every set."""
    rows = []
    for name in options.sets or (("bibtex", "cooking") if options.data else ("synthetic",)):
        own = study(name, dataset(name, options.data, folder), options.labels)
        print(table(own, list(own[0])), flush=True)
        rows += own
    return {"benchmark": "sparsification", "rows": rows}


def main() -> None:
    """Run every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "labels": 10},
        sets={"nargs": "+", "help": "data sets"},
        labels={"type": int, "default": 60, "help": "number of labels of each set"},
    )


if __name__ == "__main__":
    main()
