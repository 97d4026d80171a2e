"""Classes of LC given a: each is a penalised Poisson regression, many are solved at once by Newton's method.

For class k, with b_i = log a_i given and c_i y_ik >= 0 the weight of a row's target:

    min over w   f_k(w) = lam/2 |w|^2 - sum_i c_i y_ik w.x_i + sum_i c_i exp(w.x_i + b_i)

Strictly convex and smooth. A Newton step is solved by conjugate gradients with the Hessian's diagonal as preconditioner, and halved
until the class's own objective falls enough; classes go their own ways, but walk the rows together: a product of X with a matrix
has a column for each class that is not done. An exponential too large for float64 is infinite, and so is the objective of a
step that meets it: the step is halved.

Source: Nocedal, Wright, "Numerical Optimization", 2006, section 7.1 (inexact Newton), 3.1 (sufficient decrease).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from xcray.arrays import Float64, Int64

FORCING = 0.25  # a Newton step leaves this share of the gradient at most
CG_STEPS = 50  # in a Newton step, at most
HALVES = 40  # of a Newton step, at most
SLOPE = 1e-4  # share of the decrease that the slope promises which a step must bring


class Products(Protocol):
    """What is asked of the rows X (N x D')."""

    def scores(self, W: Float64) -> Float64:
        """X W of W (D', m): (N, m) float64."""

    def back(self, R: Float64) -> Float64:
        """X'R of R (N, m): (D', m) float64."""

    def back_squared(self, R: Float64) -> Float64:
        """The same with each entry of X squared."""


class Targets(NamedTuple):
    """c_i y_ik of some labels, where it is not 0: rows, places of labels among these, values, all (nnz,)."""

    rows: Int64
    places: Int64
    values: Float64

    def linear(self, S: Float64) -> Float64:
        """Sum of c_i y_ik s_ik by label, of S (N, m): (m,)."""
        return np.asarray(
            np.bincount(self.places, self.values * S[self.rows, self.places], S.shape[1])
        )

    def of(self, labels: Int64, m: int) -> Targets:
        """Those of the labels at these ascending places among m, numbered anew."""
        new = np.full(m, -1)
        new[labels] = np.arange(len(labels))
        stay = new[self.places] >= 0
        return Targets(self.rows[stay], new[self.places[stay]], self.values[stay])


class Done(NamedTuple):
    """Weights (D', m), their scores X W (N, m), squared norms of the gradients at the start (m,), products with X that were done,
    each counted as the share of a whole one that its columns are."""

    W: Float64
    S: Float64
    gradient: Float64
    products: float


class Problem(NamedTuple):
    """The f_k of some labels: rows, targets, c and b (N,), lam."""

    X: Products
    targets: Targets
    c: Float64
    b: Float64
    lam: float


def minimise(
    problem: Problem, W: Float64, inner: float, steps: int, check: Callable[[], None]
) -> Done:
    """All columns of W (D', m) from where they are, until each gradient is at most `inner` times its first, or after `steps`.

    check: called between products, may raise. Every f_k ends at most where it began.
    """
    task = _Task(problem, W.copy(), check)
    going, first = np.arange(W.shape[1]), np.zeros(W.shape[1])
    for step in range(steps + 1):
        G = task.gradient(going)
        size = np.einsum("jk,jk->k", G, G)
        if step == 0:
            first = size
        more = size > inner * inner * first[going]
        going, G = going[more], G[:, more]
        if step == steps or not len(going):
            break
        going = task.step(going, G)
    return Done(task.W, task.S, first, task.products)


class _Task:
    """Classes under way: their weights, scores and exponentials."""

    def __init__(self, problem: Problem, W: Float64, check: Callable[[], None]) -> None:
        self.X, self.targets, c, b, self.lam = problem
        with np.errstate(divide="ignore"):
            self.offset = (b + np.log(c))[
                :, None
            ]  # of a row without weight: minus infinity, whatever its scores
        self.W = W
        self.check = check
        self.products = 0.0
        self.share = 1.0 / max(W.shape[1], 1)
        self.S = self.times(W)
        self.E = self.exponentials(self.S)

    def exponentials(self, S: Float64) -> Float64:
        """c_i exp(s_ik + b_i), infinite where it is too large."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(S + self.offset))

    def times(self, W: Float64) -> Float64:
        """X W."""
        self.check()
        self.products += W.shape[1] * self.share
        return self.X.scores(W)

    def gradient(self, going: Int64) -> Float64:
        """The gradients of these classes: (D', n)."""
        self.check()
        self.products += len(going) * self.share
        R = self.E[:, going]
        targets = self.targets.of(going, self.W.shape[1])
        R[targets.rows, targets.places] -= targets.values
        return self.X.back(R) + self.lam * self.W[:, going]

    def step(self, going: Int64, G: Float64) -> Int64:
        """A Newton step of these classes; those that could go on."""
        V = self.direction(going, G)
        XV = self.times(V)
        slope = np.einsum("jk,jk->k", G, V)
        sizes = self.search(going, V, XV, slope)
        self.W[:, going] += sizes * V
        self.S[:, going] += sizes * XV
        self.E[:, going] = self.exponentials(self.S[:, going])
        return going[sizes > 0]

    def direction(self, going: Int64, G: Float64) -> Float64:
        """Newton's direction for gradients G, by conjugate gradients for all classes side by side: (D', n)."""
        E = self.E[:, going]
        self.products += len(going) * self.share
        inverse = 1.0 / (self.X.back_squared(E) + self.lam)
        V, R = np.zeros_like(G), -G
        Z = inverse * R
        P, rz = Z.copy(), np.einsum("jk,jk->k", R, Z)
        enough = FORCING**2 * np.einsum("jk,jk->k", G, G)
        on = np.arange(len(going))
        for _ in range(CG_STEPS):
            XP = self.times(P)
            XP *= E[:, on]
            self.check()
            self.products += len(on) * self.share
            HP = self.X.back(XP) + self.lam * P
            alpha = rz / np.einsum("jk,jk->k", P, HP)
            V[:, on] += alpha * P
            R -= alpha * HP
            far = np.einsum("jk,jk->k", R, R) > enough[on]
            if not far.any():
                break
            on, R, P, before = on[far], R[:, far], P[:, far], rz[far]
            Z = inverse[:, on] * R
            rz = np.einsum("jk,jk->k", R, Z)
            P = Z + (rz / before) * P
        return V

    def search(self, going: Int64, V: Float64, XV: Float64, slope: Float64) -> Float64:
        """The largest of 1, 1/2, 1/4, ... for each class whose objective falls enough; 0 where none does: (n,)."""
        targets, W = self.targets.of(going, self.W.shape[1]), self.W[:, going]
        linear = targets.linear(XV)
        wv, vv = np.einsum("jk,jk->k", W, V), np.einsum("jk,jk->k", V, V)
        S, before = self.S[:, going], self.E[:, going].sum(axis=0)
        sizes, left = np.zeros(len(going)), np.arange(len(going))
        t = 1.0
        for _ in range(HALVES):
            now = self.exponentials(S[:, left] + t * XV[:, left]).sum(axis=0)
            quadratic = self.lam * (t * wv[left] + 0.5 * t * t * vv[left])
            falls = now - before[left] + quadratic - t * linear[left] <= SLOPE * t * slope[left]
            sizes[left[falls]] = t
            left = left[~falls]
            if not len(left):
                break
            t *= 0.5
        return sizes
