"""Loaded models: who answers a reference now, and how one version takes over from another while requests come.

A version never changes and its number is never used again, so (tenant, name, version) is the key. Where a reference leads is read
anew for each request (two questions to the file system while nothing changes). When it leads elsewhere, the new version is
loaded, verified and warmed while the old one answers; then it takes over between two requests. That is bounded by `swap_seconds`:
later, requests wait for the new one. A version that can't be loaded does not take over: the old one goes on, and readiness says
so (MODEL). What nobody needs any more is let go after `linger_seconds`, so that going back at once is quick; a request holds its
predictor until it is answered. Each process does this by itself, on requests and once a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from xcray.errors import Corrupt, NotFound, ParameterError, Refused, Unavailable, XcrayError
from xcray.jobs.home import DEFAULT_TENANT
from xcray.model.registry import Registry
from xcray.model.traffic_split import Route
from xcray.service.models.endpoints import Place, Serving
from xcray.service.models.loading import Key, Loaded, Loader, Opener, Wanted, open_predictor
from xcray.service.observability.metrics import Gauges
from xcray.service.observability.request_log import LOGGER
from xcray.system.processes import lower_thread_priority

__all__ = ["Loaded", "Opener", "PredictorCache", "VersionState", "Wanted", "open_predictor"]

LOADERS: Final = (
    2  # requests that wait for models load them in so many threads; swaps have one of their own
)
PLACES: Final = 1024  # references that are remembered
TRIES: Final = 5  # a version may be deleted between being found and being opened
KEPT_TURNS: Final = 5  # looks between two looks for references to be held


class VersionState(NamedTuple):
    """A version as this process sees it. state: LOADED, AVAILABLE (the first request loads it) or CORRUPT, with the reason."""

    name: str
    version: int
    state: str
    reason: str = ""


class PredictorCache:
    """Who answers which reference; at most `capacity` versions loaded. Safe for many threads."""

    def __init__(
        self,
        registry_of: Callable[[str], Registry],
        gauges: Gauges,
        capacity: int,
        opener: Opener = open_predictor,
        *,
        tenants: Callable[[], Iterable[str]] = lambda: (DEFAULT_TENANT,),
        swap_seconds: float = 300.0,
        linger_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """registry_of: the registry of a tenant. tenants: all of them. clock: monotonic seconds."""
        self._registry_of = registry_of
        self._tenants = tenants
        self._gauges = gauges
        self._capacity = capacity
        self._swap_seconds = swap_seconds
        self._linger = linger_seconds
        self._clock = clock
        self._loader = Loader(registry_of, gauges, opener, clock)
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="xcray-load")
        self._swapper = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-swap", initializer=lower_thread_priority
        )
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, str], Place] = OrderedDict()
        self._kept: set[tuple[str, str]] = set()
        self._unneeded: dict[Key, float] = {}
        self._uses = self._looks = 0
        self._closed = False

    async def find(self, wanted: Wanted) -> Loaded:
        """`get` on the event loop: at once when somebody answers, else a thread loads who will."""
        place = self._places.get((wanted.tenant, wanted.reference))
        serving = (
            place.serving if place is not None and place.settled() else self._answering(wanted)
        )
        (self._gauges.found_waited if serving is None else self._gauges.found_mapped).inc()
        if serving is None:
            return await asyncio.get_running_loop().run_in_executor(self._loaders, self.get, wanted)
        return self._picked(wanted, serving)

    def get(self, wanted: Wanted) -> Loaded:
        """The version that answers a request. Raises NotFound, ParameterError, Corrupt (when there is none that can)."""
        return self._picked(wanted, self._answering(wanted) or self._settle(self._place(wanted)))

    def shadow(self, wanted: Wanted) -> Loaded | None:
        """The version that shall get a copy of a request, if any. Asks nobody."""
        place = self._places.get((wanted.tenant, wanted.reference))
        serving = None if place is None else place.serving
        return (
            None
            if serving is None or serving.shadow is None
            else serving.copies(wanted.reference, wanted.key)
        )

    def prepare(self, tenant: str, name: str, alias: str, route: Route) -> None:
        """Load what an alias will lead to, when requests use it now: nobody waits once it moves. Raises Corrupt, NotFound."""
        if (tenant, f"{name}@{alias}") in self._places:
            for version in route.versions:
                self._loader.get((tenant, name, version))

    def moved(self, tenant: str, name: str) -> None:
        """Follow a change of a name at once: the next request sees it. What must be loaded first takes over as soon as it is."""
        for place in self._places_of(tenant, name):
            self._followed(place)
        self._let_go(self._linger)

    def load(self, tenant: str, reference: str) -> Loaded:
        """Load what a reference means, and have every process hold it until `unload`, whatever it comes to mean.

        Raises NotFound, ParameterError, Corrupt, and Refused when that would leave no room for others.
        """
        if (tenant, reference) not in self._kept and len(self._kept) >= self._capacity:
            raise Refused(
                f"{len(self._kept)} models are held already: unload one, or raise XCRAY_MODELS_LOADED",
                code="MODELS_LOADED",
            )
        found = self.get(Wanted(tenant, reference))
        self._registry_of(tenant).keep(reference)
        self._kept.add((tenant, reference))
        return found

    def unload(self, tenant: str, reference: str) -> None:
        """Let go of what a reference means, in every process; of a bare name all its versions. The next request loads it again.

        Requests in flight finish. Raises NotFound, ParameterError.
        """
        self._registry_of(tenant).let_go(reference)
        for place in self._places_of(tenant, reference.partition(":")[0].partition("@")[0]):
            if reference in place.stands_for():
                self._remove(place)
        self._let_go(0.0)

    def index(self, tenant: str) -> list[VersionState]:
        """All versions of a tenant, by name and number."""
        return [
            state
            for name in self._registry_of(tenant).names()
            for state in self.states(tenant, name)
        ]

    def states(self, tenant: str, name: str) -> list[VersionState]:
        """The versions of a name, by number."""
        registry = self._registry_of(tenant)
        return [
            self._state(tenant, name, version, registry.corrupt(name))
            for version in registry.versions(name)
        ]

    def held(self, tenant: str) -> set[tuple[str, int]]:
        """(name, version) of those of a tenant that are loaded now."""
        return {
            (name, version) for owner, name, version in list(self._loader.loaded) if owner == tenant
        }

    def check(self) -> None:
        """Raise Unavailable MODEL while a reference is answered by another version than it leads to, as that can't be loaded."""
        troubled = [
            place
            for place in list(self._places.values())
            if place.trouble is not None or place.hindered is not None
        ]
        if troubled:
            first = troubled[0].trouble or troubled[0].hindered
            raise Unavailable(
                f"{len(troubled)} of the models in use are not as they should be: {first}",
                code="MODEL",
            )

    def look(self) -> None:
        """Once a second: follow what other processes changed, try again what failed, let go of what nobody needs."""
        for place in list(self._places.values()):
            if place.serving is not None and not place.swapping:
                self._followed(place)
        if self._looks % KEPT_TURNS == 0:
            self._look_for_kept()
        self._looks += 1
        self._let_go(self._linger)
        loaded = list(self._loader.loaded.values())
        self._gauges.models_loaded.set(len(loaded))
        self._gauges.filters_loaded.set(sum(one.n_filters for one in loaded))

    def close(self) -> None:
        """Load no more, let go of all."""
        self._closed = True
        for pool in (self._swapper, self._loaders):
            pool.shutdown(wait=True, cancel_futures=True)
        self._loader.close()
        self._places.clear()

    def _picked(self, wanted: Wanted, serving: Serving) -> Loaded:
        """One of those that answer."""
        place = self._places.get((wanted.tenant, wanted.reference))
        if place is not None:
            self._uses += 1
            place.used = self._uses
        if len(serving.members) == 1:
            return serving.members[0]
        loaded = serving.pick(wanted.reference, wanted.key)
        self._gauges.routed.labels(
            "stable" if loaded.version == serving.route.primary else "canary"
        ).inc()
        return loaded

    def _answering(self, wanted: Wanted) -> Serving | None:
        """Who answers now; None when the caller had better wait for `_settle`. Raises NotFound, ParameterError, Corrupt."""
        place = self._place(wanted)
        try:
            place.relocate()
        except XcrayError:
            self._remove(place)
            raise
        if place.serving is None or (
            place.changed is not None and place.overdue(self._swap_seconds)
        ):
            return None
        if place.changed is not None:
            self._swap(place)
        return place.serving

    def _place(self, wanted: Wanted) -> Place:
        """The place of a reference, a new one when it has none."""
        key = (wanted.tenant, wanted.reference)
        place = self._places.get(key)
        if place is None:
            with self._lock:
                place = self._places.setdefault(
                    key, Place(*key, self._registry_of(wanted.tenant), self._clock)
                )
                place.used = self._uses = self._uses + 1
                while len(self._places) > PLACES:
                    self._places.pop(min(self._places, key=lambda each: self._places[each].used))
        return place

    def _swap(self, place: Place) -> None:
        """Have another version take over: now when it is loaded, else once a thread has loaded it."""
        if place.leads() <= set(self._loader.loaded):
            self._settle(place)
        elif not (place.swapping or self._closed):
            place.swapping = True
            self._swapper.submit(self._swapped, place)

    def _swapped(self, place: Place) -> None:
        """`_settle` in a thread."""
        try:
            self._settle(place)
        except XcrayError as error:
            place.trouble = None if isinstance(error, NotFound) else error
            LOGGER.warning(
                "a model was not swapped", extra={"model": place.reference, "detail": error.message}
            )
        finally:
            place.swapping = False

    def _settle(self, place: Place) -> Serving:
        """Load what a place leads to, and have it answer. Raises NotFound, Corrupt when nobody can."""
        gone: NotFound | None = None
        try:
            for attempt in range(TRIES):
                route = place.relocate(again=attempt > 0)
                found: dict[int, Loaded] = {}
                failed: list[Corrupt] = []
                try:
                    for version in route.versions:
                        try:
                            found[version] = self._loader.get((place.tenant, place.name, version))
                        except Corrupt as error:
                            failed.append(error)
                except NotFound as error:  # deleted since: look where it leads now
                    gone = error
                    continue
                return self._switch(place, route, found, failed)
        except XcrayError:
            if place.serving is None:
                self._remove(place)
            raise
        assert gone is not None
        if place.serving is None:
            self._remove(place)
            raise gone
        place.trouble = gone
        return place.serving

    def _switch(
        self, place: Place, route: Route, found: dict[int, Loaded], failed: list[Corrupt]
    ) -> Serving:
        """Who answers a route, of which some versions may have failed: those that are there, else who did, else who did before."""
        if any(version in found for version in route.answering):
            serving = Serving.of(route, found)
        elif place.serving is not None:
            serving = place.serving._replace(route=route, shadow=None)
        else:
            serving = Serving.instead(route, self._former(place, failed[0]))
        with self._lock:
            self._loader.loaded.update({one.key: one for one in serving.held})
            if place.serve(serving, failed[0] if failed else None):
                self._gauges.swaps.inc()
                versions = {
                    "model": place.reference,
                    "versions": [one.version for one in serving.members],
                }
                LOGGER.info("another version answers", extra=versions)
        self._make_room(place)
        return serving

    def _former(self, place: Place, error: Corrupt) -> Loaded:
        """A version that a place led to before and that can be loaded. Raises the error of the present one when there is none."""
        for version in [] if place.fixed else place.registry.previous(place.name, place.alias):
            try:
                return self._loader.get((place.tenant, place.name, version))
            except (Corrupt, NotFound) as another:
                LOGGER.warning(
                    "nor can an earlier version be loaded",
                    extra={"model": place.name, "detail": another.message},
                )
        raise error

    def _followed(self, place: Place) -> None:
        """Follow where a place leads, or forget it when it leads nowhere."""
        try:
            if place.stamp is None or not place.settled():
                place.relocate()
                if self._asked_to_go(place):
                    self._remove(place)
                    return
        except (NotFound, ParameterError):
            self._remove(place)
            return
        except (XcrayError, OSError) as error:  # told by `check`; the next look comes soon
            LOGGER.warning(
                "a reference can't be followed",
                extra={"model": place.reference, "detail": str(error)},
            )
            return
        again = place.trouble is not None and any(
            self._loader.failure(key) is None for key in place.leads() - place.holds()
        )
        if place.changed is not None or again:
            self._swap(place)

    def _asked_to_go(self, place: Place) -> bool:
        """Whether somebody asked, since it was last looked at, that what it stands for be let go."""
        _, unloads = place.registry.kept(place.name)
        before, place.unloads = (
            place.unloads,
            {reference: unloads.get(reference, 0) for reference in place.stands_for()},
        )
        return before is not None and any(
            times > before.get(reference, times) for reference, times in place.unloads.items()
        )

    def _look_for_kept(self) -> None:
        """Have what shall be held answer before anybody asks."""
        wanted = set()
        for tenant in self._tenants():
            registry = self._registry_of(tenant)
            for name in registry.names():
                wanted |= {(tenant, reference) for reference in registry.kept(name)[0]}
        self._kept = wanted
        for tenant, reference in wanted:
            if (tenant, reference) not in self._places:
                try:
                    self.get(Wanted(tenant, reference))
                except XcrayError as error:
                    LOGGER.warning(
                        "a model that shall be held is not",
                        extra={"model": reference, "detail": error.message},
                    )

    def _places_of(self, tenant: str, name: str) -> list[Place]:
        """The places of a name."""
        return [
            place
            for place in list(self._places.values())
            if (place.tenant, place.name) == (tenant, name)
        ]

    def _remove(self, place: Place) -> None:
        """Forget a place."""
        with self._lock:
            if self._places.get((place.tenant, place.reference)) is place:
                del self._places[place.tenant, place.reference]

    def _let_go(self, linger: float) -> None:
        """Drop versions that nobody needed for `linger` seconds, or that are deleted; requests that hold one finish with it."""
        now = self._clock()
        with self._lock:
            needed = {
                key for place in self._places.values() for key in (*place.holds(), *place.leads())
            }
            unneeded = [key for key in list(self._loader.loaded) if key not in needed]
            self._unneeded = {key: self._unneeded.get(key, now) for key in unneeded}
            idle = dict(self._unneeded)
        for key, since in idle.items():
            if now - since >= linger or key[2] not in self._registry_of(key[0]).versions(key[1]):
                self._drop(key)

    def _make_room(self, place: Place) -> None:
        """Drop versions that are too many: those that nobody needs, then those asked longest ago; never what is to be held."""
        while len(self._loader.loaded) > self._capacity:
            with self._lock:
                others = [each for each in self._places.values() if each.serving is not None]
                last: dict[Key, float] = dict.fromkeys(self._loader.loaded, -1.0)
                for each in others:
                    kept = each is place or (each.tenant, each.reference) in self._kept
                    for key in each.holds() & set(last):
                        last[key] = max(last[key], float("inf") if kept else each.used)
                victim = min(last, key=lambda key: last[key], default=None)
                if victim is None or last[victim] == float("inf"):
                    return
                for each in [each for each in others if victim in each.holds()]:
                    self._places.pop((each.tenant, each.reference), None)
            self._drop(victim)

    def _drop(self, key: Key) -> None:
        """Let go of a version."""
        self._unneeded.pop(key, None)
        if self._loader.drop(key) is not None:
            self._gauges.model_unloads.inc()

    def _state(self, tenant: str, name: str, version: int, corrupt: dict[int, str]) -> VersionState:
        """One version."""
        key = (tenant, name, version)
        failure = self._loader.failure(key)
        if key in self._loader.loaded:
            return VersionState(name, version, "LOADED")
        if failure is not None or version in corrupt:
            return VersionState(name, version, "CORRUPT", corrupt.get(version) or str(failure))
        return VersionState(name, version, "AVAILABLE")
