"""Simulated Ray: actors, nodes and cluster state on a clock of its own with realistic faults.

    with played(Play(...)) as play:      # RayPool is the real one, Ray and the clock are simulated
        ...

The simulation covers what a driver can see. A requested actor is placed when a node has room, the
view of free resources lags behind, a dead node is reported as alive for a while, a request can be
lost, and a node may never have received the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from xcray.workers.ray import actors as ray_actors
from xcray.workers.ray import cluster_state as ray_nodes
from xcray.workers.ray import pool as ray_pool
from xcray.workers.ray.cluster_state import GcsSnapshot

BOOT = 2.0  # seconds from an actor's place to its process
STEP = 0.25
HEAD = "f" * 56


class Died(Exception):
    """As ray.exceptions.RayError."""


class Raised(Died):
    """As ray.exceptions.RayTaskError; never raised here."""


@dataclass(frozen=True)
class Happening:
    """At a moment: "node" comes with `size` CPUs, "deaf" the same that never heard of the job,
    "kill" or "drain" the node numbered `size` among those there, "crash" one actor.
    """

    at: float
    what: str
    size: int = 1


@dataclass
class Node:
    """A machine. gone: when it died; deaf: it has room, but starts no actors; drains: nothing new
    goes there.
    """

    id: str
    cpus: int
    deaf: bool = False
    gone: float | None = None
    drains: bool = False


class Reference:
    """What a call will give: `at` some time `value`, or an error."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.value: Any = None

    def give(self, at: float, value: Any) -> None:
        """From then on it is there, unless it was there before."""
        if self.at is None or isinstance(value, BaseException):
            self.at, self.value = at, value


class Actor:
    """One worker: its calls wait for its process, then are done one after the other."""

    def __init__(self, play: Play, name: str, aimed: str) -> None:
        self.play = play
        self.name = name
        self.aimed = aimed
        self.node: Node | None = None
        self.free_at = 0.0
        self.calls: list[tuple[Reference, Callable[[float], tuple[float, Any]]]] = []
        self.dead = False
        self.out: list[Reference] = []
        for verb in ("location", "open", "solve", "pid", "release", "stop", "cancel", "load"):
            setattr(self, verb, _Method(self, verb))

    def call(self, verb: str, *args: Any) -> Reference:
        """Ask for something."""
        reference = Reference()
        self.out.append(reference)
        if self.dead:
            reference.give(self.play.now, Died("the actor is dead"))
        elif verb in ("location", "pid"):  # answered beside the work
            self.calls.append(
                (reference, lambda now: (now, ("10.0.0.1", self.node.id if self.node else "")))
            )
        elif verb == "open":
            self.calls.append((reference, lambda now: (now + 0.5, True)))
        elif verb == "solve":
            seconds = sum(self.play.costs[label] for label in args[1])
            self.calls.append((reference, lambda now: self._solved(now, seconds)))
        self.begin()
        return reference

    def _solved(self, now: float, seconds: float) -> tuple[float, Any]:
        """One batch after the other."""
        began = max(now, self.free_at)
        self.free_at = began + seconds
        return self.free_at, (b"", began, seconds)

    def begin(self) -> None:
        """Do what waits, once there is a process."""
        if self.node is None or self.dead:
            return
        for reference, done in self.calls:
            reference.give(*done(max(self.play.now, self.free_at if done else 0.0)))
        self.calls = []

    def die(self, why: str) -> None:
        """All that is under way ends with an error."""
        self.dead = True
        for reference in self.out:
            if reference.at is None or reference.at > self.play.now:
                reference.at = None
                reference.give(self.play.now, Died(why))
        self.calls = []


class _Method:
    """An actor's method, as Ray's handles have them."""

    def __init__(self, actor: Actor, verb: str) -> None:
        self._actor = actor
        self._verb = verb

    def options(self, **_: Any) -> _Method:
        """Names are of no interest."""
        return self

    def remote(self, *args: Any) -> Reference:
        """Ask."""
        return self._actor.call(self._verb, *args)


