"""Small one-vs-all problems and functions that solve them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from xcray.arrays import CSR, Pattern, csr_from, pattern_from
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers.ppdsparse import PPDSparseSolver


def problem(
    seed: int, n: int = 120, d: int = 60, k: int = 8, density: float = 0.15
) -> tuple[CSR, Pattern]:
    """Return sparse rows of unit length, and labels that each depend on a few features."""
    rng = np.random.default_rng(seed)
    X = sp.random(n, d, density, "csr", np.float32, random_state=rng)
    X = normalize(X)
    truth = rng.normal(size=(d, k)) * (rng.random((d, k)) < 0.2)
    return csr_from(X), pattern_from(
        (X @ truth + 0.05 * rng.normal(size=(n, k)) > 0.25).astype(np.float32)
    )


def local_of(solver: PPDSparseSolver, X: CSR, Y: Pattern):
    """Return the solver's data as a worker holds it."""
    return solver.load(X, transpose(X), transpose_pattern(Y))


def solved(solver: PPDSparseSolver, X: CSR, Y: Pattern):
    """Return the solution of all labels."""
    return solver.solve(local_of(solver, X, Y), np.arange(Y.n_cols, dtype=np.int32))


def signs(Y: Pattern, label: int) -> np.ndarray:
    """Return +1 for rows with the label and -1 for the others."""
    return np.where(Y.to_scipy().toarray()[:, label] > 0, 1.0, -1.0)
