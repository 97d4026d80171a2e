"""Multinomial logistic regression by L-BFGS: rows are split, every worker has all weights, the optimiser is on the driver."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import Stopped, lacking
from xcray.solvers.multinomial import Shard
from xcray.solvers.parameters import check_parameters, parameter
from xcray.solvers.row_operator import Rows, warm_up
from xcray.solvers.solved_labels import Block
from xcray.solvers.synchronous_contract import (
    Part,
    Round,
    Rounds,
    Start,
    Tell,
    Trained,
    Watched,
    block_of,
    go_on,
    ranges,
    top,
    watched_of,
)

CELLS = 1 << 19  # scores in hand at once: 4 MB
WEIGHTS = 1 << 22  # of a part that is handed over: 32 MB
EVALUATIONS = 20  # of objective and gradient, for each iteration


class LBFGSLocal:
    """What stays at a worker: its rows and held-out rows; O(nnz(X)/P). Each verb is sent all weights, O(D'K)."""

    def __init__(self, shard: Shard, watched: Shard | None, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._own = (shard, Rows(shard))
        self._watched = None if watched is None else (watched, Rows(watched))

    def gradient(self, W: Float64) -> tuple[Float64, float]:
        """This shard's part of the gradient of L1 without the norm's, (D', K) float64, and of L1."""
        shard, rows = self._own
        G, loss = np.zeros(W.shape), 0.0
        for lo, hi, S in self._scored(rows, W):
            loss += _to_residuals(S, shard, lo, hi)
            rows.add_back(S, lo, G)
        return G, loss

    def watch(self, W: Float64) -> tuple[None, Watched | None]:
        """The held-out rows of this worker under W; None when it has none."""
        if self._watched is None or not len(self._watched[0].rows):
            return None, None
        (shard, rows), loss, tops = self._watched, 0.0, []
        for lo, hi, S in self._scored(rows, W):
            tops.append(top(S, 0))
            loss += _to_residuals(S, shard, lo, hi)
        labels, scores = (np.concatenate(each) for each in zip(*tops, strict=True))
        return None, Watched(loss, labels, scores, shard.rows)

    def _scored(self, rows: Rows, W: Float64) -> Iterator[tuple[int, int, Float64]]:
        """Scores of some rows at a time: rows lo .. hi-1, (hi-lo, K). Raises Stopped when a stop was asked for."""
        n = max(1, CELLS // W.shape[1])
        for lo in range(0, rows.n_rows, n):
            if self._stopped():
                raise Stopped("stopped within an iteration; the weights of the one before are kept")
            hi = min(lo + n, rows.n_rows)
            yield lo, hi, rows.scores(W, lo, hi)


@dataclass(frozen=True)
class LBFGSSolver:
    """Multinomial logistic regression with l2 regularisation, by a quasi-Newton method that sees all rows in each iteration.

        min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i + sum_i c_i log sum_k exp(w_k.x_i)

    Weights c_i of rows add up to 1, targets y_i do in each row; `bias`: the value of a constant feature, the
    last, regularised like the others (0: none). The driver sends W to all workers; each returns its rows' part of objective and
    gradient; they are added in worker order, in double precision. The problem is smooth and strictly convex: a small gradient
    says how far W is from the only optimum, |W - W*| <= |gradient| / lam.

    What stays at a worker: its N/P rows. What travels: W to each worker and a gradient back, every iteration. Memory: O(nnz(X)/P
    + KD) a worker; on the driver (2 `memory` + 6) vectors of KD doubles. So the weights must fit each machine many times: what
    DS-MLR is for, when they do not.

    Example:
        >>> LBFGSSolver(lam=1e-4).family
        'rounds'

    Source: Raman, Srinivasan, Matsushima, Zhang, Yun, Vishwanathan, "DS-MLR", eq. 2 and Table 2; Byrd, Lu, Nocedal, Zhu, "A limited
    memory algorithm for bound constrained optimization", 1995, in SciPy's implementation, without bounds.
    Differs from the paper's baseline: SciPy's optimiser instead of PETSc's.
    """

    family: ClassVar[str] = "rounds"
    replicated: ClassVar[bool] = False  # each worker holds rows of its own
    revision: ClassVar[int] = 1  # raised with every change of the bits of a model

    lam: float = parameter(1e-4, "weight of the squared l2 norm, beside the mean loss", above=0.0)
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: none", low=0.0
    )
    tolerance: float = parameter(
        1e-4,
        "ends when the gradient's norm is at most this share of that at W = 0",
        above=0.0,
        high=1.0,
    )
    max_iterations: int = parameter(1000, "iterations at most", low=1)
    memory: int = parameter(10, "pairs of steps and gradients that are remembered", low=1, high=100)
    watch_every: int = parameter(1, "iterations between two looks at held-out rows; 0: none", low=0)
    prune: float = parameter(0.0, "weights of at most this size are dropped at the end", low=0.0)

    def __post_init__(self) -> None:
        """Check every parameter. Raises ParameterError."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""
        return asdict(self)

    def local(
        self,
        shard: Shard,
        watched: Shard | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> LBFGSLocal:
        """The hand of a worker. shard: its rows; watched: its held-out rows, or None; `stopped` is asked every few rows."""
        return LBFGSLocal(shard, watched, stopped)

    def train(
        self,
        rounds: Rounds,
        n_features: int,
        n_labels: int,
        tell: Tell = go_on,
        start: Start | None = None,
    ) -> Trained:
        """Iterations until the gradient is small, `tell` says that it is enough, or `max_iterations`.

        n_features: D', the bias among them. start: weights to begin from, or None for 0; the history of steps begins anew. `tell`
        hears of each iteration and may ask for the weights. Raises Stopped, what a worker raises, and Unavailable without scipy.
        """
        try:
            from scipy.optimize import minimize
        except ModuleNotFoundError as error:
            raise lacking(error) from None
        way = _Way(self, rounds, (n_features, n_labels), tell)
        w = np.zeros(n_features * n_labels)
        if start is not None:
            way.value(w)  # what `tolerance` is a share of
            w = start(0, n_labels).ravel()
        limits = {
            "maxiter": self.max_iterations,
            "maxfun": EVALUATIONS * self.max_iterations,
            "ftol": 0.0,
            "gtol": 0.0,
        }
        found = minimize(
            way.value,
            w,
            jac=True,
            method="L-BFGS-B",
            callback=way.heard,
            options={"maxcor": self.memory, **limits},
        )
        stuck = (
            "no step brings more in double precision"
            if found.nit < self.max_iterations
            else "after max_iterations"
        )
        return Trained(way.last, way.reason or stuck, partial(way.parts, found.x))

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def blocks(self, trained: Trained, positives: Int64) -> Iterator[Block]:
        """The weights as blocks of sparse rows, a range of labels at a time. positives: (K,) training rows of each label."""
        for part in trained.parts():
            mine = positives[part.lo : part.hi]
            yield block_of(part.lo, part.W, self.bias, self.prune, mine, rounds=trained.last.number)


class _Way:
    """What the optimiser calls: objective and gradient, summed over the workers; after each iteration, a look at how it goes."""

    def __init__(
        self, solver: LBFGSSolver, rounds: Rounds, shape: tuple[int, int], tell: Tell
    ) -> None:
        self._solver = solver
        self._rounds = rounds
        self._shape = shape
        self._tell = tell
        self._first = 0.0
        self.reason = ""
        self.last = Round(0, math.inf, math.inf, 0, None)  # of the point looked at last

    def value(self, w: Float64) -> tuple[float, Float64]:
        """L1 and its gradient at w (D'K,)."""
        objective, gradient = 0.5 * self._solver.lam * float(w @ w), self._solver.lam * w
        for handle, loss in self._rounds.call("gradient", self._rounds.put(w.reshape(self._shape))):
            gradient += self._rounds.fetch(handle).ravel()
            objective += loss
        size = math.sqrt(float(gradient @ gradient))
        self._first = self._first or size
        self.last = self.last._replace(
            objective=objective, gradient=size, products=self.last.products + 2
        )
        return objective, gradient

    def heard(self, intermediate_result: Any) -> None:
        """An iteration ended at the point looked at last. Raises StopIteration when that is enough."""
        number, w = self.last.number + 1, intermediate_result.x
        self.last = self.last._replace(number=number, watched=self._look(w, number))
        if self._tell(self.last, partial(self.parts, w)):
            self.reason = "told that it is enough"
        elif self.last.gradient <= self._solver.tolerance * self._first:
            self.reason = "the gradient is small"
        if self.reason:
            raise StopIteration

    def parts(self, w: Float64) -> Iterator[Part]:
        """The weights w (D'K,) by ranges of labels."""
        W = w.reshape(self._shape)
        for lo, hi in ranges(W.shape[1], max(1, -(-W.size // WEIGHTS))):
            yield Part(lo, hi, np.ascontiguousarray(W[:, lo:hi]))

    def _look(self, w: Float64, number: int) -> Watched | None:
        """The held-out rows after an iteration, when it is time to look at them and there are any."""
        if not self._solver.watch_every or number % self._solver.watch_every:
            return None
        found = [
            told
            for _, told in self._rounds.call("watch", self._rounds.put(w.reshape(self._shape)))
            if told is not None
        ]
        return watched_of(found)


def _to_residuals(S: Float64, shard: Shard, lo: int, hi: int) -> float:
    """Scores S of rows lo .. hi-1 become c_i (p_ik - y_ik), in place; these rows' part of the objective."""
    c, (indptr, indices, data, _) = shard.weights[lo:hi], shard.targets
    cells = slice(indptr[lo], indptr[hi])
    rows = np.repeat(np.arange(hi - lo), np.diff(indptr[lo : hi + 1]))
    cost = c[rows] * data[cells]
    loss = -float(cost @ S[rows, indices[cells]])
    most = S.max(axis=1)
    S -= most[:, None]
    np.exp(S, out=S)
    total = S.sum(axis=1)
    loss += float(c @ (most + np.log(total)))
    S *= (c / total)[:, None]
    S[rows, indices[cells]] -= cost
    return loss
