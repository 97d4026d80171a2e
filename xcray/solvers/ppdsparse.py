"""PPDSparse: parallel primal-dual sparse one-vs-rest training, certified for every label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, csr_from, frozen
from xcray.certificate import is_certified, largest_gap
from xcray.errors import ParameterError, Stopped
from xcray.kernels.row_norm import ROW_NORMS, normalize_columns, normalize_rows, row_lengths
from xcray.kernels.sparse import row_norms_sq, take_pattern_rows
from xcray.kernels.training import pruning
from xcray.kernels.training.changed_rows import added_losses
from xcray.kernels.training.hinge import CHUNK, HINGE, SQUARED_HINGE, Objective
from xcray.kernels.training.newton import Rows as NewtonRows
from xcray.kernels.training.newton import rows_of
from xcray.kernels.training.ppdsparse import advance as kernel
from xcray.kernels.training.ppdsparse.state import (
    ROW,
    STATE,
    BatchOutput,
    PPDSparseProblem,
    PPDSparseScratch,
    PPDSparseSettings,
)
from xcray.measures import inverse_propensities
from xcray.solvers import newton
from xcray.solvers.contract import WarmStartSolver, check_labels, check_weights
from xcray.solvers.declarations import (
    WEIGHT_FIELDS,
    Bounds,
    CompileCase,
    EarlierLabels,
    Link,
    RecordField,
    RecordSchema,
    RowChange,
    StoppingRule,
    TaskNeeds,
    Tuning,
)
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.recertify import bound_changed
from xcray.solvers.solved_labels import SolvedLabels

# entries of X between two checks of the stop flag: about 50 ms, at most 200 ms if memory is slow
SLICE_ENTRIES = 30_000_000
LOSS_CODES = {"squared_hinge": SQUARED_HINGE, "hinge": HINGE}
CHUNK_ROWS = 1 << 12  # rows per chunk when costs are counted
MAX_RATIO = 1e20  # of the weights of losses and of the regularisation, in float64
INITIAL_CAPACITY = 1 << 16  # weights in the output of a batch
# from this eps on, scores in single precision suffice: they are rounded to 1e-7 of a margin
MIN_FLOAT32_EPS = 1e-3
# of the square of a row; scores of longer ones pass values whose rounding can exceed a gap
MAX_FLOAT32_SQUARE = 1e10
POSITIVE_WEIGHTINGS = ("equal", "balanced", "propensity")
# weights, records and dual variables of a batch
BatchResult = tuple[CSR, np.ndarray, CSR | None]
NO_DUALS = csr([0], [], [], 0)

# primal to loss, l1 and dual_l1 are before pruning, which adds loss_added to the loss
RECORDS = RecordSchema(
    RecordField("sweeps", np.int32, "sweeps of coordinate descent", "sweeps"),
    RecordField("n_active", np.int32, "active samples at the end", "active"),
    RecordField("support", np.int32, "samples with a non-zero dual variable", "support"),
    RecordField("violating", np.int32, "samples that violate the margin", "violating"),
    *WEIGHT_FIELDS,
    RecordField("work", np.int64, "entries of X that were visited", "work"),
    RecordField("bias", np.float64, "bias of the label"),
    RecordField("primal", np.float64, "primal objective", "primal"),
    RecordField("dual", np.float64, "dual objective", "dual"),
    RecordField("gap", np.float64, "duality gap", "gap"),
    RecordField("null", np.float64, "objective of w = 0 with the best bias", "null"),
    RecordField("loss", np.float64, "loss of all samples"),
    RecordField("loss_added", np.float64, "loss that was added by pruning"),
    RecordField("l1", np.float64, "sum of |w|; at most null / lam (Theorem 3.2)"),
    RecordField("dual_l1", np.float64, "sum of alpha; at most 2 null (Theorem 3.3)"),
)
RECORD = RECORDS.dtype


@dataclass
class PPDSparseState:
    """State of a worker: the shared read-only problem, and its own scratch memory.

    The scratch needs O(N + D), and 8 bytes per entry of the largest active set. Address space for
    all of X is reserved, and memory is committed as it is written.
    """

    problem: PPDSparseProblem
    scratch: PPDSparseScratch
    newton: NewtonRows | None = None  # computed on the first use of Newton's method

    def clone_for_thread(self) -> PPDSparseState:
        """Return the same problem with separate scratch memory, for another thread."""
        return PPDSparseState(
            self.problem, _new_scratch(self.problem, self.scratch.scores.dtype), self.newton
        )

    def reset_scratch(self) -> None:
        """Allocate clean scratch memory, after a label was interrupted."""
        self.scratch = _new_scratch(self.problem, self.scratch.scores.dtype)


@dataclass(frozen=True)
class PPDSparseSolver(Parameters, WarmStartSolver):
    """One-vs-rest linear classification with l1 and l2 regularisation.

    Each label is solved on its few active samples. For every label k, independent of all others,
    with y_i = +1 if sample i has label k and -1 otherwise:

        min over (w, b)   lam |w|_1 + tau/2 (|w|^2 + bias_penalty b^2)
                          + C sum_i max(0, 1 - y_i (w.x_i + b))^2

    This is the squared hinge in LIBLINEAR's scaling of C: the paper's 1/2 z^2 is C = 0.5. (Eq. 9 of
    the paper prints the plain hinge, but its experiments use the square; `loss="hinge"` is eq. 3;
    `ppdsparse-paper` has the settings of its experiments.) The bias is regularised by
    l2 but not by l1, and less than the weights: with a `bias_penalty` of 0.1 labels with few
    positives need fewer weights than with 1, LIBLINEAR's value. A small one leaves the bias nearly
    free, at most tau/2 bias_penalty b^2 from the optimum with a free bias, and costs no more
    sweeps: the kernel's method of multipliers keeps the dual well conditioned. The loss of a sample
    can have a weight (`load`), and those of a label's positives a factor: `positive_weight`, times
    N_neg / N_pos if `positives` is "balanced", times the inverse propensity of the label if it is
    "propensity". lam = 0 with prune = 0.01 is DiSMEC, lam = 0 with bias_penalty = 1 the plain l2
    SVM (see `xcray.solvers.presets`).

    A label starts with its positives active. In each round all samples are scored through the
    posting lists of the weights whose change is worth it. If the duality gap over all N samples
    exceeds `eps` times the null objective (w = 0, best bias), the worst violating negatives become
    active and the dual is solved on the active set by randomised coordinate descent, with conjugate
    directions where that is slow. The gap is that of the scored weights, which are the exported
    ones. For long rows, few features and labels that are not small, Newton's method is used
    (`newton`). State at a worker: X by row and column, sums of their squares, scratch memory (see
    `PPDSparseState`).

        Example:
            >>> PPDSparseSolver(lam=0.1).lam
            0.1

    Source: Yen, Huang, Dai, Ravikumar, Dhillon, Xing, "PPDSparse", KDD 2017: Algorithms 1 and 2,
    eq. 9-14. Method of multipliers: Rockafellar, "Augmented Lagrangians and applications of the
    proximal point algorithm in convex programming", Mathematics of Operations Research, 1976.
    Conjugate directions: Notay, "Flexible conjugate gradients", SIAM Journal on Scientific
    Computing, 2000.
    Inverse propensities: Jain, Prabhu, Varma, "Extreme multi-label loss functions", KDD 2016, eq.
    5. Pruning by size: Babbar, Schoelkopf, "DiSMEC", WSDM 2017, section 2. Differs from the paper:
    labels end on a certificate, not after a fixed number of rounds. Changes of weights that gain
    little for the postings they visit are deferred, instead of sampling weights at random
    (Algorithm 3). The bias of the primal point is minimised exactly at fixed w, which makes a
    small active set sufficient when nearly all samples are barely violating negatives.
    """

    # incremented with every change of the bits of a model, so that no run mixes two revisions
    revision: ClassVar[int] = 12
    link: ClassVar[Link] = "identity"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase(),
        CompileCase({"eps": 0.0001, "prune_loss": 0.01}),  # scores in double precision
        CompileCase({"loss": "hinge", "positives": "propensity", "prune_keep": 20}),
        CompileCase({"C": 100.0, "eps": 1e-9}, "dense"),  # Newton's method, in both precisions
    )
    # seconds per visit, within factors of 0.5 and 1.4 on five data sets; refined at run time
    cost_rates: ClassVar[tuple[float, ...]] = (5e-9, 1.4e-9, 6e-9)
    tuning: ClassVar[Tuning | None] = Tuning(
        {
            "row_norm": ROW_NORMS,
            "C": (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001),
            "positives": ("equal", "propensity"),
            "lam": (0.001, 0.01, 0.1, 0.3, 1.0),
            "positive_weight": (1.0, 2.0, 4.0, 8.0),
        },
        while_compared={"eps": 0.05},
        together={"positives": "propensity", "lam": 0.3},
    )

    lam: float = parameter(0.01, "weight of the l1 norm", low=0.0)
    tau: float = parameter(1.0, "weight of the squared l2 norm", above=0.0)
    bias_penalty: float = parameter(
        0.1,
        "weight of the squared bias, as a multiple of tau; small: nearly free",
        low=1e-4,
        high=1.0,
    )
    C: float = parameter(1.0, "weight of a sample's loss", above=0.0)
    loss: str = parameter("squared_hinge", "loss of a sample", choices=tuple(LOSS_CODES))
    eps: float = parameter(
        0.01,
        "a label ends when its duality gap is at most eps times its null objective",
        above=0.0,
        high=1.0,
    )
    positives: str = parameter(
        "equal", "how the losses of a label's positives are weighted", choices=POSITIVE_WEIGHTINGS
    )
    positive_weight: float = parameter(
        1.0, "additional factor of the losses of positives", above=0.0
    )
    prune: float = parameter(
        0.0, "drop weights of at most this size after a label is solved", low=0.0
    )
    prune_keep: int = parameter(0, "number of largest weights to keep per label; 0: all", low=0)
    prune_loss: float = parameter(
        0.0,
        "drop the smallest weights while a label's loss rises by at most this share",
        low=0.0,
    )
    max_rounds: int = parameter(
        100, "maximum number of rounds; then a label ends without a certificate (reported)", low=1
    )
    max_sweeps: int = parameter(20, "maximum number of coordinate descent sweeps per round", low=1)
    growth: int = parameter(
        2,
        "negatives that enter per round for each positive, besides 32 and as many as are active",
        low=1,
    )
    seed: int = parameter(
        0,
        "seed of the random order of sweeps; every label has its own stream",
        low=0,
    )

    row_norm: str = parameter(
        "none",
        "normalisation of all rows, in training and in every request; l2: to length 1",
        choices=ROW_NORMS,
    )

    def __post_init__(self) -> None:
        """Check the parameters; raise ParameterError if float64 cannot hold their sums."""
        super().__post_init__()
        ratio = self.C * self.positive_weight / (self.tau * self.bias_penalty)
        if ratio > MAX_RATIO:
            raise ParameterError(
                "C * positive_weight / (tau * bias_penalty) must be at most "
                f"{MAX_RATIO:g}, not {ratio:g}: lower C or raise tau"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return all parameters by name; without `row_norm` if it is "none".

        So models without it keep their hash.
        """
        values = super().as_dict()
        return {n: v for n, v in values.items() if (n, v) != ("row_norm", "none")}

    @property
    def stopping(self) -> StoppingRule:
        """Return when a label ends."""
        reached = f"the duality gap is at most {self.eps:g} of the null objective"
        names = ("eps", "max_rounds")
        return StoppingRule("certificate", self.eps, self.max_rounds, reached, names)

    def certified(self, records: np.ndarray) -> np.ndarray:
        """Return (n,) bool: a gap of at most `eps` of the null objective, or nothing to solve."""
        return is_certified(records, self.eps)

    def largest_gap(self, records: np.ndarray) -> float:
        """Return the largest gap of a label, relative to its null objective."""
        return largest_gap(records)

    def task_needs(self, X: CSR) -> TaskNeeds:
        """Return the memory of Newton's method, where it can be used.

        It needs matrices of the features, twenty numbers per row and dense rows where these are
        small, and each of its passes reads all rows. Normalised rows are held by row and by
        column, once per process.
        """
        shared = 0 if self.row_norm == "none" else 8 * X.nnz
        if not newton.suits_rows(X, self._objective()):
            return TaskNeeds(process_bytes=shared)
        own = newton.own_bytes(X)
        return TaskNeeds(own, process_bytes=shared)

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> PPDSparseState:
        """Return the state of a worker, see `IndependentSolver`."""
        none = frozen(np.empty(0), np.float32)  # for the kernel, all weights are 1
        weights = none if weights is None else check_weights(weights, X.n_rows)
        if self.row_norm != "none":
            XT = normalize_columns(XT, row_lengths(X))
            X = normalize_rows(X, self.row_norm)
        problem = PPDSparseProblem(
            X,
            XT,
            row_norms_sq(X),
            row_norms_sq(XT, weights),
            YT,
            weights,
            self._positive_factors(np.diff(YT.indptr), YT.n_cols),
            float(weights.sum(dtype=np.float64)) if len(weights) else float(X.n_rows),
        )
        suffices = self.eps >= MIN_FLOAT32_EPS and not _has_extreme_rows(problem)
        return PPDSparseState(
            problem, _new_scratch(problem, np.float32 if suffices else np.float64)
        )

    def check_updatable(self) -> None:
        """Raise ParameterError if weights are pruned: their certificate is of all weights."""
        if self._prunes:
            raise ParameterError(
                "pruned weights are not those of the certificate, so changed rows give no bound: "
                "train without prune, prune_keep and prune_loss"
            )

    def bound_changed(
        self, local: PPDSparseState, earlier: EarlierLabels, change: RowChange, threads: int
    ) -> Bounds:
        """Return the objectives of labels that were solved before rows changed."""
        factors = self._positive_factors(earlier.positives, earlier.n_rows)
        return bound_changed(local.problem, self._objective(), earlier, change, factors, threads)

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """Return the cost terms of each label: (K, 3) float64.

        See `load` for the arguments; terms @ `cost_rates` is a first estimate of seconds. The
        columns count visits. 0: samples, N for every label, because the certificate and the bounds
        visit all of them. 1: entries of X scored: the postings of the positives' features; each
        pass visits at most all of X, which the sum approaches as 1 - exp(-x) does. 2: entries of
        active rows times sweeps: `growth` negatives for each positive.
        """
        lengths = np.diff(X.indptr).astype(np.float64)
        labels = np.repeat(np.arange(YT.n_rows), np.diff(YT.indptr))
        walked = np.bincount(labels, _postings_per_row(X, XT)[YT.indices], YT.n_rows)
        rows = np.bincount(labels, lengths[YT.indices], YT.n_rows).astype(np.float64)
        total = max(float(X.nnz), 1.0)
        scored = total * -np.expm1(-walked / total)
        return np.stack(
            [np.full(len(rows), float(X.n_rows)), scored, self.max_sweeps * self.growth * rows],
            axis=1,
        )

    def solve(
        self,
        local: PPDSparseState,
        labels: Int32,
        stopped: Callable[[], bool] = lambda: False,
        start: CSR | None = None,
        keep_duals: bool = False,
    ) -> SolvedLabels:
        """Solve `labels` one after the other, see `WarmStartSolver`.

        A start changes the time to the certificate and the bits, not what the certificate
        guarantees.
        """
        labels = check_labels(labels, local.problem.YT.n_rows)
        start_duals = NO_DUALS if start is None else start
        shape = (len(labels), local.problem.X.n_rows)
        if start is not None and start.shape != shape:
            raise ParameterError(
                f"the start is {start.shape}; give one row of dual variables per label "
                f"and one column per sample: {shape}"
            )

        def check() -> None:
            if stopped():
                local.reset_scratch()
                raise Stopped("stopped between two slices of a label; finished batches are kept")

        W, records, duals = self._method(local)(local, labels, start_duals, check, keep_duals)
        if _has_extreme_rows(local.problem):
            self._measure_again(local.problem, W, records)
        self._add_norms(W, records)
        if self._prunes:
            W = self._prune(local, W, records, check)
        return SolvedLabels(labels, W, frozen(records["bias"], np.float64), records, duals)

    def warm_up(self, local: PPDSparseState | None = None) -> None:
        """Compile or load the kernels of the method that solves `local`, on two samples.

        They are certified at once, because a hard problem could not be stopped here.
        """
        is_extreme = local is not None and _has_extreme_rows(local.problem)
        X = csr([0, 1, 2], [0, 1], [1e6 if is_extreme else 1.0] * 2, 2)
        small = self.load(X, X, Pattern(frozen([0, 1], np.int64), frozen([0], np.int32), 2))
        solve = replace(self, eps=1.0)._method(small if local is None else local)
        W, records, _ = solve(small, frozen([0], np.int32), NO_DUALS, lambda: None, False)
        if is_extreme:
            self._measure_again(small.problem, W, records)

    def _method(self, local: PPDSparseState) -> Callable[..., BatchResult]:
        """Return the method that solves the labels of `local`."""
        by_newton = newton.is_suitable(local.problem, self._objective())
        return self._solve_by_newton if by_newton else self._solve_by_descent

    def _solve_by_descent(
        self,
        local: PPDSparseState,
        labels: Int32,
        start_duals: CSR,
        check: Callable[[], None],
        keep_duals: bool,
    ) -> BatchResult:
        """Run the kernel in slices to the end of the batch; enlarge the output as needed."""
        settings, problem = self._settings(keep_duals), local.problem
        state = np.zeros(1, STATE)
        out = _allocate(len(labels), INITIAL_CAPACITY, INITIAL_CAPACITY if keep_duals else 0)
        reason, done = kernel.BUDGET, 0
        while reason != kernel.DONE:
            check()
            if reason == kernel.FULL:
                out = _enlarge(
                    out, done, int(state["nnz"][0]), int(state["support"][0]) if keep_duals else 0
                )
            reason, done = kernel.advance(
                problem,
                settings,
                labels,
                start_duals,
                local.scratch,
                state,
                done,
                out,
                SLICE_ENTRIES,
            )
        W = _to_matrix(out.ends, out.features, out.weights, problem.X.n_cols)
        duals = (
            _to_matrix(out.dual_ends, out.samples, out.duals, problem.X.n_rows)
            if keep_duals
            else None
        )
        return W, _to_records(out.records), duals

    def _solve_by_newton(
        self,
        local: PPDSparseState,
        labels: Int32,
        start_duals: CSR,
        check: Callable[[], None],
        keep_duals: bool,
    ) -> BatchResult:
        """Solve the batch by Newton's method, label by label."""
        problem, o = local.problem, self._objective()
        rows = local.newton = local.newton or rows_of(problem.X)
        records, weights, duals = np.zeros(len(labels), RECORD), [], []
        for row, label in enumerate(labels):
            start = (
                newton.weights_of(problem, rows, o, int(label), *start_duals.row(row))
                if start_duals.n_rows
                else None
            )
            w, alpha, record = newton.solve(
                problem, rows, o, int(label), self.eps, self.max_rounds, start, check
            )
            for name, value in record.items():
                records[name][row] = value
            weights.append(w)
            duals += [alpha] if keep_duals else []
        W = csr_from(np.stack(weights) if weights else np.empty((0, problem.X.n_cols)))
        return W, records, csr_from(np.stack(duals)) if keep_duals else None

    @property
    def _prunes(self) -> bool:
        """Whether weights are dropped after a label is solved."""
        return self.prune > 0.0 or self.prune_keep > 0 or self.prune_loss > 0.0

    def _prune(
        self, local: PPDSparseState, W: CSR, records: np.ndarray, check: Callable[[], None]
    ) -> CSR:
        """Return W without its small weights; update the records."""
        problem = local.problem
        limits = (float(self.prune), self.prune_keep, float(self.prune_loss))
        stay = np.ones(W.nnz, bool)
        for row, record in enumerate(records):
            check()
            if record["positives"] == 0:
                continue
            label = int(record["label"])
            kept, record["bias"], before, after = pruning.prune(
                problem.XT,
                self._objective(),
                problem.weights,
                problem.YT.row(label),
                newton.positive_factor(problem, label),
                *W.row(row),
                float(record["bias"]),
                limits,
                local.scratch.scores,
            )
            stay[W.indptr[row] : W.indptr[row + 1]] = kept
            record["nnz"], record["pruned"] = int(kept.sum()), int((~kept).sum())
            record["loss"], record["loss_added"] = before, after - before
        ends = np.concatenate([[0], np.cumsum(stay)])[W.indptr]
        return csr(ends, W.indices[stay], W.data[stay], W.n_cols)

    def _measure_again(self, problem: PPDSparseProblem, W: CSR, records: np.ndarray) -> None:
        """Replace the primal objectives by those of the exported weights, in float64.

        Scores that are updated step by step keep the rounding errors of the largest ones so far.
        """
        o, labels, n = self._objective(), records["label"], len(records)
        some = problem._replace(YT=take_pattern_rows(problem.YT, labels))
        if len(problem.factors):
            some = some._replace(factors=frozen(problem.factors[labels], np.float64))
        bias, losses = frozen(records["bias"], np.float32), np.empty(n)
        added_losses(some, o, W, bias, problem.XT, 0, (0, n), losses)
        w = W.data[: W.nnz].astype(np.float64)
        norms = o.lam * np.abs(w) + 0.5 * o.tau * w * w
        primal = np.bincount(np.repeat(np.arange(n), np.diff(W.indptr)), norms, n) + losses
        primal += 0.5 * o.tau_bias * np.square(bias, dtype=np.float64)
        solved = records["positives"] > 0
        records["loss"][solved], records["primal"][solved] = losses[solved], primal[solved]
        records["gap"][solved] = np.maximum(0.0, primal - records["dual"])[solved]

    def _add_norms(self, W: CSR, records: np.ndarray) -> None:
        """Write |w|_1 and |alpha|_1 of each label into its record.

        Where primal and dual agree, sum alpha = 2 primal - lam |w|_1 for the squared hinge, and
        less by the loss for the hinge.
        """
        sizes = np.concatenate([[0.0], np.cumsum(np.abs(W.data[: W.nnz], dtype=np.float64))])
        records["l1"] = np.diff(sizes[W.indptr])
        half = records["loss"] if self.loss == "hinge" else 0.0
        sums = 2.0 * records["primal"] - self.lam * records["l1"] - half
        records["dual_l1"] = np.where(records["positives"] > 0, sums, 0.0)

    def _positive_factors(self, counts: Int64, n_rows: int) -> Float64:
        """Return the factor of each label's positives: (K,), or empty if all are 1.

        counts: (K,), the positives of each label among `n_rows`.
        """
        if self.positives == "equal" and self.positive_weight == 1.0:
            return frozen(np.empty(0), np.float64)
        factors = np.full(len(counts), float(self.positive_weight))
        if self.positives == "balanced":
            factors *= np.maximum(n_rows - counts, 1) / np.maximum(counts, 1)
        elif self.positives == "propensity":
            factors *= inverse_propensities(counts, n_rows)
        return frozen(factors, np.float64)

    def _objective(self) -> Objective:
        """Return the objective as kernel input."""
        tau = float(self.tau)
        tau_bias = tau * float(self.bias_penalty)
        return Objective(LOSS_CODES[self.loss], float(self.lam), tau, tau_bias, float(self.C))

    def _settings(self, keep_duals: bool) -> PPDSparseSettings:
        """Return the parameters as kernel input."""
        return PPDSparseSettings(
            objective=self._objective(),
            eps=float(self.eps),
            max_rounds=self.max_rounds,
            max_sweeps=self.max_sweeps,
            growth=self.growth,
            seed=self.seed,
            keep_duals=keep_duals,
        )


