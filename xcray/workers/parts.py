"""The parts of a training, shares of the rows or shards, and the workers of a group that hold them.

The number of parts is fixed by the layout of a training, and so are the sums over them. Workers
come and go: a worker can hold several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from xcray.errors import Unavailable
from xcray.schedule.calls import Call
from xcray.schedule.placement import group_by_node
from xcray.schedule.shard_assignment import assign_evenly
from xcray.storage.checkpoints import CheckpointFolder, TrainingState
from xcray.workers.call_queue import WorkerLost, call_many
from xcray.workers.worker_group import WorkerGroup


class ShareWorker:
    """The shares of one worker, each an object of the class of the solver's workers.

    create: returns the object of a share, from the rows. Its methods are called with the number of
    the share as a first argument.
    """

    def __init__(self, create: Callable[[int], Any]) -> None:
        self._create = create
        self._shares: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the shares."""

        def method(share: int, *args: Any) -> Any:
            if share not in self._shares:  # of a worker that was lost a moment ago
                self._shares[share] = self._create(share)
            return getattr(self._shares[share], name)(*args)

        return method

    def hold(self, shares: Sequence[int]) -> tuple[None, None]:
        """Hold exactly these shares."""
        self._shares = {share: self._shares[share] for share in shares if share in self._shares}
        for share in shares:
            if share not in self._shares:
                self._shares[share] = self._create(share)
        return None, None


class Parts:
    """The owner of each part among the workers of an open group of `ShareWorker`s.

    keeps_state: whether workers keep the state of a round, so that it can be saved later. costs:
    (n,) of the parts. moved: number of parts that moved to another worker while all were there.
    """

    keeps_state: ClassVar[bool] = False

    def __init__(self, group: WorkerGroup, n: int) -> None:
        self.group = group
        self.n = n
        self.owners: tuple[str, ...] = ()
        self.costs = np.ones(n)
        self.moved = 0
        self._joined: list[str] = []

    @property
    def workers(self) -> list[str]:
        """Return the workers that can be called; those of a node are neighbours."""
        return group_by_node(self.group.available, self.group.nodes)

    def place(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Assign all parts evenly."""
        self.owners = assign_evenly(self.owners or ("",) * self.n, self.workers)
        calls = [Call(worker, ShareWorker.hold, self._held_by(worker)) for worker in self.workers]
        list(call_many(self.group, calls, stopped))

    def _held_by(self, worker: str) -> list[int]:
        """Return the parts of a worker."""
        return [part for part, owner in enumerate(self.owners) if owner == worker]

    def recover(self, lost: WorkerLost) -> None:
        """Replace lost workers where possible at once; otherwise the others take over their parts.

        Raises Unavailable if no worker is left.
        """
        no_place: Unavailable | None = None
        others = bool(self.group.available)
        for worker in lost.workers:
            # without room, other workers of the same node need not be requested
            if no_place is None:
                try:
                    self.group.replace(worker, at_once=others)
                except Unavailable as error:
                    no_place = error
        if no_place is not None and not self.group.available:
            raise no_place
        if self.owners:
            self.owners = assign_evenly(self.owners, self.workers, most=self.n)

    @property
    def draining(self) -> dict[str, float]:
        """Workers on draining nodes with the seconds left; empty if all workers are on such nodes.

        In that case training goes on to the last moment.
        """
        leaving, present = self.group.draining_workers(), self.group.available
        draining = {worker: seconds for worker, seconds in leaving.items() if worker in present}
        return draining if len(draining) < len(present) else {}

    def leave(self) -> str:
        """Release the workers on draining nodes, if there are any now; return what happened."""
        leaving = list(self.draining)
        if leaving:
            self.group.release(*leaving)
        return f"left before their node goes: {', '.join(leaving)}" if leaving else ""

    def has_changes(self, seconds_left: float | None) -> bool:
        """Return whether a checkpoint is needed to go on with other workers.

        seconds_left: to the end of the training, None if unknown.
        """
        self._joined += self.group.poll_new_workers(seconds_left)
        return bool(self._joined or self.draining)

    def adapt(self) -> str:
        """Take over new workers and leave draining nodes, after a checkpoint; return what happened.

        Parts that move lose what they have beyond the rows.
        """
        joined, before = self._joined, self.owners
        self._joined = []
        notes = [f"{', '.join(joined)} joined"] if joined else []
        if left := self.leave():
            notes.append(left)
        if notes:
            self.place()
            self.moved += sum(old != new for old, new in zip(before, self.owners, strict=True))
        return "; ".join(notes)

    def save(self, folder: CheckpointFolder, number: int, state: TrainingState) -> None:
        """Save a state as checkpoint `number`."""
        folder.save(number, state)

    def load(self, folder: CheckpointFolder | None) -> TrainingState | None:
        """Return the newest state without damage, None for the start."""
        return None if folder is None else folder.newest()

    def keep_state(self) -> None:
        """Take a snapshot of what workers have at a sync point."""

    def restore_state(self) -> None:
        """Restore the last snapshot."""
