"""PPDSparse: parallel primal-dual sparse one-vs-all training, with a certificate for every class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern, csr, csr_from, frozen
from xcray.errors import ParameterError, Stopped
from xcray.kernels.sparse import row_norms_sq
from xcray.kernels.training import ppdsparse as kernel
from xcray.kernels.training import pruning
from xcray.kernels.training.hinge import HINGE, SQUARED_HINGE, Objective
from xcray.metrics import inverse_propensities
from xcray.solvers import newton
from xcray.solvers.parameters import check_parameters, parameter
from xcray.solvers.solved_labels import Block

SLICE = 30_000_000  # entries of X between two looks at the stop flag: about 50 ms, at most 200 ms where memory is slow
LOSSES = {"squared_hinge": SQUARED_HINGE, "hinge": HINGE}
CHUNK = 1 << 12  # rows looked at in one go when costs are counted
FIRST_ROOM = 1 << 16  # weights a batch's output holds at first
SINGLE = 1e-3  # from this eps on, scores in single precision do: their rounding is 1e-7 of a margin
POSITIVES = ("equal", "balanced", "propensity")
Columns = tuple[CSR, np.ndarray, CSR | None]  # weights, records, dual variables of a batch
NONE = csr([0], [], [], 0)  # no dual variables to start from

RECORD = np.dtype(
    [
        *(
            (name, np.int32)
            for name in (
                "label",
                "positives",
                "rounds",
                "sweeps",
                "n_active",
                "support",
                "violating",
                "nnz",
                "pruned",
            )
        ),
        ("work", np.int64),
        *(
            (name, np.float64)
            for name in ("bias", "primal", "dual", "gap", "null", "loss", "loss_added")
        ),
    ],
    align=True,
)  # what is told of a class; primal to loss: before pruning, which raised the loss by loss_added


@dataclass
class Local:
    """What stays at a worker: the problem (shared, read-only) and scratch of its own.

    The scratch is O(N + D), and 4 bytes for each entry of the largest active set (address space for all of X is reserved,
    memory is taken as it is written).
    """

    problem: kernel.Problem
    scratch: kernel.Scratch
    gram: Float64 | None = None  # made when Newton's method is used first

    def sibling(self) -> Local:
        """The same problem with scratch of its own, for another thread."""
        return Local(self.problem, _scratch(self.problem, self.scratch.scores.dtype), self.gram)

    def renewed(self) -> None:
        """Take clean scratch: an interrupted class left its marks."""
        self.scratch = _scratch(self.problem, self.scratch.scores.dtype)


@dataclass(frozen=True)
class PPDSparseSolver:
    """One-vs-all linear classification with l1 and l2 regularisation, each class solved on its few active samples.

    For every label k, independent of all others, with y_i = +1 where sample i carries k and -1 elsewhere:

        min over (w, b)   lam |w|_1 + tau/2 (|w|^2 + b^2) + C sum_i max(0, 1 - y_i (w.x_i + b))^2

    (squared hinge, in LIBLINEAR's scaling of C: the paper's eq. 9 prints the plain hinge, its experiments use the
    square; `loss="hinge"` is eq. 3.) The bias is regularised by l2 and free of l1. A sample's loss may have a weight of its
    own (`load`), and those of a label's positives a factor more: `positive_weight`, times N_neg / N_pos where `positives` is
    "balanced", times the inverse propensity of the label where it is "propensity". lam = 0 with prune = 0.01 is DiSMEC, lam = 0
    the plain l2 machine (`xcray.solvers` has them by name).

    A class starts from its positives. Rounds follow: all samples are scored through the postings of the weights whose
    change is worth it; if the duality gap over all N samples is above `eps` times the null objective (w = 0, best bias),
    the worst violating negatives become active and the dual is solved on the active set by randomised coordinate descent.
    The gap is that of the scored weights, which are the ones handed over. Where rows are long and features few, Newton's method
    is quicker and takes over (`newton`). What stays at the worker: X by row and column, sums of their squares, scratch (see
    `Local`).

    Example:
        >>> PPDSparseSolver(lam=0.1).lam
        0.1

    Source: Yen, Huang, Dai, Ravikumar, Dhillon, Xing, "PPDSparse", KDD 2017: Algorithms 1 and 2, eq. 9-14.
    Inverse propensities: Jain, Prabhu, Varma, "Extreme multi-label loss functions", KDD 2016, eq. 5. Pruning by size: Babbar,
    Schoelkopf, "DiSMEC", WSDM 2017, section 2.
    Differs from the paper: classes end on a certificate, not after a fixed number of rounds; changes of weights that gain
    little for the postings they walk wait, instead of weights drawn at random (Algorithm 3); the bias of the primal
    point is minimised exactly at fixed w, which is what makes a small active set enough when nearly all samples are barely
    violating negatives.
    """

    family: ClassVar[str] = "scatter"
    revision: ClassVar[int] = (
        3  # raised with every change of the bits of a model, so that no run mixes parts of two
    )
    joint: ClassVar[bool] = False  # classes are solved one by one, in any batches
    cost_rates: ClassVar[tuple[float, ...]] = (
        6e-9,
        1.7e-9,
        3.7e-9,
    )  # seconds a visit: within 0.4 and 1.5 times of eight sets of text; schedules measure them

    lam: float = parameter(0.01, "weight of the l1 norm", low=0.0)
    tau: float = parameter(1.0, "weight of the squared l2 norm", above=0.0)
    C: float = parameter(1.0, "weight of a sample's loss", above=0.0)
    loss: str = parameter("squared_hinge", "loss of a sample", choices=tuple(LOSSES))
    eps: float = parameter(
        0.01,
        "a class is done when its duality gap is at most eps times its null objective",
        above=0.0,
        high=1.0,
    )
    positives: str = parameter(
        "equal", "how the losses of a label's positives are weighted", choices=POSITIVES
    )
    positive_weight: float = parameter(1.0, "what they are multiplied by beside", above=0.0)
    prune: float = parameter(
        0.0, "weights of at most this size are dropped after a class is solved", low=0.0
    )
    prune_keep: int = parameter(0, "only so many largest weights of a label stay; 0: all", low=0)
    prune_loss: float = parameter(
        0.0,
        "smallest weights are dropped while a label's loss rises by at most this share",
        low=0.0,
    )
    max_rounds: int = parameter(
        100, "rounds after which a class ends without its certificate (and is reported)", low=1
    )
    max_sweeps: int = parameter(20, "coordinate descent sweeps in a round, at most", low=1)
    growth: int = parameter(10, "negatives that may enter in a round, for each positive", low=1)
    seed: int = parameter(
        0,
        "seed of the random order of sweeps; every class has a stream of its own",
        low=0,
        high=2**31 - 1,
    )

    def __post_init__(self) -> None:
        """Check every parameter. Raises ParameterError."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""
        return asdict(self)

    def load(self, X: CSR, XT: CSR, YT: Pattern, weights: Float32 | None = None) -> Local:
        """The local part of a worker: X (N x D), XT (D x N) its transpose, YT (K x N) the samples of each label.

        weights: (N,) float32 above 0, what the losses of samples are multiplied by; None for 1. Raises ParameterError for
        another length or a weight that is not above 0.
        """
        weights = _checked_weights(weights, X.n_rows)
        problem = kernel.Problem(
            X,
            XT,
            row_norms_sq(X),
            row_norms_sq(XT, weights),
            YT,
            weights,
            self._factors(YT),
            float(weights.sum(dtype=np.float64)) if len(weights) else float(X.n_rows),
        )
        return Local(problem, _scratch(problem, np.float32 if self.eps >= SINGLE else np.float64))

    def cost_terms(self, X: CSR, XT: CSR, YT: Pattern) -> Float64:
        """What the work of each label grows with: (K, 3) float64; terms @ `cost_rates` is a first guess of its seconds.

        See `load` for the arguments. The columns, in visits: 0, samples, N for every label: certificate and bounds walk
        all of them. 1, entries of X scored: the postings of the positives' features, each pass at most all of X, which
        the sum nears as 1 - exp(-x) does. 2, entries of active rows times sweeps: `growth` negatives for each positive.
        """
        lengths = np.diff(X.indptr).astype(np.float64)
        labels = np.repeat(np.arange(YT.n_rows), np.diff(YT.indptr))
        walked = np.bincount(labels, _postings_of_rows(X, XT)[YT.indices], YT.n_rows)
        rows = np.bincount(labels, lengths[YT.indices], YT.n_rows).astype(np.float64)
        return self.terms_by(X.n_rows, X.nnz, walked.astype(np.float64), rows)

    def terms_by(self, n_rows: int, entries: int, walked: Float64, rows: Float64) -> Float64:
        """`cost_terms` by numbers: N, the entries of X; (K,) postings met by each label's rows, (K,) entries of these."""
        total = max(float(entries), 1.0)
        scored = total * -np.expm1(-walked / total)
        return np.stack(
            [np.full(len(rows), float(n_rows)), scored, self.max_sweeps * self.growth * rows],
            axis=1,
        )

    def solve(
        self,
        local: Local,
        labels: Int32,
        stopped: Callable[[], bool] = lambda: False,
        start: CSR | None = None,
        keep_duals: bool = False,
    ) -> Block:
        """Solve `labels` (n,) int32 one after the other; the block's rows are in their order.

        start: (n x N) float32, dual variables of a similar problem for each of the labels: a warm start, which changes how soon
        the certificate holds and the bits, not what it says. keep_duals: the block has those of this one. `stopped` is
        asked between slices of at most 200 ms; when it says True, Stopped is raised and nothing is kept.
        Raises ParameterError for a label that there is not, or a start of another shape.
        """
        labels = frozen(labels, np.int32)
        _check_labels(labels, local.problem.YT.n_rows)
        given = NONE if start is None else start
        shape = (len(labels), local.problem.X.n_rows)
        if start is not None and start.shape != shape:
            raise ParameterError(
                f"the start is {start.shape}; give a row of dual variables a label, a column a sample: {shape}"
            )

        def check() -> None:
            if stopped():
                local.renewed()
                raise Stopped("stopped between two slices of a class; finished batches are kept")

        solve = self._newton if newton.suits(local.problem, self._objective()) else self._advanced
        W, records, duals = solve(local, labels, given, check, keep_duals)
        if self.prune > 0.0 or self.prune_keep > 0 or self.prune_loss > 0.0:
            W = self._pruned(local, W, records, check)
        return Block(labels, W, frozen(records["bias"], np.float64), records, duals)

    def warm_up(self) -> None:
        """Compile or load the kernels, on a problem of two samples, certified at once: nothing could stop a hard one here."""
        X = csr([0, 1, 2], [0, 1], [1.0, 1.0], 2)
        local = self.load(X, X, Pattern(frozen([0, 1], np.int64), frozen([0], np.int32), 2))
        replace(self, eps=1.0).solve(local, frozen([0], np.int32))

    def _advanced(
        self, local: Local, labels: Int32, given: CSR, check: Callable[[], None], keep_duals: bool
    ) -> Columns:
        """The kernel run to the end of the batch, slice after slice, with as much room for output as it needs."""
        settings, problem = self._settings(keep_duals), local.problem
        state = np.zeros(1, kernel.STATE)
        out = _room(len(labels), FIRST_ROOM, FIRST_ROOM if keep_duals else 0)
        why, done = kernel.BUDGET, 0
        while why != kernel.DONE:
            check()
            if why == kernel.FULL:
                out = _grown(
                    out, done, int(state["nnz"][0]), int(state["support"][0]) if keep_duals else 0
                )
            why, done = kernel.advance(
                problem, settings, labels, given, local.scratch, state, done, out, SLICE
            )
        W = _rows(out.ends, out.features, out.weights, problem.X.n_cols)
        duals = (
            _rows(out.dual_ends, out.samples, out.duals, problem.X.n_rows) if keep_duals else None
        )
        return W, _records(out.records), duals

    def _newton(
        self, local: Local, labels: Int32, given: CSR, check: Callable[[], None], keep_duals: bool
    ) -> Columns:
        """The batch by Newton's method, class by class."""
        problem, o = local.problem, self._objective()
        local.gram = newton.gram(problem) if local.gram is None else local.gram
        records, weights, duals = np.zeros(len(labels), RECORD), [], []
        for row, label in enumerate(labels):
            start = (
                newton.weights_of(problem, o, int(label), *given.row(row)) if given.n_rows else None
            )
            w, alpha, told = newton.solve(
                problem, local.gram, o, int(label), self.eps, self.max_rounds, start, check
            )
            for name, value in told.items():
                records[name][row] = value
            weights.append(w)
            duals += [alpha] if keep_duals else []
        W = csr_from(np.stack(weights) if weights else np.empty((0, problem.X.n_cols)))
        return W, records, csr_from(np.stack(duals)) if keep_duals else None

    def _pruned(self, local: Local, W: CSR, records: np.ndarray, check: Callable[[], None]) -> CSR:
        """W without its small weights; what that did goes into the records."""
        problem, limits = (
            local.problem,
            (float(self.prune), self.prune_keep, float(self.prune_loss)),
        )
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
                newton.factor_of(problem, label),
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

    def _factors(self, YT: Pattern) -> Float64:
        """What the weights of each label's positives are multiplied by: (K,), or empty when all by 1."""
        counts = np.diff(YT.indptr)
        if self.positives == "equal" and self.positive_weight == 1.0:
            return frozen(np.empty(0), np.float64)
        factors = np.full(len(counts), float(self.positive_weight))
        if self.positives == "balanced":
            factors *= np.maximum(YT.n_cols - counts, 1) / np.maximum(counts, 1)
        elif self.positives == "propensity":
            factors *= inverse_propensities(counts, YT.n_cols)
        return frozen(factors, np.float64)

    def _objective(self) -> Objective:
        """What is minimised, as the kernels take it."""
        return Objective(LOSSES[self.loss], float(self.lam), float(self.tau), float(self.C))

    def _settings(self, keep_duals: bool) -> kernel.Settings:
        """The parameters as the kernel takes them."""
        return kernel.Settings(
            objective=self._objective(),
            eps=float(self.eps),
            max_rounds=self.max_rounds,
            max_sweeps=self.max_sweeps,
            growth=self.growth,
            seed=self.seed,
            keep_duals=keep_duals,
        )


