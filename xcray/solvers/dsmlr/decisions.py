"""What DS-MLR does after a sync point: go on, change the rate, roll back, use L-BFGS, stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from xcray.solvers.dsmlr.parameters import DSMLRParameters

# an interval is rolled back if its objective exceeds that of the previous sync point by this factor
MAX_OBJECTIVE_RATIO: Final = 1.02
# below this rate, stochastic steps are abandoned
MIN_RATE: Final = 0.02
# Consecutive rollbacks: after that no rate is small enough.
MAX_ROLLBACKS: Final = 25
# Armijo's rule: a step must gain this share of what the slope predicts
MIN_DECREASE_SHARE: Final = 1e-4
MIN_STEP_LENGTH: Final = 1e-3
# number of L-BFGS steps whose average gain is compared with `tolerance`
RECENT_STEPS: Final = 5


class SyncState(NamedTuple):
    """State at a sync point, as input of the decision.

    epoch: number of epochs done; rate: their rate; held_out: the held-out loss, or None;
    rolled_back: whether the training rolled back from it. length, slope: in the L-BFGS phase, the
    step length from the last accepted sync point, and the slope of the objective there. length is
    None in the stochastic phase.
    """

    epoch: int
    rate: float
    objective: float
    held_out: float | None = None
    rolled_back: bool = False
    length: float | None = None
    slope: float = 0.0


class Decision(NamedTuple):
    """How training continues.

    rate: of the next steps; stop: the reason to end, or None; roll_back: return to the previous
    sync point. lbfgs_action: "enter" the L-BFGS phase; "accept" this point and compute the next
    direction; "retry" with another `length` of this direction; None in the stochastic phase and
    at the end.
    """

    rate: float
    stop: str | None
    roll_back: bool
    lbfgs_action: str | None = None
    length: float = 1.0


def decide(params: DSMLRParameters, history: Sequence[SyncState]) -> Decision:
    """Decide how to continue after the newest sync point of `history`."""
    newest = history[-1]
    accepted = [state for state in history[:-1] if not state.rolled_back]
    if newest.length is None:
        decision = _decide_stochastic(params, newest, accepted)
    else:
        decision = _decide_lbfgs(params, newest, accepted)
    reason = decision.stop or _limit_reached(params, history, decision.roll_back)
    return decision if reason is None else decision._replace(stop=reason, lbfgs_action=None)


def gain_per_epoch(before: SyncState, newest: SyncState) -> float:
    """Return by how much an epoch lowered the objective, relative to it."""
    fall = (before.objective - newest.objective) / max(newest.epoch - before.epoch, 1)
    return fall / max(newest.objective, 1e-300)


def _limit_reached(
    params: DSMLRParameters, history: Sequence[SyncState], rolls_back: bool
) -> str | None:
    """Return the limit that ends the training, if one is reached."""
    if rolls_back:
        recent = history[-MAX_ROLLBACKS:-1]
        if len(recent) == MAX_ROLLBACKS - 1 and all(state.rolled_back for state in recent):
            return f"it went back {MAX_ROLLBACKS} times, with ever smaller steps"
        return None
    if history[-1].epoch >= params.epochs:
        return f"all {params.epochs} epochs are done"
    counted = [state for state in history if not state.rolled_back]
    losses = [state.held_out for state in counted if state.held_out is not None]
    rounds = params.early_stopping_rounds
    if rounds and len(losses) > rounds and min(losses[-rounds:]) >= min(losses[:-rounds]):
        return params.stopping.early
    return None


def _decide_stochastic(
    params: DSMLRParameters, newest: SyncState, accepted: Sequence[SyncState]
) -> Decision:
    """Decide in the stochastic phase.

    Roll back with half the rate if the objective rose. Switch to L-BFGS if it falls slowly.
    """
    before = accepted[-1] if accepted else None
    if not math.isfinite(newest.objective) or (
        before and newest.objective > MAX_OBJECTIVE_RATIO * before.objective
    ):
        again = newest.rate > MIN_RATE or before is None or not params.history
        return Decision(0.5 * newest.rate, None, True, None if again else "enter")
    if before is None:
        return Decision(newest.rate, None, False)
    gain = gain_per_epoch(before, newest)
    if params.history and gain <= params.lbfgs_switch_tol:
        return Decision(newest.rate, None, False, "enter")
    slow = params.stopping.reached if gain <= params.tolerance else None
    return Decision(newest.rate, slow, False)


def _decide_lbfgs(
    params: DSMLRParameters, newest: SyncState, accepted: Sequence[SyncState]
) -> Decision:
    """Decide in the L-BFGS phase.

    Armijo's rule accepts or halves the step length. The training ends when recent steps gained
    little.
    """
    length, base = newest.length or 0.0, accepted[-1].objective
    # not <=: also true if the objective is not a number
    if not newest.objective <= base + MIN_DECREASE_SHARE * length * newest.slope:
        stuck = _stuck_reason(params, newest, base) if length < MIN_STEP_LENGTH else None
        return Decision(newest.rate, stuck, True, "retry", 0.5 * length)
    recent = [state for state in accepted[-RECENT_STEPS:] if state.length is not None]
    gain = (
        (recent[0].objective - newest.objective) / RECENT_STEPS / max(newest.objective, 1e-300)
        if len(recent) == RECENT_STEPS
        else math.inf
    )
    slow = params.stopping.reached if gain <= params.tolerance else None
    return Decision(newest.rate, slow, False, "accept")


def _stuck_reason(params: DSMLRParameters, newest: SyncState, objective: float) -> str:
    """Return why to stop if no step along a direction lowers the objective.

    A quadratic objective would fall by half the slope. If that is below the tolerance, only
    rounding errors of single precision are left.
    """
    if -0.5 * newest.slope <= params.tolerance * objective:
        return params.stopping.reached
    return f"no step of {newest.length:g} lowers the objective: the limit of single precision"
