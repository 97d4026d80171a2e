"""Models: versions that never change, aliases that move, sets of labels."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import PlainTextResponse

from xcray.errors import Corrupt, NotFound, ParameterError
from xcray.model.card import card as card_of
from xcray.model.directory import read_manifest
from xcray.model.label_sets import LabelSet
from xcray.model.model import Model
from xcray.model.registry import ModelVersion, Registry
from xcray.model.routing import Route, Share
from xcray.predict.labels import unknown
from xcray.service.auth import ModelReader, Reader, Submitter
from xcray.service.body import described, json_body
from xcray.service.schemas import (
    AliasRequest,
    LoadView,
    ModelPage,
    ModelView,
    PairView,
    RouteView,
    SetPage,
    SetRequest,
    SetSummary,
    SetView,
    ShadowView,
    ShareView,
    StateView,
    VersionView,
)
from xcray.service.shadow import Pair, figures
from xcray.service.state import Rooms, rooms_of

router = APIRouter(prefix="/v1/models", tags=["models"])

_CARD: dict[int | str, dict[str, Any]] = {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}


@router.get("")
def index(request: Request, caller: ModelReader) -> ModelPage:
    """All models, by name."""
    rooms = rooms_of(request)
    return ModelPage(models=[_model(rooms, caller.tenant, name) for name in rooms.registry_of(caller.tenant).names()])


@router.get("/{name:modelname}")
def show(request: Request, caller: ModelReader, name: str) -> ModelView:
    """One model: versions and aliases."""
    return _model(rooms_of(request), caller.tenant, name)


@router.get("/{name:modelname}/versions/{version:int}")
def show_version(request: Request, caller: ModelReader, name: str, version: int) -> VersionView:
    """One version: sizes, measures, where it came from."""
    return _version(rooms_of(request).registry_of(caller.tenant).describe(name, version))


@router.get("/{name:modelname}/versions/{version:int}/card", responses=_CARD, response_class=PlainTextResponse)
def card(request: Request, caller: ModelReader, name: str, version: int) -> PlainTextResponse:
    """The model card, in Markdown."""
    path = rooms_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    return PlainTextResponse(card_of(read_manifest(path)), media_type="text/markdown")


@router.delete("/{name:modelname}/versions/{version:int}", status_code=204)
def delete_version(request: Request, caller: Submitter, name: str, version: int) -> None:
    """Delete a version that no alias names; its number is not used again."""
    rooms = rooms_of(request)
    rooms.registry_of(caller.tenant).delete(name, version)
    rooms.predictors.moved(caller.tenant, name)


@router.put("/{name:modelname}/aliases/{alias:modelname}", openapi_extra=described(AliasRequest))
def set_alias(
    request: Request, caller: Submitter, name: str, alias: str, asked: Annotated[AliasRequest, Depends(json_body(AliasRequest))]
) -> ModelView:
    """Lead an alias to a version, or to several by weights, perhaps with a shadow. The next request already sees it; where requests
    use the alias now, the versions are loaded first, and one that can't be is refused."""
    rooms = rooms_of(request)
    route = _route(asked)
    rooms.predictors.prepare(caller.tenant, name, alias, route)
    rooms.registry_of(caller.tenant).set_route(name, alias, route)
    rooms.predictors.moved(caller.tenant, name)
    return _model(rooms, caller.tenant, name)


@router.get("/{name:modelname}/aliases/{alias:modelname}/shadow")
def shadow(request: Request, caller: Reader, name: str, alias: str) -> ShadowView:
    """The shadow of an alias: how often it agreed with who answered, and how long both took."""
    rooms = rooms_of(request)
    _, route = rooms.registry_of(caller.tenant).route(f"{name}@{alias}")
    rooms.shadows.flush(rooms.store)
    found = figures(rooms.store, caller.tenant, f"{name}@{alias}")
    pairs = [_pair(pair, sums) for pair, sums in sorted(found.items(), key=lambda each: (-each[0].shadow, -each[0].answered))]
    return ShadowView(alias=alias, shadow=_share(route.shadow), pairs=pairs)


@router.post("/{reference:modelref}:load")
def load(request: Request, caller: Submitter, reference: str) -> LoadView:
    """Load what a reference (name, name@alias, name:3) means, and hold it in every process, whatever it comes to mean."""
    loaded = rooms_of(request).predictors.load(caller.tenant, reference)
    return LoadView(reference=reference, name=loaded.name, version=loaded.version)


@router.post("/{reference:modelref}:unload", status_code=204)
def unload(request: Request, caller: Submitter, reference: str) -> None:
    """Let go of it in every process; of a bare name all its versions. The next request loads it again."""
    rooms_of(request).predictors.unload(caller.tenant, reference)


@router.delete("/{name:modelname}/aliases/{alias:modelname}", status_code=204)
def delete_alias(request: Request, caller: Submitter, name: str, alias: str) -> None:
    """Remove an alias; the version stays."""
    rooms = rooms_of(request)
    rooms.registry_of(caller.tenant).delete_alias(name, alias)
    rooms.predictors.moved(caller.tenant, name)


