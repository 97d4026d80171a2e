"""Classes of LC for given a: penalised Poisson regressions, solved together by Newton's method.

For class k, with b_i = log a_i given and c_i y_ik >= 0 the weight of a row's target:

    min over w   f_k(w) = lam/2 |w|^2 - sum_i c_i y_ik w.x_i + sum_i c_i exp(w.x_i + b_i)

The problem is strictly convex and smooth. A Newton step is solved by conjugate gradients with the
diagonal of the Hessian as preconditioner, and halved until the objective of the class falls enough.
Classes are independent but share the passes over the rows: a product of X with a matrix has one
column per unfinished class. An exponential too large for float64 is infinite, and so is the
objective of that step, which is then halved.

Source: Nocedal, Wright, "Numerical Optimization", 2006, sections 7.1 (inexact Newton) and 3.1
(sufficient decrease).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.solvers.row_operator import RowOperator

# an inexact Newton step reduces the gradient of the model to this share
FORCING_SHARE = 0.25
MAX_CG_STEPS = 50  # per Newton step
MAX_HALVINGS = 40  # of a Newton step
# a step must gain this share of the decrease that the slope predicts
MIN_DECREASE_SHARE = 1e-4


class LabelTargets(NamedTuple):
    """Non-zero c_i y_ik of some labels: rows, columns among these labels, values; all (nnz,)."""

    rows: Int64
    columns: Int64
    values: Float64

    def linear(self, S: Float64) -> Float64:
        """Return the sum of c_i y_ik s_ik per label, of S (N, m): (m,)."""
        return np.asarray(
            np.bincount(self.columns, self.values * S[self.rows, self.columns], S.shape[1])
        )

    def select(self, labels: Int64, m: int) -> LabelTargets:
        """Return the targets of the labels at these ascending columns of m, renumbered."""
        new = np.full(m, -1)
        new[labels] = np.arange(len(labels))
        stay = new[self.columns] >= 0
        return LabelTargets(self.rows[stay], new[self.columns[stay]], self.values[stay])


class PoissonResult(NamedTuple):
    """Result of `minimise`.

    W: (D', m) weights; S: their scores X W (N, m); gradient: (m,) squared norms of the initial
    gradients.
    """

    W: Float64
    S: Float64
    gradient: Float64


class PoissonProblem(NamedTuple):
    """The f_k of some labels: rows, targets, c and b (N,), lam."""

    X: RowOperator
    targets: LabelTargets
    c: Float64
    b: Float64
    lam: float


def minimise(
    problem: PoissonProblem, W: Float64, inner: float, steps: int, check: Callable[[], None]
) -> PoissonResult:
    """Minimise all f_k from W (D', m), for at most `steps` Newton steps.

    A class ends when its gradient is at most `inner` times its initial one. check: called between
    products, can raise. No f_k ends above its initial value.
    """
    task = _PoissonTask(problem, W.copy(), check)
    active, first = np.arange(W.shape[1]), np.zeros(W.shape[1])
    for step in range(steps + 1):
        G = task.gradient(active)
        size = np.einsum("jk,jk->k", G, G)
        if step == 0:
            first = size
        more = size > inner * inner * first[active]
        active, G = active[more], G[:, more]
        if step == steps or not len(active):
            break
        active = task.step(active, G)
    return PoissonResult(task.W, task.S, first)


class _PoissonTask:
    """State of a minimisation: weights, scores and exponentials of all classes."""

    def __init__(self, problem: PoissonProblem, W: Float64, check: Callable[[], None]) -> None:
        self.X, self.targets, c, b, self.lam = problem
        with np.errstate(divide="ignore"):
            # minus infinity for a row of weight 0
            self.offset = (b + np.log(c))[:, None]
        self.W = W
        self.check = check
        self.S = self.product(W)
        self.E = self.exponentials(self.S)

    def exponentials(self, S: Float64) -> Float64:
        """Return c_i exp(s_ik + b_i), infinite on overflow."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(S + self.offset))

    def product(self, W: Float64) -> Float64:
        """Return X W."""
        self.check()
        return self.X.scores(W)

    def gradient(self, active: Int64) -> Float64:
        """Return the gradients of these classes: (D', n)."""
        self.check()
        R = self.E[:, active]
        targets = self.targets.select(active, self.W.shape[1])
        R[targets.rows, targets.columns] -= targets.values
        return self.X.adjoint(R) + self.lam * self.W[:, active]

    def step(self, active: Int64, G: Float64) -> Int64:
        """Take a Newton step of these classes; return those whose objective fell."""
        V = self.direction(active, G)
        XV = self.product(V)
        slope = np.einsum("jk,jk->k", G, V)
        sizes = self.line_search(active, V, XV, slope)
        self.W[:, active] += sizes * V
        self.S[:, active] += sizes * XV
        self.E[:, active] = self.exponentials(self.S[:, active])
        return active[sizes > 0]

    def direction(self, active: Int64, G: Float64) -> Float64:
        """Return Newton's direction for gradients G: (D', n).

        Conjugate gradients for all classes together.
        """
        E = self.E[:, active]
        inverse = 1.0 / (self.X.adjoint_squared(E) + self.lam)
        V, R = np.zeros_like(G), -G
        Z = inverse * R
        P, rz = Z.copy(), np.einsum("jk,jk->k", R, Z)
        enough = FORCING_SHARE**2 * np.einsum("jk,jk->k", G, G)
        on = np.arange(len(active))
        for _ in range(MAX_CG_STEPS):
            XP = self.product(P)
            XP *= E[:, on]
            self.check()
            HP = self.X.adjoint(XP) + self.lam * P
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

    def line_search(self, active: Int64, V: Float64, XV: Float64, slope: Float64) -> Float64:
        """Return for each class the first of 1, 1/2, 1/4, ... with enough decrease: (n,).

        0 if there is none.
        """
        targets, W = self.targets.select(active, self.W.shape[1]), self.W[:, active]
        linear = targets.linear(XV)
        wv, vv = np.einsum("jk,jk->k", W, V), np.einsum("jk,jk->k", V, V)
        S, before = self.S[:, active], self.E[:, active].sum(axis=0)
        sizes, left = np.zeros(len(active)), np.arange(len(active))
        t = 1.0
        for _ in range(MAX_HALVINGS):
            now = self.exponentials(S[:, left] + t * XV[:, left]).sum(axis=0)
            quadratic = self.lam * (t * wv[left] + 0.5 * t * t * vv[left])
            falls = (
                now - before[left] + quadratic - t * linear[left]
                <= MIN_DECREASE_SHARE * t * slope[left]
            )
            sizes[left[falls]] = t
            left = left[~falls]
            if not len(left):
                break
            t *= 0.5
        return sizes
