"""What DS-MLR does after a sync point: go on, change the rate, roll back, use L-BFGS, stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from xcray.solvers.dsmlr.parameters import DSMLRParameters

# an interval is rolled back if its objective exceeds that of the previous sync point by this factor
MAX_OBJECTIVE_RATIO: Final = 1.02
# the same without L-BFGS phase, relative to the best: plain steps rise and fall
MAX_PLAIN_RATIO: Final = 2.0
# sync points at one rate after which plain steps have become slow or noisy
PLAIN_POINTS: Final = 5
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
    discarded: whether it does not count: the training rolled back from it, or went on from an
    objective above the best without L-BFGS phase. length, slope: in the L-BFGS phase, the
    step length from the last accepted sync point, and the slope of the objective there. length is
    None in the stochastic phase.
    """

    epoch: int
    rate: float
    objective: float
    held_out: float | None = None
    discarded: bool = False
    length: float | None = None
    slope: float = 0.0


class Decision(NamedTuple):
    """How training continues.

    rate: of the next steps; stop: the reason to end, or None; roll_back: return to the previous
    sync point. counts: whether the point can be the result. lbfgs_action: "enter" the L-BFGS phase;
    "accept" this point and compute the next direction; "retry" with another `length` of this
    direction; None in the stochastic phase and at the end.
    """

    rate: float
    stop: str | None
    roll_back: bool
    lbfgs_action: str | None = None
    length: float = 1.0
    counts: bool = True


def decide(params: DSMLRParameters, history: Sequence[SyncState]) -> Decision:
    """Decide how to continue after the newest sync point of `history`."""
    newest = history[-1]
    accepted = [state for state in history[:-1] if not state.discarded]
    if not params.exact_phase:
        decision = _decide_plain(params, history)
    elif newest.length is None:
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
        if len(recent) == MAX_ROLLBACKS - 1 and all(state.discarded for state in recent):
            return f"it went back {MAX_ROLLBACKS} times, with ever smaller steps"
        return None
    if history[-1].epoch >= params.epochs:
        return f"all {params.epochs} epochs are done"
    counted = [state for state in history if not state.discarded]
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
        again = newest.rate > MIN_RATE or before is None
        return Decision(0.5 * newest.rate, None, True, None if again else "enter")
    if before is None:
        return Decision(newest.rate, None, False)
    gain = gain_per_epoch(before, newest)
    if gain <= params.lbfgs_switch_tol:
        return Decision(newest.rate, None, False, "enter")
    slow = params.stopping.reached if gain <= params.tolerance else None
    return Decision(newest.rate, slow, False)


def _decide_plain(params: DSMLRParameters, history: Sequence[SyncState]) -> Decision:
    """Decide without L-BFGS phase: the best point so far is the result.

    A rise only means that a point does not count. When some points at one rate have gained little,
    the rate is halved if one of them rose, because noise hides the fall; else training ends.
    """
    newest = history[-1]
    counted = [state for state in history[:-1] if not state.discarded]
    best = counted[-1] if counted else None
    if not math.isfinite(newest.objective) or (
        best and newest.objective > MAX_PLAIN_RATIO * best.objective
    ):
        return Decision(0.5 * newest.rate, None, True, counts=False)
    rose = best is not None and newest.objective >= best.objective
    recent = [state for state in history if state.rate == newest.rate][-PLAIN_POINTS:]
    if len(recent) < PLAIN_POINTS or gain_per_epoch(recent[0], newest) > params.tolerance:
        return Decision(newest.rate, None, False, counts=not rose)
    if any(after.objective > before.objective for before, after in pairwise(recent)):
        return Decision(0.5 * newest.rate, None, False, counts=not rose)
    reached = newest.rate == history[0].rate
    reason = params.stopping.reached if reached else "with ever smaller steps it gains little"
    return Decision(newest.rate, reason, False, counts=not rose)


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
