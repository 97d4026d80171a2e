"""Block passes, the contract of routing policies, and the shards of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class BlockPass(NamedTuple):
    """Let `block` pass `shards`, in this order, at `worker`, in sweep `sweep` of the interval.

    Sweeps and ids count from 0.
    """

    id: int
    worker: str
    block: int
    shards: tuple[int, ...]
    sweep: int


class RoutingPolicy(Protocol):
    """Decides which block goes where.

    A worker runs its passes in the order in which they are taken, so a pass taken at a worker
    counts there as before all later ones. A block moves on only when its pass is complete.
    """

    def next_pass(self, worker: str, number: int) -> BlockPass | None:
        """Return the next pass of a worker with a free place, with id `number`, or None."""

    def complete_pass(self, block_pass: BlockPass) -> Sequence[str]:
        """Record a finished pass; return the workers that may have a next one now, in order."""


def shards_by_worker(owners: Sequence[str]) -> dict[str, range]:
    """Return the shards of each worker, which are consecutive; owners[s] has shard s."""
    out: dict[str, range] = {}
    for shard, worker in enumerate(owners):
        out[worker] = range(out[worker].start if worker in out else shard, shard + 1)
    return out
