"""The hand of a training whose blocks go round: it holds shards of rows, lets blocks of weights pass them, keeps what must last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64, Pattern
from xcray.solvers import quasi_newton
from xcray.solvers.dsmlr import DSMLRSolver
from xcray.solvers.multinomial import Shard, shard_of, shard_rows, total_weight
from xcray.solvers.quasi_newton import as_weights, memory_of
from xcray.solvers.rotation_contract import CHANGING, Grid, Step, Told, Weights
from xcray.solvers.solved_labels import Block
from xcray.training.checkpoints import Arrays, read_arrays, write_arrays
from xcray.workers.solver_task import opened

WATCH: Final = 10_000  # rows of the other part that are watched


class Facts(NamedTuple):
    """What a hand tells of a shard it has opened: how many rows, and what a block's passing costs, in entries of X."""

    shard: int
    rows: int
    cost: float


class Cutting(NamedTuple):
    """How rows are cut into shards, the same wherever it is done. total: the weight of all rows that have labels, see
    `multinomial.total_weight`; bias: value of the constant feature; every: of the other part's rows in a shard, each so-many-th
    is watched, 0 for none; watched: the weight of those that have labels."""

    grid: Grid
    seed: int
    bias: float
    total: float
    every: int = 0
    watched: float = 0.0


class Rows(NamedTuple):
    """What shards are cut from. X (N x D), Y (N x K), weights (N,) or None: of training; other: X and Y of the part that is
    watched, or None. All may be mapped files: of them a cut reads what it needs."""

    how: Cutting
    X: CSR
    Y: Pattern
    weights: Float32 | None = None
    other: tuple[CSR, Pattern] | None = None

    def cut(self, number: int) -> tuple[Shard, Shard | None]:
        """Shard `number`, and its watched rows."""
        how = self.how
        rows = shard_rows(self.X.n_rows, how.grid.shards, how.seed, number)
        shard = shard_of(self.X, self.Y, rows, total=how.total, weights=self.weights, bias=how.bias)
        if self.other is None or not how.every:
            return shard, None
        seen = _watched_rows(self.other[0].n_rows, how.grid, how.seed, how.every, number)
        return shard, shard_of(*self.other, seen, total=how.watched, bias=how.bias)


