"""PD-Sparse: max-margin training of all labels at once, sparse in primal and dual, with a certificate over all samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import row_norms_sq, take_pattern_rows, take_rows, transpose_pattern
from xcray.kernels.training import dynamic_csr as growing
from xcray.kernels.training import pdsparse as kernel
from xcray.solvers.dual_checkpoint import Kept
from xcray.solvers.parameters import check_parameters, parameter
from xcray.solvers.solved_labels import Block

SLICE = 8_000_000  # entries walked between two looks at the stop flag: 20 to 60 ms
FIRST_ROOM = 1 << 16  # places of the pools at first
KEEP_SECONDS = 5.0  # the dual is kept at most this often: a short training needs no file
PASSES = 6  # searches of all samples that a training needs, about
EXPORT_ROWS = 4096  # features turned into weights between two looks at the stop flag

RECORD = np.dtype(
    [
        ("positives", np.int32),
        ("rounds", np.int32),  # passes over all samples; -1 for a label that was not in the problem
        ("support", np.int32),  # samples whose beta is not zero for the label
        ("nnz", np.int32),
        ("pruned", np.int32),
        ("certified", np.uint8),  # whether the whole problem's gap is what was asked for
        (
            "gap",
            np.float64,
        ),  # shares: a sample's gap and null objective are split equally over its labels, so that
        ("null", np.float64),  # the sums over the labels are the problem's
    ],
    align=True,
)


@dataclass
class Local:
    """What stays at a worker: the problem over the labels that some sample carries, `seen` (their numbers), of `n_labels`.

    keep: the directory in which a training keeps its dual from pass to pass and finds it again; None for nowhere.
    """

    problem: kernel.Problem
    seen: Int32
    n_labels: int
    keep: Path | None = None

    def sibling(self) -> Local:
        """The same problem; scratch is made by each task for itself."""
        return Local(self.problem, self.seen, self.n_labels, self.keep)


@dataclass(frozen=True)
class PDSparseSolver:
    """Max-margin multi-label classification with l1 and l2 regularisation: every label of a sample is to beat all others.

    With P_i the labels of sample i, N_i the others, z_i = W'x_i (no bias), W (D x K):

        min over W   lam |W|_1 + tau/2 |W|^2 + C sum_i max(0, max over p in P_i, n in N_i of 1 + z_in - z_ip)

    The loss is the maximum of m + sum_n u_n z_n - sum_p a_p z_p over a, u >= 0 with sum_p a_p = sum_n u_n = m <= 1. Scaled by C,
    with beta_ip = a_ip, beta_in = -u_in and V = sum_i x_i beta_i', minimum and maximum change places; the minimum over W of
    lam |W|_1 + tau/2 |W|^2 - <V, W> is at W(beta) = soft(V, lam) / tau and is -tau/2 |W(beta)|^2. Hence the dual

        max over beta   sum_i m_i - tau/2 |W(beta)|^2,    a_i, u_i >= 0,   sum_p a_ip = sum_n u_in = m_i <= C

    and, since lam |W|_1 + tau |W|^2 = <V, W> at W(beta), a gap that is a sum of what each sample lacks:

        gap = sum_i C loss_i - m_i + beta_i.z_i,   each term >= 0

    soft is 1-Lipschitz: with the others fixed, a step d of beta_i adds to the dual at least the change of m_i, minus d.z_i, minus
    |x_i|^2 / (2 tau) |d|^2: the best step is to the projection of a_p + (1 - z_p) tau / |x_i|^2 and u_n + z_n tau / |x_i|^2 on the
    two simplices of one size (`kernels.pdsparse.project`, exact). Only labels in the sample's active set move: its own, and
    those that a search of all labels through the nonzero rows of W found most confusing.

    Training ends when the gap over all samples, by an exact search of each, is at most `eps` times the objective of W = 0, which is
    C for every sample with a label and one that it lacks; other samples cost nothing. Labels that no sample carries are not in the
    problem: no weights, bias -1. One task holds all labels and runs on one core.

    Example:
        >>> PDSparseSolver(lam=0.1).joint
        True

    Source: Yen, Huang, Zhong, Ravikumar, Dhillon, "PD-Sparse: A primal and dual sparse approach to extreme multiclass and
    multilabel classification", ICML 2016, the ancestor that the PPDSparse paper compares with; formulas derived from its problem.
    Differs from it: ends on a certificate, not after a number of passes; several labels enter in one search; all of W is made
    afresh from the dual after every pass.
    """

    family: ClassVar[str] = "scatter"
    revision: ClassVar[int] = 1
    joint: ClassVar[bool] = True
    cost_rates: ClassVar[tuple[float, ...]] = (
        PASSES * 4e-9,
        PASSES * 5e-8,
    )  # seconds an entry walked, an entry found

    lam: float = parameter(0.01, "weight of the l1 norm", low=0.0)
    tau: float = parameter(1.0, "weight of the squared l2 norm", above=0.0)
    C: float = parameter(1.0, "weight of a sample's loss", above=0.0)
    eps: float = parameter(
        0.01,
        "done when the duality gap is at most eps times the objective of W = 0",
        above=0.0,
        high=1.0,
    )
    prune: float = parameter(
        0.0, "weights of at most this size are dropped after training", low=0.0
    )
    max_passes: int = parameter(
        100, "passes after which training ends without its certificate (and says so)", low=1
    )
    inner: int = parameter(
        5, "passes over the active labels alone after each search of all labels", low=0, high=1000
    )
    growth: int = parameter(
        10, "labels that may become active for a sample in one search", low=1, high=10_000
    )
    sample: float = parameter(
        1.0,
        "share of a sample's features that a search walks, drawn by size; 1: all of them",
        above=0.0,
        high=1.0,
    )
    seed: int = parameter(
        0, "seed of the random order of samples and of the search", low=0, high=2**31 - 1
    )

    def __post_init__(self) -> None:
        """Check every parameter. Raises ParameterError."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""
        return asdict(self)

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> Local:
        """The local part of a worker: X (N x D), XT (D x N) its transpose (not used), YT (K x N) the samples of each label.

        Raises ParameterError for sample weights, which this solver has not.
        """
        if weights is not None:
            raise ParameterError(
                "pdsparse has no sample weights; use ppdsparse, or the data set without weights"
            )
        seen = np.flatnonzero(np.diff(YT.indptr)).astype(np.int32)
        Y = transpose_pattern(take_pattern_rows(YT, seen.astype(np.int64)))
        return Local(kernel.Problem(X, Y, row_norms_sq(X)), frozen(seen, np.int32), YT.n_rows)

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """What a pass over a label's samples visits, each sample's share split over its labels: (K, 2) float64; see `load`.

        The columns: 0, entries of W that the search walks: a row of W holds about `growth` labels of each sample with that
        feature, and at most all labels. 1, entries of V that steps find: `growth` labels for each feature of a sample, in the
        search, in each inner pass, and when V is made afresh.
        """
        held = np.minimum(float(self.growth) * np.diff(XT.indptr), YT.n_rows)
        lengths, owners = (
            np.diff(X.indptr),
            np.maximum(np.bincount(YT.indices, minlength=X.n_rows), 1),
        )
        walked = np.bincount(np.repeat(np.arange(X.n_rows), lengths), held[X.indices], X.n_rows)
        found = (self.inner + 2.0) * min(self.growth, YT.n_rows) * lengths
        labels = np.repeat(np.arange(YT.n_rows), np.diff(YT.indptr))
        terms = [
            np.bincount(labels, (each / owners)[YT.indices], YT.n_rows) for each in (walked, found)
        ]
        return frozen(np.stack(terms, axis=1), np.float64)

    def solve(
        self, local: Local, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> Block:
        """Solve all labels: `labels` (K,) int32 holds each once; the block's rows are in their order.

        `stopped` is asked between slices of at most 200 ms; when it says True, Stopped is raised; with `local.keep` the passes
        done are found again by the next call there, which gives the same bits as one that was never stopped.
        Raises ParameterError when `labels` are not all labels.
        """
        labels = frozen(labels, np.int32)
        if not np.array_equal(np.sort(labels), np.arange(local.n_labels)):
            raise ParameterError(
                f"pdsparse trains all labels at once: give it the {local.n_labels} labels, each once"
            )
        problem, settings = local.problem, self._settings(local.problem.Y.n_cols)
        kept = Kept(local.keep / "pdsparse.arrow", KEEP_SECONDS) if local.keep is not None else None
        lists, state = (kept.load() if kept else None) or _start(problem.Y, settings.growth)
        table, scratch = _table(problem.X.n_cols), _scratch(problem, settings.growth)
        why = kernel.BUDGET
        while why != kernel.DONE:
            if stopped():
                raise Stopped(
                    "stopped between two slices of a pass; the next run goes on after the last pass that was kept"
                )
            if why == kernel.FULL_LISTS:
                lists = lists._replace(labels=_longer(lists.labels), values=_longer(lists.values))
            elif why == kernel.FULL_TABLE:
                table = _grown(table)
            elif why == kernel.KEEP and kept:
                kept.save(lists, state)
            why = kernel.advance(problem, settings, lists, table, scratch, state, SLICE)
        return self._block(local, labels, lists, table, scratch, state[0], stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels, on a problem of two samples."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        self.solve(self.load(X, X, pattern([0, 1, 2], [0, 1], 2)), frozen([0, 1], np.int32))

    def _settings(self, n_labels: int) -> kernel.Settings:
        """The parameters as the kernel takes them."""
        return kernel.Settings(
            lam=float(self.lam),
            tau=float(self.tau),
            C=float(self.C),
            eps=float(self.eps),
            max_passes=self.max_passes,
            inner=self.inner,
            growth=max(1, min(self.growth, n_labels)),
            sample=float(self.sample),
            seed=self.seed,
        )

    def _block(
        self,
        local: Local,
        labels: Int32,
        lists: kernel.Lists,
        table: growing.Table,
        scratch: kernel.Scratch,
        at: Any,
        stopped: Callable[[], bool],
    ) -> Block:
        """The finished model in the order of `labels`."""
        n_labels, seen = local.n_labels, local.seen
        W, pruned = self._weights(table, local.problem.Y.n_cols, stopped)
        records = np.zeros(n_labels, RECORD)
        records["certified"] = at["certified"]
        records["rounds"] = -1
        records["rounds"][seen] = at["passes"]
        records["nnz"][seen], records["pruned"][seen] = np.diff(W.indptr), pruned
        for name, values in _shares(local.problem.Y, lists, scratch.gaps, self.C).items():
            records[name][seen] = values
        lengths = np.zeros(n_labels, np.int64)
        lengths[seen] = np.diff(W.indptr)
        whole = csr(np.concatenate([[0], np.cumsum(lengths)]), W.indices, W.data, W.n_cols)
        bias = np.full(n_labels, -1.0)
        bias[seen] = 0.0
        return Block(
            labels,
            take_rows(whole, labels.astype(np.int64)),
            frozen(bias[labels], np.float64),
            records[labels],
        )

    def _weights(
        self, table: growing.Table, n_labels: int, stopped: Callable[[], bool]
    ) -> tuple[CSR, Int64]:
        """W (labels x features), pruned, and how many weights of each label pruning dropped."""
        kept, dropped = np.zeros(n_labels, np.int64), np.zeros(n_labels, np.int64)
        n, least = len(table.begin), self.prune * self.tau
        for begin in range(0, n, EXPORT_ROWS):
            _look(stopped)
            growing.count_past(
                table, float(self.lam), least, begin, min(n, begin + EXPORT_ROWS), kept, dropped
            )
        indptr = np.concatenate([[0], np.cumsum(kept)])
        ends, rows, values = (
            indptr[:-1].copy(),
            np.zeros(indptr[-1], np.int32),
            np.zeros(indptr[-1]),
        )
        for begin in range(0, n, EXPORT_ROWS):
            _look(stopped)
            growing.turn_past(
                table,
                float(self.lam),
                least,
                begin,
                min(n, begin + EXPORT_ROWS),
                ends,
                rows,
                values,
            )
        return csr(indptr, rows, values / self.tau, n), dropped


def _look(stopped: Callable[[], bool]) -> None:
    """Raise Stopped when asked to."""
    if stopped():
        raise Stopped(
            "stopped while the weights were gathered; the next run goes on after the last pass that was kept"
        )


def _shares(Y: Pattern, lists: kernel.Lists, gaps: Float64, C: float) -> dict[str, Any]:
    """What each label has: positives, samples in its support, and its shares of the gap and of the null objective."""
    counts = np.diff(Y.indptr)
    live = (counts > 0) & (counts < Y.n_cols)
    each = np.repeat(live / np.maximum(counts, 1), counts)
    sizes = lists.size.astype(np.int64)
    places = np.arange(sizes.sum()) + np.repeat(lists.begin - (np.cumsum(sizes) - sizes), sizes)
    active = lists.labels[places[lists.values[places] > 0.0]]
    return {
        "positives": np.bincount(Y.indices, minlength=Y.n_cols),
        "support": np.bincount(active, minlength=Y.n_cols),
        "gap": np.bincount(Y.indices, each * np.repeat(gaps, counts), Y.n_cols),
        "null": np.bincount(Y.indices, each * C, Y.n_cols),
    }


def _start(Y: Pattern, growth: int) -> tuple[kernel.Lists, np.ndarray]:
    """beta = 0: each sample's active set is its own labels; and the state before the first pass."""
    counts = np.diff(Y.indptr)
    begin = np.cumsum(counts + growth) - counts - growth
    total = int((counts + growth).sum())
    labels = np.zeros(total, np.int32)
    labels[np.arange(Y.nnz) + np.repeat(begin - Y.indptr[:-1], counts)] = Y.indices
    room = (counts + growth).astype(np.int32)
    return kernel.Lists(
        begin, counts.astype(np.int32), room, labels, np.zeros(total), np.array([total])
    ), np.zeros(1, kernel.STATE)


def _table(n_rows: int) -> growing.Table:
    """V = 0."""
    return growing.Table(
        begin=np.zeros(n_rows, np.int64),
        size=np.zeros(n_rows, np.int32),
        room=np.zeros(n_rows, np.int32),
        strong=np.zeros(n_rows, np.int32),
        slot_begin=np.zeros(n_rows, np.int64),
        columns=np.zeros(FIRST_ROOM, np.int32),
        values=np.zeros(FIRST_ROOM),
        slots=np.zeros(2 * FIRST_ROOM, np.int64),
        used=np.zeros(2, np.int64),
    )


def _scratch(problem: kernel.Problem, growth: int) -> kernel.Scratch:
    """Clean scratch for a problem."""
    n, k = problem.Y.shape
    return kernel.Scratch(
        z=np.zeros(k),
        touched=np.empty(k, np.int32),
        order=np.empty(n, np.int32),
        quiet=np.zeros(n, np.uint8),
        gaps=np.zeros(n),
        zs=np.empty(k),
        target=np.empty(k),
        sorted_=np.empty(k),
        top=np.empty(growth, np.int32),
        top_z=np.empty(growth),
    )


def _longer(pool: np.ndarray) -> np.ndarray:
    """The same pool with half as much room again; what is new is zero."""
    out = np.zeros(len(pool) + len(pool) // 2 + FIRST_ROOM, pool.dtype)
    out[: len(pool)] = pool
    return out


def _grown(table: growing.Table) -> growing.Table:
    """The same table with longer pools."""
    return table._replace(
        columns=_longer(table.columns), values=_longer(table.values), slots=_longer(table.slots)
    )
