"""API keys and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from xcray.jobs.store.audit import AuditEntry
from xcray.jobs.store.tokens import MAX_LIMIT, KeyLimits
from xcray.service.schemas.base import MAX_SECONDS, WHOLE, Name, Strict, View


class KeyRequest(Strict):
    """A key to create. Requires the scope admin."""

    name: str = Field(min_length=1, max_length=128, description="A display name.")
    scopes: list[Literal["read", "predict", "submit", "metrics", "admin"]] = Field(
        min_length=1, max_length=5
    )
    tenant: Name = Field("default", description="Tenant that the key gives access to.")
    expires_seconds: float | None = Field(
        None,
        gt=0,
        le=10 * MAX_SECONDS,
        description="Validity in seconds. Default: valid until revoked.",
    )
    limits: dict[str, Annotated[int, WHOLE]] = Field(
        default_factory=dict,
        max_length=5,
        json_schema_extra={
            "propertyNames": {"enum": list(KeyLimits._fields)},
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": MAX_LIMIT},
        },
        description="Optional limits: max_running, max_queued, requests_per_minute, "
        "instances_per_minute, upload_bytes.",
    )


class KeyView(View):
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None
    limits: dict[str, int]


class Me(View):
    """The caller: its tenant, the id of its key (null without one), and all scopes that it has.

    Scopes that others imply are listed, too.
    """

    tenant: str
    key_id: str | None
    scopes: list[str]


class NewKey(KeyView):
    """A new key. The secret `key` is shown only once and not stored."""

    key: str


class KeyPage(View):
    """All keys, in order of creation."""

    keys: list[KeyView]


class AuditPage(View):
    """A page of audit entries, newest first."""

    entries: list[AuditEntry]
    next_page_token: str | None
