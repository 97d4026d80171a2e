"""Exact phase of a rotation training: the history of each block, and the next point to evaluate.

A history is created where its block came to rest, and stays on that node. The driver only sees
the products of histories and coefficients, see `rotation_contract.ExactPhase`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from xcray.arrays import Float64
from xcray.schedule.calls import Call, ObjectHandle, at_worker
from xcray.solvers.rotation_contract import WeightBlock
from xcray.training.rotation.shard_worker import ShardWorker
from xcray.workers.rpc import CallingGroup, call_many, require_ref

# location and handle of each object
WorkerHandles: TypeAlias = list[tuple[str, ObjectHandle[WeightBlock]]]
# products of all blocks -> coefficients of the direction, and its slope
DirectionFn: TypeAlias = Callable[[Sequence[Float64]], tuple[Float64, float]]


class TrialPoint(NamedTuple):
    """The point of the blocks: `length` times the direction from the last accepted point.

    slope: of the objective along the direction. length 0: the first gradients are still to be
    computed.
    """

    length: float
    slope: float


ENTERING: Final = TrialPoint(0.0, 0.0)


class PhaseState(NamedTuple):
    """Histories and blocks with their locations, one per block, and the point of the blocks."""

    histories: WorkerHandles
    blocks: WorkerHandles
    trial: TrialPoint


def enter_phase(group: CallingGroup, blocks: WorkerHandles, direction: DirectionFn) -> PhaseState:
    """Start the phase with blocks that have computed their first gradients."""
    calls = [Call(worker, ShardWorker.start_history, at_worker(block)) for worker, block in blocks]
    return _next_direction(group, _call_for_refs(group, calls), direction)


def accept_point(
    group: CallingGroup, histories: WorkerHandles, blocks: WorkerHandles, direction: DirectionFn
) -> PhaseState:
    """Add the current point with its gradients to the histories, and go on from it."""
    calls = [
        Call(worker, ShardWorker.update_history, at_worker(history), at_worker(block))
        for (worker, history), (_, block) in zip(histories, blocks, strict=True)
    ]
    return _next_direction(group, _call_for_refs(group, calls), direction)


def retry_point(
    group: CallingGroup, histories: WorkerHandles, trial: TrialPoint, length: float
) -> PhaseState:
    """Move to another point along the same direction."""
    return PhaseState(
        histories, _move_blocks(group, histories, length), trial._replace(length=length)
    )


def _next_direction(
    group: CallingGroup, histories: WorkerHandles, direction: DirectionFn
) -> PhaseState:
    """Compute the next direction and move by its full length."""
    calls = [
        Call(worker, ShardWorker.history_products, at_worker(history))
        for worker, history in histories
    ]
    coefs, slope = direction([reply.result for reply in call_many(group, calls)])
    directed = _call_for_refs(
        group,
        [
            Call(worker, ShardWorker.set_direction, at_worker(history), coefs)
            for worker, history in histories
        ],
    )
    return PhaseState(directed, _move_blocks(group, directed, 1.0), TrialPoint(1.0, slope))


def _move_blocks(group: CallingGroup, histories: WorkerHandles, length: float) -> WorkerHandles:
    """Return the blocks at a point along their direction."""
    calls = [
        Call(worker, ShardWorker.move_block, at_worker(history), length)
        for worker, history in histories
    ]
    return _call_for_refs(group, calls)


def _call_for_refs(group: CallingGroup, calls: Sequence[Call[WeightBlock, None]]) -> WorkerHandles:
    """Run calls and return the handles of the created objects."""
    return [(reply.worker, require_ref(reply.ref)) for reply in call_many(group, calls)]