def _postings_of_rows(X: CSR, XT: CSR) -> Float64:
    """For each row of X (N x D), the postings of its features, in entries: (N,) float64. In chunks: X may be large."""
    postings = np.diff(XT.indptr).astype(np.float64)
    out = np.zeros(X.n_rows)
    for begin in range(0, X.n_rows, CHUNK):
        ends = X.indptr[begin : begin + CHUNK + 1]
        found = np.append(
            postings[X.indices[ends[0] : ends[-1]]], 0.0
        )  # a place for the empty rows at the end
        out[begin : begin + CHUNK] = np.add.reduceat(found, ends[:-1] - ends[0]) * (
            np.diff(ends) > 0
        )
    return out


def _check_labels(labels: Int32, n_labels: int) -> None:
    """The kernel reads without bounds: no label may be out of range."""
    for label in labels[(labels < 0) | (labels >= n_labels)]:
        raise ParameterError(f"there is no label {label}: the data have labels 0 to {n_labels - 1}")


def _checked_weights(weights: Float32 | None, n_rows: int) -> Float32:
    """Weights as the kernel takes them: empty when all are one."""
    if weights is None:
        return frozen(np.empty(0), np.float32)
    weights = frozen(weights, np.float32)
    if weights.shape != (n_rows,) or not (np.isfinite(weights) & (weights > 0.0)).all():
        raise ParameterError(
            f"sample weights must be {n_rows} finite numbers above 0, one for each row; leave out rows of weight 0"
        )
    return weights


