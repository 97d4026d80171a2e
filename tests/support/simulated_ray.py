"""Simulated Ray: actors, nodes and cluster state on a simulated clock, with realistic faults.

    with played(Play(...)) as play:      # RayPool is the real one, Ray and the clock are simulated
        ...

The simulation covers what a driver can observe. A requested actor is placed when a node has room.
The view of free resources lags behind. A dead node is reported as alive for a while. A request can
be lost, and a node may never have received the job.
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
from xcray.workers.ray import workers as ray_workers
from xcray.workers.ray.cluster_state import GcsSnapshot
from xcray.workers.worker_group import CallOutcome

BOOT = 2.0  # seconds from the placement of an actor to the start of its process
STEP = 0.25
HEAD = "f" * 56


class Died(Exception):
    """Replaces ray.exceptions.RayError."""


class Raised(Died):
    """Replaces ray.exceptions.RayTaskError; never raised here."""


@dataclass(frozen=True)
class Happening:
    """An event at a time.

    what: "node": a node with `size` CPUs joins; "deaf": the same, but it never received the job;
    "kill" or "drain": affects the live node number `size`; "reset": kill, and its actors are lost
    before it is reported as dead; "crash": one actor crashes; "message": the calls of one actor
    fail, and the actor lives on.
    """

    at: float
    what: str
    size: int = 1


@dataclass
class Node:
    """A machine.

    gone: time of its death. deaf: it has room but starts no actors. drains: it gets no new actors.
    """

    id: str
    cpus: int
    unresponsive: bool = False
    died_at: float | None = None
    drains: bool = False


class Reference:
    """The result of a call: from time `at` on, `value` or an error."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.value: Any = None

    def give(self, at: float, value: Any) -> None:
        """Set the result and its time; only an error replaces an earlier result."""
        if self.at is None or isinstance(value, BaseException):
            self.at, self.value = at, value


class Actor:
    """One worker: its calls wait for its process, then run one after the other."""

    def __init__(self, play: SimulatedRun, name: str, aimed: str) -> None:
        self.play = play
        self.name = name
        self.aimed = aimed
        self.node: Node | None = None
        self.free_at = 0.0
        self.calls: list[tuple[Reference, Callable[[float], tuple[float, Any]]]] = []
        self.dead = False
        self.out: list[Reference] = []
        for verb in ("location", "open", "pid", "stop", "cancel", "load"):
            setattr(self, verb, _Method(self, verb))
        self.call = _Method(self, "solve", results=2)

    def run(self, verb: str, *args: Any) -> Reference:
        """Call a method."""
        reference = Reference()
        self.out.append(reference)
        if self.dead:
            reference.give(self.play.now, Died("the actor is dead"))
        elif verb in ("location", "pid"):  # answered while other work runs
            self.calls.append(
                (reference, lambda now: (now, ("10.0.0.1", self.node.id if self.node else "")))
            )
        elif verb == "open":
            self.calls.append((reference, lambda now: (now + 0.5, True)))
        elif verb == "solve":
            (labels,) = args[2]
            seconds = sum(self.play.costs[label] for label in labels)
            self.calls.append((reference, lambda now: self._solved(now, seconds)))
        self.begin()
        return reference

    def _solved(self, now: float, seconds: float) -> tuple[float, Any]:
        """Solve a batch after the previous one."""
        began = max(now, self.free_at)
        self.free_at = began + seconds
        return self.free_at, CallOutcome(b"", False, None, began, seconds, seconds)

    def begin(self) -> None:
        """Run the waiting calls if there is a process."""
        if self.node is None or self.dead:
            return
        for reference, done in self.calls:
            reference.give(*done(max(self.play.now, self.free_at if done else 0.0)))
        self.calls = []

    def die(self, why: str) -> None:
        """End the actor and all its unfinished calls."""
        self.dead = True
        self.fail_calls(why)

    def fail_calls(self, why: str) -> None:
        """End all unfinished calls with an error."""
        for reference in self.out:
            if reference.at is None or reference.at > self.play.now:
                reference.at = None
                reference.give(self.play.now, Died(why))
        self.calls = []


class _Method:
    """A method of an actor, like those of Ray's handles."""

    def __init__(self, actor: Actor, verb: str, results: int = 1) -> None:
        self._actor = actor
        self._verb = verb
        self._results = results

    def options(self, **_: Any) -> _Method:
        """Ignore the options."""
        return self

    def remote(self, *args: Any) -> Any:
        """Call the method; return the references of its results, of which the last is used."""
        last = self._actor.run(self._verb, *args)
        return last if self._results == 1 else (None, last)