def _has_extreme_rows(problem: PPDSparseProblem) -> bool:
    """Return whether a row is so long that scores need double precision."""
    return bool(problem.row_sq.max(initial=0.0) > MAX_FLOAT32_SQUARE)


def _postings_per_row(X: CSR, XT: CSR) -> Float64:
    """Return the total length of the posting lists of each row's features: (N,) float64.

    X: (N, D), processed in chunks because it can be large.
    """
    postings = np.diff(XT.indptr).astype(np.float64)
    out = np.zeros(X.n_rows)
    for begin in range(0, X.n_rows, CHUNK_ROWS):
        ends = X.indptr[begin : begin + CHUNK_ROWS + 1]
        counts = np.append(postings[X.indices[ends[0] : ends[-1]]], 0.0)
        out[begin : begin + CHUNK_ROWS] = np.add.reduceat(counts, ends[:-1] - ends[0]) * (
            np.diff(ends) > 0
        )
    return out


def _to_matrix(ends: Int64, indices: Int32, values: Float32, n_cols: int) -> CSR:
    """Return the concatenated rows of the kernel output as a new matrix."""
    indptr = np.concatenate([[0], ends])
    return csr(indptr, indices[: indptr[-1]].copy(), values[: indptr[-1]].copy(), n_cols)


