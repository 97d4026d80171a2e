"""The app: everything is handed in or made from the settings; nothing starts before the lifespan does."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from xcray import __version__
from xcray.errors import XcrayError
from xcray.jobs.database.clients import EVERY_SECONDS
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.election import Post
from xcray.model.registry import Registry
from xcray.service import openapi
from xcray.service.app_state import Rooms, Supervising
from xcray.service.datasets import builds as building
from xcray.service.datasets.uploads import UploadDesk
from xcray.service.http import auth, problems
from xcray.service.http.access import Gate
from xcray.service.http.audit import Auditor
from xcray.service.http.edge import Guard
from xcray.service.http.limits import Limiter
from xcray.service.models.cache import Opener, PredictorCache, open_predictor
from xcray.service.models.preloading import Preloading
from xcray.service.models.registries import Registries
from xcray.service.models.sync import carriers_of
from xcray.service.observability.checks import readiness_of
from xcray.service.observability.metrics import Disk, Failing, Gauges
from xcray.service.observability.readiness import HANGS
from xcray.service.observability.request_log import LOGGER
from xcray.service.observability.request_tracing import TracedRequests, traced_store
from xcray.service.observability.store_metrics import StoreCollector
from xcray.service.prediction.batcher import Desk
from xcray.service.prediction.shadow import Shadows
from xcray.service.processes.maintenance import Housekeeper
from xcray.service.processes.supervision import post_for, retention_of
from xcray.service.routes import batch, datasets, health, inference, jobs, keys, models, predict
from xcray.service.settings import Settings
from xcray.telemetry import tracing
from xcray.training import TrainSpec

TITLE = "xcray"
TEND_SECONDS = 0.25
MODELS_TURNS = 4  # every second
SUMMARY = "Extreme classification: data sets, trainings, models, exact predictions."


def create_app(
    settings: Settings,
    *,
    store: JobStore | None = None,
    supervisor: Supervising | None = None,
    registry: Registry | None = None,
    authenticate: Callable[[Request], Awaitable[auth.Caller]] | None = None,
    check_spec: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    opener: Opener = open_predictor,
    build_command: Sequence[str] = building.INGEST,
    checks: Mapping[str, Callable[[], None]] | None = None,
    leads: bool = True,
    alone: bool = True,
    whole: bool = True,
) -> FastAPI:
    """The service as an ASGI app.

    store, registry (of the tenant default): those of the home when not given; a store made here is closed at the end. supervisor:
    started and stopped with the app. authenticate: finds the caller of a request; else by the keys of the store. check_spec: a
    job's spec -> the same, validated and whole. opener: model directory -> predictor. build_command: runs `ingest`. checks: by
    reason code, what readiness reports as degraded. leads: whether this process may keep the house: build data sets, sweep what
    was left; on a shared store those that may elect one. alone: whether no other process accepts anything for this home. whole:
    with all routes, or only with those for operators. Raises Conflict when the store is newer than this program.
    """
    home = Home(settings.home)
    kept = store or JobStore(settings.store_url, upgrade=settings.store_upgrade)
    gauges = Gauges(StoreCollector(kept.figures), Disk(home.path, settings.disk_reserve_bytes))
    kept.observe(gauges.stored if not tracing.switch_on("xcray") else traced_store(gauges.stored))
    registries = Registries(home, registry)
    post = post_for(settings, kept)
    rooms = Rooms(
        settings=settings,
        home=home,
        store=kept,
        registries=registries,
        uploads=UploadDesk(home.path / "uploads", settings),
        builder=building.Builder(home, kept, settings, gauges, build_command, post=post),
        predictors=PredictorCache(
            registries.of,
            gauges,
            settings.models_loaded,
            opener,
            tenants=registries.tenants,
            swap_seconds=settings.swap_seconds,
            linger_seconds=settings.linger_seconds,
        ),
        shadows=Shadows(registries.of, gauges),
        desk=Desk(settings.threads, settings.predict_rows, settings.predict_batch_ms / 1e3),
        gauges=gauges,
        check_spec=check_spec or _checked,
        supervisor=supervisor,
        checks=dict(checks or {}),
        preloading=Preloading(settings.preload if whole else ()),
        carriers=carriers_of(settings, home, registries, gauges, post if leads else None),
    )
    rooms.checks.setdefault("MODEL", rooms.predictors.check)
    rooms.readiness = readiness_of(rooms)
    gauges.add(Failing(rooms.readiness.failing))
    life = _life(store is None, _housekeeper(rooms, post, alone) if leads else None)
    return _app(rooms, authenticate or _by_keys(kept, settings), life, whole)


def _app(
    rooms: Rooms, authenticate: Callable[[Request], Awaitable[auth.Caller]], life: Any, whole: bool
) -> FastAPI:
    """Routes behind walls: the guard is the outermost."""
    settings = rooms.settings
    app = FastAPI(
        title=TITLE,
        summary=SUMMARY,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
        lifespan=life,
    )
    app.state.rooms, app.state.settings = rooms, settings
    if whole:
        app.add_middleware(predict.PredictDoor)
    auditor = Auditor(rooms.store, settings.audit_entries)
    app.add_middleware(
        Gate,
        settings=settings,
        authenticate=authenticate,
        limits=Limiter(settings),
        auditor=auditor,
    )
    if tracing.is_on():
        app.add_middleware(TracedRequests)
    app.add_middleware(
        Guard, settings=settings, gauges=rooms.gauges, draining=lambda: rooms.draining
    )
    problems.install(app)
    for room in (
        (predict, batch, datasets, jobs, models, inference, keys, health) if whole else (health,)
    ):
        app.include_router(room.router)
    app.include_router(health.pages)
    openapi.describe(app)
    return app


def _checked(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as the training will read it. Raises ParameterError with the mend."""
    return TrainSpec.from_dict(spec).as_dict()


