"""PD-Sparse: max-margin training of all labels together, sparse in primal and dual.

The result has a certificate over all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, Pattern, csr, frozen, pattern
from xcray.certificate import relative_gaps
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import row_norms_sq, take_pattern_rows, transpose_pattern
from xcray.kernels.training import dynamic_csr as growing
from xcray.kernels.training import pdsparse as kernel
from xcray.schedule.calls import at_worker
from xcray.solvers.declarations import (
    WEIGHT_FIELDS,
    CompileCase,
    Link,
    ProblemShape,
    RecordField,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    StateLost,
    TrainingRows,
    WorkerCalls,
)
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import Arrays
from xcray.storage.checkpoints import COPIES_ON_DISK, TrainingState

# entries visited between two checks of the stop flag: 20 to 60 ms
SLICE_ENTRIES = 8_000_000
INITIAL_CAPACITY = 1 << 16  # entries of the pools
EXPECTED_PASSES = 6  # typical number of passes with a search of all labels
ENTRY_SECONDS, FIND_SECONDS = 4e-9, 5e-8  # per entry of W visited, and per entry of V found
BYTES_PER_WEIGHT = 64  # of W, V and the output while training

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


@dataclass(frozen=True)
class PDSparseSolver(Parameters, GroupSolver):
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
    worker solves all labels and uses one core.

        Example:
            >>> PDSparseSolver(lam=0.1).family
            'group'

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
    certifies_all: ClassVar[bool] = True

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
    seed: int = parameter(0, "seed of the random order of samples and of the search", low=0)

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

    def layout(self, workers: int, processes: bool, rows: TrainingRows) -> Layout:
        """Return the layout: one worker, on one core."""
        return Layout(1)

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> PDSparseWorker:
        """Return the worker. Raises ParameterError for sample weights, which are not supported."""
        if rows.weights is not None:
            raise ParameterError(
                "pdsparse has no sample weights; use ppdsparse, or the data set without weights"
            )
        return PDSparseWorker(self, rows.X, rows.Y, stopped)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Run passes until the certificate is reached, or `max_passes`.

        A round is a search of all labels and the passes over the active ones that follow it.
        """
        groups = {} if state is None else state.groups
        saved = at_worker(calls.put(groups["dual"]())) if "dual" in groups else None
        calls.call(PDSparseWorker.begin, saved)
        number, is_done, is_certified, has_rounds = 0, False, False, saved is not None
        while not is_done:
            [(_, (number, is_done, is_certified))] = calls.call(PDSparseWorker.advance)
            if not is_done:
                has_rounds = True
                yield _round(calls, number)
        if not has_rounds:  # the first search was the last one: done again, it has the same bits
            yield Round(number, TrainingState({"number": number}, {}), {})
        return self.stopping.reached if is_certified else f"after {number} passes"

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield all labels."""
        labels = calls.fetch(calls.call(PDSparseWorker.labels)[0][0])
        yield SolvedLabels(labels.labels, csr(*labels.W), labels.bias, labels.records)

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: W, V and the active labels of each sample.

        A pass visits rows of W, which hold about `growth` labels per sample with that feature, at
        most all labels. Steps find `growth` labels for each feature of a sample in the search, in
        each inner pass, and when V is recomputed.
        """
        counts, weights = shape.feature_counts.astype(np.float64), shape.sparse_weights
        visited = float(counts @ np.minimum(self.growth * counts, shape.labels))
        found = (self.inner + 2.0) * min(self.growth, shape.labels) * shape.entries
        seconds = EXPECTED_PASSES * (ENTRY_SECONDS * visited + FIND_SECONDS * found)
        active = 12 * self.growth * shape.rows
        worker = shape.index_bytes + active + BYTES_PER_WEIGHT * weights
        return ResourceNeeds(0, worker, active, COPIES_ON_DISK * active, weights, seconds)

    def warm_up(self) -> None:
        """Compile or load the kernels, on a problem of two samples."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        worker = PDSparseWorker(self, X, pattern([0, 1, 2], [0, 1], 2))
        worker.begin(None)
        while not worker.advance()[1][1]:
            pass
        worker.labels()

    def settings(self, n_labels: int) -> kernel.PDSparseSettings:
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


class PDSparseWorker:
    """The training: the problem over the labels that occur in the samples, and its dual.

    X: (N, D); Y: (N, K). `stopped` is called between slices of at most 200 ms; if it returns True,
    methods raise Stopped.
    """

    def __init__(
        self,
        solver: PDSparseSolver,
        X: CSR,
        Y: Pattern,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        YT = transpose_pattern(Y)
        self._seen = np.flatnonzero(np.diff(YT.indptr)).astype(np.int32)
        Y = transpose_pattern(take_pattern_rows(YT, self._seen.astype(np.int64)))
        self._problem = kernel.PDSparseProblem(X, Y, row_norms_sq(X))
        self._solver, self._n_labels, self._stopped = solver, YT.n_rows, stopped
        self._settings = solver.settings(Y.n_cols)
        self._lists: kernel.ActiveSets | None = None

    def begin(self, arrays: Arrays | None) -> tuple[None, None]:
        """Go to a saved state, or to beta = 0."""
        problem, growth = self._problem, self._settings.growth
        if arrays is None:
            self._lists, self._state = _initial_state(problem.Y, growth)
        else:
            self._lists, self._state = _saved_state(arrays)
        self._is_resumed = arrays is not None
        self._table = _empty_table(problem.X.n_cols)
        self._scratch = _new_scratch(problem, growth)
        return None, None

    def advance(self) -> tuple[None, tuple[int, bool, bool]]:
        """Run a round; return the number of passes, whether it was the last, and certified.

        Raises StateLost at a new worker.
        """
        lists, table, reason = self._dual(), self._table, kernel.BUDGET
        while reason not in (kernel.DONE, kernel.CHECKPOINT):
            if self._stopped():
                raise Stopped(
                    "stopped between two slices of a pass; "
                    "the next run continues after the last saved pass"
                )
            if reason == kernel.FULL_LISTS:
                lists = lists._replace(labels=_enlarge(lists.labels), values=_enlarge(lists.values))
            elif reason == kernel.FULL_TABLE:
                table = _enlarge_table(table)
            self._lists, self._table = lists, table
            reason = kernel.advance(
                self._problem,
                self._settings,
                lists,
                table,
                self._scratch,
                self._state,
                SLICE_ENTRIES,
            )
            if reason == kernel.CHECKPOINT and self._is_resumed:  # that of the saved round
                self._is_resumed, reason = False, kernel.BUDGET
        at = self._state[0]
        return None, (int(at["passes"]), reason == kernel.DONE, bool(at["certified"]))

    def snapshot(self) -> tuple[Arrays, None]:
        """Return active labels and beta of each sample, and the state of the passes.

        Raises StateLost.
        """
        lists = self._dual()
        indptr = np.concatenate([[0], np.cumsum(lists.size, dtype=np.int64)])
        at = _positions(lists.begin, lists.size)
        state = self._state.copy()
        state["work"] = 0
        arrays = {"indptr": indptr, "labels": lists.labels[at], "values": lists.values[at]}
        return {**arrays, "state": state.view(np.uint8)}, None

    def labels(self) -> tuple[SolvedLabels, None]:
        """Return all labels in order. Raises StateLost."""
        lists, at = self._dual(), self._state[0]
        n_labels, seen, Y = self._n_labels, self._seen, self._problem.Y
        W, pruned = self._weights()
        records = np.zeros(n_labels, RECORD)
        records["certified"] = at["certified"]
        records["label"], records["rounds"] = np.arange(n_labels), -1
        records["rounds"][seen] = at["passes"]
        records["nnz"][seen], records["pruned"][seen] = np.diff(W.indptr), pruned
        shares = _label_shares(Y, lists, self._scratch.gaps, self._solver.C)
        for name, values in shares.items():
            records[name][seen] = values
        lengths = np.zeros(n_labels, np.int64)
        lengths[seen] = np.diff(W.indptr)
        whole = csr(np.concatenate([[0], np.cumsum(lengths)]), W.indices, W.data, W.n_cols)
        bias = np.full(n_labels, -1.0)
        bias[seen] = 0.0
        labels = frozen(np.arange(n_labels), np.int32)
        return SolvedLabels(labels, whole, frozen(bias, np.float64), records), None

    def _dual(self) -> kernel.ActiveSets:
        """Return the active labels and beta. Raises StateLost if the worker is new."""
        if self._lists is None:
            raise StateLost("the worker is new: it has no dual variables")
        return self._lists

    def _weights(self) -> tuple[CSR, Int64]:
        """Return W (labels x features), pruned, and the number of dropped weights per label."""
        table, solver, K = self._table, self._solver, self._problem.Y.n_cols
        places = _positions(table.begin, table.n_large)
        features, labels = (
            np.repeat(np.arange(len(table.begin)), table.n_large),
            table.columns[places],
        )
        V = table.values[places]
        V -= np.copysign(solver.lam, V)
        stays = np.abs(V) > solver.prune * solver.tau
        kept = np.bincount(labels[stays], minlength=K)
        order = np.flatnonzero(stays)[np.argsort(labels[stays], kind="stable")]
        W = csr(
            np.concatenate([[0], np.cumsum(kept)]),
            features[order],
            V[order] / solver.tau,
            len(table.begin),
        )
        return W, np.bincount(labels, minlength=K) - kept


def _round(calls: WorkerCalls, number: int) -> Round:
    """Return a round; its dual variables are fetched when they are needed."""

    def arrays() -> Arrays:
        return calls.fetch(calls.call(PDSparseWorker.snapshot)[0][0])

    return Round(number, TrainingState({"number": number}, {"dual": arrays}), {})


def _saved_state(arrays: Arrays) -> tuple[kernel.ActiveSets, np.ndarray]:
    """Return lists and state of `snapshot`, ready to continue: V is recomputed first."""
    state = arrays["state"].copy().view(kernel.STATE)
    state["phase"], state["position"] = kernel.REBASE, 0
    indptr = arrays["indptr"]
    sizes = np.diff(indptr).astype(np.int32)
    labels, values = arrays["labels"].copy(), arrays["values"].copy()
    used = np.array([indptr[-1]])
    begin = indptr[:-1].copy()
    return kernel.ActiveSets(begin, sizes, sizes.copy(), labels, values, used), state


def _positions(begin: Int64, size: Int32) -> Int64:
    """Return the positions of the entries of all rows of a pool, row by row."""
    sizes = size.astype(np.int64)
    positions: Int64 = np.arange(sizes.sum()) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)
    return positions


def _label_shares(Y: Pattern, lists: kernel.ActiveSets, gaps: Float64, C: float) -> dict[str, Any]:
    """Return per label: positives, support, and shares of the gap and of the null objective."""
    counts = np.diff(Y.indptr)
    live = (counts > 0) & (counts < Y.n_cols)
    each = np.repeat(live / np.maximum(counts, 1), counts)
    positions = _positions(lists.begin, lists.size)
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
