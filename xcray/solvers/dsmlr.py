"""DS-MLR: multinomial logistic regression whose rows and weights are both split; blocks of labels go round shards of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from xcray.arrays import Float32, Int32, Int64, csr, frozen, pattern
from xcray.errors import Stopped
from xcray.kernels import softmax as kernel
from xcray.kernels.sparsify import sparse_rows
from xcray.solvers.block import Block
from xcray.solvers.multinomial import Shard, shard_of
from xcray.solvers.parameters import check_parameters, parameter
from xcray.solvers.rounds import RECORD

SLICE: Final = 60_000_000  # multiplications between two looks at the stop flag: 20 to 100 ms
SCORES: Final = 1 << 18  # scores in hand at once: 1 MB, half of a second cache
BATCH: Final = 32  # dense rows of a step
FELT: Final = 10.0  # the default rate: steps may change a score by about so much at first
TOP: Final = 5  # labels told of each watched row
WORSE: Final = 1.02  # of the best objective so far: above it a stretch was a step too far
BLOCK_BYTES: Final = 1 << 26  # of weights in a block, at most, where labels are many: what travels in one go
MODES: Final = ("both", "two")
ORDERS: Final = ("sync", "ring", "uniform", "shortest")
STEPS: Final = ("adaptive", "sqrt")


_NOBODY: Final = np.empty(0, np.int64)


class Grid(NamedTuple):
    """In how many shards rows are split, and in how many blocks labels."""

    shards: int
    blocks: int


class Weights(NamedTuple):
    """A block of labels lo .. hi-1 as it travels. W: (D', hi-lo) float32, a row a feature; state: what steps remember (`start`)."""

    lo: int
    hi: int
    W: Float32
    state: tuple[Float32, ...]


class Step(NamedTuple):
    """What a visit does. verb: of its lap; epoch: from 1; rate: what `judge` said last, 1 at first."""

    verb: str
    epoch: int
    rate: float


class LapFigures(NamedTuple):
    """What a shard tells when all blocks have passed it: its part of L1 without the norm, exact after "sum" and "observe". After
    "observe" too, of its watched rows: their part of the mean loss, best labels (n, k), best first, scores, and row numbers."""

    shard: int
    loss: float
    watched_loss: float
    watched_rows: int
    labels: Int32
    scores: Float32
    rows: Int64


class Told(NamedTuple):
    """What a visit tells: |W|^2 of the block after "sum" and "observe", and figures of the shard if its lap is over."""

    squared: float | None
    lap: LapFigures | None


class Rest(NamedTuple):
    """What the judge sees of a rest: epochs done, the rate they were done with, the objective, and the held-out loss, or None."""

    epoch: int
    rate: float
    objective: float
    held_out: float | None = None


class Decision(NamedTuple):
    """What is next. rate: of the steps; stop: why training ends, or None; back: whether to go back to the rest before."""

    rate: float
    stop: str | None
    back: bool


class Watched:
    """Held-out rows of a shard in an "observe" lap: partial sums, what they gained, their best labels. O(n)."""

    def __init__(self, shard: Shard) -> None:
        n = len(shard.rows)
        self.shard, self.rows = shard, _rows(shard)
        self.gained = 0.0
        self.labels, self.scores = np.full((n, TOP), -1, np.int32), np.full((n, TOP), -np.inf, np.float32)

    def add(self, block: Weights, stopped: Callable[[], bool]) -> None:
        """A block passes."""
        for some in _chunks(self.rows, block, stopped):
            S = _scores(self.shard.dense, self.rows, block.W, some)
            kernel.add_sums(S, some, self.rows)
            self.gained += kernel.gained(S, some, self.rows, block.lo)
            kernel.keep_best(S, some, block.lo, self.labels, self.scores)

    def figures(self, number: int, loss: float) -> LapFigures:
        """What the lap found; nothing has passed afterwards."""
        watched_loss, k = kernel.close(self.rows) - self.gained, min(TOP, self.rows.T.n_cols)
        labels, scores = self.labels[:, :k].copy(), self.scores[:, :k].copy()
        self.clear()
        return LapFigures(number, loss, watched_loss, len(labels), labels, scores, self.shard.rows)

    def clear(self) -> None:
        """Nothing has passed."""
        self.gained = 0.0
        self.labels[:], self.scores[:] = -1, -np.inf
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY, 0.0


class Local:
    """What stays at a shard: its rows, b_i = -log of their partition functions, partial sums of the lap under way; O(nnz + n).

    b begins as it is at W = 0, exactly: -log K. (The paper begins with 1/K.)
    """

    def __init__(self, shard: Shard, number: int, grid: Grid, watched: Shard | None) -> None:
        self.number, self.grid, self.shard = number, grid, shard
        self.rows = _rows(shard)
        self.watched = None if watched is None or not len(watched.rows) else Watched(watched)
        self.passed, self.gained = 0, 0.0
        self._summary: tuple[Float32, Float32] | None = None

    def summary(self) -> tuple[Float32, Float32]:
        """Of this shard: (D',) rows that have each feature, and (3,) rows, sum of |x|_1, sum of |x|^2."""
        if self._summary is None:
            X = self.shard.X
            data = X.data[X.indptr[0] : X.indptr[-1]].astype(np.float64)
            counts = np.bincount(X.indices[X.indptr[0] : X.indptr[-1]], minlength=X.n_cols)
            self._summary = counts.astype(np.float32), np.array([X.n_rows, np.abs(data).sum(), (data**2).sum()], np.float32)
        return self._summary

    def state(self) -> dict[str, np.ndarray]:
        """What must last, at a rest."""
        return {"b": self.rows.b.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Be at a rest, with this state."""
        self.rows.b[:] = state["b"]
        self.rows.top[:], self.rows.total[:] = kernel.EMPTY, 0.0
        self.passed, self.gained = 0, 0.0
        if self.watched is not None:
            self.watched.clear()


@dataclass(frozen=True)
class DSMLRSolver:
    """Multinomial logistic regression with l2 regularisation, for data and weights that are both too large for one worker.

        min over W   L1(W) = lam/2 |W|^2 - sum_i c_i sum_k y_ik w_k.x_i + sum_i c_i log sum_k exp(w_k.x_i)

    c_i, y_i and `bias`: see `xcray.solvers.multinomial`. With b_i = -log sum_k exp(w_k.x_i) this is a sum over rows *and* labels

        sum_i sum_k c_i (lam/2 |w_k|^2 - y_ik w_k.x_i + exp(w_k.x_i + b_i) - b_i / K - 1 / K)            (eq. 10-12)

    whose minimum over b is L1. So rows are split in shards, labels in blocks; a block passes a shard and takes, for each row,

        w_k <- w_k - eta (lam w_k - y_ik x_i + exp(w_k.x_i + b_i) x_i)                                   (eq. 13 without its K)

    (the K there belongs to drawing one label; here all labels of the block take the step). Partial sums of exp(w_k.x_i) make b
    exact again when all blocks have passed. mode "both": a visit adds the partial sums, of the weights as they come, and takes
    the steps in one pass, so an epoch is one lap; "two": a lap of steps, then a lap of sums (the paper's Algorithm 1).

    Step sizes. "adaptive": eta_j = rate / sqrt(sum of the squared gradients that feature j has had, over all labels), begun so that
    a score may change by about 10: one number a feature beside the block's weights. "sqrt": rate / (mean |x|^2 sqrt(epoch)), as
    in Theorem 1. When the objective rises the training goes back to the rest before, with half the rate.

    Norm. Its gradient is spread over the rows that have a feature: lam N / n_j in each, taken implicitly; the sum is the same, and
    a sparse row costs O(nnz k). Stale b. Between two exact updates w.x + b can exceed 0: the exponent is bounded by it.

    What stays at a worker: its shards' rows, b and partial sums. What travels: W and 2 numbers a feature. Memory
    O(nnz/P + N/P + KD/P); nobody holds all of W. The bits depend on grid, data and seed alone where the order of visits does:
    "sync" and "ring".

    Example:
        >>> DSMLRSolver(lam=1e-4).grid(1000, 20, 50, 2)
        Grid(shards=4, blocks=4)

    Source: Raman, Srinivasan, Matsushima, Zhang, Yun, Vishwanathan, "DS-MLR: Exploiting double separability for scaling up
    distributed multinomial logistic regression", sections 4 and 5; step sizes a feature: Duchi, Hazan, Singer, "Adaptive
    subgradient methods", JMLR 2011, with one sum a feature. Differs from the paper: b begins exact, exponents are bounded, sums
    are pairs.
    """

    family: ClassVar[str] = "circulate"
    revision: ClassVar[int] = 1  # raised with every change of the bits of a model

    lam: float = parameter(1e-5, "weight of the squared l2 norm, beside the mean loss", above=0.0)
    bias: float = parameter(0.0, "value of a constant feature, regularised like the others; 0: none", low=0.0)
    epochs: int = parameter(50, "times that every row meets every label, at most", low=1)
    tolerance: float = parameter(1e-3, "ends when an epoch lowers the objective by at most this share", low=0.0, high=1.0)
    patience: int = parameter(0, "ends when the held-out loss has not fallen for so many rests; 0: not asked", low=0)
    mode: str = parameter("both", "an epoch in one pass, sums and steps at once, or in two laps", choices=MODES)
    order: str = parameter(
        "ring", "how blocks go round: with a barrier, without one, or to a worker drawn or least busy", choices=ORDERS
    )
    steps: str = parameter("adaptive", "step sizes: a feature's own, or one for all that falls with the epochs", choices=STEPS)
    rate: float = parameter(1.0, "multiplies the step sizes", above=0.0)
    rest_every: int = parameter(1, "epochs between two rests, where the objective is looked at", low=1)
    shards: int = parameter(0, "shards of rows; 0: two a worker", low=0, high=1 << 20)
    blocks: int = parameter(0, "blocks of labels; 0: two a worker, and none larger than 64 MB", low=0, high=1 << 20)
    prune: float = parameter(0.0, "weights of at most this size are dropped at the end", low=0.0)
    prune_keep: int = parameter(0, "weights kept of each label, the largest; 0: all", low=0)
    seed: int = parameter(0, "seed of everything random", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        """Check every parameter. Raises ParameterError."""
        check_parameters(self)

    def as_dict(self) -> dict[str, Any]:
        """All parameters by name."""
        return asdict(self)

    def grid(self, n_rows: int, n_labels: int, n_features: int, workers: int) -> Grid:
        """The grid of a run, where parameters leave it open."""
        wide = -(-4 * n_labels * n_features // BLOCK_BYTES)
        shards = self.shards or 2 * workers
        blocks = self.blocks or max(2 * workers, wide)
        return Grid(max(1, min(shards, n_rows)), max(1, min(blocks, n_labels)))

    def local(self, shard: Shard, number: int, grid: Grid, watched: Shard | None) -> Local:
        """What stays at shard `number`. watched: held-out rows that it looks at, or None."""
        return Local(shard, number, grid, watched)

    def start(self, lo: int, hi: int, n_features: int) -> Weights:
        """Labels lo .. hi-1 at W = 0. The state: h (D',) sums of squared gradients; then, of the shards passed so far, (D',) rows
        that have a feature, and (3,) rows, sum of |x|_1, sum of |x|^2."""
        zeros = [np.zeros(n, np.float32) for n in (n_features, n_features, 3)]
        return Weights(lo, hi, np.zeros((n_features, hi - lo), np.float32), tuple(zeros))

    def laps(self, epochs: int, observe: bool) -> tuple[str, ...]:
        """The laps of a stretch of `epochs`; observe: with a look at held-out rows, the objective and b exact, at its end."""
        if self.mode == "both":
            return ("both",) * epochs + ("observe",) * observe
        laps = ("update", "sum") * epochs
        return (*laps[:-1], "observe") if observe else laps

    def step(
        self, local: Local, block: Weights, step: Step, *, owned: bool, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[Weights, Told]:
        """A block passes a shard. owned: its arrays may be written in place. Raises Stopped soon after `stopped` says True.

        The block that comes out is another only for "update" and "both"; partial sums change in `local`.
        """
        changing = step.verb in ("update", "both")
        if changing:
            block = block if owned else block._replace(W=block.W.copy(), state=tuple(each.copy() for each in block.state))
            self._descend(local, block, step, stopped)
        else:
            self._sum(local, block, step.verb == "observe", stopped)
        squared = None if changing else kernel.squared(block.W)
        return block, Told(squared, _lap(local, step.verb))

    def judge(self, history: Sequence[Rest]) -> Decision:
        """What the rests so far say."""
        newest, before = history[-1], [rest.objective for rest in history[:-1]]
        least = min(before, default=math.inf)
        if not math.isfinite(newest.objective) or newest.objective > WORSE * least:
            return Decision(0.5 * newest.rate, None, True)
        if newest.epoch >= self.epochs:
            return Decision(newest.rate, f"all {self.epochs} epochs are done", False)
        gain = (least - newest.objective) / max(1, newest.epoch - (history[-2].epoch if before else 0))
        if before and gain <= self.tolerance * newest.objective:
            return Decision(newest.rate, f"an epoch lowers the objective by less than {self.tolerance:g} of it", False)
        losses = [rest.held_out for rest in history if rest.held_out is not None]
        if self.patience and len(losses) > self.patience and min(losses[-self.patience :]) >= min(losses[: -self.patience]):
            return Decision(newest.rate, f"the held-out loss has not fallen for {self.patience} rests", False)
        return Decision(newest.rate, None, False)

    def export(self, block: Weights, positives: Int64) -> Block:
        """Finished labels lo .. hi-1 as sparse rows, small weights dropped. positives: (hi-lo,) training rows of each."""
        W = block.W[:-1] if self.bias else block.W
        bias = self.bias * block.W[-1].astype(np.float64) if self.bias else np.zeros(block.hi - block.lo)
        rows, dropped = sparse_rows(W, self.prune, self.prune_keep)
        labels = np.arange(block.lo, block.hi, dtype=np.int32)
        records = np.zeros(len(labels), RECORD)
        told = {"label": labels, "positives": positives, "nnz": np.diff(rows.indptr), "pruned": dropped}
        for name, values in told.items():
            records[name] = values
        return Block(frozen(labels, np.int32), rows, frozen(bias, np.float64), records)

    def warm_up(self) -> None:
        """Compile or load the kernels, on two rows, sparse and dense."""
        Y = pattern([0, 1, 2], [0, 1], 2)
        for X in (csr([0, 1, 2], [0, 1], [1.0, 1.0], 4), csr([0, 2, 4], [0, 1, 0, 1], [1.0, 2.0, 2.0, 1.0], 2)):
            shard = shard_of(X, Y, np.arange(2), total=2.0)
            local, block = self.local(shard, 0, Grid(1, 1), shard), self.start(0, 2, X.n_cols)
            for verb in ("both", "sum", "update", "observe"):
                block, _ = self.step(local, block, Step(verb, 1, 1.0), owned=False)

    def _descend(self, local: Local, block: Weights, step: Step, stopped: Callable[[], bool]) -> None:
        """Steps on a block, in place; partial sums too when the verb is "both"."""
        h, counts, facts = block.state
        if step.epoch == 1:
            counts += local.summary()[0]
            facts += local.summary()[1]
        order = np.random.default_rng((self.seed, 2, step.epoch, local.number, block.lo)).permutation(local.rows.X.n_rows)
        rule, summed = self._rule(local, block, step), step.verb == "both"
        for rows in _slices(local.rows, block, order, 4):
            _ask(stopped)
            if local.shard.dense is None:
                kernel.steps(local.rows, rows, block.lo, block.W, h, rule, summed)
            else:
                _batches(local, rows, block, rule, summed)

    def _rule(self, local: Local, block: Weights, step: Step) -> kernel.Rule:
        """How long the steps are."""
        _, counts, facts = block.state
        rows, ones, squares = (max(float(fact), 1e-30) for fact in facts)
        adaptive = self.steps == "adaptive"
        rate = FELT / (ones / rows) if adaptive else rows / (squares / rows) / math.sqrt(step.epoch)
        norm = np.float32(self.lam) / np.maximum(counts, np.float32(1.0))
        share = np.float32((block.hi - block.lo) / local.rows.T.n_cols)
        return kernel.Rule(np.float32(self.rate * step.rate * rate), norm, share, adaptive)

    def _sum(self, local: Local, block: Weights, observed: bool, stopped: Callable[[], bool]) -> None:
        """Partial sums of a block that stays as it is; and its scores of watched rows, when it is observed."""
        local.gained += _add(local.shard.dense, local.rows, block, stopped)
        if observed and local.watched is not None:
            local.watched.add(block, stopped)


def _rows(shard: Shard) -> kernel.Rows:
    """A shard's rows as kernels take them, at W = 0."""
    n, K = len(shard.rows), max(int(shard.targets.n_cols), 1)
    b, top = np.full(n, -math.log(K), np.float32), np.full(n, kernel.EMPTY, np.float32)
    return kernel.Rows(shard.X, shard.targets, frozen(shard.weights, np.float32), b, top, np.zeros(n))


def _slices(rows: kernel.Rows, block: Weights, order: Int64, passes: int) -> Iterator[Int64]:
    """Parts of `order`, each of some tens of milliseconds when its rows are passed so often."""
    a_row = (block.hi - block.lo) * (rows.X.nnz / max(rows.X.n_rows, 1) + 8) * passes
    n = max(1, int(SLICE / max(a_row, 1.0)))
    for lo in range(0, len(order), n):
        yield order[lo : lo + n]


def _ask(stopped: Callable[[], bool]) -> None:
    """Raises Stopped when a stop was asked for."""
    if stopped():
        raise Stopped("stopped between two slices of a visit; the next run goes on from the last checkpoint")


def _scores(dense: Float32 | None, rows: kernel.Rows, W: Float32, some: Int64) -> Float32:
    """W' x of some rows: (n, k) float32."""
    if dense is not None:
        return np.asarray(dense[some] @ W, np.float32)
    S = np.empty((len(some), W.shape[1]), np.float32)
    kernel.scores(rows.X, some, W, S)
    return S


def _chunks(rows: kernel.Rows, block: Weights, stopped: Callable[[], bool]) -> Iterator[Int64]:
    """All rows, in order, a few at a time; between them a stop is looked for."""
    n = max(1, SCORES // (block.hi - block.lo))
    everything = np.arange(rows.X.n_rows)
    for lo in range(0, len(everything), n):
        _ask(stopped)
        yield everything[lo : lo + n]


def _add(dense: Float32 | None, rows: kernel.Rows, block: Weights, stopped: Callable[[], bool]) -> float:
    """Add a block to the partial sums of rows; returns what its labels gain: the sum of weight times y.score."""
    gained = 0.0
    for some in _chunks(rows, block, stopped):
        S = _scores(dense, rows, block.W, some)
        kernel.add_sums(S, some, rows)
        gained += kernel.gained(S, some, rows, block.lo)
    return gained


def _batches(local: Local, order: Int64, block: Weights, rule: kernel.Rule, summed: bool) -> None:
    """Steps for batches of dense rows, by matrix products."""
    X, rows = local.shard.dense, local.rows
    assert X is not None
    for lo in range(0, len(order), BATCH):
        some = order[lo : lo + BATCH]
        mine = X[some]
        S = mine @ block.W
        if summed:
            kernel.add_sums(S, some, rows)
        kernel.residuals(S, some, rows, block.lo)
        kernel.batch_step(mine.T @ S, len(some), block.W, block.state[0], rule)


def _lap(local: Local, verb: str) -> LapFigures | None:
    """Count a block that has passed; when it was the last of the lap, close the lap and tell its figures."""
    local.passed += 1
    if local.passed < local.grid.blocks:
        return None
    local.passed, gained, local.gained = 0, local.gained, 0.0
    if verb == "update":
        return None
    loss = kernel.close(local.rows) - gained
    if verb != "observe" or local.watched is None:
        return LapFigures(local.number, loss, 0.0, 0, np.empty((0, TOP), np.int32), np.empty((0, TOP), np.float32), _NOBODY)
    return local.watched.figures(local.number, loss)
