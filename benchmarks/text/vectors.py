"""20 newsgroups: tf-idf, and tf-idf with a truncated SVD of the same counts.

python -m benchmarks.text.vectors --data DIR [--labelled 0]

The SVD of all training rows is scaled to length 1 times a weight, as `--vector-fields emb:WEIGHT`
does, and stands next to the tf-idf. Its dimensions and weight are the best ones by P@1 + nDCG@5 on
a fifth of the training rows, without which rows are compared first; then both are tested on the
test rows. `--labelled N` trains on N rows, while tf-idf and SVD read all. Differences are printed
with their standard errors.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from benchmarks.harness import dataset, run_benchmark
from xcray.data.splits import HashSplit
from xcray.estimators import PPDSparse
from xcray.measures import discounts

K: Final = 5
WORDS: Final = (0, 0.0)  # dimensions and weight without a vector


def scores(train: Any, y: Any, test: Any, labelled: int, choice: tuple[int, float]) -> Any:
    """Return the scores of test rows (n, 20). train, test: counts; y: numbers of classes."""
    tfidf = TfidfTransformer(sublinear_tf=True).fit(train)
    parts = [tfidf.transform(train), tfidf.transform(test)]
    dimensions, weight = choice
    if dimensions:
        svd = TruncatedSVD(dimensions, random_state=0).fit(parts[0])
        parts = [sp.hstack([X, weight * normalize(svd.transform(X))]) for X in parts]
    rows = np.random.default_rng(0).permutation(len(y))[: labelled or None]
    X, X_test = (sp.csr_matrix(part, dtype=np.float32) for part in parts)
    return PPDSparse().fit(X[rows], y[rows]).decision_function(X_test)


def per_row(found: Any, y: Any) -> tuple[Any, Any]:
    """Return P@1 and nDCG@5 of each row, which has one label."""
    best = np.argsort(-found, axis=1, kind="stable")[:, :K]
    hits = best == y[:, None]
    return hits[:, 0].astype(float), hits @ discounts(K)


def compared(choices: Any, *problem: Any) -> list[dict[str, Any]]:
    """Return the figures of each choice, and the differences to the first one."""
    train, y, test, y_test, labelled = problem
    rows, first = [], None
    for choice in choices:
        values = per_row(scores(train, y, test, labelled, choice), y_test)
        first = first or values
        row: dict[str, Any] = {"dimensions": choice[0], "weight": choice[1]}
        for name, own, base in zip(("P@1", "nDCG@5"), values, first, strict=True):
            error = (own - base).std() / len(own) ** 0.5
            figures = own.mean(), (own - base).mean(), error
            row[name] = [round(100 * float(each), 2) for each in figures]
        print(row, flush=True)
        rows.append(row)
    return rows


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Choose dimensions and weight, and test them."""
    data = dataset(options.set, options.data, folder)
    assert data.test is not None
    X, X_test = data.train.X.to_scipy(), data.test.X.to_scipy()
    y, y_test = (part.Y.to_scipy().argmax(axis=1).A1 for part in (data.train, data.test))
    held = HashSplit(0.2).mask(0, len(y))
    choices = [WORDS, *product(options.dimensions, options.weights)]
    tried = compared(choices, X[~held], y[~held], X[held], y[held], options.labelled)
    best = max(tried[1:], key=lambda row: row["P@1"][0] + row["nDCG@5"][0])
    chosen = (best["dimensions"], best["weight"])
    tested = compared([WORDS, chosen], X, y, X_test, y_test, options.labelled)
    return {"benchmark": "vectors", "validation": tried, "test": tested}


def main() -> None:
    """Measure and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"set": "synthetic", "dimensions": [10], "weights": [0.3]},
        set={"default": "news20_bydate"},
        labelled={"type": int, "default": 0},
        dimensions={"type": int, "nargs": "+", "default": [100, 300]},
        weights={"type": float, "nargs": "+", "default": [0.3, 0.6, 1.0, 2.0]},
    )


if __name__ == "__main__":
    main()
