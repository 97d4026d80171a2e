"""Models: immutable versions, aliases, and label sets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from xcray.api.model_replies import (
    ModelView,
    RouteView,
    SetSummary,
    SetView,
    ShareView,
    StateView,
    VersionView,
)
from xcray.errors import Corrupt, NotFound
from xcray.model.card import render_card as card_of
from xcray.model.label_sets import StoredLabelSet
from xcray.model.manifest import read_manifest
from xcray.model.model import Model
from xcray.model.registry import ModelVersion, Registry
from xcray.model.traffic_split import TrafficSplit, VersionShare
from xcray.predict.labels import unknown_labels
from xcray.service.app_state import AppState, app_state_of
from xcray.service.http.auth import ModelReader, Reader, Submitter
from xcray.service.http.body import json_body, openapi_body
from xcray.service.http.etags import NOT_MODIFIED, check_if_match, content_etag, reply, to_json
from xcray.service.prediction.shadow import shadow_statistics
from xcray.service.schemas.base import MAX_VERSION
from xcray.service.schemas.models import (
    AliasRequest,
    LoadView,
    ModelPage,
    PairView,
    SetPage,
    SetRequest,
    ShadowView,
)

router = APIRouter(prefix="/v1/models", tags=["models"])

ETAG_SEPARATOR = "."  # in the ETag of a model: the part before it is the same in every process
ModelOrder: TypeAlias = Literal["name", "created", "P@1", "size"]
ORDERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "created": lambda version: version["created"],
    "P@1": lambda version: version["measures"].get("P@1"),
    "size": lambda version: version["n_bytes"],
}
_CARD: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}
}


@router.get("", response_model=ModelPage, responses=NOT_MODIFIED)
def index(
    request: Request,
    caller: ModelReader,
    contains: Annotated[
        str | None, Query(max_length=128, description="Part of the name, in any case.")
    ] = None,
    loaded: Annotated[
        bool, Query(description="Only models with a version in the memory of this process.")
    ] = False,
    sort: Annotated[
        ModelOrder, Query(description="By name, or newest, best (P@1) or largest first.")
    ] = "name",
    limit: Annotated[
        int | None, Query(ge=1, le=1000, description="Default: all models on one page.")
    ] = None,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List models: by name, or by what is known of their latest versions."""
    app_state = app_state_of(request)
    names = app_state.registry_of(caller.tenant).names()
    if contains:
        names = [name for name in names if contains.lower() in name]
    if loaded:
        in_memory = {
            name for name, _ in app_state.prediction.model_cache.loaded_versions(caller.tenant)
        }
        names = [name for name in names if name in in_memory]
    # a token is the last name of a page; in another order than by name it can be gone
    if sort == "name":
        start = bisect_right(names, page_token or "")
    else:
        names = _largest_first(app_state.registry_of(caller.tenant), names, sort)
        start = names.index(page_token) + 1 if page_token in names else 0
    shown = names[start:] if limit is None else names[start : start + limit]
    has_more = start + len(shown) < len(names)
    page = ModelPage(
        models=[*_model_views(app_state, caller.tenant, shown)],
        total=len(names),
        next_page_token=shown[-1] if has_more else None,
    )
    return reply(request, page)


@router.get("/{name:modelname}", response_model=ModelView, responses=NOT_MODIFIED)
def show(request: Request, caller: ModelReader, name: str) -> Response:
    """Return one model with its versions and aliases."""
    view = _model_view(app_state_of(request), caller.tenant, name)
    return reply(request, view, _etag(view))


@router.get(
    "/{name:modelname}/versions/{version:int}", response_model=VersionView, responses=NOT_MODIFIED
)
def show_version(request: Request, caller: ModelReader, name: str, version: int) -> Response:
    """Return one version: sizes, evaluation measures, and provenance."""
    return reply(
        request,
        version_view(app_state_of(request).registry_of(caller.tenant).describe(name, version)),
    )


@router.get(
    "/{name:modelname}/versions/{version:int}/card",
    responses={**_CARD, **NOT_MODIFIED},
    response_class=PlainTextResponse,
)
def card(request: Request, caller: ModelReader, name: str, version: int) -> Response:
    """Return the model card, in Markdown."""
    path = app_state_of(request).registry_of(caller.tenant).resolve(f"{name}:{version}")
    return reply(
        request, card_of(read_manifest(path)).encode(), media_type="text/markdown; charset=utf-8"
    )


@router.delete("/{name:modelname}/versions/{version:int}", status_code=204)
def delete_version(request: Request, caller: Submitter, name: str, version: int) -> None:
    """Delete a version that no alias uses. Its number is not used again."""
    app_state = app_state_of(request)
    with _if_match(request, caller.tenant, name):
        app_state.registry_of(caller.tenant).delete(name, version)
    app_state.prediction.model_cache.refresh_name(caller.tenant, name)


