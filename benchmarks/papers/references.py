"""Objectives of all solvers against scikit-learn, scipy and numpy in double precision.

The sets wine and breast_cancer come with scikit-learn; no parameter was chosen on them. Columns
have mean 0 and variance 1. An objective is computed here from the weights of the published model.
Chains of stages have no single objective: their first stage is that of least-squares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn import datasets
from sklearn.svm import LinearSVC

from xcray.arrays import csr_from, pattern
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.model.model import Model
from xcray.training.run import train
from xcray.training.spec import TrainSpec

SETS = {"wine": datasets.load_wine, "breast_cancer": datasets.load_breast_cancer}
Array = np.ndarray


class Rows(NamedTuple):
    """Rows X (n, D) with their classes y (n,)."""

    X: Array
    y: Array

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1


def load(name: str) -> Rows:
    """Return a set, standardised, in the single precision that xcray reads."""
    X, y = SETS[name](return_X_y=True)
    return Rows(((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32).astype(np.float64), y)


def write(rows: Rows, path: Path) -> Dataset:
    """Write rows as a data set."""
    with DatasetWriter(path, name=path.name, n_labels=rows.n_classes) as writer:
        Y = pattern(np.arange(len(rows.y) + 1), rows.y, rows.n_classes)
        writer.add("train", csr_from(rows.X.astype(np.float32)), Y)
        return writer.finish(source={"format": "scikit-learn"})


def _signs(rows: Rows, label: int) -> Array:
    return np.where(rows.y == label, 1.0, -1.0)


class OneVsRest(NamedTuple):
    """lam |w|_1 + 1/2 (|w|^2 + bias_penalty b^2) + C sum hinge^power, summed over the labels."""

    lam: float
    bias_penalty: float
    C: float
    power: int

    def objective(self, rows: Rows, W: Array, b: Array) -> float:
        """Return the objective. W: (D, K); b: (K,)."""
        total = 0.0
        for k in range(rows.n_classes):
            z = np.maximum(0.0, 1.0 - _signs(rows, k) * (rows.X @ W[:, k] + b[k]))
            total += self.lam * np.abs(W[:, k]).sum() + 0.5 * W[:, k] @ W[:, k]
            total += 0.5 * self.bias_penalty * b[k] ** 2 + self.C * float((z**self.power).sum())
        return float(total)

    def best(self, rows: Rows) -> float:
        """Return the optimum: of LIBLINEAR for the hinge, of L-BFGS-B for its square."""
        solve = self._squared if self.power == 2 else self._plain
        solutions = [solve(rows, _signs(rows, k)) for k in range(rows.n_classes)]
        W, b = (np.array(each).T for each in zip(*solutions, strict=True))
        return self.objective(rows, W, b)

    def _plain(self, rows: Rows, y: Array) -> tuple[Array, float]:
        model = LinearSVC(loss="hinge", C=self.C, tol=1e-9, max_iter=5_000_000, random_state=0)
        model.fit(rows.X, y)
        return model.coef_[0], float(model.intercept_[0])

    def _squared(self, rows: Rows, y: Array) -> tuple[Array, float]:
        """Return weights and bias; w is the difference of two vectors that are at least 0."""
        d = rows.X.shape[1]

        def value(p: Array) -> tuple[float, Array]:
            w, b = p[:d] - p[d : 2 * d], p[-1]
            z = np.maximum(0.0, 1.0 - y * (rows.X @ w + b))
            slope = -2.0 * self.C * z * y
            at = self.lam * p[:-1].sum() + 0.5 * (w @ w + self.bias_penalty * b * b)
            g = w + rows.X.T @ slope
            gradient = [self.lam + g, self.lam - g, [self.bias_penalty * b + slope.sum()]]
            return float(at + self.C * z @ z), np.concatenate(gradient)

        bounds = [(0.0, None)] * (2 * d) + [(None, None)]
        options = {"maxiter": 20_000, "maxfun": 200_000, "ftol": 1e-15, "gtol": 1e-10}
        start = np.zeros(2 * d + 1)
        p = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
        return p[:d] - p[d : 2 * d], float(p[-1])


class CrammerSinger(NamedTuple):
    """scale (1/2 |W|^2 + C sum of max(0, 1 + the best other score - the own one))."""

    C: float
    scale: float = 1.0

    def objective(self, rows: Rows, W: Array, b: Array) -> float:
        """Return the objective. W: (D, K)."""
        scores, at = rows.X @ W, np.arange(len(rows.y))
        own = scores[at, rows.y].copy()
        scores[at, rows.y] = -np.inf
        loss = np.maximum(0.0, 1.0 + scores.max(axis=1) - own).sum()
        return float(self.scale * (0.5 * (W**2).sum() + self.C * loss))

    def best(self, rows: Rows) -> float:
        """Return the objective of LIBLINEAR."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so when max_iter ends it
            model = LinearSVC(
                multi_class="crammer_singer",
                C=self.C,
                tol=1e-9,
                fit_intercept=False,
                max_iter=2_000_000,
                random_state=0,
            ).fit(rows.X, rows.y)
        W = model.coef_.T
        if rows.n_classes == 2:  # one vector, of the difference of both
            W = 0.5 * np.hstack([-W, W])
        return self.objective(rows, W, np.zeros(rows.n_classes))


