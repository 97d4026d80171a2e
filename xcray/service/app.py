"""The ASGI application. Dependencies are passed in or created from the settings.

Nothing starts before the lifespan does.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, FastAPI, Request

from xcray import __version__
from xcray.errors import XcrayError
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.keys import KeyTable
from xcray.jobs.supervision.election import Leadership
from xcray.jobs.supervision.supervisor import Supervisor
from xcray.model.registry import Registry
from xcray.service import constants, openapi
from xcray.service.app_state import AppState
from xcray.service.datasets import builds
from xcray.service.datasets.uploads import UploadStore
from xcray.service.http import auth, problems
from xcray.service.http.access import AccessMiddleware
from xcray.service.http.audit import Auditor
from xcray.service.http.edge import EdgeMiddleware
from xcray.service.http.head import HeadMiddleware
from xcray.service.http.limits import Limiter
from xcray.service.http.query import refuse_unknown_parameters
from xcray.service.http.request_tracing import TracingMiddleware, trace_transactions
from xcray.service.http.service_app import ServiceApp
from xcray.service.maintenance import MaintenanceLoop
from xcray.service.models.cache import ModelCache, Opener, open_predictor_soon
from xcray.service.models.preloading import Preloading
from xcray.service.models.registries import Registries
from xcray.service.observability.metrics import (
    DiskCollector,
    DriftCollector,
    FailingChecksCollector,
    Metrics,
)
from xcray.service.observability.readiness import HANG_SECONDS
from xcray.service.observability.request_log import LOGGER
from xcray.service.observability.store_metrics import StoreCollector
from xcray.service.prediction.batcher import Batcher
from xcray.service.prediction.fast_path import PredictFastPath
from xcray.service.prediction.services import PredictionServices
from xcray.service.prediction.shadow import ShadowRunner
from xcray.service.prediction.sharded_scorer import with_shards
from xcray.service.readiness_checks import build_readiness
from xcray.service.routes import (
    batch,
    comparisons,
    datasets,
    feedback,
    health,
    inference,
    jobs,
    keys,
    labels,
    models,
    pictures,
    predict,
    solvers,
    updates,
    versions,
)
from xcray.service.settings import Settings
from xcray.service.supervision import leadership_for, retention_of
from xcray.telemetry import tracing
from xcray.training import TrainSpec

TITLE = "xcray"
TICK_SECONDS = 0.25
MODEL_POLL_TICKS = 4  # once per second
SUMMARY = "Extreme classification: data sets, training jobs, models, exact predictions."


@dataclass(frozen=True)
class AppParts:
    """Parts of an app that are not made from the settings, for embedding and tests.

    store, registry (of the default tenant): taken from the home if not given; a store created by
    the app is closed at its end. supervisor: started and stopped with the app. authenticate:
    returns the caller of a request; the default checks the keys of the store. check_spec: validates
    a job's spec and fills in the defaults. opener: loads a predictor from a model directory.
    build_command: command that runs `ingest`. checks: by reason code, the checks that readiness
    reports as degraded.
    """

    store: JobStore | None = None
    supervisor: Supervisor | None = None
    registry: Registry | None = None
    authenticate: Callable[[Request], Awaitable[auth.Caller]] | None = None
    check_spec: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    opener: Opener = open_predictor_soon
    build_command: Sequence[str] = builds.INGEST_COMMAND
    checks: Mapping[str, Callable[[], None]] = field(default_factory=dict)


@dataclass(frozen=True)
class AppRole:
    """What this process does among the processes of a service.

    leader_eligible: whether it can run maintenance (build data sets, remove leftovers); on a shared
    store the eligible processes elect a leader. exclusive_home: whether no other process accepts
    data for this home. all_routes: all routes, or only those for operators.
    """

    leader_eligible: bool = True
    exclusive_home: bool = True
    all_routes: bool = True


def create_app(
    settings: Settings, *, parts: AppParts | None = None, role: AppRole | None = None
) -> FastAPI:
    """Return the service as an ASGI app. Raises Conflict if the store is newer than this program.

    parts: by default all are made from the settings. role: by default that of the only process.
    """
    parts, role = parts or AppParts(), role or AppRole()
    home = Home(settings.home)  # creates the folder, in which the store can be
    store = parts.store or JobStore(settings.store_url, upgrade=settings.store_upgrade)
    leadership = leadership_for(settings, store)
    app_state = _create_state(settings, home, store, leadership, parts, role)
    app_state.checks.setdefault("MODEL", app_state.prediction.model_cache.check)
    app_state.readiness = build_readiness(app_state)
    app_state.metrics.add_collector(FailingChecksCollector(app_state.readiness.failing_checks))
    app_state.metrics.add_collector(DriftCollector(app_state.prediction.model_cache.drift))
    maintenance = None
    if role.leader_eligible:
        maintenance = _maintenance_loop(app_state, leadership, role.exclusive_home)
    lifespan = _lifespan(parts.store is None, maintenance)
    authenticate = parts.authenticate or _key_authenticator(store.keys, settings)
    return _build_app(app_state, authenticate, lifespan, role.all_routes)


def _create_state(
    settings: Settings,
    home: Home,
    store: JobStore,
    leadership: Leadership,
    parts: AppParts,
    role: AppRole,
) -> AppState:
    """Return the state of an app: the parts that were given, and the others from the settings."""
    metrics = _create_metrics(settings, home, store)
    registries = Registries(home, parts.registry)
    return AppState(
        settings=settings,
        home=home,
        store=store,
        registries=registries,
        uploads=UploadStore(home.path / "uploads", settings),
        builder=builds.Builder(
            home, store.datasets, settings, metrics, parts.build_command, leadership=leadership
        ),
        prediction=_prediction_services(settings, registries, metrics, parts.opener),
        metrics=metrics,
        check_spec=parts.check_spec or _normalise_spec,
        supervisor=parts.supervisor,
        checks=dict(parts.checks),
        preloading=Preloading(settings.preload if role.all_routes else ()),
    )


def _prediction_services(
    settings: Settings, registries: Registries, metrics: Metrics, opener: Opener
) -> PredictionServices:
    """Return the parts that answer predict requests."""
    return PredictionServices(
        settings=settings,
        registries=registries,
        model_cache=ModelCache(
            registries.of,
            metrics,
            settings.models_loaded,
            with_shards(opener, settings),
            tenants=registries.tenants,
            switch_timeout_seconds=constants.SWITCH_TIMEOUT_SECONDS,
            unload_delay_seconds=constants.UNLOAD_DELAY_SECONDS,
        ),
        batcher=Batcher(
            settings.prediction_threads,
            constants.QUEUED_REQUESTS * settings.max_instances,
            constants.PREDICT_BATCH_SECONDS,
        ),
        shadows=ShadowRunner(registries.of, metrics),
        metrics=metrics,
    )


def _create_metrics(settings: Settings, home: Home, store: JobStore) -> Metrics:
    """Return the metrics of an app, which observe the transactions of the store too."""
    metrics = Metrics(StoreCollector(store.statistics.read), DiskCollector(home.path))
    traced = tracing.enable_tracing("xcray")
    observe = metrics.observe_transaction
    store.set_observer(trace_transactions(observe) if traced else observe)
    return metrics


def _build_app(
    app_state: AppState,
    authenticate: Callable[[Request], Awaitable[auth.Caller]],
    lifespan: Any,
    all_routes: bool,
) -> FastAPI:
    """Return the FastAPI app with its routes and middleware; the edge middleware is outermost."""
    settings = app_state.settings
    app = ServiceApp(
        title=TITLE,
        summary=SUMMARY,
        version=__version__,
        openapi_url=None,  # `routes.health` has it
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
        lifespan=lifespan,
    )
    app.state.app_state, app.state.settings = app_state, settings
    app.state.authenticate = authenticate
    if all_routes:
        fast_routes = (*predict.FAST_ROUTES, *inference.FAST_ROUTES)
        app.add_middleware(
            PredictFastPath, routes=fast_routes, batcher=app_state.prediction.batcher
        )
    auditor = Auditor(app_state.store.audit, constants.AUDIT_ENTRIES)
    app.add_middleware(
        AccessMiddleware,
        settings=settings,
        authenticate=authenticate,
        limits=Limiter(settings),
        auditor=auditor,
    )
    if tracing.is_enabled():
        app.add_middleware(TracingMiddleware)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(
        EdgeMiddleware,
        settings=settings,
        metrics=app_state.metrics,
        draining=lambda: app_state.draining,
    )
    problems.install_handlers(app)
    for module in (
        (
            predict,
            batch,
            updates,
            datasets,
            feedback,
            jobs,
            labels,
            models,
            versions,
            comparisons,
            pictures,
            solvers,
            inference,
            keys,
            health,
        )
        if all_routes
        else (health,)
    ):
        # Probes and clients of the Open Inference Protocol may send parameters of their own.
        strict = module not in (inference, health)
        checks = [Depends(refuse_unknown_parameters)] if strict else []
        app.include_router(module.router, dependencies=checks)
    app.include_router(health.pages)
    openapi.install_openapi(app)
    return app


def _normalise_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec as the training will read it. Raises ParameterError with the fix."""
    return TrainSpec.from_dict(spec).as_dict()