@dataclass
class Play:
    """What happens. costs: seconds of each label; happenings: in order; lost: numbers of the actors
    whose request is lost; lag: seconds by which the view of what is free is old; notice: until a
    dead node is told as dead;
    grows: nodes of two CPUs that an autoscaler may bring, each `node` seconds after somebody
    waited.
    """

    costs: list[float]
    happenings: list[Happening] = field(default_factory=list)
    lost: frozenset[int] = frozenset()
    lag: float = 0.5
    notice: float = 5.0
    grows: int = 0
    node: float = 10.0
    ends: float = 3000.0
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.nodes: list[Node] = [Node(HEAD, 0)]
        self.actors: list[Actor] = []
        self.views: list[tuple[float, dict[str, float]]] = []
        self._ids, self._started = count(1), count()
        self._due, self._coming = sorted(self.happenings, key=lambda each: each.at), list[float]()
        self.began = self.now
        self._look()

    def pass_time(self, seconds: float) -> None:
        """Time goes on, in steps."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            assert self.now - self.began < self.ends, "it hangs: " + "; ".join(self.story())
            while self._due and self.began + self._due[0].at <= self.now:
                self._happen(self._due.pop(0))
            self.actors = [actor for actor in self.actors if not actor.dead]
            self._scale()
            self._seat()
            self._look()

    def story(self) -> list[str]:
        """Where everything is, for people."""
        waiting = [actor.name for actor in self.actors if not actor.dead and actor.node is None]
        return [f"{len(self.nodes)} nodes", f"waiting {waiting}", f"free {self.views[-1][1]}"]

    def snapshot(self) -> GcsSnapshot:
        """The head's view: old by `lag`, and it takes dead nodes for alive for `notice`."""
        free = next((view for at, view in reversed(self.views) if at <= self.now - self.lag), {})
        rows = []
        for node in self.nodes:
            alive = node.gone is None or self.now < node.gone + self.notice
            resources = {"CPU": float(node.cpus), "object_store_memory": 1e9}
            rows.append(
                {
                    "NodeID": node.id,
                    "NodeManagerAddress": "10.0.0.1",
                    "Alive": alive,
                    "Resources": resources,
                }
            )
        drains = {node.id: 0 for node in self.nodes if node.drains}
        return GcsSnapshot(
            rows, {node: {"CPU": cpus, "memory": 1e12} for node, cpus in free.items()}, drains
        )

    def start(
        self, kind: Any, job: str, worker: str, *args: Any, scheduling_strategy: Any, **options: Any
    ) -> Actor:
        """As `start_actor`."""
        actor = Actor(self, worker, getattr(scheduling_strategy, "node_id", ""))
        actor.lost = next(self._started) in self.lost  # type: ignore[attr-defined]
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """As ray.kill."""
        actor.die("killed")

    def get(self, reference: Reference) -> Any:
        """As ray.get of what is there."""
        if isinstance(reference.value, BaseException):
            raise reference.value
        return reference.value

    def ready_refs(self, references: Any, seconds: float = 0.0) -> list[Reference]:
        """As `ray_actors.ready_refs`."""
        asked, until = list(references), self.now + seconds
        while True:
            ready = [each for each in asked if each.at is not None and each.at <= self.now]
            if ready or self.now >= until:
                return ready
            self.pass_time(STEP)

    def free(self, node: Node) -> float:
        """CPUs that nobody has."""
        return node.cpus - sum(actor.node is node and not actor.dead for actor in self.actors)

    def _happen(self, what: Happening) -> None:
        """Something happens."""
        there = [node for node in self.nodes[1:] if node.gone is None]
        if what.what in ("node", "deaf"):
            self.nodes.append(Node(f"{next(self._ids):056x}", what.size, deaf=what.what == "deaf"))
        elif what.what == "kill" and there:
            there[what.size % len(there)].gone = self.now
        elif what.what == "drain" and there:
            there[what.size % len(there)].drains = True
        elif what.what == "crash":
            up = [actor for actor in self.actors if actor.node is not None and not actor.dead]
            if up:
                up[what.size % len(up)].die("crashed")

    def _scale(self) -> None:
        """An autoscaler brings nodes for those that wait; actors of nodes that are known to be dead
        die.
        """
        waits = sum(
            actor.node is None and not actor.dead and not actor.lost for actor in self.actors
        )  # type: ignore[attr-defined]
        while self.grows and waits > 2 * len(self._coming):
            self.grows -= 1
            self._coming.append(self.now + self.node)
        for at in [at for at in self._coming if at <= self.now]:
            self._coming.remove(at)
            self.nodes.append(Node(f"{next(self._ids):056x}", 2))
        for node in self.nodes:
            if node.gone is not None and self.now >= node.gone + self.notice:
                for actor in self.actors:
                    if actor.node is node and not actor.dead:
                        actor.die("its node died")

    def _seat(self) -> None:
        """Actors that wait get a place: where they were aimed at, or anywhere."""
        for actor in self.actors:
            if actor.node is not None or actor.dead or actor.lost:  # type: ignore[attr-defined]
                continue
            fits = [
                n
                for n in self.nodes
                if not n.deaf and not n.drains and n.gone is None and self.free(n) >= 1.0
            ]
            best = next(
                (node for node in fits if node.id == actor.aimed), fits[0] if fits else None
            )
            if best is not None:
                actor.node, actor.free_at = best, self.now + BOOT
                actor.begin()

    def _look(self) -> None:
        """What is free now, for later."""
        self.views.append(
            (
                self.now,
                {
                    node.id: self.free(node)
                    for node in self.nodes
                    if node.gone is None or node.gone > self.now
                },
            )
        )
        del self.views[:-200]


@contextmanager
def played(play: Play) -> Iterator[Play]:
    """Ray and its clock are a play inside the block."""
    clock = SimpleNamespace(monotonic=lambda: play.now, time=lambda: play.now, sleep=play.pass_time)
    errors = SimpleNamespace(RayError=Died, RayTaskError=Raised)
    ray = SimpleNamespace(get=play.get, kill=play.kill, put=lambda value: value, exceptions=errors)
    with pytest.MonkeyPatch.context() as patch:
        for module in (ray_pool, ray_actors, ray_nodes):
            patch.setattr(module, "time", clock)
        patch.setattr(ray_pool, "ray", ray)
        patch.setattr(ray_actors, "ray", ray)
        for module in (ray_pool, ray_actors):
            patch.setattr(module, "ready_refs", play.ready_refs)
        patch.setattr(ray_pool, "start_actor", play.start)
        patch.setattr(ray_nodes, "read_gcs", play.snapshot)
        patch.setattr(ray_nodes, "driver_node", lambda: HEAD)
        yield play
