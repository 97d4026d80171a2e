"""Models: versions that never change, aliases that move, sets of labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from xcray.errors import Corrupt, NotFound, ParameterError
from xcray.model.card import card as card_of
from xcray.model.directory import read_manifest
from xcray.model.label_sets import LabelSet
from xcray.model.model import Model
from xcray.model.registry import ModelVersion, Registry
from xcray.model.traffic_split import Route, Share
from xcray.predict.labels import unknown
from xcray.service.app_state import Rooms, rooms_of
from xcray.service.http.auth import ModelReader, Reader, Submitter
from xcray.service.http.body import described, json_body
from xcray.service.http.etags import (
    NOT_MODIFIED,
    IfMatch,
    IfNoneMatch,
    expect,
    reply,
    tag_of,
    written,
)
from xcray.service.prediction.shadow import Pair, figures
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

router = APIRouter(prefix="/v1/models", tags=["models"])

SETTLED = "."  # in the ETag of a model: what stands before it is the same in every process
_CARD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}
}


@router.get("", response_model=ModelPage, responses=NOT_MODIFIED)
def index(request: Request, caller: ModelReader, if_none_match: IfNoneMatch = None) -> Response:
    """All models, by name."""
    rooms = rooms_of(request)
    return reply(
        request,
        ModelPage(
            models=[
                _model(rooms, caller.tenant, name)
                for name in rooms.registry_of(caller.tenant).names()
            ]
        ),
    )


@router.get("/{name:modelname}", response_model=ModelView, responses=NOT_MODIFIED)
def show(
    request: Request, caller: ModelReader, name: str, if_none_match: IfNoneMatch = None
) -> Response:
    """One model: versions and aliases."""
    view = _model(rooms_of(request), caller.tenant, name)
    return reply(request, view, _etag(view))


@router.get(
    "/{name:modelname}/versions/{version:int}", response_model=VersionView, responses=NOT_MODIFIED
)
def show_version(
    request: Request,
    caller: ModelReader,
    name: str,
    version: int,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """One version: sizes, measures, where it came from."""
    return reply(
        request, _version(rooms_of(request).registry_of(caller.tenant).describe(name, version))
    )


@router.get(
    "/{name:modelname}/versions/{version:int}/card",
    responses={**_CARD, **NOT_MODIFIED},
    response_class=PlainTextResponse,
)
def card(
    request: Request,
    caller: ModelReader,
    name: str,
    version: int,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The model card, in Markdown."""
    path = rooms_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    return reply(
        request, card_of(read_manifest(path)).encode(), media_type="text/markdown; charset=utf-8"
    )


@router.delete("/{name:modelname}/versions/{version:int}", status_code=204)
def delete_version(
    request: Request, caller: Submitter, name: str, version: int, if_match: IfMatch = None
) -> None:
    """Delete a version that no alias names; its number is not used again."""
    rooms = rooms_of(request)
    with _as_seen(request, caller.tenant, name):
        rooms.registry_of(caller.tenant).delete(name, version)
    rooms.predictors.moved(caller.tenant, name)


@router.put(
    "/{name:modelname}/aliases/{alias:modelname}",
    openapi_extra=described(AliasRequest),
    response_model=ModelView,
)
def set_alias(
    request: Request,
    caller: Submitter,
    name: str,
    alias: str,
    asked: Annotated[AliasRequest, Depends(json_body(AliasRequest))],
    if_match: IfMatch = None,
) -> Response:
    """Lead an alias to a version, or to several by weights, perhaps with a shadow. The next request already sees it; where requests
    use the alias now, the versions are loaded first, and one that can't be is refused."""
    rooms = rooms_of(request)
    route = _route(asked)
    rooms.predictors.prepare(caller.tenant, name, alias, route)
    with _as_seen(request, caller.tenant, name):
        rooms.registry_of(caller.tenant).set_route(name, alias, route)
    rooms.predictors.moved(caller.tenant, name)
    view = _model(rooms, caller.tenant, name)
    return reply(request, view, _etag(view))


@router.get("/{name:modelname}/aliases/{alias:modelname}/shadow")
def shadow(request: Request, caller: Reader, name: str, alias: str) -> ShadowView:
    """The shadow of an alias: how often it agreed with who answered, and how long both took."""
    rooms = rooms_of(request)
    _, route = rooms.registry_of(caller.tenant).route(f"{name}@{alias}")
    rooms.shadows.flush(rooms.store)
    found = figures(rooms.store, caller.tenant, f"{name}@{alias}")
    pairs = [
        _pair(pair, sums)
        for pair, sums in sorted(
            found.items(), key=lambda each: (-each[0].shadow, -each[0].answered)
        )
    ]
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
def delete_alias(
    request: Request, caller: Submitter, name: str, alias: str, if_match: IfMatch = None
) -> None:
    """Remove an alias; the version stays."""
    rooms = rooms_of(request)
    with _as_seen(request, caller.tenant, name):
        rooms.registry_of(caller.tenant).delete_alias(name, alias)
    rooms.predictors.moved(caller.tenant, name)


