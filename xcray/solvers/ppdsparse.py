"""PPDSparse: parallel primal-dual sparse one-vs-all training, with a certificate for every class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Pattern, csr, frozen
from xcray.errors import ParameterError, Stopped
from xcray.kernels import ppdsparse as kernel
from xcray.kernels.sparse import row_largest, row_norms_sq
from xcray.solvers.block import Block
from xcray.solvers.parameters import check_parameters, parameter

SLICE = 30_000_000  # entries of X between two looks at the stop flag: about 50 ms, at most 200 ms where memory is slow
LOSSES = {"squared_hinge": kernel.SQUARED_HINGE, "hinge": kernel.HINGE}
CHUNK = 1 << 16  # rows looked at in one go when costs are counted
FIRST_ROOM = 1 << 16  # weights a batch's output holds at first


@dataclass
class Local:
    """What stays at a worker: the problem (shared, read-only) and scratch of its own.

    The scratch is O(N + D), and 4 bytes for each entry of the largest active set (address space for all of X is reserved,
    memory is taken as it is written).
    """

    problem: kernel.Problem
    scratch: kernel.Scratch

    def sibling(self) -> Local:
        """The same problem with scratch of its own, for another thread."""
        return Local(self.problem, _scratch(self.problem))


@dataclass(frozen=True)
class PPDSparseSolver:
    """One-vs-all linear classification with l1 and l2 regularisation, each class solved on its few active samples.

    For every label k, independent of all others, with y_i = +1 where sample i carries k and -1 elsewhere:

        min over (w, b)   lam |w|_1 + tau/2 (|w|^2 + b^2) + C sum_i max(0, 1 - y_i (w.x_i + b))^2

    (squared hinge, in LIBLINEAR's scaling of C: the paper's eq. 9 prints the plain hinge, its experiments use the
    square; `loss="hinge"` is eq. 3.) The bias is regularised by l2 and free of l1.

    A class starts from its positives. Rounds follow: all samples are scored through the postings of the weights that
    changed, in early rounds only of those that changed much; if the duality gap over all N samples looks above `eps`
    times the null objective (w = 0, best bias), the worst violating negatives become active and the dual is solved on the
    active set by randomised coordinate descent; if not, the scores are made exact, and with them the gap. What stays at
    the worker: X by row and column, squared row norms, scratch (see `Local`).

    Example:
        >>> PPDSparseSolver(lam=0.1).lam
        0.1

    Source: Yen, Huang, Dai, Ravikumar, Dhillon, Xing, "PPDSparse", KDD 2017: Algorithms 1 and 2, eq. 9-14.
    Differs from the paper: classes end on a certificate, not after a fixed number of rounds; the search skips small
    changes of weights instead of drawing weights at random (Algorithm 3); the bias of the certified primal point is
    minimised exactly at fixed w, which is what makes a small active set enough when nearly all samples are barely
    violating negatives.
    """

    revision: ClassVar[int] = 2  # raised with every change of the bits of a model, so that no run mixes parts of two
    joint: ClassVar[bool] = False  # classes are solved one by one, in any batches
    cost_rates: ClassVar[tuple[float, ...]] = (2e-8, 2e-8, 1e-8)  # seconds a visit; four passes of 5 ns; schedules measure them

    lam: float = parameter(0.01, "weight of the l1 norm", low=0.0)
    tau: float = parameter(1.0, "weight of the squared l2 norm", above=0.0)
    C: float = parameter(1.0, "weight of a sample's loss", above=0.0)
    loss: str = parameter("squared_hinge", "loss of a sample", choices=tuple(LOSSES))
    eps: float = parameter(
        0.01, "a class is done when its duality gap is at most eps times its null objective", above=0.0, high=1.0
    )
    prune: float = parameter(0.0, "weights of at most this size are dropped after a class is solved", low=0.0)
    max_rounds: int = parameter(100, "rounds after which a class ends without its certificate (and is reported)", low=1)
    max_sweeps: int = parameter(20, "coordinate descent sweeps in a round, at most", low=1)
    growth: int = parameter(10, "negatives that may enter in a round, for each positive", low=1)
    seed: int = parameter(0, "seed of the random order of sweeps; every class has a stream of its own", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        """Check every parameter. Raises ParameterError."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""
        return asdict(self)

    def load(self, X: CSR, XT: CSR, YT: Pattern) -> Local:
        """The local part of a worker: X (N x D), XT (D x N) its transpose, YT (K x N) the samples of each label."""
        problem = kernel.Problem(X, XT, row_norms_sq(X), row_largest(XT), YT)
        return Local(problem, _scratch(problem))

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """What the work of each label grows with: (K, 3) float64; terms @ `cost_rates` is a first guess of its seconds.

        See `load` for the arguments. The columns, in visits: 0, samples, N for every label: certificate and bounds walk
        all of them. 1, entries of X scored: the postings of the positives' features, each pass at most all of X, which
        the sum nears as 1 - exp(-x) does. 2, entries of active rows times sweeps: `growth` negatives for each positive.
        """
        lengths = np.diff(X.indptr).astype(np.float64)
        labels = np.repeat(np.arange(YT.n_rows), np.diff(YT.indptr))
        walked = np.bincount(labels, _postings_of_rows(X, XT)[YT.indices], YT.n_rows)
        rows = np.bincount(labels, lengths[YT.indices], YT.n_rows)
        total = max(float(X.nnz), 1.0)
        terms = [np.full(YT.n_rows, float(X.n_rows)), total * -np.expm1(-walked / total), self.max_sweeps * self.growth * rows]
        return np.stack(terms, axis=1)

    def solve(self, local: Local, labels: Int32, stopped: Callable[[], bool] = lambda: False) -> Block:
        """Solve `labels` (n,) int32 one after the other; the block's rows are in their order.

        `stopped` is asked between slices of at most 200 ms; when it says True, Stopped is raised and nothing is kept.
        Raises ParameterError for a label that there is not.
        """
        labels = frozen(labels, np.int32)
        _check_labels(labels, local.problem.YT.n_rows)
        settings = self._settings()
        state = np.zeros(1, kernel.STATE)
        out = _room(len(labels), FIRST_ROOM)
        why, done = kernel.BUDGET, 0
        while why != kernel.DONE:
            if stopped():
                local.scratch = _scratch(local.problem)  # the interrupted class left its marks
                raise Stopped("stopped between two slices of a class; finished batches are kept")
            if why == kernel.FULL:
                out = _grown(out, done, int(state["nnz"][0]))
            why, done = kernel.advance(local.problem, settings, labels, local.scratch, state, done, out, SLICE)
        indptr = np.concatenate([[0], out.ends])
        used = int(indptr[-1])
        W = csr(indptr, out.features[:used].copy(), out.weights[:used].copy(), local.problem.X.n_cols)
        return Block(labels, W, frozen(out.records["bias"], np.float64), out.records)

    def warm_up(self) -> None:
        """Compile or load the kernels, on a problem of two samples."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        local = self.load(X, X, Pattern(frozen([0, 1], np.int64), frozen([0], np.int32), 2))
        self.solve(local, frozen([0], np.int32))

    def _settings(self) -> kernel.Settings:
        """The parameters as the kernel takes them."""
        return kernel.Settings(
            loss=LOSSES[self.loss],
            lam=float(self.lam),
            tau=float(self.tau),
            C=float(self.C),
            eps=float(self.eps),
            prune=float(self.prune),
            max_rounds=self.max_rounds,
            max_sweeps=self.max_sweeps,
            growth=self.growth,
            seed=self.seed,
        )


def _postings_of_rows(X: CSR, XT: CSR) -> Float64:
    """For each row of X (N x D), the postings of its features, in entries: (N,) float64. In chunks: X may be large."""
    postings = np.diff(XT.indptr).astype(np.float64)
    out = np.zeros(X.n_rows)
    for begin in range(0, X.n_rows, CHUNK):
        ends = X.indptr[begin : begin + CHUNK + 1]
        found = np.append(postings[X.indices[ends[0] : ends[-1]]], 0.0)  # a place for the empty rows at the end
        out[begin : begin + CHUNK] = np.add.reduceat(found, ends[:-1] - ends[0]) * (np.diff(ends) > 0)
    return out


def _check_labels(labels: Int32, n_labels: int) -> None:
    """The kernel reads without bounds: no label may be out of range."""
    for label in labels[(labels < 0) | (labels >= n_labels)]:
        raise ParameterError(f"there is no label {label}: the data have labels 0 to {n_labels - 1}")


def _scratch(problem: kernel.Problem) -> kernel.Scratch:
    """Clean scratch for a problem."""
    n, d = problem.X.shape
    return kernel.Scratch(
        number=np.zeros(d, np.int32),
        touched=np.empty(d, np.int32),
        v=np.empty(d),
        walked=np.empty(d),
        scores=np.empty(n),
        tops=np.empty(n),
        alpha=np.zeros(n),
        kind=np.zeros(n, np.uint8),
        active=np.empty(n, np.int32),
        entered=np.empty(n, np.int32),
        begins=np.zeros(n, np.int64),
        entries=np.empty(problem.X.nnz, np.int32),
    )


def _room(n_labels: int, n_weights: int) -> kernel.Columns:
    """Output for `n_labels` classes of `n_weights` weights in all."""
    return kernel.Columns(
        np.zeros(n_labels, np.int64),
        np.zeros(n_weights, np.int32),
        np.zeros(n_weights, np.float32),
        np.zeros(n_labels, kernel.STATE),
    )


def _grown(out: kernel.Columns, done: int, needed: int) -> kernel.Columns:
    """The same output with at least twice the room and `needed` free places."""
    room = max(2 * len(out.features), len(out.features) + needed)
    features, weights = np.zeros(room, np.int32), np.zeros(room, np.float32)
    used = int(out.ends[done - 1]) if done else 0
    features[:used], weights[:used] = out.features[:used], out.weights[:used]
    return kernel.Columns(out.ends, features, weights, out.records)
