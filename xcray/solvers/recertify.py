"""Certificates of solved labels on changed rows, without solving them again.

Any weights and any dual variables bound the optimum of a label from two sides. After a change of
the rows, the losses of added rows join the primal objective of the weights; dual variables that are
0 for added rows and dropped for removed ones are feasible. So one pass over the changed rows gives
the gap of every label on the data as a whole (PPDSparse, `xcray.kernels.training.ppdsparse`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from xcray.arrays import Float64
from xcray.kernels.sparse import row_range, transpose
from xcray.kernels.training.changed_rows import (
    added_losses,
    dual_values,
    null_objectives,
    positive_losses,
)
from xcray.kernels.training.hinge import Objective
from xcray.kernels.training.ppdsparse.state import PPDSparseProblem
from xcray.solvers.declarations import Bounds, EarlierLabels, RowChange


def bound_changed(
    problem: PPDSparseProblem,
    o: Objective,
    earlier: EarlierLabels,
    change: RowChange,
    factors: Float64,
    threads: int,
) -> Bounds:
    """Return the objectives of earlier labels on the changed rows.

    The primal is exact for added rows, and an upper bound for removed ones, whose losses it keeps.
    factors: (K',) of the losses of positives on the earlier rows, or empty for 1.
    """
    K, begin = len(earlier.b), change.first_added
    primal, dual, null = np.array(earlier.primal), np.array(earlier.dual), np.empty(K)
    if begin < problem.X.n_rows:
        rows = row_range(problem.X, begin, problem.X.n_rows)
        added, losses = transpose(rows), np.empty(K)
        in_ranges(
            lambda labels: added_losses(
                problem, o, earlier.W, earlier.b, added, begin, labels, losses
            ),
            K,
            threads,
        )
        primal += losses
    changed = not np.array_equal(problem.factors[:K], factors)
    if changed:
        losses = np.empty(K)
        positive_losses(problem, o, earlier.W, earlier.b, begin, losses)
        primal += (problem.factors[:K] - factors) * losses
    if changed or change.is_reduced:
        # the recorded bound is that of the best round, whose dual variables are not stored
        dual[:] = -np.inf
        if change.duals is not None:
            duals = change.duals
            skip = change.is_solved
            in_ranges(lambda labels: dual_values(problem, o, duals, labels, skip, dual), K, threads)
    null_objectives(problem, o, null)
    return Bounds(primal, dual, null)


def in_ranges(run: Callable[[tuple[int, int]], None], n: int, threads: int) -> None:
    """Call `run` for ranges of 0 .. n-1 that cover all, on threads."""
    ends = np.linspace(0, n, min(n, 4 * threads) + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, pairwise(ends)))
