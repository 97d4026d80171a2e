"""The app: everything is handed in or made from the settings; nothing starts before the lifespan does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request

from xcray import __version__
from xcray.errors import XcrayError
from xcray.jobs.home import Home
from xcray.jobs.store import JobStore
from xcray.model.registry import Registry
from xcray.service import auth, building, openapi, problems
from xcray.service.auditing import Auditor
from xcray.service.desk import Desk
from xcray.service.gate import Gate
from xcray.service.gauges import Gauges
from xcray.service.guard import Guard
from xcray.service.limits import Limiter
from xcray.service.logs import LOGGER
from xcray.service.predictors import Opener, PredictorCache, open_predictor
from xcray.service.registries import Registries
from xcray.service.routes import batch, datasets, health, inference, jobs, keys, models, predict
from xcray.service.settings import Settings
from xcray.service.state import Rooms, Supervising
from xcray.service.uploads import UploadDesk
from xcray.train import TrainSpec

TITLE = "xcray"
TEND_SECONDS = 0.25
MODELS_TURNS = 20  # every five seconds
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
) -> FastAPI:
    """The service as an ASGI app.

    settings: see Settings. store, registry (of the tenant default): those of the home when not given; a store made here is closed at the end.
    supervisor: started and stopped with the app. authenticate: finds the caller of a request; by the keys of the store when
    not given. check_spec: a job's spec as a dictionary -> the same, validated and whole. opener: model directory -> predictor. build_command: runs `ingest`.
    checks: by reason code, what readiness reports as degraded. leads: whether this is the one process of the home that builds data
    sets and sweeps what was left. Raises Conflict when the store is newer than this program.
    """
    home = Home(settings.home)
    kept = store or JobStore(home.store_url)
    gauges = Gauges(kept.counts)
    registries = Registries(home, registry)
    who = authenticate or _by_keys(kept, settings)
    rooms = Rooms(
        settings=settings,
        home=home,
        store=kept,
        registries=registries,
        uploads=UploadDesk(home.path / "uploads", settings),
        builder=building.Builder(home, kept, settings, gauges, build_command, leads=leads),
        predictors=PredictorCache(registries.of, gauges, settings.models_loaded, opener),
        desk=Desk(settings.threads, settings.predict_rows, settings.predict_batch_ms / 1e3),
        gauges=gauges,
        check_spec=check_spec or _checked,
        supervisor=supervisor,
        checks=dict(checks or {}),
    )
    app = FastAPI(
        title=TITLE,
        summary=SUMMARY,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
        lifespan=_life(store is None, leads),
    )
    app.state.rooms, app.state.settings = rooms, settings
    app.add_middleware(predict.PredictDoor)
    app.add_middleware(
        Gate, settings=settings, authenticate=who, limits=Limiter(settings), auditor=Auditor(kept, settings.audit_entries)
    )
    app.add_middleware(Guard, settings=settings, gauges=gauges)
    problems.install(app)
    for room in (predict, batch, datasets, jobs, models, inference, keys, health):
        app.include_router(room.router)
    app.include_router(health.pages)
    openapi.describe(app)
    return app


def _checked(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as the training will read it. Raises ParameterError with the mend."""
    return TrainSpec.from_dict(spec).as_dict()


def _by_keys(store: JobStore, settings: Settings) -> Callable[[Request], Awaitable[auth.Caller]]:
    """Callers by the keys of the store."""
    return auth.Authenticator(store, admits_all=settings.admits_all, grace=settings.keys_grace_seconds)


def _life(own_store: bool, leads: bool) -> Callable[[FastAPI], Any]:
    """What happens around serving: take up what was left, start the supervisor; end both, close what is ours."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        rooms: Rooms = app.state.rooms
        swept, left = (rooms.uploads.sweep(), await rooms.builder.take_up()) if leads else (0, 0)
        LOGGER.info("started", extra={"uploads_swept": swept, "builds_taken_up": left})
        tending = asyncio.create_task(_tend(rooms, leads), name="tend")
        if rooms.supervisor is not None:
            rooms.supervisor.start()
        try:
            yield
        finally:
            rooms.draining = True
            tending.cancel()
            if rooms.supervisor is not None:
                rooms.supervisor.stop()
            await rooms.builder.close()
            rooms.predictors.close()
            rooms.desk.close()
            if own_store:
                rooms.store.close()
            LOGGER.info("ended")

    return life


async def _tend(rooms: Rooms, leads: bool) -> None:
    """What other processes of the home bring about: models they delete, data sets they accept or delete."""
    for turn in itertools.count():
        await asyncio.sleep(TEND_SECONDS)
        try:
            if leads and rooms.settings.workers > 1:
                await rooms.builder.look()
            if turn % MODELS_TURNS == 0:
                await asyncio.to_thread(rooms.predictors.forget_deleted)
        except (XcrayError, OSError) as error:  # the next turn comes soon
            LOGGER.warning("tending failed", extra={"detail": str(error)})
