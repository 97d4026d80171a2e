"""W of a MEMOIR training and the rounds that change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from xcray.arrays import CSR, Float64, Int32, Int64, csr, frozen
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.kernels.training import memoir as kernel
from xcray.kernels.training.memoir_groups import (
    GroupLinks,
    apply_rivals,
    find_rivals,
    link_entries,
    step_with_rivals,
    truncate_classes,
)
from xcray.solvers.memoir.margin_errors import Capacity, OracleErrors
from xcray.solvers.memoir.oracle import IndexOracle
from xcray.solvers.memoir.parameters import MemoirParameters
from xcray.solvers.memoir.share import Share, check_stop
from xcray.storage.array_files import Arrays

# entries visited between two checks of the stop flag: 10 to 60 ms
SLICE_ENTRIES = 8_000_000
INITIAL_CAPACITY = 1 << 16  # entries of the pools
MIN_SCALE = 1e-12  # below it the multiplier of W is multiplied into the stored values
MAX_GROUP = 1000  # samples whose updates are applied together

# A training yields its share of an array, and receives the whole array: the shares of all workers
Exchange: TypeAlias = Generator[np.ndarray, np.ndarray, None]


class Draw(NamedTuple):
    """The samples of round `number` and their steps of size `step`.

    rivals: (B,) those found so far, see `memoir.code_rival`; leads: (B, 2) over them and over the
    exact ones, as far as a graph is compared with an exact search; stopped: see `Rounds.run`.
    """

    number: int
    step: float
    stopped: Callable[[], bool]
    batch: kernel.MemoirBatch
    rivals: Int32
    leads: Float64


class Rounds:
    """W and the rounds that change it. batch: samples per round. group: samples per search.

    by_class: whether W has a list for each class, in place of one for each feature.
    """

    by_class: ClassVar[bool] = False

    def __init__(
        self,
        problem: kernel.MemoirProblem,
        params: MemoirParameters,
        batch: int,
        share: Share | None = None,
    ) -> None:
        self.problem, self.params, self.batch = problem, params, batch
        self.share, self.group = share or Share(), params.group or batch
        K, D = problem.Y.n_cols, problem.X.n_cols
        self.lists = kernel.FeatureLists(
            heads=np.zeros(K if self.by_class else D, kernel.HEAD),
            entries=np.zeros(INITIAL_CAPACITY, kernel.ENTRY),
            marks=np.zeros(INITIAL_CAPACITY if params.shrinks_all else 0),
        )
        self._scratch = [_new_scratch(K) for _ in range(self.share.threads)]
        self._links = _new_links(K, D)
        self.state = np.zeros(1, kernel.STATE)
        self.state["scale"] = 1.0
        self._counts = np.bincount(problem.classes, minlength=K)
        self._begin = np.cumsum(self._counts) - self._counts
        self.errors: list[OracleErrors] = []  # of the rounds whose rivals an index found
        self.capacity = _capacity(problem, params)
        self._index = IndexOracle(params, self.capacity, self.share.threads)
        self._seen = np.flatnonzero(self._counts)

    def draw(self, number: int) -> tuple[Int64, np.ndarray]:
        """Return the samples of round `number` (batch,) and a random uint64 for each."""
        rng = np.random.default_rng([self.params.seed, number])
        if self.params.draws == "labels":
            drawn = self._seen[rng.integers(len(self._seen), size=self.batch)]
            samples = self._begin[drawn] + rng.integers(self._counts[drawn])
        else:
            samples = rng.integers(len(self.problem.rows), size=self.batch)
        return samples, rng.integers(2**64, size=self.batch, dtype=np.uint64)

    def run(self, number: int, eta: float, stopped: Callable[[], bool]) -> Exchange:
        """Run round `number` with step size `eta`. Raises Stopped if `stopped` returns True."""
        params, at = self.params, self.state[0]
        if params.penalty == "l2":
            self._multiply(1.0 - eta * params.lam)
        step = eta / self.batch if params.step == "batch" else eta
        rivals, leads = np.full(self.batch, -1, np.int32), np.full((self.batch, 2), np.nan)
        draw = Draw(number, step, stopped, self._take(*self.draw(number)), rivals, leads)
        yield from self._take_steps(draw)
        if params.shrinks_all:
            at["threshold"] += eta * params.lam / 2.0
        elif params.penalty == "l1":
            self._truncate(draw, eta * params.lam)
        elif at["norm_sq"] * params.lam > 1.0:
            self._multiply(1.0 / math.sqrt(at["norm_sq"] * params.lam))

    def _take_steps(self, draw: Draw) -> Exchange:
        """Take the steps of all samples of a round."""
        if self.params.is_approximate:
            self._search_by_index(draw)
        elif self.group == 1:
            self._run_steps(draw, 0, lambda: self._advance(draw))
        else:
            yield from self._run_groups(draw)

    def _truncate(self, draw: Draw, amount: float) -> None:
        """Move the weights of the classes and rivals of the samples towards 0: eq. 13."""
        is_touched = np.zeros(self.problem.Y.n_cols, bool)
        is_touched[draw.batch.classes] = True
        is_touched[np.maximum(draw.rivals, -2 - draw.rivals)[draw.rivals != -1]] = True
        share = is_touched.mean()
        truncate_classes(self.lists, is_touched, self.by_class, amount / share)

    def weights(self) -> CSR:
        """Return the weights that are not 0: (K, D)."""
        K, D = self.problem.Y.n_cols, self.problem.X.n_cols
        counts = np.zeros(K, np.int64)
        kernel.count_weights(self.lists, self.state, counts)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        features, values = np.zeros(indptr[-1], np.int32), np.zeros(indptr[-1])
        kernel.export_weights(self.lists, self.state, indptr[:-1].copy(), features, values)
        limit = float(np.finfo(np.float32).max)
        return csr(indptr, features, np.clip(values, -limit, limit), D)

    def saved_graph(self) -> Arrays:
        """Return the arrays of what finds rivals, besides W: none."""
        return {}

    def restore_graph(self, arrays: Arrays) -> None:
        """Set what finds rivals, besides W, to a saved state: nothing."""

    @property
    def _settings(self) -> kernel.MemoirSettings:
        """Return the settings of the kernels."""
        return kernel.MemoirSettings(float(self.params.margin), self.params.oracle == "random")

    def _take(self, samples: Int64, numbers: np.ndarray) -> kernel.MemoirBatch:
        """Return the rows and classes of samples."""
        rows = self.problem.rows[samples].astype(np.int64)
        X = normalize_rows(take_rows(self.problem.X, rows), self.params.row_norm)
        classes = frozen(self.problem.classes[samples], np.int32)
        return kernel.MemoirBatch(X, take_pattern_rows(self.problem.Y, rows), classes, numbers)

    def _advance(self, draw: Draw) -> int:
        """Take some steps, each after the search of its rival; return the kernel's reason."""
        reason: int = kernel.advance(
            draw.batch,
            self._settings,
            self.lists,
            self._scratch[0],
            draw.rivals,
            draw.step,
            self.state,
            SLICE_ENTRIES,
        )
        return reason

    def _run_groups(self, draw: Draw) -> Exchange:
        """Take the steps of all samples by groups; the searches of a group are shared."""
        for lo, hi in self._groups():
            first, last = self.share.part(lo, hi)
            self._search(draw, first, last)
            draw.rivals[lo:hi] = yield draw.rivals[first:last]
            self._step_group(draw, lo, hi)

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Yield the first sample of each group, and the one after its last."""
        for lo in range(0, self.batch, self.group):
            yield lo, min(lo + self.group, self.batch)

    def _search(self, draw: Draw, lo: int, hi: int) -> None:
        """Write the rivals of samples lo .. hi - 1, on all threads of this worker."""

        def search(thread: int, at: int, end: int) -> int:
            common = (draw.batch, self._settings, self.lists, self._scratch[thread])
            return find_rivals(*common, at, end, draw.rivals, self.state, SLICE_ENTRIES)

        self.share.run_threads(lo, hi, search, draw.stopped)

    def _run_steps(self, draw: Draw, lo: int, advance: Callable[[], int]) -> None:
        """Call a kernel that takes the steps of samples from lo on until it returns DONE."""
        self.state["position"], reason = lo, kernel.BUDGET
        while reason != kernel.DONE:
            check_stop(draw.stopped)
            if reason == kernel.FULL:
                self._enlarge()
            reason = advance()

    def _search_by_index(self, draw: Draw) -> None:
        """Take the steps of all samples by groups whose rivals an index finds."""
        self._index.start(-(-self.batch // self.group))
        for lo, hi in self._groups():
            check_stop(draw.stopped)
            draw.rivals[lo:hi] = self._index.rivals(self.weights(), draw.batch, lo, hi)
            self._step_group(draw, lo, hi)
        norm = math.sqrt(self.state["norm_sq"][0])
        self.errors.append(self._index.finish(draw.number, norm))

    def _step_group(self, draw: Draw, lo: int, hi: int) -> None:
        """Take the steps of samples lo .. hi - 1, whose rivals are known."""
        if self.params.margin_at == "search":
            for begin in range(lo, hi, MAX_GROUP):
                self._apply(draw, begin, min(begin + MAX_GROUP, hi))
            return

        def advance() -> int:
            common = (draw.batch, self._settings, self.lists)
            return step_with_rivals(*common, hi, draw.rivals, draw.step, self.state, SLICE_ENTRIES)

        self._run_steps(draw, lo, advance)

    def _apply(self, draw: Draw, lo: int, hi: int) -> None:
        """Take the steps of samples lo .. hi - 1 at once, feature by feature."""
        X = draw.batch.X
        entries = int(X.indptr[hi] - X.indptr[lo])
        if entries > len(self._links.next):
            links = self._links._replace(next=np.empty(entries, np.int32))
            self._links = links._replace(samples=np.empty(entries, np.int32))
        n_features = link_entries(X, lo, hi, draw.rivals, self._links)
        done = 0

        def advance() -> int:
            nonlocal done
            reason, done = apply_rivals(
                draw.batch,
                self.lists,
                self._links,
                lo,
                n_features,
                done,
                draw.rivals,
                draw.step,
                self.state,
                SLICE_ENTRIES,
            )
            return reason

        self._run_steps(draw, lo, advance)
        self.state["updates"] += np.count_nonzero(draw.rivals[lo:hi] >= 0)

    def _multiply(self, factor: float) -> None:
        """Multiply W by a factor above 0."""
        at = self.state[0]
        at["scale"] *= factor
        at["norm_sq"] *= factor * factor
        if at["scale"] < MIN_SCALE:
            self.lists.entries["value"] *= at["scale"]
            at["scale"] = 1.0

    def _enlarge(self) -> None:
        """Double the pools."""
        entries, marks = _double(self.lists.entries), _double(self.lists.marks)
        self.lists = self.lists._replace(entries=entries, marks=marks)


def run_alone(exchange: Exchange) -> None:
    """Run a training whose shares are the whole arrays."""
    try:
        part = next(exchange)
        while True:
            part = exchange.send(part)
    except StopIteration:
        return


def list_positions(heads: Any) -> Any:
    """Return the positions of the entries of all lists in the pools."""
    size = heads["size"].astype(np.int64)
    return np.arange(size.sum()) + np.repeat(heads["begin"] - (np.cumsum(size) - size), size)


def _capacity(problem: kernel.MemoirProblem, params: MemoirParameters) -> Capacity:
    """Return what Theorem 1 needs of the samples, for an approximate search."""
    X, radius = problem.X, 1.0
    if params.row_norm == "none" and params.is_approximate:
        squares = np.concatenate([[0.0], np.cumsum(np.square(X.data, dtype=np.float64))])
        radius = math.sqrt(np.diff(squares[X.indptr]).max(initial=0.0))
    return Capacity(problem.Y.n_cols, max(len(problem.rows), 1), radius, params.margin)


def _double(pool: Any) -> Any:
    """Return a pool with as many zeros behind it."""
    return np.concatenate([pool, np.zeros_like(pool)])


def _new_scratch(K: int) -> kernel.MemoirScratch:
    """Return the scratch memory of a thread."""
    return kernel.MemoirScratch(
        np.zeros(K, kernel.SCORE), np.zeros(K, np.int32), np.zeros(1, np.int64)
    )


def _new_links(K: int, D: int) -> GroupLinks:
    """Return links without entries."""
    return GroupLinks(
        first=np.full(D, -1, np.int32),
        next=np.empty(0, np.int32),
        samples=np.empty(0, np.int32),
        features=np.empty(D, np.int32),
        seen=np.zeros(K, np.int64),
        places=np.zeros(K, np.int64),
        walks=np.zeros(1, np.int64),
    )
