"""Multinomial logistic regression by log-concavity (LC): labels are split, every worker has all rows, classes are solved alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import Stopped
from xcray.kernels.sparse import transpose
from xcray.solvers import poisson
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
    Top,
    Trained,
    Watched,
    best_of,
    block_of,
    go_on,
    ranges,
    top,
)

CELLS = 1 << 21  # numbers of an array, a row or a feature and a class solved together: 16 MB
WIDEST = 24  # classes solved together: with more, what is done to their weights leaves the caches
LOWEST = -1e300  # the largest score of no labels: a worker may have none


class Sums(NamedTuple):
    """What the weights of some labels are to each row: exp(most) * total is the sum of exp(w_k.x_i), both (N,) float64; linear:
    sum of c_i y_ik w_k.x_i; squared: |W|^2; weights: sum of w_k, (D',)."""

    most: Float64
    total: Float64
    linear: float
    squared: float
    weights: Float64


class Solved(NamedTuple):
    """What a round tells of its labels: their sums, the squared gradient that the round began with, products of all rows with
    their weights that it took."""

    sums: Sums
    gradient: float
    products: float


class Answered(NamedTuple):
    """Held-out rows as some labels answer them: their sums, the best of these labels, and c and number of each row, (n,)."""

    sums: Sums
    best: Top
    weights: Float64
    rows: Int64


class LCLocal:
    """What stays at a worker: all rows, and where they are sparse their squares (for the diagonal of Hessians), and targets by
    label; O(nnz(X)). The weights of its labels come and go by handle."""

    def __init__(
        self, solver: LCSolver, shard: Shard, watched: Shard | None, stopped: Callable[[], bool]
    ) -> None:
        self._solver = solver
        self._stopped = stopped
        self._own = _Seen(shard)
        self._watched = None if watched is None else _Seen(watched)

    def weights(self) -> tuple[None, Float64]:
        """c: (N,) float64."""
        return None, self._own.shard.weights

    def begin(self, labels: tuple[int, int]) -> tuple[Part, float]:
        """Labels lo .. hi-1 at W = 0, made where they stay; told: the square of L1's gradient there."""
        own, part = (
            self._own,
            Part(*labels, np.zeros((self._own.rows.n_features, labels[1] - labels[0]))),
        )
        size = 0.0
        for lo, hi in _widths(part, own.rows.n_rows):
            R = np.repeat(own.shard.weights[:, None] / own.shard.targets.n_cols, hi - lo, axis=1)
            targets = own.targets(part.lo + lo, part.lo + hi)
            R[targets.rows, targets.places] -= targets.values
            size += float(np.square(own.rows.back(R)).sum())
        return part, size

    def sums(self, part: Part) -> tuple[None, Sums]:
        """The sums of a part's labels over all rows."""
        return None, _merged(
            [told for told, _ in self._scored(self._own, part, np.zeros(len(part.W)))]
        )

    def solve(self, part: Part, b: Float64, mean: Float64) -> tuple[Part, Solved]:
        """The labels of a part solved, each alone: their new weights, and what is told of them.

        b: log a_i of each row, (N,), and mean: (D',), what is taken off each label's weights first, which moves b by mean.x_i.
        """
        own, W = self._own, np.empty_like(part.W)
        b = b + own.rows.scores(mean[:, None])[:, 0]
        told, gradient, products = [], 0.0, 1.0 / max(part.hi - part.lo, 1)
        for lo, hi in _widths(part, own.rows.n_rows):
            problem = poisson.Problem(
                own.rows,
                own.targets(part.lo + lo, part.lo + hi),
                own.shard.weights,
                b,
                self._solver.lam,
            )
            start = part.W[:, lo:hi] - mean[:, None]
            done = poisson.minimise(
                problem, start, self._solver.inner, self._solver.inner_steps, self._check
            )
            W[:, lo:hi] = done.W
            told.append(_sums(done.S, problem.targets, done.W))
            gradient += float(done.gradient.sum())
            products += done.products * (hi - lo) / max(part.hi - part.lo, 1)
        return Part(part.lo, part.hi, W), Solved(_merged(told), gradient, products)

    def watch(self, part: Part, mean: Float64) -> tuple[None, Answered | None]:
        """The held-out rows under a part's weights without `mean`; None when there are none."""
        if self._watched is None:
            return None, None
        sums, found = zip(*self._scored(self._watched, part, mean), strict=True)
        return None, Answered(
            _merged(sums), best_of(found), self._watched.shard.weights, self._watched.shard.rows
        )

    def _scored(self, seen: _Seen, part: Part, mean: Float64) -> Iterator[tuple[Sums, Top]]:
        """Sums and best labels of a part without `mean`, some labels at a time."""
        for lo, hi in _widths(part, seen.rows.n_rows):
            self._check()
            W = part.W[:, lo:hi] - mean[:, None]
            S = seen.rows.scores(W)
            yield _sums(S, seen.targets(part.lo + lo, part.lo + hi), W), top(S, part.lo + lo)

    def _check(self) -> None:
        """Raise Stopped when a stop was asked for."""
        if self._stopped():
            raise Stopped("stopped within a round; the weights of the round before are kept")


@dataclass(frozen=True)
class LCSolver:
    """Multinomial logistic regression with l2 regularisation, every class solved by itself in each round.

        min over W   lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i + sum_i c_i log sum_k exp(w_k.x_i)

    Weights c_i of rows add up to 1, targets y_i do in each row; `bias`: the value of a constant feature, the
    last, regularised like the others (0: none). log z <= a z - log a - 1 with equality at a = 1 / z, so for any a the problem
    falls apart into one of each class (`poisson`), and the best a for given W is exact. Rounds take turns: classes given a, a
    given the sums of all workers. The objective never rises.

    Left to itself this stalls: adding one vector to all w_k changes no probability, only the norm, but with a held fixed every
    class resists it as if it changed all, so that way lam alone pulls, a tiny step a round. At the optimum the w_k add up to 0 (so
    do the gradients of the loss). `centre` takes their mean off after each round, which can only lower L1, and mends it.

    What stays at a worker: all rows; the weights of its K/P labels, passed from round to round by handle. What travels: vectors of
    N and of D (sums to the driver, b = log a and the mean to the workers). Memory: O(nnz(X) + KD/P + N) a worker, and CELLS scores
    a few times; O((N + D) P) on the driver.

    Example:
        >>> LCSolver(lam=1e-4).family
        'rounds'

    Source: Gopal, Yang, "Distributed training of large-scale logistic models", ICML 2013, as the paper of DS-MLR tells it (sections
    2 and 7); the bound is eq. 5-9 there.
    Differs from them: `centre`; classes are solved by Newton's method with conjugate gradients, those of a worker side by side,
    instead of one after the other by a quasi-Newton library; one step a round is enough, `inner` and `inner_steps` ask for more.
    """

    family: ClassVar[str] = "rounds"
    replicated: ClassVar[bool] = True  # every worker holds all rows
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
    max_rounds: int = parameter(500, "rounds at most", low=1)
    centre: str = parameter(
        "yes",
        "take the mean of all labels' weights off after each round; no: as published",
        choices=("yes", "no"),
    )
    inner: float = parameter(
        0.5, "a class ends a round at this share of its gradient, at most", above=0.0, high=1.0
    )
    inner_steps: int = parameter(1, "Newton steps of a class in a round, at most", low=1)
    watch_every: int = parameter(1, "rounds between two looks at held-out rows; 0: none", low=0)
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
    ) -> LCLocal:
        """The hand of a worker. shard: all rows, at every worker; watched: all held-out rows, or None; `stopped` is asked between
        products."""
        return LCLocal(self, shard, watched, stopped)

    def train(
        self,
        rounds: Rounds,
        n_features: int,
        n_labels: int,
        tell: Tell = go_on,
        start: Start | None = None,
    ) -> Trained:
        """Rounds until the gradient is small, `tell` says that it is enough, or `max_rounds`.

        n_features: D', the bias among them. start: weights to begin from, or None for 0. `tell` hears of each round (its
        gradient is that of the weights it began with) and may ask for the weights. Raises Stopped, and what a worker raises.
        """
        own = ranges(n_labels, rounds.size)
        zeros = rounds.call("begin", each=own)
        parts, first = [part for part, _ in zeros], math.sqrt(sum(size for _, size in zeros))
        if start is not None:
            parts = [rounds.put(Part(lo, hi, start(lo, hi))) for lo, hi in own]
        c = rounds.call("weights")[0][1]
        sums = _merged([told for _, told in rounds.call("sums", each=parts)])
        number, products, reason = 0, 2.0, ""
        while not reason:
            b, mean = rounds.put(-_log_sums(sums)), rounds.put(self._mean(sums, n_labels))
            answers = rounds.call("solve", b, mean, each=parts)
            parts, sums = [part for part, _ in answers], _merged([told.sums for _, told in answers])
            gradient = math.sqrt(sum(told.gradient for _, told in answers))
            number, products = number + 1, products + max(told.products for _, told in answers)
            mean = self._mean(sums, n_labels)
            last = Round(
                number,
                self._objective(c, sums, n_labels),
                gradient,
                products,
                self._look(rounds, parts, mean, number),
            )
            handed = partial(_fetched, rounds, parts, mean)
            reason = "told that it is enough" if tell(last, handed) else self._reason(last, first)
        return Trained(last, reason, handed)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def blocks(self, trained: Trained, positives: Int64) -> Iterator[Block]:
        """The weights as blocks of sparse rows, a range of labels at a time. positives: (K,) training rows of each label."""
        for part in trained.parts():
            mine = positives[part.lo : part.hi]
            yield block_of(part.lo, part.W, self.bias, self.prune, mine, rounds=trained.last.number)

    def _reason(self, last: Round, first: float) -> str:
        """Why a training ends after a round; empty when it goes on."""
        if last.gradient <= self.tolerance * first:
            return "the gradient is small"
        return "after max_rounds" if last.number >= self.max_rounds else ""

    def _mean(self, sums: Sums, n_labels: int) -> Float64:
        """What is taken off each label's weights: their mean, or nothing."""
        return sums.weights / n_labels if self.centre == "yes" else np.zeros(len(sums.weights))

    def _objective(self, c: Float64, sums: Sums, n_labels: int) -> float:
        """L1 of the weights without their mean, from the sums of all workers."""
        mean = self._mean(sums, n_labels)
        squared = sums.squared - 2.0 * float(mean @ sums.weights) + n_labels * float(mean @ mean)
        return 0.5 * self.lam * squared + _loss(c, sums)

    def _look(self, rounds: Rounds, parts: list[Any], mean: Float64, number: int) -> Watched | None:
        """The held-out rows after a round, when it is time to look at them and there are any."""
        if not self.watch_every or number % self.watch_every:
            return None
        told = [told for _, told in rounds.call("watch", rounds.put(mean), each=parts)]
        if told[0] is None:
            return None
        labels, scores = best_of([each.best for each in told])
        return Watched(
            _loss(told[0].weights, _merged([each.sums for each in told])),
            labels,
            scores,
            told[0].rows,
        )