class Softmax(NamedTuple):
    """lam/2 |W|^2 + the mean of log sum exp minus the own score."""

    lam: float

    def value(self, rows: Rows, W: Array) -> tuple[float, Array]:
        """Return objective and gradient. W: (D, K)."""
        scores, n = rows.X @ W, len(rows.y)
        top = scores.max(axis=1, keepdims=True)
        log_z = top[:, 0] + np.log(np.exp(scores - top).sum(axis=1))
        p = np.exp(scores - log_z[:, None])
        p[np.arange(n), rows.y] -= 1.0
        loss = float((log_z - scores[np.arange(n), rows.y]).mean())
        return 0.5 * self.lam * float((W**2).sum()) + loss, self.lam * W + rows.X.T @ p / n

    def objective(self, rows: Rows, W: Array, b: Array) -> float:
        """Return the objective; b is not used."""
        return self.value(rows, W)[0]

    def best(self, rows: Rows) -> float:
        """Return the optimum of scipy's L-BFGS."""
        shape = (rows.X.shape[1], rows.n_classes)

        def flat(w: Array) -> tuple[float, Array]:
            at, gradient = self.value(rows, w.reshape(shape))
            return at, gradient.ravel()

        start, options = np.zeros(shape).ravel(), {"maxiter": 10_000, "ftol": 1e-15, "gtol": 1e-11}
        return float(minimize(flat, start, jac=True, method="L-BFGS-B", options=options).fun)


class Ridge(NamedTuple):
    """lam/2 |W|^2 + 1/2 mean |W'x - y|^2."""

    lam: float

    def objective(self, rows: Rows, W: Array, b: Array) -> float:
        """Return the objective; b is not used."""
        residual = rows.X @ W - np.eye(rows.n_classes)[rows.y]
        return float(0.5 * self.lam * (W**2).sum() + 0.5 * (residual**2).sum() / len(rows.y))

    def best(self, rows: Rows) -> float:
        """Return the objective of the normal equations."""
        X, n = rows.X, len(rows.y)
        A = X.T @ X / n + self.lam * np.eye(X.shape[1])
        W = np.linalg.solve(A, X.T @ np.eye(rows.n_classes)[rows.y] / n)
        return self.objective(rows, W, np.zeros(rows.n_classes))


class Case(NamedTuple):
    """A solver, its problem, and the excess that is allowed, see `excess`."""

    solver: str
    params: dict[str, Any]
    problem: Callable[[Rows], Any]
    percent: float


def _memoir(rows: Rows) -> CrammerSinger:
    """Return the problem of MEMOIR with lam 0.01 in the scale of LIBLINEAR."""
    return CrammerSinger(1.0 / (0.01 * len(rows.y)), 0.01)


