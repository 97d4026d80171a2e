"""Keys and the audit log, for admin."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from xcray.jobs.job import utc
from xcray.jobs.store.audit import AuditEntry
from xcray.jobs.store.keys import Key
from xcray.jobs.store.tokens import check_limits, check_scopes, new_token
from xcray.service.app_state import rooms_of
from xcray.service.http.auth import Admin
from xcray.service.http.body import described, json_body
from xcray.service.schemas.keys import AuditPage, AuditView, KeyPage, KeyRequest, KeyView, NewKey
from xcray.storage.atomic import check_name

router = APIRouter(prefix="/v1", tags=["operations"])

KeyId = Annotated[str, Path(max_length=64)]
TenantName = Annotated[str | None, Query(max_length=64, description="Only of this tenant.")]


@router.post("/keys", status_code=201, openapi_extra=described(KeyRequest))
def create(
    request: Request,
    response: Response,
    caller: Admin,
    asked: Annotated[KeyRequest, Depends(json_body(KeyRequest))],
) -> NewKey:
    """Make a key. Its secret is in this reply and nowhere else."""
    made = new_token()
    expires = None if asked.expires_seconds is None else time.time() + asked.expires_seconds
    key = rooms_of(request).store.add_key(
        asked.tenant,
        asked.name,
        check_scopes(asked.scopes),
        made.digest,
        key_id=made.key_id,
        expires=expires,
        limits=check_limits(asked.limits),
    )
    response.headers["Location"] = f"/v1/keys/{key.id}"
    request.scope["audited"] = {"of": key.tenant, "scopes": list(key.scopes)}
    return NewKey(**_shown(key), key=made.token)


@router.get("/keys")
def index(request: Request, caller: Admin, tenant: TenantName = None) -> KeyPage:
    """All keys, also those that are revoked or have expired, without their secrets."""
    keys = rooms_of(request).store.list_keys(None if tenant is None else check_name(tenant))
    return KeyPage(keys=[KeyView(**_shown(key)) for key in keys])


@router.delete("/keys/{key_id}", status_code=204)
def revoke(request: Request, caller: Admin, key_id: KeyId) -> None:
    """Let a key open nothing any more, within five seconds everywhere. Twice is once."""
    rooms_of(request).store.revoke_key(key_id)


@router.get("/audit")
def audit(
    request: Request,
    caller: Admin,
    tenant: TenantName = None,
    action: Annotated[
        str | None, Query(max_length=64, description="Only this action, like job.submit.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> AuditPage:
    """Who changed what, newest first."""
    among = None if tenant is None else check_name(tenant)
    entries, token = rooms_of(request).store.list_audit(
        among, action=action, limit=limit, page_token=page_token
    )
    return AuditPage(entries=[_entry(entry) for entry in entries], next_page_token=token)


def _shown(key: Key) -> dict[str, Any]:
    """A key as admin sees it: no digest."""
    fields = {
        name: getattr(key, name)
        for name in KeyView.model_fields
        if name not in ("expires", "scopes")
    }
    return {
        **fields,
        "scopes": list(key.scopes),
        "expires": None if key.expires is None else utc(key.expires),
    }


def _entry(entry: AuditEntry) -> AuditView:
    """An entry as admin sees it."""
    return AuditView(**{name: getattr(entry, name) for name in AuditView.model_fields})
