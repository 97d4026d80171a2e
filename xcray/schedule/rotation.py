"""Rotation schedule: blocks of weights pass every shard of the data, sweep after sweep.

A *pass* is one block passing one or more consecutive shards at their worker. A *sweep* is every
block past every shard, once. An *interval* is some sweeps, after which all blocks are at rest (the
*sync point*). The schedule decides which pass is next. It guarantees that a block is in one place
at a time, that each cell (shard, block) comes once per sweep, and that a shard starts a sweep when
all blocks have passed it in the sweep before.

Orders, by name: "sync" and "ring" (`ring.py`) give each shard and each block the same partners in
the same order, on any workers, at any speed, so results are bit-identical. "uniform" and "shortest"
(`nomad.py`) send a block to a worker that has a free place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xcray.schedule.nomad import Nomad
from xcray.schedule.ring import Ring
from xcray.schedule.routes import BlockPass, RoutingPolicy, shards_by_worker

__all__ = ["ORDERS", "BlockPass", "RotationSchedule"]

ORDERS = ("sync", "ring", "uniform", "shortest")


class RotationSchedule:
    """The schedule of one interval.

    owners: owners[s] is the worker of shard s; a worker's shards are consecutive.
    blocks: number of blocks. sweeps: number of sweeps of the interval. order: one of ORDERS.
    max_in_flight: passes issued and not done per worker, at most; with 2 the next block can travel
    while the worker runs the pass before.
    first: of "sync" and "ring", the shard at which block 0 starts. seed: of "uniform" and
    "shortest". nodes: worker -> node; with it a block of these two orders
    passes all workers of a node before it goes to another one.

    Workers run their passes in the order in which they are issued.
    """

    def __init__(
        self,
        owners: Sequence[str],
        blocks: int,
        sweeps: int,
        *,
        order: str = "ring",
        max_in_flight: int = 2,
        first: int = 0,
        seed: int = 0,
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        self._workers = shards_by_worker(owners)
        self._max_in_flight = max_in_flight
        self._route: RoutingPolicy
        if order in ("sync", "ring"):
            self._route = Ring(
                owners,
                blocks,
                sweeps,
                max_in_flight=max_in_flight,
                barrier=order == "sync",
                first=first,
            )
        else:
            self._route = Nomad(
                owners,
                blocks,
                sweeps,
                max_in_flight=max_in_flight,
                shortest=order == "shortest",
                seed=seed,
                nodes=nodes,
            )
        self._in_flight: dict[str, dict[int, BlockPass]] = {worker: {} for worker in self._workers}
        self._issued = 0
        self.done_cells = 0
        self.total_cells = len(owners) * blocks * sweeps

    def start(self) -> list[BlockPass]:
        """Return the first passes, one per worker in turn; none if there are no sweeps."""
        return [
            block_pass
            for _ in range(self._max_in_flight)
            for block_pass in self._issue(self._workers, 1)
        ]

    def complete(self, worker: str, number: int) -> list[BlockPass]:
        """Return the passes that can begin because a worker has done its pass with this id.

        An unknown worker, and a pass that is not in flight, have no effect.
        """
        block_pass = self._in_flight.get(worker, {}).pop(number, None)
        if block_pass is None:
            return []
        self.done_cells += len(block_pass.shards)
        workers = self._route.complete_pass(block_pass)
        if self.done_cells == self.total_cells:
            return []
        return self._issue(workers, self._max_in_flight)

    def _issue(self, workers: Iterable[str], limit: int) -> list[BlockPass]:
        """Return passes for workers that have free places, at most `limit` per worker."""
        out: list[BlockPass] = []
        for worker in workers:
            in_flight = self._in_flight[worker]
            for _ in range(min(limit, self._max_in_flight - len(in_flight))):
                block_pass = self._route.next_pass(worker, self._issued)
                if block_pass is None:
                    break
                self._issued += 1
                in_flight[block_pass.id] = block_pass
                out.append(block_pass)
        return out
