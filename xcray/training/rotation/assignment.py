"""The workers of a training whose blocks go round: who they are, which shards each holds; who takes a lost one's place, who comes
later, who leaves in time.

With the orders "sync" and "ring" none of it is a matter of bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from xcray.errors import Unavailable
from xcray.schedule.placement import side_by_side
from xcray.schedule.shard_assignment import homes_by_speed
from xcray.training.rotation.rebalancing import Speeds
from xcray.training.rotation.shard_worker import Rows
from xcray.workers.pool import StopFlag
from xcray.workers.rpc import Errand, WorkerLost, errands, made, run
from xcray.workers.worker_group import Team


class Crew:
    """Workers of an open `team`, and the home of each of `shards` shards, which are cut from `rows` for those that don't see the
    data set's directory. moved: shards that went to another home at a rest."""

    def __init__(self, team: Team, rows: Rows, shards: int) -> None:
        self._team = team
        self._rows = rows
        self.names = list(team.present)
        self.homes: tuple[str, ...] = ()
        self.costs = np.ones(shards)
        self._speeds = Speeds()
        self.moved = 0

    def settle(self, stop: StopFlag) -> None:
        """Have all shards held, each worker as many as any other by their costs, those of a node side by side."""
        self.names = side_by_side(self.names, self._team.nodes)
        self.place(homes_by_speed(self.costs, dict.fromkeys(self.names, 1.0)), stop)

    def place(self, homes: Sequence[str], stop: StopFlag | None = None) -> None:
        """Have each shard held by its home, and nobody else."""
        asks = [
            Errand(worker, "hold", [s for s, home in enumerate(homes) if home == worker])
            for worker in self.names
        ]
        unseen, facts = [], []
        for answer in list(errands(self._team, asks, stop)):
            opened, not_opened = answer.told
            facts += opened
            unseen += not_opened
        for shard in unseen:  # one at a time: this process holds one shard in transit
            cut = self._team.put(self._rows.cut(shard))
            facts.append(run(self._team, Errand(homes[shard], "load", shard, cut)).told)
        for told in facts:
            self.costs[told.shard] = told.cost
        self.homes = tuple(homes)

    def begin_anew(self) -> None:
        """Have all shards as they were opened, whatever they have computed."""
        self.everywhere("hold", [])
        self.place(self.homes)

    def everywhere(self, verb: str, *args: object) -> None:
        """A verb at every worker."""
        list(errands(self._team, [Errand(worker, verb, *args) for worker in self.names]))

    def even_out(self, speeds: Mapping[str, float], passes: int) -> None:
        """At a rest: give shards to faster workers, when that makes stretches clearly shorter. speeds: measured in the last one;
        passes: blocks that come to each shard in one."""
        self._speeds.learn(speeds, self.names)
        homes = self._speeds.better(self.homes, self.costs, passes)
        if homes is not None:
            self._move(homes)

    def enlist(self, workers: Sequence[str], speeds: Mapping[str, float]) -> None:
        """At a rest: workers that came take their share of the shards; they are thought to be as fast as the fastest."""
        self._speeds.learn(speeds, self.names)
        self.names = side_by_side([*self.names, *workers], self._team.nodes)
        self._move(homes_by_speed(self.costs, self._speeds.of(self.names)))

    def recover(self, lost: WorkerLost) -> None:
        """New workers in the places of lost ones, where they can be had at once; else the others do their work. Raises Unavailable
        when nobody is left."""
        why: Unavailable | None = (
            None  # there is no room: where one asked in vain, the others of its node need not
        )
        for worker in lost.workers:
            self._speeds.forget(worker)
            others = any(each not in lost.workers for each in self.names)
            try:
                if why is None:
                    self._team.replace(worker, at_once=others)
                    continue
            except Unavailable as error:
                why = error
            self.names.remove(worker)
        if why is not None and not self.names:
            raise why

    @property
    def leaving(self) -> dict[str, float]:
        """Those whose node is about to go while others stay, and seconds until it does; nobody when all are to go: somebody works
        to the last."""
        going = {
            worker: seconds
            for worker, seconds in self._team.leaving().items()
            if worker in self.names
        }
        return going if len(going) < len(self.names) else {}

    def leave(self, workers: Sequence[str]) -> None:
        """Let workers go whose node is about to."""
        self._team.dismiss(*workers)
        for worker in workers:
            self._speeds.forget(worker)
        self.names = [worker for worker in self.names if worker not in workers]

    def _move(self, homes: Sequence[str]) -> None:
        """Have shards at other homes, with what they kept at the last rest."""
        moving = [shard for shard, home in enumerate(homes) if home != self.homes[shard]]
        kept = [
            made(run(self._team, Errand(self.homes[shard], "kept", shard)).bulk) for shard in moving
        ]
        self.place(homes)
        asks = [
            Errand(homes[shard], "take", shard, handle)
            for shard, handle in zip(moving, kept, strict=True)
        ]
        list(errands(self._team, asks))
        self.moved += len(moving)