@router.get("/{name:modelname}/sets", response_model=SetPage, responses=NOT_MODIFIED)
def sets(
    request: Request, caller: ModelReader, name: str, if_none_match: IfNoneMatch = None
) -> Response:
    """The sets of labels that requests may name as set:NAME in allow and deny lists."""
    registry = rooms_of(request).registry_of(caller.tenant)
    found = registry.sets(_known(registry, name))
    return reply(request, SetPage(sets=[_summary(found.get(one)) for one in found.names()]))


@router.get(
    "/{name:modelname}/sets/{set:modelname}", response_model=SetView, responses=NOT_MODIFIED
)
def show_set(
    request: Request,
    caller: ModelReader,
    name: str,
    set: str,
    version: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """One set, and which of its labels a version lacks."""
    return reply(request, _set(rooms_of(request).registry_of(caller.tenant), name, set, version))


@router.put(
    "/{name:modelname}/sets/{set:modelname}",
    openapi_extra=described(SetRequest),
    response_model=SetView,
)
def put_set(
    request: Request,
    caller: Submitter,
    name: str,
    set: str,
    asked: Annotated[SetRequest, Depends(json_body(SetRequest, "predict_body_bytes"))],
    if_match: IfMatch = None,
) -> Response:
    """Keep labels under a name; the next request already sees them, whatever version it asks."""
    registry = rooms_of(request).registry_of(caller.tenant)
    with _as_seen(request, caller.tenant, name, set):
        registry.sets(_known(registry, name)).put(set, asked.labels)
    return reply(request, _set(registry, name, set, None))


@router.delete("/{name:modelname}/sets/{set:modelname}", status_code=204)
def delete_set(
    request: Request, caller: Submitter, name: str, set: str, if_match: IfMatch = None
) -> None:
    """Remove a set; requests that name it are then refused."""
    with _as_seen(request, caller.tenant, name, set):
        rooms_of(request).registry_of(caller.tenant).sets(name).delete(set)


@contextmanager
def _as_seen(request: Request, tenant: str, name: str, set: str | None = None) -> Iterator[None]:
    """Change a model, or one of its sets, as the caller saw it, when an If-Match says so. Raises Changed."""
    if "if-match" not in request.headers:
        yield
        return
    rooms = rooms_of(request)
    registry = rooms.registry_of(tenant)
    with registry.changing(name):
        if set is None:
            expect(request, _etag(_model(rooms, tenant, name)), part=SETTLED)
        else:
            expect(request, tag_of(written(_set(registry, name, set, None))))
        yield


def _etag(view: ModelView) -> str:
    """Of what is the same in every process; and behind that of what this process holds, which no change depends on."""
    settled = tag_of(written(view.model_copy(update={"states": []})))
    return f"{settled[:-1]}{SETTLED}{tag_of(written(view))[1:]}"


def _known(registry: Registry, name: str) -> str:
    """A name that has a version."""
    if not registry.versions(name):
        raise NotFound(
            f"there is no model {name!r}; there are: {', '.join(registry.names()) or 'none'}"
        )
    return name


def _set(registry: Registry, name: str, set: str, version: int | None) -> SetView:
    """A set beside the labels of a version."""
    _, number = registry.locate(name if version is None else f"{name}:{version}")
    found = registry.sets(name).get(set)
    model = Model.open(registry.resolve(f"{name}:{number}"), verify=False)
    told = _summary(found).model_dump()
    return SetView(
        **told, labels=list(found.labels), version=number, unknown=unknown(model, found.labels)
    )


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
        raise ParameterError(
            "name where the alias leads: version, or split; one of them", code="SPLIT"
        )
    split = [(share.version, share.weight) for share in asked.split or ()] or [
        (asked.version or 0, 1.0)
    ]
    if asked.shadow is None:
        return Route.of(split)
    return Route.of(
        split,
        (asked.shadow, 1.0)
        if isinstance(asked.shadow, int)
        else (asked.shadow.version, asked.shadow.share),
    )


def _shown(route: Route) -> RouteView:
    """A route."""
    return RouteView(
        split=[ShareView(**share._asdict()) for share in route.split], shadow=_share(route.shadow)
    )


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
    fields = {
        name: getattr(found, name)
        for name in VersionView.model_fields
        if name not in ("n_labels", "n_features", "aliases")
    }
    return VersionView(
        **fields, n_labels=found.shape[0], n_features=found.shape[1], aliases=list(found.aliases)
    )
