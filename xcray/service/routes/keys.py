"""API keys and the audit log, for callers with the scope admin."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from xcray.jobs.job import format_utc
from xcray.jobs.store.keys import Key
from xcray.jobs.store.tokens import SCOPES, check_limits, check_scopes, create_token
from xcray.service.app_state import app_state_of
from xcray.service.http.auth import Admin, Authenticator, Caller
from xcray.service.http.body import json_body, openapi_body
from xcray.service.schemas.keys import AuditPage, KeyPage, KeyRequest, KeyView, Me, NewKey
from xcray.storage.atomic import check_name

router = APIRouter(prefix="/v1", tags=["operations"])

KeyId = Annotated[str, Path(max_length=64)]
TenantName = Annotated[str | None, Query(max_length=64, description="Only entries of this tenant.")]


@router.get("/me")
def me(request: Request) -> Me:
    """Return what the caller can do: its tenant, its key and its scopes. Needs no scope."""
    caller: Caller = request.scope["caller"]
    scopes = [scope for scope in SCOPES if caller.has_scope(scope)]
    return Me(tenant=caller.tenant, key_id=caller.key_id, scopes=scopes)


@router.post("/keys", status_code=201, openapi_extra=openapi_body(KeyRequest))
def create(
    request: Request,
    response: Response,
    caller: Admin,
    body: Annotated[KeyRequest, Depends(json_body(KeyRequest))],
) -> NewKey:
    """Create a key. Its secret is only in this reply. After the first, every request needs one."""
    token = create_token()
    expires = None if body.expires_seconds is None else time.time() + body.expires_seconds
    key = app_state_of(request).store.keys.add(
        body.tenant,
        body.name,
        check_scopes(body.scopes),
        token.digest,
        key_id=token.key_id,
        expires=expires,
        limits=check_limits(body.limits),
    )
    if isinstance(authenticate := request.app.state.authenticate, Authenticator):
        authenticate.note_key()
    response.headers["Location"] = f"/v1/keys/{key.id}"
    request.scope["audited"] = {"of": key.tenant, "scopes": list(key.scopes)}
    return NewKey(**_key_fields(key), key=token.token)


@router.get("/keys")
def index(request: Request, caller: Admin, tenant: TenantName = None) -> KeyPage:
    """List all keys, including revoked and expired ones, without their secrets."""
    keys = app_state_of(request).store.keys.list_all(None if tenant is None else check_name(tenant))
    return KeyPage(keys=[KeyView(**_key_fields(key)) for key in keys])


@router.delete("/keys/{key_id}", status_code=204)
def revoke(request: Request, caller: Admin, key_id: KeyId) -> None:
    """Revoke a key. All processes stop accepting it within five seconds. The call is idempotent."""
    app_state_of(request).store.keys.revoke(key_id)


@router.get("/audit")
def audit(
    request: Request,
    caller: Admin,
    tenant: TenantName = None,
    action: Annotated[
        str | None, Query(max_length=64, description="Only this action, for example job.submit.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    page_token: Annotated[str | None, Query(max_length=256)] = None,
) -> AuditPage:
    """List audit entries (who changed what), newest first."""
    tenant_name = None if tenant is None else check_name(tenant)
    entries, token = app_state_of(request).store.audit.list_page(
        tenant_name, action=action, limit=limit, page_token=page_token
    )
    return AuditPage(entries=entries, next_page_token=token)


def _key_fields(key: Key) -> dict[str, Any]:
    """Return the fields of `KeyView`, without the digest."""
    fields = {
        name: getattr(key, name)
        for name in KeyView.model_fields
        if name not in ("expires", "scopes")
    }
    return {
        **fields,
        "scopes": list(key.scopes),
        "expires": None if key.expires is None else format_utc(key.expires),
    }
