"""The optimiser in single evaluations: SciPy's bits, also from a saved state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from xcray.solvers.lbfgs.lbfgsb import EVALUATE, LBFGSB, NEW_POINT, LBFGSBState

MEMORY = 5


def advance(optimiser: LBFGSB) -> bool:
    """Go on to the next point; return False if there is none."""
    state = optimiser.state
    while (task := optimiser.advance()) == EVALUATE:
        state.f[0], state.g[:] = rosen(state.x), rosen_der(state.x)
    return task == NEW_POINT


@pytest.mark.parametrize("saved_after", [0, 1, 4, 23])
def test_every_point_is_scipys(saved_after: int) -> None:
    """A changed interface of SciPy, or another state than all of these arrays, fails here."""
    start, theirs = np.linspace(-1.5, 2.0, 8), list[Any]()
    options = {"maxcor": MEMORY, "maxiter": 100, "ftol": 0.0, "gtol": 0.0}
    result = minimize(
        rosen,
        start,
        jac=rosen_der,
        method="L-BFGS-B",
        callback=lambda x: theirs.append(x.copy()),
        options=options,
    )
    optimiser, ours = LBFGSB(LBFGSBState.start(start.copy(), MEMORY), MEMORY), list[Any]()
    while True:
        if len(ours) == saved_after:
            arrays = {name: each.copy() for name, each in optimiser.state._asdict().items()}
            optimiser = LBFGSB(LBFGSBState.of_arrays(arrays), MEMORY)
        if not advance(optimiser) or len(ours) == 100:
            break
        ours.append(optimiser.state.x.copy())
    assert len(ours) == len(theirs) > 24
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert np.array_equal(optimiser.state.x, result.x)
