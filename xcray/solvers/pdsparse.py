"""PD-Sparse: max-margin training of all labels together, sparse in primal and dual.

The result has a certificate over all samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.certificate import relative_gaps
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import row_norms_sq, take_pattern_rows, take_rows, transpose_pattern
from xcray.kernels.training import dynamic_csr as growing
from xcray.kernels.training import pdsparse as kernel
from xcray.solvers.contract import JointSolver, summarize_records
from xcray.solvers.declarations import (
    WEIGHT_FIELDS,
    CompileCase,
    Link,
    RecordField,
    RecordSchema,
    StoppingRule,
    TaskNeeds,
)
from xcray.solvers.dual_checkpoint import DualCheckpoint
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.solved_labels import SolvedLabels

# entries visited between two checks of the stop flag: 20 to 60 ms
SLICE_ENTRIES = 8_000_000
INITIAL_CAPACITY = 1 << 16  # entries of the pools
# minimum time between two checkpoints; a short training writes none
CHECKPOINT_SECONDS = 5.0
EXPECTED_PASSES = 6  # typical number of passes with a search of all labels
BYTES_PER_WEIGHT = 64  # of W, V and the output while training
EXPORT_ROWS = 4096  # features exported between two checks of the stop flag

# rounds are passes over all samples; gap and null are shares of the problem's: each sample's part
# is split equally over its labels
RECORDS = RecordSchema(
    RecordField("support", np.int32, "samples with non-zero beta for the label", "support"),
    *WEIGHT_FIELDS,
    RecordField("certified", np.uint8, "1 if the gap of the problem is at most the requested one"),
    RecordField("gap", np.float64, "share of the duality gap of the problem", "gap"),
    RecordField("null", np.float64, "share of the objective of W = 0", "null"),
)
RECORD = RECORDS.dtype


@dataclass
class PDSparseState:
    """State of a worker: the problem over the labels that occur in the samples.

    label_ids: their numbers, of `n_labels`. checkpoint_dir: directory in which the training saves
    its dual after passes and resumes; None to save nothing.
    """

    problem: kernel.PDSparseProblem
    label_ids: Int32
    n_labels: int
    checkpoint_dir: Path | None = None

    def clone_for_thread(self) -> PDSparseState:
        """Return the same problem; each task creates its own scratch memory."""
        return PDSparseState(self.problem, self.label_ids, self.n_labels, self.checkpoint_dir)


@dataclass(frozen=True)
class PDSparseSolver(Parameters, JointSolver):
    """Max-margin multi-label classification with l1 and l2 regularisation.

    Every label of a sample should have a higher score than all others. With P_i the labels of
    sample i, N_i the others, z_i = W'x_i (no bias), W (D, K):

            min over W   lam |W|_1 + tau/2 |W|^2
                         + C sum_i max(0, max over p in P_i, n in N_i of 1 + z_in - z_ip)

    The loss is the maximum of m + sum_n u_n z_n - sum_p a_p z_p over a, u >= 0 with sum_p a_p =
    sum_n u_n = m <= 1. Scaled by C, with beta_ip = a_ip, beta_in = -u_in and V = sum_i x_i beta_i',
    minimum and maximum can be exchanged. The minimum over W of lam |W|_1 + tau/2 |W|^2 - <V, W> is
    at W(beta) = soft(V, lam) / tau and equals -tau/2 |W(beta)|^2. Hence the dual

            max over beta   sum_i m_i - tau/2 |W(beta)|^2,
                            a_i, u_i >= 0,   sum_p a_ip = sum_n u_in = m_i <= C

    and, since lam |W|_1 + tau |W|^2 = <V, W> at W(beta), a gap that is a sum over samples:

            gap = sum_i C loss_i - m_i + beta_i.z_i,   each term >= 0

    soft is 1-Lipschitz. So with the others fixed, a step d of beta_i adds to the dual at least the
    change of m_i, minus d.z_i, minus |x_i|^2 / (2 tau) |d|^2. The best step is to the projection of
    a_p + (1 - z_p) tau / |x_i|^2 and u_n + z_n tau / |x_i|^2 on two simplices of equal size
    (`kernels.training.pdsparse.project`, exact). Only labels in the sample's active set move: its
    own labels, and those that a search of all labels through the non-zero rows of W found most
    confusing.

    Training ends when the gap over all samples, by an exact search for each, is at most `eps` times
    the objective of W = 0. That is C for every sample that has some label but not all; other
    samples cost nothing. Labels without samples are not in the problem: no weights, bias -1. One
    task solves all labels and runs on one core.

        Example:
            >>> PDSparseSolver(lam=0.1).family
            'joint'

    Source: Yen, Huang, Zhong, Ravikumar, Dhillon, "PD-Sparse: A primal and dual sparse approach to
    extreme multiclass and multilabel classification", ICML 2016, the predecessor that the PPDSparse
    paper compares with; formulas derived from its problem. Differs from it: ends on a certificate,
    not after a number of passes; several labels enter in one search; W is recomputed from the dual
    after every pass.
    """

    revision: ClassVar[int] = 1
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase(),
        CompileCase({"sample": 0.5}),
    )
    # seconds per entry of W visited, and per entry of V found
    cost_rates: ClassVar[tuple[float, ...]] = (EXPECTED_PASSES * 4e-9, EXPECTED_PASSES * 5e-8)

    lam: float = parameter(0.01, "weight of the l1 norm", low=0.0)
    tau: float = parameter(1.0, "weight of the squared l2 norm", above=0.0)
    C: float = parameter(1.0, "weight of a sample's loss", above=0.0)
    eps: float = parameter(
        0.01,
        "stop when the duality gap is at most eps times the objective of W = 0",
        above=0.0,
        high=1.0,
    )
    prune: float = parameter(0.0, "drop weights of at most this size after training", low=0.0)
    max_passes: int = parameter(
        100, "maximum number of passes; then training ends without a certificate (reported)", low=1
    )
    inner: int = parameter(
        5, "passes over the active labels only, after each search of all labels", low=0, high=1000
    )
    growth: int = parameter(
        10,
        "maximum number of labels that become active for a sample in one search",
        low=1,
        high=10_000,
    )
    sample: float = parameter(
        1.0,
        "share of a sample's features that a search uses, sampled by size; 1: all",
        above=0.0,
        high=1.0,
    )
    seed: int = parameter(
        0, "seed of the random order of samples and of the search", low=0, high=2**31 - 1
    )

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends."""
        reached = f"the duality gap of all samples is at most {self.eps:g} of that of W = 0"
        names = ("eps", "max_passes")
        return StoppingRule("certificate", self.eps, self.max_passes, reached, names)

    def certified(self, records: np.ndarray) -> np.ndarray:
        """Return (n,) bool: whether the problem of all labels is certified."""
        certified: np.ndarray = records["certified"] != 0
        return certified

    def largest_gap(self, records: np.ndarray) -> float:
        """Return the gap of the problem, relative to the objective of W = 0."""
        solved = records["positives"] > 0
        gap, null = (float(records[name][solved].sum()) for name in ("gap", "null"))
        return float(relative_gaps(gap, null))

    def summarize(self, records: np.ndarray) -> dict[str, Any]:
        """Return the default counts, and the number of support vectors."""
        support = int(records["support"].sum())
        return {**summarize_records(self, records), "support_vectors": support}

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of the weights while training."""
        return TaskNeeds(bytes_per_weight=BYTES_PER_WEIGHT)

    def set_checkpoint_dir(self, local: PDSparseState, directory: Path | None) -> None:
        """Let the training save its dual in `directory` after passes; None saves nothing."""
        local.checkpoint_dir = directory

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> PDSparseState:
        """Return the state of a worker.

        X: (N, D); XT: (D, N), its transpose (not used); YT: (K, N), the samples of each label.
        Raises ParameterError for sample weights, which this solver does not support.
        """
        if weights is not None:
            raise ParameterError(
                "pdsparse has no sample weights; use ppdsparse, or the data set without weights"
            )
        seen = np.flatnonzero(np.diff(YT.indptr)).astype(np.int32)
        Y = transpose_pattern(take_pattern_rows(YT, seen.astype(np.int64)))
        return PDSparseState(
            kernel.PDSparseProblem(X, Y, row_norms_sq(X)), frozen(seen, np.int32), YT.n_rows
        )

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the cost terms of each label: (K, 2) float64; see `load` for the arguments.

        They count what a pass over a label's samples visits; each sample is split over its labels.
        Column 0: entries of W in the search; a row of W holds about `growth` labels per sample with
        that feature, at most all labels. Column 1: entries of V that steps find: `growth` labels
        for each feature of a sample in the search, in each inner pass, and when V is recomputed.
        """
        row_lengths = np.minimum(float(self.growth) * np.diff(XT.indptr), YT.n_rows)
        lengths, owners = (
            np.diff(X.indptr),
            np.maximum(np.bincount(YT.indices, minlength=X.n_rows), 1),
        )
        visited = np.bincount(
            np.repeat(np.arange(X.n_rows), lengths), row_lengths[X.indices], X.n_rows
        )
        found_entries = (self.inner + 2.0) * min(self.growth, YT.n_rows) * lengths
        labels = np.repeat(np.arange(YT.n_rows), np.diff(YT.indptr))
        terms = [
            np.bincount(labels, (each / owners)[YT.indices], YT.n_rows)
            for each in (visited, found_entries)
        ]
        return frozen(np.stack(terms, axis=1), np.float64)

    def solve(
        self, local: PDSparseState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve all labels: `labels` (K,) int32 holds each once; the rows are in their order.

        `stopped` is called between slices of at most 200 ms; if it returns True, Stopped is raised.
        With `local.checkpoint_dir` the next call resumes after the last saved pass and returns the
        same bits as an uninterrupted one. Raises ParameterError if `labels` are not all labels.
        """
        labels = frozen(labels, np.int32)
        if not np.array_equal(np.sort(labels), np.arange(local.n_labels)):
            raise ParameterError(
                f"pdsparse trains all labels together: "
                f"give it the {local.n_labels} labels, each once"
            )
        problem, settings = local.problem, self._settings(local.problem.Y.n_cols)
        checkpoint = (
            DualCheckpoint(local.checkpoint_dir / "pdsparse.arrow", CHECKPOINT_SECONDS)
            if local.checkpoint_dir is not None
            else None
        )
        lists, state = (checkpoint.load() if checkpoint else None) or _initial_state(
            problem.Y, settings.growth
        )
        table, scratch = _empty_table(problem.X.n_cols), _new_scratch(problem, settings.growth)
        reason = kernel.BUDGET
        while reason != kernel.DONE:
            if stopped():
                raise Stopped(
                    "stopped between two slices of a pass; "
                    "the next run continues after the last saved pass"
                )
            if reason == kernel.FULL_LISTS:
                lists = lists._replace(labels=_enlarge(lists.labels), values=_enlarge(lists.values))
            elif reason == kernel.FULL_TABLE:
                table = _enlarge_table(table)
            elif reason == kernel.CHECKPOINT and checkpoint:
                checkpoint.save(lists, state)
            reason = kernel.advance(problem, settings, lists, table, scratch, state, SLICE_ENTRIES)
        return self._block(local, labels, lists, table, scratch, state[0], stopped)

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels, on a problem of two samples."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        self.solve(self.load(X, X, pattern([0, 1, 2], [0, 1], 2)), frozen([0, 1], np.int32))

    def _settings(self, n_labels: int) -> kernel.PDSparseSettings:
        """Return the parameters as kernel input."""
        return kernel.PDSparseSettings(
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
        local: PDSparseState,
        labels: Int32,
        lists: kernel.ActiveSets,
        table: growing.DynamicRows,
        scratch: kernel.PDSparseScratch,
        at: Any,
        stopped: Callable[[], bool],
    ) -> SolvedLabels:
        """Return the finished model in the order of `labels`."""
        n_labels, seen = local.n_labels, local.label_ids
        W, pruned = self._weights(table, local.problem.Y.n_cols, stopped)
        records = np.zeros(n_labels, RECORD)
        records["certified"] = at["certified"]
        records["label"], records["rounds"] = np.arange(n_labels), -1
        records["rounds"][seen] = at["passes"]
        records["nnz"][seen], records["pruned"][seen] = np.diff(W.indptr), pruned
        for name, values in _label_shares(local.problem.Y, lists, scratch.gaps, self.C).items():
            records[name][seen] = values
        lengths = np.zeros(n_labels, np.int64)
        lengths[seen] = np.diff(W.indptr)
        whole = csr(np.concatenate([[0], np.cumsum(lengths)]), W.indices, W.data, W.n_cols)
        bias = np.full(n_labels, -1.0)
        bias[seen] = 0.0
        return SolvedLabels(
            labels,
            take_rows(whole, labels.astype(np.int64)),
            frozen(bias[labels], np.float64),
            records[labels],
        )

    def _weights(
        self, table: growing.DynamicRows, n_labels: int, stopped: Callable[[], bool]
    ) -> tuple[CSR, Int64]:
        """Return W (labels x features), pruned, and the number of dropped weights per label."""
        kept, dropped = np.zeros(n_labels, np.int64), np.zeros(n_labels, np.int64)
        n, least = len(table.begin), self.prune * self.tau
        for begin in range(0, n, EXPORT_ROWS):
            _check_stopped(stopped)
            growing.count_entries(
                table, float(self.lam), least, begin, min(n, begin + EXPORT_ROWS), kept, dropped
            )
        indptr = np.concatenate([[0], np.cumsum(kept)])
        ends, rows, values = (
            indptr[:-1].copy(),
            np.zeros(indptr[-1], np.int32),
            np.zeros(indptr[-1]),
        )
        for begin in range(0, n, EXPORT_ROWS):
            _check_stopped(stopped)
            growing.export_csc(
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


def _check_stopped(stopped: Callable[[], bool]) -> None:
    """Raise Stopped if a stop was requested."""
    if stopped():
        raise Stopped(
            "stopped while the weights were exported; "
            "the next run continues after the last saved pass"
        )


def _label_shares(Y: Pattern, lists: kernel.ActiveSets, gaps: Float64, C: float) -> dict[str, Any]:
    """Return per label: positives, support, and shares of the gap and of the null objective."""
    counts = np.diff(Y.indptr)
    live = (counts > 0) & (counts < Y.n_cols)
    each = np.repeat(live / np.maximum(counts, 1), counts)
    sizes = lists.size.astype(np.int64)
    positions = np.arange(sizes.sum()) + np.repeat(lists.begin - (np.cumsum(sizes) - sizes), sizes)
    active = lists.labels[positions[lists.values[positions] > 0.0]]
    return {
        "positives": np.bincount(Y.indices, minlength=Y.n_cols),
        "support": np.bincount(active, minlength=Y.n_cols),
        "gap": np.bincount(Y.indices, each * np.repeat(gaps, counts), Y.n_cols),
        "null": np.bincount(Y.indices, each * C, Y.n_cols),
    }


def _initial_state(Y: Pattern, growth: int) -> tuple[kernel.ActiveSets, np.ndarray]:
    """Return beta = 0, where the active set of a sample is its labels, and the initial state."""
    counts = np.diff(Y.indptr)
    begin = np.cumsum(counts + growth) - counts - growth
    total = int((counts + growth).sum())
    labels = np.zeros(total, np.int32)
    labels[np.arange(Y.nnz) + np.repeat(begin - Y.indptr[:-1], counts)] = Y.indices
    capacity = (counts + growth).astype(np.int32)
    return kernel.ActiveSets(
        begin, counts.astype(np.int32), capacity, labels, np.zeros(total), np.array([total])
    ), np.zeros(1, kernel.STATE)


def _empty_table(n_rows: int) -> growing.DynamicRows:
    """Return V = 0."""
    return growing.DynamicRows(
        begin=np.zeros(n_rows, np.int64),
        size=np.zeros(n_rows, np.int32),
        capacity=np.zeros(n_rows, np.int32),
        n_large=np.zeros(n_rows, np.int32),
        slot_begin=np.zeros(n_rows, np.int64),
        columns=np.zeros(INITIAL_CAPACITY, np.int32),
        values=np.zeros(INITIAL_CAPACITY),
        slots=np.zeros(2 * INITIAL_CAPACITY, np.int64),
        used=np.zeros(2, np.int64),
    )


def _new_scratch(problem: kernel.PDSparseProblem, growth: int) -> kernel.PDSparseScratch:
    """Return clean scratch memory for a problem."""
    n, k = problem.Y.shape
    return kernel.PDSparseScratch(
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


def _enlarge(pool: np.ndarray) -> np.ndarray:
    """Return the pool with half as much capacity again; new entries are zero."""
    out = np.zeros(len(pool) + len(pool) // 2 + INITIAL_CAPACITY, pool.dtype)
    out[: len(pool)] = pool
    return out


def _enlarge_table(table: growing.DynamicRows) -> growing.DynamicRows:
    """Return the table with larger pools."""
    return table._replace(
        columns=_enlarge(table.columns), values=_enlarge(table.values), slots=_enlarge(table.slots)
    )
