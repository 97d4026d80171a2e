"""L-BFGS phase of a rotation training: the history of each block, and the next point to evaluate.

A history is created where its block came to rest, and stays on that node. The driver only sees
inner products and coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from xcray.solvers.quasi_newton import coefficients, sum_products
from xcray.workers.rpc import Call, call_many, require_ref
from xcray.workers.worker_group import ObjectHandle, WorkerGroup

WorkerHandles = list[tuple[str, ObjectHandle]]  # location and handle of each object


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


def enter_phase(group: WorkerGroup, blocks: WorkerHandles) -> PhaseState:
    """Start the phase with blocks that have computed their first gradients."""
    return _next_direction(
        group,
        _call_for_refs(group, [Call(worker, "begin_lbfgs", block) for worker, block in blocks]),
    )


def accept_point(group: WorkerGroup, histories: WorkerHandles, blocks: WorkerHandles) -> PhaseState:
    """Add the current point with its gradients to the histories, and go on from it."""
    pairs = zip(histories, blocks, strict=True)
    return _next_direction(
        group,
        _call_for_refs(
            group,
            [
                Call(worker, "update_history", history, block)
                for (worker, history), (_, block) in pairs
            ],
        ),
    )


def retry_point(
    group: WorkerGroup, histories: WorkerHandles, trial: TrialPoint, length: float
) -> PhaseState:
    """Move to another point along the same direction."""
    return PhaseState(
        histories, _move_blocks(group, histories, length), trial._replace(length=length)
    )


def _next_direction(group: WorkerGroup, histories: WorkerHandles) -> PhaseState:
    """Compute the next direction and move by its full length."""
    calls = [Call(worker, "inner_products", history) for worker, history in histories]
    coefs, slope = coefficients(sum_products([result.result for result in call_many(group, calls)]))
    directed = _call_for_refs(
        group, [Call(worker, "set_direction", history, coefs) for worker, history in histories]
    )
    return PhaseState(directed, _move_blocks(group, directed, 1.0), TrialPoint(1.0, slope))


def _move_blocks(group: WorkerGroup, histories: WorkerHandles, length: float) -> WorkerHandles:
    """Return the blocks at a point along their direction."""
    return _call_for_refs(
        group, [Call(worker, "move_block", history, length) for worker, history in histories]
    )


def _call_for_refs(group: WorkerGroup, calls: Sequence[Call]) -> list[tuple[str, Any]]:
    """Run calls and return the handles of the created objects."""
    return [(result.worker, require_ref(result.ref)) for result in call_many(group, calls)]