def _key_authenticator(
    keys: KeyTable, settings: Settings
) -> Callable[[Request], Awaitable[auth.Caller]]:
    """Return an authenticator that uses the keys of the store."""
    return auth.Authenticator(
        keys, admits_everyone=settings.admits_everyone, grace_seconds=constants.KEYS_GRACE_SECONDS
    )


def _maintenance_loop(
    app_state: AppState, leadership: Leadership, exclusive_home: bool
) -> MaintenanceLoop:
    """Return the maintenance loop, which is active while this process is the leader."""
    settings = app_state.settings
    exclusive_home = exclusive_home and settings.processes == 1 and not settings.has_shared_store
    return MaintenanceLoop(
        app_state.builder,
        app_state.uploads,
        leadership,
        exclusive_home=exclusive_home,
        sweep=retention_of(settings, app_state.home, app_state.store).sweep,
    )


def _lifespan(own_store: bool, maintenance: MaintenanceLoop | None) -> Callable[[FastAPI], Any]:
    """Return the lifespan, which starts and stops the supervisor and background tasks."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app_state: AppState = app.state.app_state
        if maintenance is not None:
            await maintenance.tick()
        tasks = [
            asyncio.create_task(_poll_models(app_state, maintenance), name="poll-models"),
            asyncio.create_task(app_state.readiness.watch(), name="readiness"),
            asyncio.create_task(
                app_state.preloading.load(app_state.prediction.model_cache), name="preload"
            ),
        ]
        if app_state.supervisor is not None:
            app_state.supervisor.start()
        try:
            # A worker process listens after this; until then, others receive its connections.
            if app_state.settings.processes > 1:
                await app_state.preloading.wait_for_first_attempt()
            # The first caller then gets the result of a check, not "unknown".
            await app_state.readiness.refresh(HANG_SECONDS)
            LOGGER.info("started")
            yield
        finally:
            app_state.draining = True
            for task in tasks:
                task.cancel()
            if app_state.supervisor is not None:
                app_state.supervisor.stop()
            await (app_state.builder if maintenance is None else maintenance).close()
            app_state.estimates.close()
            app_state.loads.close()
            app_state.prediction.close()
            if own_store:
                app_state.store.close()
            tracing.disable_tracing()
            LOGGER.info("ended")

    return lifespan


async def _poll_models(app_state: AppState, maintenance: MaintenanceLoop | None) -> None:
    """Run maintenance and poll for changes that other processes of the home made.

    These are deleted models, accepted or deleted data sets, and a vacant leadership.
    """
    for tick in itertools.count():
        started = time.monotonic()
        await asyncio.sleep(TICK_SECONDS)
        app_state.metrics.event_loop_lag.observe(
            max(0.0, time.monotonic() - started - TICK_SECONDS)
        )
        try:
            if maintenance is not None:
                await maintenance.tick()
            if tick % MODEL_POLL_TICKS == 0:
                await asyncio.to_thread(app_state.prediction.model_cache.poll)
                await asyncio.to_thread(
                    app_state.prediction.shadows.flush, app_state.store.counters
                )
        # The next tick tries again.
        except (XcrayError, OSError) as error:
            LOGGER.warning("polling failed", extra={"detail": str(error)})
