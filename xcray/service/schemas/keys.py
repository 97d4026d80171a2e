"""Keys and the audit log."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from xcray.service.schemas.base import MOST_SECONDS, Name, Strict, View


class KeyRequest(Strict):
    """A key to make. Only admin may."""

    name: str = Field(min_length=1, max_length=128, description="What people know it by.")
    scopes: list[Literal["read", "predict", "submit", "admin"]] = Field(min_length=1, max_length=4)
    tenant: Name = Field("default", description="Whose things it opens.")
    expires_seconds: float | None = Field(
        None, gt=0, le=10 * MOST_SECONDS, description="How long it is good; None: until revoked."
    )
    limits: dict[str, int] = Field(
        default_factory=dict,
        max_length=5,
        description="max_running, max_queued, requests_per_minute, instances_per_minute, upload_bytes; each may be left out.",
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


class NewKey(KeyView):
    """A key just made. `key` is told this once and kept nowhere."""

    key: str


class KeyPage(View):
    """In order of making."""

    keys: list[KeyView]


class AuditView(View):
    """One thing that somebody did. `subject` is what it was done to."""

    seq: int
    time: str
    tenant: str
    key_id: str | None
    action: str
    subject: str
    detail: dict[str, Any]
    request_id: str | None


class AuditPage(View):
    """Newest first."""

    entries: list[AuditView]
    next_page_token: str | None