@router.get("/{name:modelname}/sets")
def sets(request: Request, caller: ModelReader, name: str) -> SetPage:
    """The sets of labels that requests may name as set:NAME in allow and deny lists."""
    registry = rooms_of(request).registry_of(caller.tenant)
    found = registry.sets(_known(registry, name))
    return SetPage(sets=[_summary(found.get(one)) for one in found.names()])


@router.get("/{name:modelname}/sets/{set:modelname}")
def show_set(
    request: Request, caller: ModelReader, name: str, set: str, version: Annotated[int | None, Query(ge=1)] = None
) -> SetView:
    """One set, and which of its labels a version lacks."""
    return _set(rooms_of(request).registry_of(caller.tenant), name, set, version)


@router.put("/{name:modelname}/sets/{set:modelname}", openapi_extra=described(SetRequest))
def put_set(
    request: Request,
    caller: Submitter,
    name: str,
    set: str,
    asked: Annotated[SetRequest, Depends(json_body(SetRequest, "predict_body_bytes"))],
) -> SetView:
    """Keep labels under a name; the next request already sees them, whatever version it asks."""
    registry = rooms_of(request).registry_of(caller.tenant)
    registry.sets(_known(registry, name)).put(set, asked.labels)
    return _set(registry, name, set, None)


@router.delete("/{name:modelname}/sets/{set:modelname}", status_code=204)
def delete_set(request: Request, caller: Submitter, name: str, set: str) -> None:
    """Remove a set; requests that name it are then refused."""
    rooms_of(request).registry_of(caller.tenant).sets(name).delete(set)


def _known(registry: Registry, name: str) -> str:
    """A name that has a version."""
    if not registry.versions(name):
        raise NotFound(f"there is no model {name!r}; there are: {', '.join(registry.names()) or 'none'}")
    return name


def _set(registry: Registry, name: str, set: str, version: int | None) -> SetView:
    """A set beside the labels of a version."""
    _, number = registry.locate(name if version is None else f"{name}:{version}")
    found = registry.sets(name).get(set)
    model = Model.open(registry.resolve(f"{name}:{number}"), verify=False)
    told = _summary(found).model_dump()
    return SetView(**told, labels=list(found.labels), version=number, unknown=unknown(model, found.labels))


def _summary(found: LabelSet) -> SetSummary:
    """A set in a line."""
    return SetSummary(name=found.name, n_labels=len(found.labels), changed=found.changed)


def _model(rooms: Rooms, tenant: str, name: str) -> ModelView:
    """A name with at least one version; one whose manifest can't be read hinders nobody from seeing the others."""
    registry = rooms.registry_of(tenant)
    versions = registry.versions(_known(registry, name))
    latest = None
    with suppress(Corrupt, OSError):  # `states` says so once somebody has tried to load it
        latest = _version(registry.describe(name, versions[-1]))
    return ModelView(
        name=name,
        versions=versions,
        states=[
            StateView(version=each.version, state=each.state, reason=each.reason or None)
            for each in rooms.predictors.states(tenant, name)
        ],
        aliases=registry.aliases(name),
        splits={alias: _shown(route) for alias, route in registry.routes(name).items()},
        latest=latest,
    )


def _route(asked: AliasRequest) -> Route:
    """The route that a request means. Raises ParameterError."""
    if (asked.version is None) == (asked.split is None):
        raise ParameterError("name where the alias leads: version, or split; one of them", code="SPLIT")
    split = [(share.version, share.weight) for share in asked.split or ()] or [(asked.version or 0, 1.0)]
    if asked.shadow is None:
        return Route.of(split)
    return Route.of(split, (asked.shadow, 1.0) if isinstance(asked.shadow, int) else (asked.shadow.version, asked.shadow.share))


def _shown(route: Route) -> RouteView:
    """A route."""
    return RouteView(split=[ShareView(**share._asdict()) for share in route.split], shadow=_share(route.shadow))


def _share(share: Share | None) -> ShareView | None:
    """A part of a route."""
    return None if share is None else ShareView(**share._asdict())


def _pair(pair: Pair, sums: dict[str, float]) -> PairView:
    """Figures of a shadow beside who answered."""

    def mean(name: str, by: str, times: float = 1.0) -> float | None:
        return times * sums[name] / sums[by] if sums[by] else None

    return PairView(
        answered=pair.answered,
        shadow=pair.shadow,
        top1_agreement=mean("top1", "rows"),
        overlap=mean("overlap", "rows"),
        answer_ms=mean("answer_seconds", "requests", 1e3),
        shadow_ms=mean("shadow_seconds", "requests", 1e3),
        **{name: int(sums[name]) for name in ("requests", "rows", "failed", "dropped")},
    )


def _version(found: ModelVersion) -> VersionView:
    """A version without its path."""
    fields = {name: getattr(found, name) for name in VersionView.model_fields if name not in ("n_labels", "n_features", "aliases")}
    return VersionView(**fields, n_labels=found.shape[0], n_features=found.shape[1], aliases=list(found.aliases))