def _by_keys(store: JobStore, settings: Settings) -> Callable[[Request], Awaitable[auth.Caller]]:
    """Callers by the keys of the store."""
    return auth.Authenticator(
        store, admits_all=settings.admits_all, grace=settings.keys_grace_seconds
    )


def _housekeeper(rooms: Rooms, post: Post, alone: bool) -> Housekeeper:
    """Who keeps the house from here, while it has the post."""
    settings = rooms.settings
    alone = alone and settings.workers == 1 and not settings.shares_store
    return Housekeeper(
        rooms.builder,
        rooms.uploads,
        post,
        alone=alone,
        sweep=retention_of(settings, rooms.home, rooms.store).turn,
    )


def _life(own_store: bool, house: Housekeeper | None) -> Callable[[FastAPI], Any]:
    """What happens around serving: take up what was left, start the supervisor; end both, close what is ours."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        rooms: Rooms = app.state.rooms
        if house is not None:
            await house.turn()
        await rooms.readiness.look(
            HANGS
        )  # so that who asks first is not told that nothing is known yet
        LOGGER.info("started")
        watching = [
            asyncio.create_task(_tend(rooms, house), name="tend"),
            asyncio.create_task(rooms.readiness.watch(), name="readiness"),
            asyncio.create_task(_attend(rooms), name="attend"),
            asyncio.create_task(rooms.preloading.load(rooms.predictors), name="preload"),
        ]
        if rooms.supervisor is not None:
            rooms.supervisor.start()
        for carrier in rooms.carriers:
            carrier.start()
        try:
            yield
        finally:
            rooms.draining = True
            for task in watching:
                task.cancel()
            if rooms.supervisor is not None:
                rooms.supervisor.stop()
            for carrier in rooms.carriers:
                await asyncio.to_thread(carrier.close)
            await (rooms.builder if house is None else house).close()
            rooms.predictors.close()
            rooms.shadows.close()
            rooms.desk.close()
            if own_store:
                rooms.store.close()
            tracing.switch_off()
            LOGGER.info("ended")

    return life


async def _attend(rooms: Rooms) -> None:
    """Note in the store that this process works with it, for those who would upgrade it; nobody waits for that."""
    while True:
        try:
            await asyncio.to_thread(rooms.store.attend)
        except XcrayError as error:
            LOGGER.warning("the store was not told that we use it", extra={"detail": error.message})
        await asyncio.sleep(EVERY_SECONDS)


async def _tend(rooms: Rooms, house: Housekeeper | None) -> None:
    """What other processes of the home bring about: models they delete, data sets they accept or delete, a post that is free."""
    for turn in itertools.count():
        begun = time.monotonic()
        await asyncio.sleep(TEND_SECONDS)
        rooms.gauges.loop_lag.observe(max(0.0, time.monotonic() - begun - TEND_SECONDS))
        try:
            if house is not None:
                await house.turn()
            if turn % MODELS_TURNS == 0:
                await asyncio.to_thread(rooms.predictors.look)
                await asyncio.to_thread(rooms.shadows.flush, rooms.store)
        except (XcrayError, OSError) as error:  # the next turn comes soon
            LOGGER.warning("tending failed", extra={"detail": str(error)})
