"""Input files of the peers, samples of classes, and the measures of all answers.

A *task folder* contains train_x.npz, train_y.npz, test_x.npz (scipy CSR, float32), train.txt (XC
format, for omikuji) and columns.npy, the label of the data set for each column of Y. Labels without
a training row are left out, because they cannot be learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xcray.arrays import Int32, Pattern, TopK, frozen, pattern_from
from xcray.data.dataset import Dataset
from xcray.measures import evaluate

KS = (1, 3, 5)


def sample(counts: Any, size: int, seed: int = 0) -> Int32:
    """Draw one label from each of `size` equal strata of frequency; return them ascending.

    Only labels with training rows are drawn. A mean over the sample estimates the mean over all
    labels, with every frequency represented in proportion.
    """
    values = np.flatnonzero(counts > 0)
    ordered = values[np.argsort(counts[values], kind="stable")]
    edges = np.linspace(0, len(ordered), min(size, len(ordered)) + 1).astype(np.int64)
    drawn = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    return frozen(np.sort(ordered[drawn]), np.int32)


def write_folder(data: Dataset, columns: Int32, folder: Path) -> Path:
    """Write the task folder for these columns."""
    Y = data.train.Y.to_scipy()[:, columns]
    return write_task(data.train.X.to_scipy(), Y, data["test"].X.to_scipy(), columns, folder)


def write_task(
    X: sp.csr_matrix, Y: sp.csr_matrix, test_X: sp.csr_matrix, columns: Any, folder: Path
) -> Path:
    """Write the task folder of training rows X (N, D), Y (N, n) and test rows test_X (M, D)."""
    folder.mkdir(parents=True, exist_ok=True)
    sp.save_npz(folder / "train_x.npz", X, compressed=False)
    sp.save_npz(folder / "train_y.npz", Y, compressed=False)
    sp.save_npz(folder / "test_x.npz", test_X, compressed=False)
    np.save(folder / "columns.npy", columns)
    write_xc(X, Y, folder / "train.txt")
    return folder


def write_xc(X: sp.csr_matrix, Y: sp.csr_matrix, path: Path) -> None:
    """Write X and Y in the XC repository's format, with enough digits for float32."""
    with path.open("w") as out:
        out.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for row in range(X.shape[0]):
            cells, labels = (
                slice(X.indptr[row], X.indptr[row + 1]),
                Y.indices[Y.indptr[row] : Y.indptr[row + 1]],
            )
            pairs = zip(X.indices[cells].tolist(), X.data[cells].tolist(), strict=True)
            out.write(
                ",".join(map(str, sorted(labels.tolist())))
                + "".join(f" {index}:{value:.9g}" for index, value in pairs)
                + "\n"
            )


def measures(top: Any, truth: Pattern) -> dict[str, float]:
    """Return P@1, P@3, P@5 in percent of answers (rows, k); labels below 0 count as misses."""
    result = evaluate(
        TopK(frozen(top, np.int32), frozen(np.zeros(top.shape), np.float64)), truth, ks=KS
    )
    return {
        name: round(100.0 * value, 2)
        for name, value in result.items()
        if name in {f"P@{k}" for k in KS}
    }


def measures_all(top: Any, data: Dataset) -> dict[str, float]:
    """Return the measures over all test rows and labels."""
    return measures(top, data["test"].Y)


def measures_sample(top: Any, data: Dataset, columns: Int32) -> dict[str, float]:
    """Return the measures of a choice among `columns`, over the test rows that have one of them.

    This is the same task for all programs.
    """
    truth = data["test"].Y.to_scipy()[:, columns]
    rows = np.flatnonzero(np.diff(truth.indptr))
    return {**measures(top[rows], pattern_from(truth[rows])), "rows": float(len(rows))}