@dataclass
class SimulatedRun:
    """The course of events of a simulation.

    costs: seconds per label. happenings: the events. lost: numbers of the actors whose request is
    lost. lag: age in seconds of the view of free resources. notice: seconds until a dead node is
    reported as dead. grows: number of nodes with two CPUs that an autoscaler can add. node: seconds
    from a waiting actor to such a node.
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
        """Advance the clock in steps."""
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
        """Return the state as readable text."""
        waiting = [actor.name for actor in self.actors if not actor.dead and actor.node is None]
        return [f"{len(self.nodes)} nodes", f"waiting {waiting}", f"free {self.views[-1][1]}"]

    def snapshot(self) -> GcsSnapshot:
        """Return the head's view: `lag` seconds old, with dead nodes alive for `notice` seconds."""
        free = next((view for at, view in reversed(self.views) if at <= self.now - self.lag), {})
        rows = []
        for node in self.nodes:
            alive = node.died_at is None or self.now < node.died_at + self.notice
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
        self, kind: Any, work: Any, job: str, worker: str, request: Any, scheduling_strategy: Any
    ) -> Actor:
        """Replace `start_actor`."""
        actor = Actor(self, worker, getattr(scheduling_strategy, "node_id", ""))
        actor.lost = next(self._started) in self.lost  # type: ignore[attr-defined]
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """Replace ray.kill."""
        actor.die("killed")

    def get(self, reference: Reference, timeout: float = 0.0) -> Any:
        """Replace ray.get for finished calls."""
        if isinstance(reference.value, BaseException):
            raise reference.value
        return reference.value

    def ready_refs(
        self, references: Any, seconds: float = 0.0, gather: float = 0.0
    ) -> list[Reference]:
        """Replace `ray_actors.ready_refs`; it gathers nothing."""
        request, until = list(references), self.now + seconds
        while True:
            ready = [each for each in request if each.at is not None and each.at <= self.now]
            if ready or self.now >= until:
                return ready
            self.pass_time(STEP)

    def free(self, node: Node) -> float:
        """Return the free CPUs of a node."""
        return node.cpus - sum(actor.node is node and not actor.dead for actor in self.actors)

    def _happen(self, what: Happening) -> None:
        """Apply one event."""
        there = [node for node in self.nodes[1:] if node.died_at is None]
        if what.what in ("node", "deaf"):
            self.nodes.append(
                Node(f"{next(self._ids):056x}", what.size, unresponsive=what.what == "deaf")
            )
        elif what.what in ("kill", "reset") and there:
            node = there[what.size % len(there)]
            node.died_at = self.now
            for actor in self.actors if what.what == "reset" else ():
                if actor.node is node:
                    actor.die("its connection was reset")
        elif what.what == "drain" and there:
            there[what.size % len(there)].drains = True
        elif what.what in ("crash", "message"):
            up = [actor for actor in self.actors if actor.node is not None and not actor.dead]
            if up and what.what == "crash":
                up[what.size % len(up)].die("crashed")
            elif up:
                up[what.size % len(up)].fail_calls("unavailable")

    def _scale(self) -> None:
        """Add the nodes of the autoscaler; end actors of nodes that are reported as dead."""
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
            if node.died_at is not None and self.now >= node.died_at + self.notice:
                for actor in self.actors:
                    if actor.node is node and not actor.dead:
                        actor.die("its node died")

    def _seat(self) -> None:
        """Place waiting actors: at their preferred node, or at any."""
        for actor in self.actors:
            if actor.node is not None or actor.dead or actor.lost:  # type: ignore[attr-defined]
                continue
            fits = [
                n
                for n in self.nodes
                if not n.unresponsive and not n.drains and n.died_at is None and self.free(n) >= 1.0
            ]
            best = next(
                (node for node in fits if node.id == actor.aimed), fits[0] if fits else None
            )
            if best is not None:
                actor.node, actor.free_at = best, self.now + BOOT
                actor.begin()

    def _look(self) -> None:
        """Record the current free resources."""
        self.views.append(
            (
                self.now,
                {
                    node.id: self.free(node)
                    for node in self.nodes
                    if node.died_at is None or node.died_at > self.now
                },
            )
        )
        del self.views[:-200]


@contextmanager
def played(play: SimulatedRun) -> Iterator[SimulatedRun]:
    """Replace Ray and its clock by the simulation inside the block."""
    clock = SimpleNamespace(monotonic=lambda: play.now, time=lambda: play.now, sleep=play.pass_time)
    errors = SimpleNamespace(RayError=Died, RayTaskError=Raised)
    ray = SimpleNamespace(get=play.get, kill=play.kill, put=lambda value: value, exceptions=errors)
    with pytest.MonkeyPatch.context() as patch:
        for module in (ray_pool, ray_workers, ray_actors, ray_nodes):
            patch.setattr(module, "time", clock)
        for module in (ray_workers, ray_actors):
            patch.setattr(module, "ray", ray)
        for module in (ray_pool, ray_actors):
            patch.setattr(module, "ready_refs", play.ready_refs)
        patch.setattr(ray_workers, "start_actor", play.start)
        patch.setattr(ray_nodes, "read_gcs", play.snapshot)
        patch.setattr(ray_nodes, "driver_node", lambda: HEAD)
        yield play