SQUARED, HINGE = {"loss": "squared_hinge"}, {"loss": "hinge"}
CASES = (
    Case("ppdsparse", {"lam": 0.1, "eps": 1e-4}, lambda _: OneVsRest(0.1, 0.1, 1.0, 2), 0.02),
    Case(
        "ppdsparse",
        {**HINGE, "lam": 0.0, "bias_penalty": 1.0, "eps": 1e-4},
        lambda _: OneVsRest(0.0, 1.0, 1.0, 1),
        0.02,
    ),
    Case("dismec", {"prune": 0.0, "eps": 1e-4}, lambda _: OneVsRest(0.0, 0.1, 1.0, 2), 0.02),
    Case("l2svm", {"eps": 1e-4}, lambda _: OneVsRest(0.0, 1.0, 1.0, 2), 0.02),
    Case("indexed-bcd", {"s": 1e30, "eps": 1e-4}, lambda _: OneVsRest(0.0, 1.0, 1.0, 1), 0.02),
    Case(
        "indexed-bcd",
        {"s": 1e30, "eps": 1e-4, "inner": "l2-primal"},
        lambda _: OneVsRest(0.0, 1.0, 1.0, 2),
        0.02,
    ),
    Case("block-minimisation", {"eps": 1e-4}, lambda _: OneVsRest(0.0, 1.0, 1.0, 1), 0.02),
    Case(
        "block-minimisation", {**SQUARED, "eps": 1e-4}, lambda _: OneVsRest(0.0, 1.0, 1.0, 2), 0.02
    ),
    Case(
        "selective-block-minimisation", {"eps": 1e-4}, lambda _: OneVsRest(0.0, 1.0, 1.0, 1), 0.02
    ),
    Case("pegasos", {"epochs": 1000}, lambda _: OneVsRest(0.0, 1.0, 1.0, 1), 0.1),
    Case("pegasos", {**SQUARED, "epochs": 1000}, lambda _: OneVsRest(0.0, 1.0, 1.0, 2), 0.1),
    Case("crammer-singer", {"eps": 1e-4}, lambda _: CrammerSinger(1.0), 0.02),
    Case("memoir", {"lam": 0.01, "rounds": 1000, "step": "batch", "eta0": 10.0}, _memoir, 0.5),
    Case("dsmlr", {"lam": 0.01}, lambda _: Softmax(0.01), 0.01),
    Case("lbfgs", {"lam": 0.01}, lambda _: Softmax(0.01), 0.01),
    Case("lc", {"lam": 0.01}, lambda _: Softmax(0.01), 0.01),
    Case(
        "generalized-least-squares",
        {"lam": 0.01, "tolerance": 1e-4},
        lambda _: Softmax(0.01),
        0.01,
    ),
    Case("least-squares", {"lam": 0.01}, lambda _: Ridge(0.01), 0.001),
)


def excess(case: Case, rows: Rows, folder: Path) -> float:
    """Train, and return how far the objective is above that of the reference.

    In percent of the objective without weights.
    """
    data = write(rows, folder / "data")
    spec = TrainSpec(str(data.path), solver=case.solver, pool="serial", params=case.params)
    model = Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)
    W = model.W.to_scipy().toarray().astype(np.float64).T
    b, problem = np.asarray(model.b, np.float64), case.problem(rows)
    above = problem.objective(rows, W, b) - problem.best(rows)
    return float(100.0 * above / problem.objective(rows, 0.0 * W, 0.0 * b))


def measure(folder: Path) -> list[dict[str, Any]]:
    """Return a line per solver and problem, with the excess on each set in percent."""
    lines = []
    for number, case in enumerate(CASES):
        line: dict[str, Any] = {"solver": case.solver, "params": case.params}
        for name in SETS:
            place = folder / f"{name}-{number}"
            place.mkdir()
            line[name] = float(f"{excess(case, load(name), place):.2g}")
        print(line, flush=True)
        lines.append({**line, "allowed": case.percent})
    return lines