def _rows(ends: Int64, indices: Int32, values: Float32, n_cols: int) -> CSR:
    """What the kernel wrote one after the other, as the rows of a matrix of its own."""
    indptr = np.concatenate([[0], ends])
    return csr(indptr, indices[: indptr[-1]].copy(), values[: indptr[-1]].copy(), n_cols)


def _records(states: np.ndarray) -> np.ndarray:
    """What is told of each class, from the kernel's last state of it."""
    records = np.zeros(len(states), RECORD)
    for name in set(RECORD.names or ()) & set(kernel.STATE.names or ()):
        records[name] = states[name]
    return records


def _scratch(problem: kernel.Problem, scores: Any) -> kernel.Scratch:
    """Clean scratch for a problem; scores: their dtype."""
    n, d = problem.X.shape
    return kernel.Scratch(
        number=np.zeros(d, np.int32),
        touched=np.empty(d + 1, np.int32),
        v=np.empty(d + 1),
        walked=np.empty(d, np.float32),
        length=np.empty(d, np.float32),
        curvature=np.empty(d, np.float32),
        scores=np.empty(n, scores),
        tops=np.empty(n, scores),
        alpha=np.zeros(n),
        kind=np.zeros(n, np.uint8),
        active=np.empty(n, np.int32),
        entered=np.empty(n, np.int32),
        begins=np.zeros(n, np.int64),
        entries=np.empty(problem.X.nnz, np.int32),
    )


def _room(n_labels: int, n_weights: int, n_duals: int) -> kernel.Columns:
    """Output for `n_labels` classes of so many weights and dual variables in all."""
    return kernel.Columns(
        np.zeros(n_labels, np.int64),
        np.zeros(n_weights, np.int32),
        np.zeros(n_weights, np.float32),
        np.zeros(n_labels, np.int64),
        np.zeros(n_duals, np.int32),
        np.zeros(n_duals, np.float32),
        np.zeros(n_labels, kernel.STATE),
    )


def _grown(out: kernel.Columns, done: int, weights: int, duals: int) -> kernel.Columns:
    """The same output with at least twice the room, and free places for so many weights and dual variables."""
    room = _room(
        0,
        max(2 * len(out.features), len(out.features) + weights),
        max(2 * len(out.samples), len(out.samples) + duals),
    )
    used, used_duals = (int(out.ends[done - 1]), int(out.dual_ends[done - 1])) if done else (0, 0)
    room.features[:used], room.weights[:used] = out.features[:used], out.weights[:used]
    room.samples[:used_duals], room.duals[:used_duals] = (
        out.samples[:used_duals],
        out.duals[:used_duals],
    )
    return room._replace(ends=out.ends, dual_ends=out.dual_ends, records=out.records)