def _to_records(states: np.ndarray) -> np.ndarray:
    """Return the records of all labels, from the kernel's final states."""
    records = np.zeros(len(states), RECORD)
    for name in set(RECORD.names or ()) & set(STATE.names or ()):
        records[name] = states[name]
    return records


def _new_scratch(problem: PPDSparseProblem, scores: Any) -> PPDSparseScratch:
    """Return clean scratch memory for a problem; scores: dtype of the scores."""
    n, d = problem.X.shape
    entries = np.empty(2 * problem.X.nnz, np.int32)
    return PPDSparseScratch(
        number=np.zeros(d, np.int32),
        touched=np.empty(d + 1, np.int32),
        v=np.empty(d + 1),
        weight=np.empty(d, np.float32),
        length=np.empty(d, np.float32),
        chosen=np.empty(d, np.int32),
        power=np.empty(d, np.int32),
        curvature=np.empty(d, np.float32),
        scores=np.empty(n, scores),
        maxima=np.empty((n + CHUNK - 1) // CHUNK, scores),
        v_start=np.zeros(d + 1),
        v_change=np.zeros(d + 1),
        is_active=np.zeros(n, np.uint8),
        row_of=np.zeros(n, np.int32),
        entering=np.empty(n + 1, np.int32),
        rows=np.empty(n, ROW),
        active=np.empty(n, np.int32),
        alpha_start=np.zeros(n),
        alpha_change=np.zeros(n),
        entries=entries,
        values=entries.view(np.float32),
    )


def _allocate(n_labels: int, n_weights: int, n_duals: int) -> BatchOutput:
    """Allocate output for `n_labels` labels with these total numbers of weights and duals."""
    return BatchOutput(
        np.zeros(n_labels, np.int64),
        np.zeros(n_weights, np.int32),
        np.zeros(n_weights, np.float32),
        np.zeros(n_labels, np.int64),
        np.zeros(n_duals, np.int32),
        np.zeros(n_duals, np.float32),
        np.zeros(n_labels, STATE),
    )


def _enlarge(out: BatchOutput, done: int, weights: int, duals: int) -> BatchOutput:
    """Return the output with at least twice the capacity, and space for more weights and duals."""
    room = _allocate(
        0,
        max(2 * len(out.features), len(out.features) + weights),
        max(2 * len(out.samples), len(out.samples) + duals),
    )
    used, used_duals = (int(out.ends[done - 1]), int(out.dual_ends[done - 1])) if done else (0, 0)
    room.features[:used], room.weights[:used] = out.features[:used], out.weights[:used]
    room.samples[:used_duals] = out.samples[:used_duals]
    room.duals[:used_duals] = out.duals[:used_duals]
    return room._replace(ends=out.ends, dual_ends=out.dual_ends, records=out.records)
