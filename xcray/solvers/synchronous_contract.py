"""Contract of synchronous solvers: all workers run the same method at the same time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, frozen
from xcray.index.search_result import best_positions
from xcray.kernels.training.sparsify import sparse_rows
from xcray.schedule.calls import ObjectHandle
from xcray.solvers.contract import Solver
from xcray.solvers.declarations import WEIGHT_FIELDS, ProblemShape, RecordSchema, ResourceNeeds
from xcray.solvers.solved_labels import SolvedLabels

RECORDS = RecordSchema(*WEIGHT_FIELDS)  # of `to_solved_labels`
TOP_K = 5  # labels reported per held-out row
PART_WEIGHTS = 1 << 22  # weights of a part of the result: 32 MB
MANY_LABELS = 256  # with more labels, a row is not sorted to find the best ones


P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")


class WorkerCalls(Protocol):
    """Method calls on all workers of a training (see `xcray.workers.synchronous_calls`).

    A method is an unbound one of the class of the solver's workers. It returns (object or None,
    result): the object stays where it was computed and the driver receives its handle; the result
    is sent to the driver. `schedule.calls.at_worker` passes a handle as an argument.
    """

    @property
    def size(self) -> int:
        """Return the number of workers."""

    def call(
        self, method: Callable[Concatenate[Any, P], tuple[T, R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Call a method on every worker; return (handle, result) of each, in worker order.

        Arguments are passed by position. Raises errors of the method, and Stopped.
        """

    def call_each(
        self,
        method: Callable[Concatenate[Any, A, P], tuple[T, R]],
        each: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Do the same with a first argument for each worker, in worker order."""

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of `value`, which is sent to each worker at most once."""

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object of a handle, read-only."""


class LabelWeights(NamedTuple):
    """Weights of labels lo .. hi-1: W (D', hi-lo) float64, one row per feature."""

    lo: int
    hi: int
    W: Float64


class PartialTopK(NamedTuple):
    """Best labels of each row among some of the labels, with their scores; both (n, k).

    Highest score first, ties by lower label.
    """

    labels: Int32
    scores: Float64


class HeldOut(NamedTuple):
    """Evaluation of held-out rows under the current weights.

    loss: the objective without the norm, with held-out weights that add up to 1; labels, scores:
    (n, k), see `PartialTopK`; rows: (n,).
    """

    loss: float
    labels: Int32
    scores: Float64
    rows: Int64


class RoundMetrics(NamedTuple):
    """Metrics after an iteration.

    objective: L1(W); gradient: its Euclidean norm; products: number of products of X and W so far;
    held_out: evaluation of the held-out rows, or None if it was not due. ratio: what the tolerance
    bounds, infinity if it is unknown.
    """

    number: int
    objective: float
    gradient: float
    products: float
    held_out: HeldOut | None
    ratio: float = math.inf


class SynchronousOutcome(NamedTuple):
    """Outcome of a training: its last round, the reason it ended, and its weights.

    parts: yields the weights by ranges of labels.
    """

    last: RoundMetrics
    reason: str
    parts: Callable[[], Iterator[LabelWeights]]


# returns True to end the training
RoundCallback = Callable[[RoundMetrics, Callable[[], Iterator[LabelWeights]]], bool]
# (lo, hi) -> initial weights (D', hi-lo) of labels lo .. hi-1
InitialWeights = Callable[[int, int], Float64]


def continue_training(metrics: RoundMetrics, parts: Callable[[], Iterator[LabelWeights]]) -> bool:
    """Ignore a round, and continue the training."""
    return False


class TrainingRows(NamedTuple):
    """Rows of a data set, mapped from files, from which each worker takes its share.

    X (N, D), Y (N, K), weights (N,) or None: of the training part. held_out: X and Y of the
    held-out rows, or None. in_memory: whether workers can copy their rows; if not, solvers that can
    read them again in each pass do so, with the same result.
    """

    X: CSR
    Y: Pattern
    weights: Float32 | None = None
    held_out: tuple[CSR, Pattern, Float32 | None] | None = None
    in_memory: bool = True


class SynchronousSolver(Solver, Protocol):
    """Solver whose workers all run the same method at the same time; the driver reduces.

    The optimiser runs on the driver, in `train`. Its workers are objects of a class of its own,
    which holds a share of the rows and any state. Methods are pure functions of their arguments and
    of the rows, so that a lost worker can be replaced.
    """

    family: ClassVar[Literal["synchronous"]] = "synchronous"

    def n_weights(self, n_inputs: int) -> int:
        """Return D', the rows of W, for `n_inputs` features of the data."""
        return n_inputs

    def create_worker(
        self, data: TrainingRows, number: int, workers: int, stopped: Callable[[], bool]
    ) -> Any:
        """Return worker `number` of `workers`, created where it will run.

        `stopped` is called every few rows; soon after it returns True, methods raise Stopped.
        """

    def train(
        self,
        workers: WorkerCalls,
        n_features: int,
        n_labels: int,
        on_round: RoundCallback = continue_training,
        start: InitialWeights | None = None,
    ) -> SynchronousOutcome:
        """Run rounds until a stopping rule is met or `on_round` returns True.

        n_features: D'. start: initial weights, or None for 0. `on_round` is called after each round
        and can fetch the weights. Raises Stopped, and errors of workers.
        """

    def blocks(self, trained: SynchronousOutcome, positives: Int64) -> Iterator[SolvedLabels]:
        """Yield the trained labels, one range at a time; positives: (K,) training rows of each."""

    def resources(self, shape: ProblemShape, workers: int) -> ResourceNeeds:
        """Return the resource needs with that number of workers."""


def weight_parts(W: Float64) -> Iterator[LabelWeights]:
    """Yield the weights W (D', K) by ranges of labels of at most about PART_WEIGHTS weights."""
    for lo, hi in split_ranges(W.shape[1], max(1, -(-W.size // PART_WEIGHTS))):
        yield LabelWeights(lo, hi, np.ascontiguousarray(W[:, lo:hi]))


def sparse_blocks(
    trained: SynchronousOutcome, positives: Int64, *, bias: float, prune: float
) -> Iterator[SolvedLabels]:
    """Yield trained weights as sparse rows, one range of labels at a time.

    positives: (K,) training rows of each label. bias, prune: see `to_solved_labels`.
    """
    for part in trained.parts():
        counts, number = positives[part.lo : part.hi], trained.last.number
        yield to_solved_labels(part.lo, part.W, bias, prune, counts, rounds=number)


def split_ranges(n_labels: int, parts: int) -> list[tuple[int, int]]:
    """Split labels 0 .. n_labels-1 into `parts` ranges whose sizes differ by at most one."""
    ends = [n_labels * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))


def merge_held_out(parts: Sequence[HeldOut]) -> HeldOut | None:
    """Merge the held-out rows of all workers; None if there are none."""
    if not parts:
        return None
    labels, scores, rows = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ("labels", "scores", "rows")
    )
    return HeldOut(float(sum(each.loss for each in parts)), labels, scores, rows)


def top_k(S: Float64, lo: int, k: int = TOP_K) -> PartialTopK:
    """Return the k best labels of each row of scores S (n, m), of labels from `lo` on."""
    if S.shape[1] <= MANY_LABELS:
        order: Int64 = np.argsort(-S, axis=1, kind="stable")[:, :k]
    else:
        order = np.array([best_positions(row, k) for row in S], np.int64).reshape(len(S), -1)
    return PartialTopK((order + lo).astype(np.int32), np.take_along_axis(S, order, axis=1))


def merge_top_k(tops: Sequence[PartialTopK], k: int = TOP_K) -> PartialTopK:
    """Return the k best labels of each row over groups of labels in ascending order."""
    labels, scores = (
        np.concatenate([getattr(each, name) for each in tops], axis=1)
        for name in ("labels", "scores")
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return PartialTopK(
        np.take_along_axis(labels, order, axis=1), np.take_along_axis(scores, order, axis=1)
    )


def to_solved_labels(
    lo: int, W: Any, bias: float, prune: float, positives: Int64, *, rounds: int = 0, keep: int = 0
) -> SolvedLabels:
    """Return labels from `lo` on as sparse rows, without small weights.

    W: (D', n) float32 or float64, one row per feature. bias: the value of the constant feature,
    which is then the last row of W; 0: no such feature. The bias of a label is that weight times
    that value. prune: weights of at most this size are dropped; keep: maximum number of weights per
    label, 0 for all. positives: (n,) training rows of each label.
    """
    n = W.shape[1]
    constant = W[-1].astype(np.float64) * bias if bias else np.zeros(n)
    matrix, dropped = sparse_rows(
        (W[:-1] if bias else W).astype(np.float32, copy=False), prune, keep
    )
    labels = np.arange(lo, lo + n, dtype=np.int32)
    records = np.zeros(n, RECORDS.dtype)
    records["label"], records["positives"], records["rounds"] = labels, positives, rounds
    records["nnz"], records["pruned"] = np.diff(matrix.indptr), dropped
    return SolvedLabels(frozen(labels, np.int32), matrix, frozen(constant, np.float64), records)
