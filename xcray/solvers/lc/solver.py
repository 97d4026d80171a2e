"""Multinomial logistic regression by log-concavity (LC).

Labels are split, every worker has all rows, and classes are solved independently in each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import Float64, Int64
from xcray.errors import Stopped
from xcray.kernels.sparse import transpose
from xcray.schedule.calls import ObjectHandle, at_worker
from xcray.solvers.declarations import (
    STORE_COPIES,
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    RoundCost,
    StoppingRule,
)
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    TrainingRows,
    WorkerCalls,
)
from xcray.solvers.held_out import HeldOut, PartialTopK, merge_top_k, top_k
from xcray.solvers.label_weights import RECORDS, LabelWeights, export_weights, split_ranges
from xcray.solvers.lc import poisson
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_operator import RowOperator, warm_up
from xcray.solvers.row_shards import Shard, cut_share
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import Arrays
from xcray.storage.checkpoints import COPIES_ON_DISK, TrainingState

# entries of an array with one row per sample or feature and one column per label: 16 MB
MAX_CELLS = 1 << 21
# classes solved together; with more, their weights do not fit into the caches
MAX_WIDTH = 24
# maximum score over no labels; a worker can have none
LOWEST_SCORE = -1e300
# measured on five small sets, where trainings took 31 to 500 rounds
COST = RoundCost(120, 12.0, 1.2e-7, 1.2e-7, 2e-3)
SCRATCH_ARRAYS = 8  # arrays of MAX_CELLS numbers at a worker


# weights of a worker's labels, which stay there
Part: TypeAlias = ObjectHandle[LabelWeights]


class LabelSums(NamedTuple):
    """Sums over the weights of some labels.

    exp(max_score) * total is the sum of exp(w_k.x_i) for each row, both (N,) float64; linear: sum
    of c_i y_ik w_k.x_i; squared_norm: |W|^2; weights: sum of w_k, (D',).
    """

    max_score: Float64
    total: Float64
    linear: float
    squared_norm: float
    weights: Float64


class LabelUpdate(NamedTuple):
    """Result of a round for the labels of a worker.

    sums: those of the new weights; gradient: squared norm of the gradient at the start of the
    round.
    """

    sums: LabelSums
    gradient: float


class HeldOutPart(NamedTuple):
    """Held-out rows under the weights of some labels.

    sums, best: of these labels; weights, rows: c and number of each row, (n,).
    """

    sums: LabelSums
    best: PartialTopK
    weights: Float64
    rows: Int64


class LCWorker:
    """State of a worker: all rows and targets by label; O(nnz(X)).

    The weights of its labels are passed by handle.
    """

    def __init__(
        self, solver: LCSolver, shard: Shard, held_out: Shard | None, stopped: Callable[[], bool]
    ) -> None:
        self._solver = solver
        self._stopped = stopped
        self._data = _RowData(shard)
        self._held_out = None if held_out is None else _RowData(held_out)

    def weights(self) -> tuple[None, Float64]:
        """Return c: (N,) float64."""
        return None, self._data.shard.weights

    def begin(self, labels: tuple[int, int]) -> tuple[LabelWeights, float]:
        """Return labels lo .. hi-1 at W = 0, and the squared norm of the gradient of L1 there."""
        data = self._data
        part = LabelWeights(*labels, np.zeros((data.rows.n_features, labels[1] - labels[0])))
        size = 0.0
        for lo, hi in _column_ranges(part, data.rows.n_rows):
            R = np.repeat(data.shard.weights[:, None] / data.shard.targets.n_cols, hi - lo, axis=1)
            targets = data.targets(part.lo + lo, part.lo + hi)
            R[targets.rows, targets.columns] -= targets.values
            size += float(np.square(data.rows.adjoint(R)).sum())
        return part, size

    def sums(self, part: LabelWeights) -> tuple[None, LabelSums]:
        """Return the sums of the labels of a part, over all rows."""
        return None, _merge_sums(
            [sums for sums, _ in self._score_columns(self._data, part, np.zeros(len(part.W)))]
        )

    def solve(
        self, part: LabelWeights, b: Float64, mean: Float64
    ) -> tuple[LabelWeights, LabelUpdate]:
        """Solve each label of a part independently; return the new weights and their metrics.

        b: log a_i of each row, (N,). mean: (D',), which is first subtracted from the weights of
        each label; this changes b by mean.x_i.
        """
        data, W = self._data, np.empty_like(part.W)
        b = b + data.rows.scores(mean[:, None])[:, 0]
        parts, gradient = [], 0.0
        for lo, hi in _column_ranges(part, data.rows.n_rows):
            problem = poisson.PoissonProblem(
                data.rows,
                data.targets(part.lo + lo, part.lo + hi),
                data.shard.weights,
                b,
                self._solver.lam,
            )
            start = part.W[:, lo:hi] - mean[:, None]
            result = poisson.minimise(
                problem, start, self._solver.inner, self._solver.inner_steps, self._check_stopped
            )
            W[:, lo:hi] = result.W
            parts.append(_sums(result.S, problem.targets, result.W))
            gradient += float(result.gradient.sum())
        return LabelWeights(part.lo, part.hi, W), LabelUpdate(_merge_sums(parts), gradient)

    def watch(self, part: LabelWeights, mean: Float64) -> tuple[None, HeldOutPart | None]:
        """Evaluate the held-out rows with the weights of a part minus `mean`; None if none."""
        if self._held_out is None:
            return None, None
        sums, tops = zip(*self._score_columns(self._held_out, part, mean), strict=True)
        return None, HeldOutPart(
            _merge_sums(sums),
            merge_top_k(tops),
            self._held_out.shard.weights,
            self._held_out.shard.rows,
        )

    def _score_columns(
        self, data: _RowData, part: LabelWeights, mean: Float64
    ) -> Iterator[tuple[LabelSums, PartialTopK]]:
        """Yield sums and best labels of a part minus `mean`, some labels at a time."""
        for lo, hi in _column_ranges(part, data.rows.n_rows):
            self._check_stopped()
            W = part.W[:, lo:hi] - mean[:, None]
            S = data.rows.scores(W)
            yield _sums(S, data.targets(part.lo + lo, part.lo + hi), W), top_k(S, part.lo + lo)

    def _check_stopped(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self._stopped():
            raise Stopped("stopped within a round; the weights of the previous round are kept")


@dataclass(frozen=True)
class LCSolver(Parameters, GroupSolver):
    """Multinomial logistic regression with l2 regularisation; each round solves every class alone.

            min over W   lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i
                      + sum_i c_i log sum_k exp(w_k.x_i)

    The row weights c_i add up to 1, and so do the targets y_i of each row. `bias`: the value of a
    constant feature, the last one, regularised like the others (0: no such feature). log z <= a z -
    log a - 1 with equality at a = 1 / z. So for any a the problem separates into one problem per
    class (`poisson`), and the best a for given W is known exactly. Rounds alternate between the
    classes for given a, and a for given sums over all workers. The objective never rises.

    Without correction this stalls: adding one vector to all w_k changes no probability, only the
    norm, but for fixed a every class resists the change as if it were alone. In that direction only
    lam acts, with tiny steps. At the optimum the w_k add up to 0 (as do the gradients of the loss).
    `centre` subtracts their mean after each round, which can only lower L1 and removes the problem.

    State at a worker: all rows; the weights of its K/P labels, passed from round to round by
    handle. Transferred: vectors of size N and D (sums to the driver, b = log a and the mean to the
    workers). Memory: O(nnz(X) + KD/P + N) per worker plus a few arrays of MAX_CELLS scores; O((N +
    D) P) on the driver.

        Example:
            >>> LCSolver(lam=1e-4).family
            'group'

    Source: Gopal, Yang, "Distributed training of large-scale logistic models", ICML 2013, as
    described in the DS-MLR paper (sections 2 and 7); the bound is eq. 5-9 there. Differs from them:
    `centre`; classes are solved by Newton's method with conjugate gradients, those of a worker
    together, instead of one after the other by a quasi-Newton library; one step per round suffices
    (`inner`, `inner_steps`).
    """

    # incremented with every change of the bits of a model
    revision: ClassVar[int] = 1
    baseline: ClassVar[bool] = True
    link: ClassVar[Link] = "softmax"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({"max_rounds": 3}, "single"),)

    lam: float = parameter(
        1e-4, "weight of the squared l2 norm, relative to the mean loss", above=0.0
    )
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: no such feature", low=0.0
    )
    tolerance: float = parameter(
        1e-4,
        "stop when the norm of the gradient is at most this share of that at W = 0",
        above=0.0,
        high=1.0,
    )
    max_rounds: int = parameter(500, "maximum number of rounds", low=1)
    centre: str = parameter(
        "yes",
        "subtract the mean of all labels' weights after each round; no: as published",
        choices=("yes", "no"),
    )
    inner: float = parameter(
        0.5, "a class ends a round when its gradient has fallen to this share", above=0.0, high=1.0
    )
    inner_steps: int = parameter(1, "maximum number of Newton steps of a class in a round", low=1)
    eval_every: int = parameter(
        1, "rounds between two evaluations of held-out rows; 0: never", low=0
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        return StoppingRule("tolerance", self.tolerance, self.max_rounds, "the gradient is small")

    def n_weights(self, n_inputs: int) -> int:
        """Return D', with the constant feature."""
        return n_inputs + bool(self.bias)

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: every worker holds all rows with their squares; W is split."""
        W = 8 * shape.features * shape.labels
        scratch = SCRATCH_ARRAYS * min(8 * MAX_CELLS, 8 * shape.rows * shape.labels)
        workers = layout.workers
        worker = 4 * shape.n_bytes + SCRATCH_ARRAYS * W // workers + scratch
        driver = 16 * workers * (shape.rows + shape.features) + W // workers
        weights = shape.expected_weights(self.prune)
        saved = COPIES_ON_DISK * (W + 8 * (2 * shape.rows + shape.features))
        return ResourceNeeds(
            driver, worker, STORE_COPIES * W, saved, weights, COST.core_seconds(shape)
        )

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> LCWorker:
        """Return a worker with all rows: the labels are split."""
        share = (0, 1)
        held_out = None
        if rows.held_out is not None and rows.held_out[1].nnz:
            held_out = cut_share(*rows.held_out, share, self.bias)
        shard = cut_share(rows.X, rows.Y, rows.weights, share, self.bias)
        return LCWorker(self, shard, held_out, stopped)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Run rounds until the gradient is small, or `max_rounds` are done.

        The gradient of a round is that of the weights at its start. Raises Stopped, and errors of
        workers.
        """
        K = rows.Y.n_cols
        own = split_ranges(K, calls.size)
        c = calls.call(LCWorker.weights)[0][1]
        if state is None:
            zeros = calls.call_each(LCWorker.begin, own)
            parts, first = [part for part, _ in zeros], math.sqrt(sum(size for _, size in zeros))
            replies = calls.call_each(LCWorker.sums, [at_worker(part) for part in parts])
            sums, number, gradient = _merge_sums([each for _, each in replies]), 0, math.inf
        else:
            parts = [calls.put(LabelWeights(lo, hi, _columns(state, lo, hi))) for lo, hi in own]
            sums = _saved_sums(state)
            number, gradient, first = (state.note[n] for n in ("number", "gradient", "first"))
        while not (reason := self._reason(number, gradient, first)):
            b = at_worker(calls.put(-_log_sums(sums)))
            mean = at_worker(calls.put(self._mean(sums, K)))
            answers = calls.call_each(LCWorker.solve, [at_worker(part) for part in parts], b, mean)
            parts, updates = [part for part, _ in answers], [update for _, update in answers]
            sums = _merge_sums([update.sums for update in updates])
            gradient = math.sqrt(sum(update.gradient for update in updates))
            number, mean = number + 1, self._mean(sums, K)
            note = {"number": number, "gradient": gradient, "first": first}
            yield Round(
                number,
                _state(note, calls, own, parts, sums),
                {"objective": self._objective(c, sums, K), "gradient": gradient},
                self._evaluate_held_out(calls, parts, mean, number),
                gradient / first if first else 0.0,
            )
        return reason

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the weights as sparse rows, one range of labels at a time."""
        sums = _saved_sums(state)
        mean, rounds = self._mean(sums, len(positives))[:, None], state.note["number"]
        for lo, _ in state.note["ranges"]:
            W = state.groups[f"labels-{lo:08d}"]()["W"] - mean
            yield from export_weights(
                W, positives, rounds, bias=self.bias, prune=self.prune, first=lo
            )

    def _reason(self, number: int, gradient: float, first: float) -> str:
        """Return the reason to end after a round; empty to continue."""
        if number and gradient <= self.tolerance * first:
            return self.stopping.reached
        return f"after {number} rounds" if number >= self.max_rounds else ""

    def _mean(self, sums: LabelSums, n_labels: int) -> Float64:
        """Return what is subtracted from each label's weights: their mean, or 0."""
        return sums.weights / n_labels if self.centre == "yes" else np.zeros(len(sums.weights))

    def _objective(self, c: Float64, sums: LabelSums, n_labels: int) -> float:
        """Return L1 of the weights minus their mean, from the sums of all workers."""
        mean = self._mean(sums, n_labels)
        squared = (
            sums.squared_norm - 2.0 * float(mean @ sums.weights) + n_labels * float(mean @ mean)
        )
        return 0.5 * self.lam * squared + _loss(c, sums)

    def _evaluate_held_out(
        self, workers: WorkerCalls, parts: list[Part], mean: Float64, number: int
    ) -> HeldOut | None:
        """Evaluate the held-out rows, if there are any and an evaluation is due."""
        if not self.eval_every or number % self.eval_every:
            return None
        replies = workers.call_each(
            LCWorker.watch, [at_worker(part) for part in parts], at_worker(workers.put(mean))
        )
        held_out = [part for _, part in replies if part is not None]
        if not held_out:
            return None
        labels, scores = merge_top_k([each.best for each in held_out])
        loss = _loss(held_out[0].weights, _merge_sums([each.sums for each in held_out]))
        return HeldOut(loss, labels, scores, held_out[0].rows)


class _RowData:
    """Rows of a worker as an operator, and their targets by label."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.rows = RowOperator(shard)
        self._by_label = transpose(shard.targets)

    def targets(self, lo: int, hi: int) -> poisson.LabelTargets:
        """Return c_i y_ik of labels lo .. hi-1."""
        ends = self._by_label.indptr[lo : hi + 1]
        rows = self._by_label.indices[ends[0] : ends[-1]].astype(np.int64)
        values = self.shard.weights[rows] * self._by_label.data[ends[0] : ends[-1]]
        return poisson.LabelTargets(rows, np.repeat(np.arange(hi - lo), np.diff(ends)), values)


def _state(
    note: dict[str, Any],
    calls: WorkerCalls,
    ranges: list[tuple[int, int]],
    parts: list[Part],
    sums: LabelSums,
) -> TrainingState:
    """Return the state after a round: the weights of each part, which are fetched when needed."""
    arrays = {"max_score": sums.max_score, "total": sums.total, "weights": sums.weights}
    numbers = {"linear": sums.linear, "squared_norm": sums.squared_norm}
    filled = [(each, part) for each, part in zip(ranges, parts, strict=True) if each[0] < each[1]]
    groups = {f"labels-{lo:08d}": partial(_fetch, calls, part) for (lo, _), part in filled}
    note = {**note, "sums": numbers, "ranges": [list(each) for each, _ in filled]}
    return TrainingState(note, {"sums": lambda: arrays, **groups})


def _saved_sums(state: TrainingState) -> LabelSums:
    """Return the sums over all labels of a state."""
    arrays, numbers = state.groups["sums"](), state.note["sums"]
    return LabelSums(
        arrays["max_score"],
        arrays["total"],
        numbers["linear"],
        numbers["squared_norm"],
        arrays["weights"],
    )


def _fetch(calls: WorkerCalls, part: Part) -> Arrays:
    """Return the weights of a part."""
    return {"W": calls.fetch(part).W}


def _columns(state: TrainingState, lo: int, hi: int) -> Float64:
    """Return the weights of labels lo .. hi-1 of a state: (D', hi-lo)."""
    n_features = len(state.groups["sums"]()["weights"])
    parts = [
        state.groups[f"labels-{a:08d}"]()["W"][:, max(lo - a, 0) : hi - a]
        for a, b in state.note["ranges"]
        if a < hi and b > lo
    ]
    return np.concatenate([np.empty((n_features, 0)), *parts], axis=1)


def _column_ranges(part: LabelWeights, n_rows: int) -> list[tuple[int, int]]:
    """Return the ranges of a part's labels that are solved together; one empty range if none."""
    n_labels = part.hi - part.lo
    width = min(MAX_WIDTH, max(1, MAX_CELLS // max(n_rows, len(part.W), 1)))
    return split_ranges(n_labels, max(1, -(-n_labels // width)))


def _sums(S: Float64, targets: poisson.LabelTargets, W: Float64) -> LabelSums:
    """Return the sums of labels with weights W (D', m) and scores S (N, m)."""
    max_score = S.max(axis=1, initial=LOWEST_SCORE)
    total = np.exp(S - max_score[:, None]).sum(axis=1)
    return LabelSums(
        max_score, total, float(targets.linear(S).sum()), float(np.vdot(W, W)), W.sum(axis=1)
    )


def _merge_sums(sums: Sequence[LabelSums]) -> LabelSums:
    """Add the sums of all parts in order."""
    max_score = np.max([each.max_score for each in sums], axis=0)
    total, weights = np.zeros(len(max_score)), np.zeros(len(sums[0].weights))
    for each in sums:
        total += each.total * np.exp(each.max_score - max_score)
        weights += each.weights
    return LabelSums(
        max_score,
        total,
        sum(each.linear for each in sums),
        sum(each.squared_norm for each in sums),
        weights,
    )


def _log_sums(sums: LabelSums) -> Float64:
    """Return log sum_k exp(w_k.x_i) of each row, (N,); -b if the sums are over all labels."""
    return sums.max_score + np.log(sums.total)


def _loss(c: Float64, sums: LabelSums) -> float:
    """Return the objective without the norm.

    Subtracting a mean does not change it, because targets add up to 1.
    """
    return float(c @ _log_sums(sums)) - sums.linear
