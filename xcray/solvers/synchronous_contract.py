"""What solvers of the family "rounds" share: one verb at all workers at a time, and what a driver hears and hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.kernels.training.sparsify import sparse_rows
from xcray.solvers.solved_labels import Block

RECORD = np.dtype(
    [
        ("label", np.int32),
        ("positives", np.int32),
        ("rounds", np.int32),
        ("nnz", np.int32),
        ("pruned", np.int32),
    ]
)
TOP = 5  # labels told of each held-out row


class Rounds(Protocol):
    """The workers of a training, as its solver sees them (`xcray.workers.synchronous_calls` makes one of a team).

    A verb is a method of what the solver's `local` gave; it returns (bulk, told): bulk stays where it was made, its handle and
    told come to the driver. Handles in arguments are resolved where the verb runs.
    """

    @property
    def size(self) -> int:
        """Number of workers."""

    def call(self, verb: str, *args: Any, each: Sequence[Any] = ()) -> list[tuple[Any, Any]]:
        """The verb at every worker: (handle, told) in worker order, whatever the order they come in.

        each: what each worker gets as its first argument; empty for nothing. Raises what a verb raised, and Stopped.
        """

    def put(self, value: Any) -> Any:
        """A handle of `value`, sent to each worker once, however many verbs take it."""

    def fetch(self, handle: Any) -> Any:
        """What is behind a handle."""


class Part(NamedTuple):
    """The weights of labels lo .. hi-1: W (D', hi-lo) float64, a row a feature."""

    lo: int
    hi: int
    W: Float64


class Top(NamedTuple):
    """Some of the best labels of each row, best first, equal ones by lower label: labels and scores, both (n, k)."""

    labels: Int32
    scores: Float64


class Watched(NamedTuple):
    """Held-out rows as the weights of now answer them.

    loss: the objective without the norm, held-out weights adding up to 1; labels, scores: (n, k), see `Top`; rows: (n,).
    """

    loss: float
    labels: Int32
    scores: Float64
    rows: Int64


class Round(NamedTuple):
    """What a training tells after each iteration: L1(W), the Euclidean norm of its gradient, products of X and W so far, and
    the held-out rows when they were looked at."""

    number: int
    objective: float
    gradient: float
    products: int
    watched: Watched | None


class Trained(NamedTuple):
    """How a training ended: its last round, why it ended, and the parts of the weights, made when asked for, by label."""

    last: Round
    reason: str
    parts: Callable[[], Iterator[Part]]


Tell = Callable[[Round, Callable[[], Iterator[Part]]], bool]  # True: that is enough
Start = Callable[[int, int], Float64]  # weights (D', hi-lo) of labels lo .. hi-1 to begin from


def go_on(told: Round, parts: Callable[[], Iterator[Part]]) -> bool:
    """Hears of a round, and does not end the training."""
    return False


def ranges(n_labels: int, parts: int) -> list[tuple[int, int]]:
    """Labels 0 .. n_labels-1 in `parts` consecutive ranges, sizes differing by one at most."""
    ends = [n_labels * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))


def watched_of(answers: Sequence[Watched]) -> Watched | None:
    """The held-out rows of all workers as one; None when nobody has any."""
    if not answers:
        return None
    labels, scores, rows = (
        np.concatenate([getattr(each, name) for each in answers])
        for name in ("labels", "scores", "rows")
    )
    return Watched(float(sum(each.loss for each in answers)), labels, scores, rows)


def top(S: Float64, lo: int, k: int = TOP) -> Top:
    """The k best of each row of scores S (n, m) of labels from `lo` on, equal ones by lower label."""
    order = np.argsort(-S, axis=1, kind="stable")[:, :k]
    return Top((order + lo).astype(np.int32), np.take_along_axis(S, order, axis=1))


def best_of(tops: Sequence[Top], k: int = TOP) -> Top:
    """The k best of each row of what some groups of labels, in ascending order, have to offer."""
    labels, scores = (
        np.concatenate([getattr(each, name) for each in tops], axis=1)
        for name in ("labels", "scores")
    )
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Top(np.take_along_axis(labels, order, axis=1), np.take_along_axis(scores, order, axis=1))


def block_of(
    lo: int, W: Any, bias: float, prune: float, positives: Int64, *, rounds: int = 0, keep: int = 0
) -> Block:
    """Labels from `lo` on as a solver's block: a sparse row a label, weights of at most `prune`, and beyond `keep`, left out.

    W: (D', n) float32 or float64, a row a feature. bias: the value of the constant feature, which is the last row of W then; 0:
    there is none. The block's bias is that weight times that value. positives: (n,) training rows of each label; keep: 0 for all.
    """
    n = W.shape[1]
    constant = W[-1].astype(np.float64) * bias if bias else np.zeros(n)
    matrix, dropped = sparse_rows(
        (W[:-1] if bias else W).astype(np.float32, copy=False), prune, keep
    )
    labels = np.arange(lo, lo + n, dtype=np.int32)
    records = np.zeros(n, RECORD)
    records["label"], records["positives"], records["rounds"] = labels, positives, rounds
    records["nnz"], records["pruned"] = np.diff(matrix.indptr), dropped
    return Block(frozen(labels, np.int32), matrix, frozen(constant, np.float64), records)
