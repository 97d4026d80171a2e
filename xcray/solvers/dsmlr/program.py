"""DS-MLR on the driver: a generator that lets blocks rotate and decides at each sync point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Int64
from xcray.errors import ParameterError
from xcray.schedule.calls import Call, at_worker
from xcray.solvers.dsmlr.decisions import Decision, SyncState, decide, gain_per_epoch
from xcray.solvers.dsmlr.parameters import DSMLRParameters
from xcray.solvers.dsmlr.quasi_newton import coefficients, sum_products
from xcray.solvers.dsmlr.sample_rate import sample_rate
from xcray.solvers.dsmlr.shard_state import MUTATING_KINDS, Step, SweepMetrics
from xcray.solvers.dsmlr.worker import DSMLRWorker, PassMetrics
from xcray.solvers.group_contract import (
    PlacedBlock,
    Program,
    Rotation,
    Round,
    TrainingRows,
    WeightBlock,
    WorkerCalls,
)
from xcray.solvers.held_out import HeldOut
from xcray.solvers.shard_contract import grid_of
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import TrainingState


class TrialPoint(NamedTuple):
    """The point of the blocks: `length` times the direction from the last accepted point.

    slope: of the objective along the direction. length 0: the first gradients are still to be
    computed.
    """

    length: float
    slope: float


ENTERING: Final = TrialPoint(0.0, 0.0)


class Position(NamedTuple):
    """Where the next interval starts.

    epoch: of the blocks; rate: of the next steps; trial: in the L-BFGS phase, the point of the
    blocks; histories: of the blocks there, each at the worker that created it. best: without L-BFGS
    phase, the blocks of the best sync point, if it is not this one.
    """

    epoch: int
    rate: float
    trial: TrialPoint | None
    blocks: list[PlacedBlock]
    histories: list[PlacedBlock]
    best: list[PlacedBlock]

    @property
    def result(self) -> list[PlacedBlock]:
        """Return the blocks of the best sync point."""
        return self.best or self.blocks


def train(
    params: DSMLRParameters,
    calls: WorkerCalls,
    rows: TrainingRows,
    state: TrainingState | None = None,
) -> Program:
    """Train from a state; see `ShardSolver`."""
    grid = grid_of(calls.layout)
    if state is None:
        blocks = calls.create_blocks(DSMLRWorker.create_block, rows.Y.n_cols)
        rate = 1.0 if params.exact_phase else sample_rate(params, rows)
        position = Position(0, rate, None, blocks, [], [])
        history, reason = list[SyncState](), ""
        calls.keep_state()
    else:
        position, history = _position_of(state, grid.blocks), _history_of(state)
        reason = str(state.note["reason"])
    while not reason:
        if position.trial == ENTERING:
            position = _enter_phase(params, calls, position, len(history))
        steps = next_steps(params, position)
        epoch = steps[-1].epoch
        rotation = calls.rotate(
            position.blocks,
            steps,
            order=params.order,
            seed=params.seed + len(history),
            epochs=epoch - position.epoch,
            # so that no shard is always the last one
            first=0 if params.exact_phase else position.epoch,
        )
        objective, held_out = _evaluate(params, rotation, grid.shards)
        newest = _state_at(position, epoch, objective, held_out)
        decision = decide(params, [*history, newest])
        history.append(newest._replace(discarded=decision.roll_back or not decision.counts))
        if decision.roll_back:
            calls.restore_state()
        else:
            calls.keep_state()
            best = [] if decision.counts else position.result
            position = position._replace(epoch=epoch, blocks=rotation.blocks, best=best)
        position = _next_position(calls, position._replace(rate=decision.rate), decision)
        reason = decision.stop or ""
        yield _round_of(history, position, held_out, reason)
    return reason


def export(calls: WorkerCalls, state: TrainingState, positives: Int64) -> Iterator[SolvedLabels]:
    """Yield the labels of each block; see `ShardSolver`."""
    n = grid_of(calls.layout).blocks
    position = _accepted_point(calls, _position_of(state, n))
    ends = [len(positives) * block // n for block in range(n + 1)]
    exports = [
        Call(worker, DSMLRWorker.export_labels, at_worker(handle), positives[lo:hi])
        for (worker, handle), (lo, hi) in zip(position.result, pairwise(ends), strict=True)
    ]
    for labels, _ in calls.call_many(exports):
        yield calls.fetch(labels.handle)


def next_steps(params: DSMLRParameters, position: Position) -> list[Step]:
    """Return what the sweeps of the next interval do."""
    if position.trial is not None:
        kinds = ("observe", "gradient")
        return [Step(kind, position.epoch + 1, position.rate) for kind in kinds]
    steps, epoch = list[Step](), position.epoch
    for kind in params.sweep_kinds(max(1, min(params.sync_every, params.epochs - epoch))):
        epoch += kind in MUTATING_KINDS
        steps.append(Step(kind, epoch, position.rate))
    return steps


def _evaluate(
    params: DSMLRParameters, rotation: Rotation, shards: int
) -> tuple[float, HeldOut | None]:
    """Return the objective and the evaluation of held-out rows after a rotation.

    L1 = lam/2 sum |W_block|^2 + sum of the losses of the shards. Sums are correctly rounded, so
    they do not depend on the order.
    """
    squared, sweeps = dict[int, float](), dict[int, SweepMetrics]()
    for block, shard, report in rotation.reports:
        metrics: PassMetrics = report
        if metrics.squared is not None:
            squared[block] = metrics.squared
        if metrics.sweep is not None:
            sweeps[shard] = metrics.sweep
    losses = [sweeps[shard].loss for shard in range(shards)]
    objective = 0.5 * params.lam * math.fsum(squared.values()) + math.fsum(losses)
    parts = [part for shard in range(shards) if (part := sweeps[shard].held_out) is not None]
    if not parts:
        return objective, None
    labels, scores, rows = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "scores", "rows")
    )
    loss = math.fsum(part.loss or 0.0 for part in parts)
    return objective, HeldOut(loss if math.isfinite(loss) else None, labels, scores, rows)


def _state_at(
    position: Position, epoch: int, objective: float, held_out: HeldOut | None
) -> SyncState:
    """Return the sync point after an interval from `position`; numbers as the history has them."""
    loss = None if held_out is None else held_out.loss
    finite = objective if math.isfinite(objective) else math.inf
    state = SyncState(epoch, position.rate, finite, loss)
    trial = position.trial
    return state if trial is None else state._replace(length=trial.length, slope=trial.slope)


def _next_position(calls: WorkerCalls, position: Position, decision: Decision) -> Position:
    """Go to the next point of the L-BFGS phase, if it is active or starts now."""
    if decision.stop is not None:
        if decision.roll_back:
            position = _accepted_point(calls, position)
        return position._replace(blocks=position.result, histories=[], trial=None, best=[])
    if decision.lbfgs_action == "enter":
        return position._replace(trial=ENTERING)
    if decision.lbfgs_action == "accept":
        updates = [
            Call(worker, DSMLRWorker.update_history, at_worker(history), at_worker(block))
            for (worker, history), (_, block) in zip(
                position.histories, position.blocks, strict=True
            )
        ]
        return _next_direction(calls, position, _create(calls, updates))
    if decision.lbfgs_action == "retry":
        return _move_blocks(calls, position, decision.length)
    return position


def _accepted_point(calls: WorkerCalls, position: Position) -> Position:
    """Go back to the last accepted point: the next one was not evaluated, or did not count."""
    if position.trial is None or position.trial.length == 0.0:
        return position
    return _move_blocks(calls, position, 0.0)


def _enter_phase(
    params: DSMLRParameters, calls: WorkerCalls, position: Position, seed: int
) -> Position:
    """Gather the first exact gradients, start the histories, and go to the first trial point."""
    steps = [Step("curvature", position.epoch, position.rate)]
    seed += params.seed
    blocks = calls.rotate(position.blocks, steps, order=params.order, seed=seed, epochs=0).blocks
    starts = [Call(worker, DSMLRWorker.start_history, at_worker(block)) for worker, block in blocks]
    return _next_direction(calls, position, _create(calls, starts))


def _next_direction(
    calls: WorkerCalls, position: Position, histories: Sequence[PlacedBlock]
) -> Position:
    """Compute the next direction from the products of all histories, and move by its length.

    Raises ParameterError if gradients or second moments of features are not finite.
    """
    requests = [
        Call(worker, DSMLRWorker.history_products, at_worker(history))
        for worker, history in histories
    ]
    replies = calls.call_many(requests)
    coefs, slope = coefficients(sum_products([products for _, products in replies]))
    if not math.isfinite(slope):
        raise ParameterError(
            "feature values are too large for L-BFGS in single precision: scale the features, "
            "or set history=0"
        )
    directions = [
        Call(worker, DSMLRWorker.set_direction, at_worker(history), coefs)
        for worker, history in histories
    ]
    trial = TrialPoint(1.0, slope)
    directed = position._replace(histories=_create(calls, directions), trial=trial)
    return _move_blocks(calls, directed, 1.0)


def _move_blocks(calls: WorkerCalls, position: Position, length: float) -> Position:
    """Move the blocks to `length` times their direction."""
    trial = position.trial or ENTERING
    moves = [
        Call(worker, DSMLRWorker.move_block, at_worker(history), length)
        for worker, history in position.histories
    ]
    return position._replace(blocks=_create(calls, moves), trial=trial._replace(length=length))


def _create(calls: WorkerCalls, requests: Sequence[Call[WeightBlock, Any]]) -> list[PlacedBlock]:
    """Run calls that create an object each; return where these are."""
    return [block for block, _ in calls.call_many(requests)]


def _round_of(
    history: Sequence[SyncState],
    position: Position,
    held_out: HeldOut | None,
    reason: str,
) -> Round:
    """Return a sync point as a round of the training."""
    newest, accepted = history[-1], [state for state in history if not state.discarded]
    entry: dict[str, Any] = {
        "epoch": newest.epoch,
        "objective": newest.objective,
        "rate": newest.rate,
        "back": newest.discarded,
    }
    if newest.length is not None:
        entry |= {"length": newest.length, "slope": newest.slope}
    note = {
        "epoch": position.epoch,
        "rate": position.rate,
        "trial": position.trial,
        "reason": reason,
        "history": [
            # JSON has no infinite objective
            [None if value == math.inf else value for value in state]
            for state in history
        ],
    }
    same_phase = len(accepted) > 1 and (accepted[-2].length is None) == (newest.length is None)
    return Round(
        position.epoch,
        TrainingState(note, {}, position.blocks + position.histories + position.best),
        entry,
        held_out,
        gain_per_epoch(accepted[-2], accepted[-1]) if same_phase else math.inf,
    )


def _position_of(state: TrainingState, n_blocks: int) -> Position:
    """Return the position that a state describes."""
    note, blocks = state.note, list(state.placed)
    trial = None if note["trial"] is None else TrialPoint(*note["trial"])
    blocks, others = blocks[:n_blocks], blocks[n_blocks:]
    if trial is None:
        return Position(note["epoch"], note["rate"], None, blocks, [], others)
    return Position(note["epoch"], note["rate"], trial, blocks, others, [])


def _history_of(state: TrainingState) -> list[SyncState]:
    """Return the sync points so far."""
    history = [SyncState(*each) for each in state.note["history"]]
    return [
        each._replace(objective=math.inf) if each.objective is None else each for each in history
    ]