@router.put(
    "/{name:modelname}/aliases/{alias:modelname}",
    openapi_extra=openapi_body(AliasRequest),
    response_model=ModelView,
)
async def set_alias(
    request: Request,
    caller: Submitter,
    name: str,
    alias: str,
    body: Annotated[AliasRequest, Depends(json_body(AliasRequest))],
) -> Response:
    """Set an alias to a version, or to several versions by weight, optionally with a shadow.

    The next request uses the new route. If the alias is in use, its versions are loaded first, and
    a version that can't be loaded is refused.
    """
    app_state = app_state_of(request)

    def work() -> Response:
        route = body.to_split()
        app_state.prediction.model_cache.prepare(caller.tenant, name, alias, route)
        with _if_match(request, caller.tenant, name):
            app_state.registry_of(caller.tenant).aliases.set_split(name, alias, route)
        app_state.prediction.model_cache.refresh_name(caller.tenant, name)
        view = _model_view(app_state, caller.tenant, name)
        return reply(request, view, _etag(view))

    return await app_state.loads.run(caller.tenant, work)


@router.get("/{name:modelname}/aliases/{alias:modelname}/shadow")
def shadow(request: Request, caller: Reader, name: str, alias: str) -> ShadowView:
    """Return how often an alias's shadow agreed with the primary version, and both durations."""
    app_state = app_state_of(request)
    _, route = app_state.registry_of(caller.tenant).resolve_split(f"{name}@{alias}")
    app_state.prediction.shadows.flush(app_state.store.counters)
    statistics = shadow_statistics(app_state.store.counters, caller.tenant, f"{name}@{alias}")
    latest_first = sorted(statistics.items(), key=lambda each: (-each[0].shadow, -each[0].primary))
    pairs = [PairView.of(pair.primary, pair.shadow, sums) for pair, sums in latest_first]
    return ShadowView(alias=alias, shadow=route.shadow and _share_view(route.shadow), pairs=pairs)


@router.post("/{reference:modelref}:load")
async def load(request: Request, caller: Submitter, reference: str) -> LoadView:
    """Load the version of a reference (name, name@alias, name:3), and pin the reference.

    A pinned reference stays loaded in every process, even if it resolves to another version later.
    """
    app_state = app_state_of(request)
    loaded = await app_state.loads.run(
        caller.tenant, lambda: app_state.prediction.model_cache.load(caller.tenant, reference)
    )
    return LoadView(reference=reference, name=loaded.name, version=loaded.version)


@router.post("/{reference:modelref}:unload", status_code=204)
def unload(request: Request, caller: Submitter, reference: str) -> None:
    """Unload a reference in every process; a bare name unloads all its versions.

    The next request loads the version again.
    """
    app_state_of(request).prediction.model_cache.unload(caller.tenant, reference)


@router.delete("/{name:modelname}/aliases/{alias:modelname}", status_code=204)
def delete_alias(request: Request, caller: Submitter, name: str, alias: str) -> None:
    """Delete an alias. The versions stay."""
    app_state = app_state_of(request)
    with _if_match(request, caller.tenant, name):
        app_state.registry_of(caller.tenant).aliases.delete(name, alias)
    app_state.prediction.model_cache.refresh_name(caller.tenant, name)


@router.get("/{name:modelname}/label-sets", response_model=SetPage, responses=NOT_MODIFIED)
def sets(request: Request, caller: ModelReader, name: str) -> Response:
    """List the label sets that requests can use as set:NAME in `allow` and `deny`."""
    registry = app_state_of(request).registry_of(caller.tenant)
    label_sets = registry.label_sets(_require_model(registry, name))
    summaries = [_set_summary(label_sets.get(each)) for each in label_sets.names()]
    return reply(request, SetPage(sets=summaries))


@router.get(
    "/{name:modelname}/label-sets/{set:modelname}", response_model=SetView, responses=NOT_MODIFIED
)
def show_set(
    request: Request,
    caller: ModelReader,
    name: str,
    set: str,
    version: Annotated[int | None, Query(ge=1, le=MAX_VERSION)] = None,
) -> Response:
    """Return one label set, and those of its labels that a version does not have."""
    return reply(
        request, _set_view(app_state_of(request).registry_of(caller.tenant), name, set, version)
    )


@router.put(
    "/{name:modelname}/label-sets/{set:modelname}",
    openapi_extra=openapi_body(SetRequest),
    response_model=SetView,
)
def put_set(
    request: Request,
    caller: Submitter,
    name: str,
    set: str,
    body: Annotated[SetRequest, Depends(json_body(SetRequest, for_predictions=True))],
) -> Response:
    """Store labels as a named set. The next request uses it, with every version."""
    registry = app_state_of(request).registry_of(caller.tenant)
    with _if_match(request, caller.tenant, name, set):
        registry.label_sets(_require_model(registry, name)).put(set, body.labels)
    return reply(request, _set_view(registry, name, set, None))


