"""DS-MLR: multinomial logistic regression whose rows and weights are both split; blocks of labels go round shards of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

import numpy as np

from xcray.arrays import Int64, csr, frozen, pattern
from xcray.kernels.training import softmax as kernel
from xcray.schedule.rotation import ORDERS
from xcray.solvers.multinomial import Shard, shard_of
from xcray.solvers.parameters import check_parameters, parameter
from xcray.solvers.rotation_contract import (
    CHANGING,
    GATHERING,
    STEPPING,
    Decision,
    Grid,
    LapFigures,
    Rest,
    Step,
    Told,
    Weights,
)
from xcray.solvers.shard_state import Local
from xcray.solvers.solved_labels import Block
from xcray.solvers.synchronous_contract import block_of

FELT: Final = 10.0  # the default rate: steps may change a score by about so much at first
WORSE: Final = 1.02  # of the best objective so far: above it a stretch was a step too far
NARROW: Final = 16  # labels of a block, at least, where a worker is to have a second one: a SIMD register of them
BLOCK_BYTES: Final = (
    1 << 26
)  # of weights in a block, at most, where labels are many: what travels in one go
SMALLEST: Final = 0.02  # the rate below which steps are given up
ENOUGH: Final = 1e-4  # of what the slope promises, a step must bring
SHORTEST: Final = 1e-3  # length of a step
LAST: Final = 5  # steps whose gain counts
MODES: Final = ("both", "two")
STEPS: Final = ("adaptive", "sqrt")

__all__ = [
    "DSMLRSolver",
    "Decision",
    "Grid",
    "LapFigures",
    "Local",
    "Rest",
    "Step",
    "Told",
    "Weights",
]


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

    Finish. Stochastic steps are fast at first and slow at the end, the more so on dense or badly scaled data. When an epoch lowers
    the objective by less than `finish`, exact gradients take over: a lap makes b exact, a lap gathers each block's gradient, and
    L-BFGS goes on, its vectors split like the weights (`quasi_newton`). Then each block has 2 `pairs` + 3 arrays of its size beside
    it, at rest; what travels is twice W. With pairs = 0 all epochs are stochastic.

    Norm. Its gradient is spread over the rows that have a feature: lam N / n_j in each, taken implicitly; the sum is the same, and
    a sparse row costs O(nnz k). Stale b. Between two exact updates w.x + b can exceed 0: the exponent is bounded by it.

    What stays at a worker: its shards' rows, b and partial sums. What travels: W and 2 numbers a feature. Memory
    O(nnz/P + N/P + KD/P); nobody holds all of W. The bits depend on grid, data and seed alone where the order of visits does:
    "sync" and "ring".

    Example:
        >>> DSMLRSolver(lam=1e-4).grid(1000, 20, 50, 2)
        Grid(shards=4, blocks=2)

    Source: Raman, Srinivasan, Matsushima, Zhang, Yun, Vishwanathan, "DS-MLR: Exploiting double separability for scaling up
    distributed multinomial logistic regression", sections 4 and 5; step sizes a feature: Duchi, Hazan, Singer, "Adaptive
    subgradient methods", JMLR 2011, with one sum a feature. Differs from the paper: b begins exact, exponents are bounded, sums
    are pairs.
    """

    family: ClassVar[str] = "circulate"
    revision: ClassVar[int] = 1  # raised with every change of the bits of a model

    lam: float = parameter(1e-5, "weight of the squared l2 norm, beside the mean loss", above=0.0)
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: none", low=0.0
    )
    epochs: int = parameter(500, "times that every row meets every label, at most", low=1)
    tolerance: float = parameter(
        1e-4, "ends when an epoch lowers the objective by at most this share", low=0.0, high=1.0
    )
    finish: float = parameter(
        0.03,
        "when an epoch of stochastic steps lowers the objective by less than this share, exact gradients take over",
        low=0.0,
    )
    pairs: int = parameter(
        5,
        "steps and changes of gradients that exact gradients remember; 0: they never take over",
        low=0,
        high=100,
    )
    patience: int = parameter(
        0, "ends when the held-out loss has not fallen for so many rests; 0: not asked", low=0
    )
    mode: str = parameter(
        "both", "an epoch in one pass, sums and steps at once, or in two laps", choices=MODES
    )
    order: str = parameter(
        "ring",
        "how blocks go round: with a barrier, without one, or to a worker drawn or least busy",
        choices=ORDERS,
    )
    steps: str = parameter(
        "adaptive",
        "step sizes: a feature's own, or one for all that falls with the epochs",
        choices=STEPS,
    )
    rate: float = parameter(1.0, "multiplies the step sizes", above=0.0)
    rest_every: int = parameter(
        1, "epochs between two rests, where the objective is looked at", low=1
    )
    shards: int = parameter(0, "shards of rows; 0: two a worker", low=0, high=1 << 20)
    blocks: int = parameter(
        0,
        "blocks of labels; 0: two a worker, one where labels are few, and none above 64 MB",
        low=0,
        high=1 << 20,
    )
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
        blocks = self.blocks or max(workers, min(2 * workers, n_labels // NARROW), wide)
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
        self,
        local: Local,
        block: Weights,
        step: Step,
        *,
        owned: bool,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[Weights, Told]:
        """A block passes a shard. owned: its arrays may be written in place. Raises Stopped soon after `stopped` says True.

        The block that comes out is another for the verbs in CHANGING; partial sums change in `local`.
        """
        if step.verb in GATHERING:
            block = local.gather(block, step.verb == "curvature", owned, stopped)
        elif step.verb in STEPPING:
            block = (
                block
                if owned
                else block._replace(
                    W=block.W.copy(), state=tuple(each.copy() for each in block.state)
                )
            )
            if step.epoch == 1:
                for passed, mine in zip(block.state[1:], local.summary(), strict=True):
                    passed += mine
            seed = (self.seed, 2, step.epoch, local.number, block.lo)
            local.descend(
                block,
                np.random.default_rng(seed),
                self._rule(local, block, step),
                step.verb == "both",
                stopped,
            )
        else:
            local.add(block, step.verb == "observe", stopped)
        squared = None if step.verb in CHANGING else kernel.squared(block.W)
        return block, Told(squared, local.close(step.verb))

    def judge(self, history: Sequence[Rest]) -> Decision:
        """What the rests so far say."""
        newest, kept = history[-1], [rest for rest in history[:-1] if not rest.back]
        losses = [rest.held_out for rest in (*kept, newest) if rest.held_out is not None]
        if newest.length is not None:
            decision = self._judge_exact(newest, kept)
        else:
            decision = self._judge_steps(newest, kept)
        if decision.stop is None and not decision.back:
            if newest.epoch >= self.epochs:
                return decision._replace(stop=f"all {self.epochs} epochs are done", turn=None)
            if (
                self.patience
                and len(losses) > self.patience
                and min(losses[-self.patience :]) >= min(losses[: -self.patience])
            ):
                return decision._replace(
                    stop=f"the held-out loss has not fallen for {self.patience} rests", turn=None
                )
        return decision

    def _judge_steps(self, newest: Rest, kept: Sequence[Rest]) -> Decision:
        """While steps are stochastic: back, at half the rate, when the objective rose; exact gradients when it falls slowly."""
        before = kept[-1] if kept else None
        if not math.isfinite(newest.objective) or (
            before and newest.objective > WORSE * before.objective
        ):
            again = newest.rate > SMALLEST or before is None or not self.pairs
            return Decision(0.5 * newest.rate, None, True, None if again else "enter")
        if before is None:
            return Decision(newest.rate, None, False)
        gain = (
            (before.objective - newest.objective)
            / max(newest.epoch - before.epoch, 1)
            / max(newest.objective, 1e-300)
        )
        if self.pairs and gain <= self.finish:
            return Decision(newest.rate, None, False, "enter")
        slow = (
            f"an epoch lowers the objective by less than {self.tolerance:g} of it"
            if gain <= self.tolerance
            else None
        )
        return Decision(newest.rate, slow, False)

    def _judge_exact(self, newest: Rest, kept: Sequence[Rest]) -> Decision:
        """Armijo's rule for the length of a step; the end when the last steps have brought little."""
        length, base = newest.length or 0.0, kept[-1].objective
        if (
            not newest.objective <= base + ENOUGH * length * newest.slope
        ):  # also what is not a number
            stuck = (
                f"no step of {length:g} lowers the objective: single precision gives no more"
                if length < SHORTEST
                else None
            )
            return Decision(newest.rate, stuck, True, "retry", 0.0 if stuck else 0.5 * length)
        recent = [rest for rest in kept[-LAST:] if rest.length is not None]
        gain = (
            (recent[0].objective - newest.objective) / LAST / max(newest.objective, 1e-300)
            if len(recent) == LAST
            else math.inf
        )
        slow = (
            f"an epoch lowers the objective by less than {self.tolerance:g} of it"
            if gain <= self.tolerance
            else None
        )
        return Decision(newest.rate, slow, False, None if slow else "accept")

    def export(self, block: Weights, positives: Int64) -> Block:
        """Finished labels lo .. hi-1 as sparse rows, small weights dropped. positives: (hi-lo,) training rows of each."""
        return block_of(block.lo, block.W, self.bias, self.prune, positives, keep=self.prune_keep)

    def warm_up(self) -> None:
        """Compile or load the kernels, on two rows, sparse and dense."""
        Y = pattern([0, 1, 2], [0, 1], 2)
        for X in (
            csr([0, 1, 2], [0, 1], [1.0, 1.0], 4),
            csr([0, 2, 4], [0, 1, 0, 1], [1.0, 2.0, 2.0, 1.0], 2),
        ):
            shard = shard_of(X, Y, np.arange(2), total=2.0)
            local, block = self.local(shard, 0, Grid(1, 1), shard), self.start(0, 2, X.n_cols)
            for verb in ("both", "sum", "update", "observe", "curvature"):
                block, _ = self.step(local, block, Step(verb, 1, 1.0), owned=False)
            kernel.add_diagonal(
                local.rows.X, local.rows.weights, np.zeros(X.n_cols, np.float32)
            )  # C where features are many

    def _rule(self, local: Local, block: Weights, step: Step) -> kernel.Rule:
        """How long the steps are."""
        _, counts, facts = block.state
        rows, ones, squares = (max(float(fact), 1e-30) for fact in facts)
        adaptive = self.steps == "adaptive"
        rate = FELT / (ones / rows) if adaptive else rows / (squares / rows) / math.sqrt(step.epoch)
        norm = frozen(np.float32(self.lam) / np.maximum(counts, np.float32(1.0)), np.float32)
        share = np.float32((block.hi - block.lo) / local.rows.T.n_cols)
        return kernel.Rule(np.float32(self.rate * step.rate * rate), norm, share, adaptive)