def rows_of(
    X: CSR,
    Y: Pattern,
    weights: Float32 | None,
    other: tuple[CSR, Pattern] | None,
    *,
    grid: Grid,
    seed: int,
    bias: float,
    watch: int = WATCH,
) -> Rows:
    """Rows and how to cut them; arguments as of `Rows`. watch: rows of `other` that are watched, about, at most."""
    how = Cutting(grid, seed, bias, total_weight(Y, weights))
    if other is None or not other[0].n_rows or watch < 1:
        return Rows(how, X, Y, weights)
    every = -(-other[0].n_rows // watch)
    labelled = np.diff(other[1].indptr) > 0
    seen = [
        labelled[_watched_rows(other[0].n_rows, grid, seed, every, number)].sum()
        for number in range(grid.shards)
    ]
    return Rows(how._replace(every=every, watched=float(sum(seen))), X, Y, weights, other)


def _watched_rows(n_rows: int, grid: Grid, seed: int, every: int, number: int) -> Int64:
    """The rows of the watched part that shard `number` looks at."""
    return shard_rows(n_rows, grid.shards, seed, number)[::every]


@dataclass(frozen=True)
class ShardWork:
    """Shards of a data set, for workers: what makes a `ShardHand`.

    made: the solver; n_features: D', with the constant feature; path, content_hash: of the data set's
    directory, which is opened where a node sees it; None when only the driver has the rows.
    """

    made: DSMLRSolver
    how: Cutting
    n_features: int
    path: str | None = None
    content_hash: str = ""

    @property
    def grid(self) -> Grid:
        """Shards and blocks."""
        return self.how.grid

    def hand(self, worker: str, stopped: Callable[[], bool]) -> ShardHand:
        """A hand that holds nothing yet."""
        return ShardHand(self, stopped)

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.made.warm_up()

    def open(self) -> Rows | None:
        """The rows, mapped, when this node has the data set with this content; None when not."""
        dataset = None if self.path is None else opened(self.path, self.content_hash)
        if dataset is None:
            return None
        train, test = dataset.train, dataset.test
        return Rows(
            self.how, train.X, train.Y, train.weights, None if test is None else (test.X, test.Y)
        )


class ShardHand:
    """Shards of one worker: their `Local`s, and of each what it kept at the last rest.

    Its public methods are verbs (see `execution.team`): they return (bulk, told). Nothing else of the rows or the weights is
    held here: a block comes, passes, and goes.
    """

    def __init__(self, work: ShardWork, stopped: Callable[[], bool]) -> None:
        self._work = work
        self._solver = work.made
        self._stopped = stopped
        self._locals: dict[int, Any] = {}
        self._kept: dict[int, Arrays] = {}

    def hold(self, shards: Sequence[int]) -> tuple[None, tuple[list[Facts], list[int]]]:
        """Hold these shards and no others. Told: facts of those newly opened from the data set's directory, and those that
        can't be, because this node does not see the directory, or another data set is there."""
        for shard in set(self._locals) - set(shards):
            del self._locals[shard]
            self._kept.pop(shard, None)
        missing = [shard for shard in shards if shard not in self._locals]
        rows = self._work.open() if missing else None
        if rows is None:
            return None, ([], missing)
        return None, ([self._take_in(shard, *rows.cut(shard)) for shard in missing], [])

    def load(self, shard: int, cut: Any) -> tuple[None, Facts]:
        """Hold a shard whose rows the driver sent: what `Rows.cut` gave there."""
        return None, self._take_in(shard, *cut)

    def start(self, lo: int, hi: int) -> tuple[Weights, None]:
        """The block of labels lo .. hi-1 as a training begins with it."""
        return self._solver.start(lo, hi, self._work.n_features), None

    def visit(
        self, block: Weights, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[Weights | None, list[tuple[int, Told, float]]]:
        """Let a block pass shards, in this order. Made: the block after it, None when it is as it was. Told: of each shard, with
        the seconds it took. owned: nobody else has the block's arrays, so they may be written."""
        after, told = block, []
        for shard in shards:
            began = time.monotonic()
            mine = (owned or after is not block) and after.W.flags.writeable
            after, news = self._solver.step(
                self._locals[shard], after, step, owned=mine, stopped=self._stopped
            )
            told.append((shard, news, time.monotonic() - began))
        changed = step.verb in CHANGING
        return after if changed else None, told

    def carry(
        self, block: Weights, shards: Sequence[int], step: Step, owned: bool
    ) -> tuple[Weights, list[tuple[int, Told, float]]]:
        """`visit` for teams on several nodes: the block is made anew here also when it is as it was. Else each node that it passed
        would keep a copy until its store is full, and in the end all of W."""
        after, told = self.visit(block, shards, step, owned)
        return block if after is None else after, told

    def keep(self) -> tuple[None, None]:
        """Keep what the shards have computed: `back` and checkpoints mean this from now on."""
        self._kept = {shard: _copied(local.state()) for shard, local in self._locals.items()}
        return None, None

    def back(self) -> tuple[None, None]:
        """Be as at the last `keep`."""
        for shard, kept in self._kept.items():
            self._locals[shard].restore(_copied(kept))
        return None, None

    def kept(self, shard: int) -> tuple[Arrays, None]:
        """Made: what was kept of a shard."""
        return self._kept[shard], None

    def take(self, shard: int, kept: Arrays) -> tuple[None, None]:
        """Let a shard be what was kept of it, here or elsewhere."""
        self._kept[shard] = _copied(kept)
        self._locals[shard].restore(_copied(kept))
        return None, None

    def save_shard(self, shard: int, directory: str, name: str) -> tuple[None, str | None]:
        """Write what was kept of a shard; told: SHA-256, None when this node does not see the directory."""
        folder = Path(directory)
        return None, write_arrays(folder / name, self._kept[shard]) if folder.is_dir() else None

    def load_shard(self, shard: int, directory: str, name: str, digest: str) -> tuple[None, bool]:
        """`take` what `save_shard` wrote; told: whether this node sees the directory. Raises Corrupt."""
        folder = Path(directory)
        if folder.is_dir():
            self.take(shard, read_arrays(folder / name, digest))
        return None, folder.is_dir()

    def save_block(self, block: Weights, directory: str, name: str) -> tuple[None, str | None]:
        """Write a block; told as by `save_shard`."""
        folder = Path(directory)
        return None, write_arrays(folder / name, packed(block)) if folder.is_dir() else None

    def load_block(self, directory: str, name: str, digest: str) -> tuple[Weights | None, None]:
        """Made: the block that `save_block` wrote; none when this node does not see the directory. Raises Corrupt."""
        folder = Path(directory)
        return unpacked(read_arrays(folder / name, digest)) if folder.is_dir() else None, None

    def pack(self, block: Weights) -> tuple[Arrays, None]:
        """Made: a block as the arrays of its file."""
        return packed(block), None

    def unpack(self, arrays: Arrays) -> tuple[Weights, None]:
        """Made: the block of such arrays."""
        return unpacked(arrays), None

    def begin(self, block: Weights) -> tuple[Weights, None]:
        """Made: the memory of a block that has gathered its first exact gradient, with C; see `solvers.quasi_newton`."""
        G, C = block.state
        return as_weights(
            quasi_newton.begin(block.lo, block.hi, block.W, G, C, self._solver.lam)
        ), None

    def remember(self, memory: Weights, block: Weights) -> tuple[Weights, None]:
        """Made: the memory after the step to where the block is, which has gathered its gradient."""
        solver = self._solver
        return as_weights(
            quasi_newton.remember(
                memory_of(memory), block.W, block.state[0], solver.lam, solver.pairs
            )
        ), None

    def products(self, memory: Weights) -> tuple[None, Float64]:
        """Told: the memory's inner products."""
        return None, quasi_newton.products(memory_of(memory))

    def aim(self, memory: Weights, coefs: Float64) -> tuple[Weights, None]:
        """Made: the memory with its direction."""
        return as_weights(quasi_newton.aimed(memory_of(memory), coefs)), None

    def move(self, memory: Weights, length: float) -> tuple[Weights, None]:
        """Made: the block at so much of the direction."""
        return Weights(
            memory.lo, memory.hi, quasi_newton.moved(memory_of(memory), length), ()
        ), None

    def export(self, block: Weights, positives: Int64) -> tuple[Block, None]:
        """Made: finished labels; positives: (hi-lo,) training rows of each."""
        return self._solver.export(block, positives), None

    def _take_in(self, shard: int, rows: Shard, watched: Shard | None) -> Facts:
        """Make the Local of a shard. Rows that came through the object store stay there while they are held: no second copy."""
        self._locals[shard] = self._solver.local(rows, shard, self._work.grid, watched)
        return Facts(shard, len(rows.rows), float(max(rows.X.nnz, 1)))


def packed(block: Weights) -> Arrays:
    """A block as arrays with names: W (D', hi-lo), state.0 and so on, and its range of labels."""
    state = {f"state.{number}": array for number, array in enumerate(block.state)}
    return {"W": block.W, **state, "range": np.array([block.lo, block.hi], np.int64)}


def unpacked(arrays: Mapping[str, np.ndarray]) -> Weights:
    """The block that `packed` took apart; shares memory."""
    lo, hi = (int(end) for end in arrays["range"])
    return Weights(
        lo, hi, arrays["W"], tuple(arrays[f"state.{number}"] for number in range(len(arrays) - 2))
    )


def _copied(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Arrays of one's own."""
    return {name: np.array(array) for name, array in arrays.items()}