@router.delete("/{name:modelname}/label-sets/{set:modelname}", status_code=204)
def delete_set(request: Request, caller: Submitter, name: str, set: str) -> None:
    """Delete a label set; later requests that use it are refused."""
    with _if_match(request, caller.tenant, name, set):
        app_state_of(request).registry_of(caller.tenant).label_sets(name).delete(set)


@contextmanager
def _if_match(request: Request, tenant: str, name: str, set: str | None = None) -> Iterator[None]:
    """Change a model or label set only if it matches the If-Match header. Raises Changed."""
    if "if-match" not in request.headers:
        yield
        return
    app_state = app_state_of(request)
    registry = app_state.registry_of(tenant)
    with registry.locked(name):
        if set is None:
            check_if_match(
                request, _etag(_model_view(app_state, tenant, name)), separator=ETAG_SEPARATOR
            )
        else:
            check_if_match(request, content_etag(to_json(_set_view(registry, name, set, None))))
        yield


def _etag(view: ModelView) -> str:
    """Return the ETag of a model: a part that is equal in all processes, and one of this process.

    Preconditions compare only the first part.
    """
    shared_part = content_etag(to_json({**view, "states": []}))
    return f"{shared_part[:-1]}{ETAG_SEPARATOR}{content_etag(to_json(view))[1:]}"


def _largest_first(registry: Registry, names: list[str], order: ModelOrder) -> list[str]:
    """Return names by their latest versions. Models that cannot be read, or have no P@1, are last.

    Equal ones are in order of their names.
    """
    values: dict[str, Any] = {}
    for name in names:
        with suppress(Corrupt, NotFound, OSError):
            recorded = registry.recorded(name, registry.latest_number(name) or 0)
            values[name] = ORDERS[order](recorded)
    known = [name for name in names if values.get(name) is not None]
    unknown = [name for name in names if values.get(name) is None]
    return sorted(known, key=values.__getitem__, reverse=True) + unknown


def _latest(registry: Registry, name: str, versions: Sequence[int]) -> VersionView | None:
    """Return the newest version; None if its manifest cannot be read, or was deleted meanwhile.

    One corrupt version then does not hide the others; `states` has its reason after the first
    attempt to load it.
    """
    with suppress(Corrupt, NotFound, OSError):
        return version_view(registry.describe(name, versions[-1])) if versions else None
    return None


def _require_model(registry: Registry, name: str) -> str:
    """Return a name after checking that it has a version. Raises NotFound."""
    if not registry.versions(name):
        raise registry.unknown_model(name)
    return name


def _set_view(registry: Registry, name: str, set: str, version: int | None) -> SetView:
    """Return a label set with the labels that a version does not have."""
    _, number = registry.resolve_version(name if version is None else f"{name}:{version}")
    label_set = registry.label_sets(name).get(set)
    model = Model.open(registry.resolve(f"{name}:{number}"), verify=False)
    return {
        **_set_summary(label_set),
        "labels": list(label_set.labels),
        "version": number,
        "unknown": unknown_labels(model, label_set.labels),
    }


def _set_summary(label_set: StoredLabelSet) -> SetSummary:
    """Return the summary of a label set."""
    return SetSummary(
        name=label_set.name, n_labels=len(label_set.labels), changed=label_set.changed
    )


def _model_views(app_state: AppState, tenant: str, names: list[str]) -> Iterator[ModelView]:
    """Yield models without those that were deleted meanwhile."""
    for name in names:
        with suppress(NotFound):
            yield _model_view(app_state, tenant, name)


def _model_view(app_state: AppState, tenant: str, name: str) -> ModelView:
    """Return a model with at least one version."""
    registry = app_state.registry_of(tenant)
    versions = registry.versions(_require_model(registry, name))
    return ModelView(
        name=name,
        versions=versions,
        states=[
            StateView(version=each.version, state=each.state, reason=each.reason or None)
            for each in app_state.prediction.model_cache.states(tenant, name)
        ],
        aliases=registry.aliases.of(name),
        splits={
            alias: _route_view(route) for alias, route in registry.aliases.splits(name).items()
        },
        latest=_latest(registry, name, versions),
    )


def _route_view(route: TrafficSplit) -> RouteView:
    """Return a route as a view."""
    return RouteView(
        split=[_share_view(share) for share in route.shares],
        shadow=route.shadow and _share_view(route.shadow),
    )


def _share_view(share: VersionShare) -> ShareView:
    """Return a traffic share as a view."""
    return ShareView(version=share.version, weight=share.weight)


def version_view(version: ModelVersion) -> VersionView:
    """Return a version as a view, without its path."""
    fields = {
        name: getattr(version, name)
        for name in VersionView.__annotations__
        if name not in ("n_labels", "n_features", "aliases")
    }
    sizes = {"n_labels": version.shape[0], "n_features": version.shape[1]}
    return cast(VersionView, {**fields, **sizes, "aliases": list(version.aliases)})
