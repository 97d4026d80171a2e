"""SciPy's L-BFGS-B, one evaluation at a time, with its whole state as arrays.

`scipy.optimize.minimize` keeps its state in local variables, so that a training could not be
resumed with the same bits. The routine below it asks for evaluations and stores everything in
arrays. It is private to SciPy; `tests/unit/solvers/test_lbfgsb.py` compares the two.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64
from xcray.errors import missing_extra
from xcray.storage.array_files import Arrays

MAX_STEPS: Final = 20  # evaluations of a line search
NEW_POINT, EVALUATE = 1, 3  # task codes of the routine


class LBFGSBState(NamedTuple):
    """State of the optimiser, changed in place.

    x: (n,) variables; f, g: objective (1,) and gradient (n,) at x. The others are the history of
    steps and gradients and the state of the line search.
    """

    x: Float64
    f: Float64
    g: Float64
    work: Float64
    numbers: Any
    task: Any
    line_task: Any
    flags: Any
    counts: Any
    sizes: Float64

    @classmethod
    def start(cls, x: Float64, memory: int) -> LBFGSBState:
        """Return the state at the start x, with a history of that many steps."""
        n, m = len(x), memory
        return cls(
            x=x,
            f=np.zeros(1),
            g=np.zeros(n),
            work=np.zeros(2 * m * n + 5 * n + 11 * m * m + 8 * m),
            numbers=np.zeros(3 * n, np.int32),
            task=np.zeros(2, np.int32),
            line_task=np.zeros(2, np.int32),
            flags=np.zeros(4, np.int32),
            counts=np.zeros(44, np.int32),
            sizes=np.zeros(29),
        )

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> LBFGSBState:
        """Return the state of saved arrays, which are copied."""
        return cls(**{name: arrays[name].copy() for name in cls._fields})


class LBFGSB:
    """Minimises a smooth function without bounds; the caller evaluates it.

    Raises Unavailable if scipy is missing.
    """

    def __init__(self, state: LBFGSBState, memory: int) -> None:
        try:
            from scipy.optimize import _lbfgsb
        except ModuleNotFoundError as error:
            raise missing_extra(error) from None
        self.state = state
        self._memory, self._routine = memory, _lbfgsb.setulb
        n = len(state.x)
        self._bounds = (np.zeros(n), np.zeros(n), np.zeros(n, np.int32))  # of which none is used

    def advance(self) -> int:
        """Go on to the next evaluation or point.

        Returns EVALUATE if `state` needs `f` and `g` at `x`, NEW_POINT after an iteration, and
        another code if no step improves the objective.
        """
        at = self.state
        self._routine(
            self._memory,
            at.x,
            *self._bounds,
            float(at.f[0]),
            at.g,
            0.0,  # no tolerance of the objective, nor of the gradient: the caller stops
            0.0,
            at.work,
            at.numbers,
            at.task,
            at.flags,
            at.counts,
            at.sizes,
            MAX_STEPS,
            at.line_task,
        )
        return int(at.task[0])
