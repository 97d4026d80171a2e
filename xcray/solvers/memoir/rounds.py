"""W of a MEMOIR training and the rounds that change it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xcray.arrays import CSR, Int64, csr
from xcray.errors import Stopped
from xcray.index.approximate import INDEXES
from xcray.kernels.training import memoir as kernel
from xcray.solvers.memoir.oracle import IndexOracle, OracleErrors

if TYPE_CHECKING:
    from xcray.solvers.memoir.solver import MemoirSolver

# entries visited between two checks of the stop flag: 20 to 60 ms
SLICE_ENTRIES = 8_000_000
INITIAL_CAPACITY = 1 << 16  # entries of the pools
MIN_SCALE = 1e-12  # below it the multiplier of W is multiplied into the stored values


class Rounds:
    """W and the rounds that change it. batch: samples per round."""

    def __init__(self, problem: kernel.MemoirProblem, solver: MemoirSolver, batch: int) -> None:
        self.problem, self.solver, self.batch = problem, solver, batch
        K, D = problem.Y.n_cols, problem.X.n_cols
        self.lists = kernel.FeatureLists(
            heads=np.zeros(D, kernel.HEAD),
            entries=np.zeros(INITIAL_CAPACITY, kernel.ENTRY),
            marks=np.zeros(INITIAL_CAPACITY if solver.penalty == "l1" else 0),
        )
        self.scratch = kernel.MemoirScratch(
            scores=np.zeros(K, kernel.SCORE),
            found=np.zeros(K, np.int32),
            rivals=np.zeros(batch, np.int32),
        )
        self.state = np.zeros(1, kernel.STATE)
        self.state["scale"] = 1.0
        self._counts = np.bincount(problem.classes, minlength=K)
        self._begin = np.cumsum(self._counts) - self._counts
        self.errors: list[OracleErrors] = []  # of the rounds whose rivals an index found
        self._index = IndexOracle(problem, solver)
        self._seen = np.flatnonzero(self._counts)

    def draw(self, number: int) -> tuple[Int64, np.ndarray]:
        """Return the samples of round `number` (batch,) and a random uint64 for each."""
        rng = np.random.default_rng([self.solver.seed, number])
        if self.solver.draws == "classes":
            drawn = self._seen[rng.integers(len(self._seen), size=self.batch)]
            samples = self._begin[drawn] + rng.integers(self._counts[drawn])
        else:
            samples = rng.integers(len(self.problem.rows), size=self.batch)
        return samples, rng.integers(2**64, size=self.batch, dtype=np.uint64)

    def run(self, number: int, eta: float, stopped: Callable[[], bool]) -> None:
        """Run round `number` with step size `eta`. Raises Stopped if `stopped` returns True."""
        solver, at = self.solver, self.state[0]
        if solver.penalty == "l2":
            self._multiply(1.0 - eta * solver.lam)
        self._take_steps(number, eta / self.batch if solver.step == "batch" else eta, stopped)
        if solver.penalty == "l1":
            at["threshold"] += eta * solver.lam / 2.0
        elif at["norm_sq"] * solver.lam > 1.0:
            self._multiply(1.0 / math.sqrt(at["norm_sq"] * solver.lam))

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

    def _take_steps(self, number: int, step: float, stopped: Callable[[], bool]) -> None:
        """Take the steps of all draws of a round."""
        solver, at = self.solver, self.state[0]
        settings = kernel.MemoirSettings(
            float(solver.margin), solver.group, solver.oracle == "random"
        )
        samples, numbers = self.draw(number)
        at["position"] = at["searched"] = 0
        if not self.uses_index:
            self._advance(settings, samples, numbers, step, stopped)
            return
        size = solver.group if solver.group > 1 else self.batch
        self._index.start(-(-self.batch // size))
        for lo in range(0, self.batch, size):
            hi = min(lo + size, self.batch)
            rivals = self._index.rivals(self.weights(), samples[lo:hi], numbers[lo:hi])
            self.scratch.rivals[lo:hi], at["searched"] = rivals, hi
            self._advance(settings, samples[:hi], numbers[:hi], step, stopped)
        self.errors.append(self._index.finish(number))

    @property
    def uses_index(self) -> bool:
        """Whether an index finds rivals: until its mean margin error is larger than allowed."""
        limit, solver = self.solver.max_margin_error, self.solver
        is_bad = bool(self.errors) and 0.0 < limit < self.errors[-1].mean
        return solver.oracle in INDEXES and solver.oracle != "exact" and not is_bad

    def _advance(
        self,
        settings: kernel.MemoirSettings,
        samples: Int64,
        numbers: np.ndarray,
        step: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Take the steps of the samples behind the last one that is done."""
        reason = kernel.BUDGET
        while reason != kernel.DONE:
            if stopped():
                raise Stopped(
                    "stopped within a round; the next run continues after the last saved round"
                )
            if reason == kernel.FULL:
                self._enlarge()
            reason = kernel.advance(
                self.problem,
                settings,
                self.lists,
                self.scratch,
                samples,
                numbers,
                step,
                self.state,
                SLICE_ENTRIES,
            )

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


def _double(pool: Any) -> Any:
    """Return a pool with as many zeros behind it."""
    return np.concatenate([pool, np.zeros_like(pool)])
