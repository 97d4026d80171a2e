"""Models: versions that never change, aliases that move, sets of labels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import PlainTextResponse

from xcray.errors import NotFound
from xcray.model.card import card as card_of
from xcray.model.directory import read_manifest
from xcray.model.label_sets import LabelSet
from xcray.model.model import Model
from xcray.model.registry import ModelVersion, Registry
from xcray.predict.labels import unknown
from xcray.service.auth import Reader, Submitter
from xcray.service.body import described, json_body
from xcray.service.schemas import AliasRequest, ModelPage, ModelView, SetPage, SetRequest, SetSummary, SetView, VersionView
from xcray.service.state import rooms_of

router = APIRouter(prefix="/v1/models", tags=["models"])

_CARD: dict[int | str, dict[str, Any]] = {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}


@router.get("")
def index(request: Request, caller: Reader) -> ModelPage:
    """All models, by name."""
    registry = rooms_of(request).registry_of(caller.tenant)
    return ModelPage(models=[_model(registry, name) for name in registry.names()])


@router.get("/{name:modelname}")
def show(request: Request, caller: Reader, name: str) -> ModelView:
    """One model: versions and aliases."""
    return _model(rooms_of(request).registry_of(caller.tenant), name)


@router.get("/{name:modelname}/versions/{version:int}")
def show_version(request: Request, caller: Reader, name: str, version: int) -> VersionView:
    """One version: sizes, measures, where it came from."""
    return _version(rooms_of(request).registry_of(caller.tenant).describe(name, version))


@router.get("/{name:modelname}/versions/{version:int}/card", responses=_CARD, response_class=PlainTextResponse)
def card(request: Request, caller: Reader, name: str, version: int) -> PlainTextResponse:
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
    """Point an alias at a version; the next request already sees it."""
    registry = rooms_of(request).registry_of(caller.tenant)
    registry.set_alias(name, alias, asked.version)
    return _model(registry, name)


@router.delete("/{name:modelname}/aliases/{alias:modelname}", status_code=204)
def delete_alias(request: Request, caller: Submitter, name: str, alias: str) -> None:
    """Remove an alias; the version stays."""
    rooms_of(request).registry_of(caller.tenant).delete_alias(name, alias)


@router.get("/{name:modelname}/sets")
def sets(request: Request, caller: Reader, name: str) -> SetPage:
    """The sets of labels that requests may name as set:NAME in allow and deny lists."""
    registry = rooms_of(request).registry_of(caller.tenant)
    found = registry.sets(_known(registry, name))
    return SetPage(sets=[_summary(found.get(one)) for one in found.names()])


@router.get("/{name:modelname}/sets/{set:modelname}")
def show_set(request: Request, caller: Reader, name: str, set: str, version: Annotated[int | None, Query(ge=1)] = None) -> SetView:
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


def _model(registry: Registry, name: str) -> ModelView:
    """A name with at least one version."""
    versions = registry.versions(_known(registry, name))
    latest = _version(registry.describe(name, versions[-1]))
    return ModelView(name=name, versions=versions, aliases=registry.aliases(name), latest=latest)


def _version(found: ModelVersion) -> VersionView:
    """A version without its path."""
    fields = {name: getattr(found, name) for name in VersionView.model_fields if name not in ("n_labels", "n_features", "aliases")}
    return VersionView(**fields, n_labels=found.shape[0], n_features=found.shape[1], aliases=list(found.aliases))