class _Seen:
    """Rows as a worker looks at them: their products, and their targets by label."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.rows = Rows(shard)
        self._by_label = transpose(shard.targets)

    def targets(self, lo: int, hi: int) -> poisson.Targets:
        """c_i y_ik of labels lo .. hi-1."""
        ends = self._by_label.indptr[lo : hi + 1]
        rows = self._by_label.indices[ends[0] : ends[-1]].astype(np.int64)
        values = self.shard.weights[rows] * self._by_label.data[ends[0] : ends[-1]]
        return poisson.Targets(rows, np.repeat(np.arange(hi - lo), np.diff(ends)), values)


def _fetched(rounds: Rounds, parts: list[Any], mean: Float64) -> Iterator[Part]:
    """The parts behind handles without `mean`, one at a time."""
    for part in parts:
        lo, hi, W = rounds.fetch(part)
        yield Part(lo, hi, W - mean[:, None])


def _widths(part: Part, n_rows: int) -> list[tuple[int, int]]:
    """The places of a part's labels in the ranges that are solved together; one empty range of no labels."""
    n_labels = part.hi - part.lo
    width = min(WIDEST, max(1, CELLS // max(n_rows, len(part.W), 1)))
    return ranges(n_labels, max(1, -(-n_labels // width)))


def _sums(S: Float64, targets: poisson.Targets, W: Float64) -> Sums:
    """The sums of labels with weights W (D', m) and scores S (N, m)."""
    most = S.max(axis=1, initial=LOWEST)
    total = np.exp(S - most[:, None]).sum(axis=1)
    return Sums(most, total, float(targets.linear(S).sum()), float(np.vdot(W, W)), W.sum(axis=1))


def _merged(sums: Sequence[Sums]) -> Sums:
    """The sums of all these labels, added in order."""
    most = np.max([each.most for each in sums], axis=0)
    total, weights = np.zeros(len(most)), np.zeros(len(sums[0].weights))
    for each in sums:
        total += each.total * np.exp(each.most - most)
        weights += each.weights
    return Sums(
        most, total, sum(each.linear for each in sums), sum(each.squared for each in sums), weights
    )


def _log_sums(sums: Sums) -> Float64:
    """log sum_k exp(w_k.x_i) of each row, (N,): -b where the sums are over all labels."""
    return sums.most + np.log(sums.total)


def _loss(c: Float64, sums: Sums) -> float:
    """The objective without the norm's part; the same for weights of any mean, for targets add up to 1."""
    return float(c @ _log_sums(sums)) - sums.linear
