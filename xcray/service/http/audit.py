"""Audit log: an entry for every change, with its caller and request, written before the response.

The table maps method and route template to the action name. A route missing from the table is
logged under its method and template, so no change is lost. A test requires a name for each route.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from xcray.errors import XcrayError, excerpt
from xcray.jobs.store.audit import AuditTable
from xcray.service.http.auth import Caller
from xcray.service.observability.request_log import LOGGER, REQUEST_ID

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
READ_ONLY: Final = ""  # action of requests that change nothing
_MODEL: Final = "/v1/models/{name}"
_JOB: Final = "/v1/jobs/{job_id}"
_REPOSITORY: Final = "/v2/repository"
ACTIONS: Final[dict[tuple[str, str], str]] = {
    ("POST", "/v1/uploads"): "upload.create",
    ("POST", "/v1/datasets"): "dataset.create",
    ("DELETE", "/v1/datasets/{dataset_id}"): "dataset.delete",
    ("POST", "/v1/jobs"): "job.submit",
    ("POST", "/v1/models/{reference}:batchPredict"): "job.submit",
    ("POST", "/v1/models/{reference}:update"): "job.submit",
    ("POST", "/v1/models/{reference}/feedback"): "feedback.create",
    ("DELETE", "/v1/models/{reference}/feedback/{id}"): "feedback.delete",
    ("POST", f"{_JOB}/stop"): "job.stop",
    ("POST", f"{_JOB}/resume"): "job.resume",
    ("DELETE", _JOB): "job.delete",
    ("DELETE", _MODEL + "/versions/{version}"): "version.delete",
    ("PUT", _MODEL + "/aliases/{alias}"): "alias.set",
    ("DELETE", _MODEL + "/aliases/{alias}"): "alias.delete",
    ("PUT", _MODEL + "/label-sets/{set}"): "set.put",
    ("DELETE", _MODEL + "/label-sets/{set}"): "set.delete",
    ("POST", "/v1/models/{reference}:load"): "model.load",
    ("POST", "/v1/models/{reference}:unload"): "model.unload",
    ("POST", "/v1/keys"): "key.create",
    ("DELETE", "/v1/keys/{key_id}"): "key.revoke",
    ("POST", _REPOSITORY + "/models/{name}/load"): "model.load",
    ("POST", _REPOSITORY + "/models/{name}/unload"): "model.unload",
    ("POST", _REPOSITORY + "/index"): READ_ONLY,
    ("POST", "/v1/jobs:estimate"): READ_ONLY,
    ("POST", "/v1/models:compare"): READ_ONLY,
    ("POST", "/v1/models/{reference}:predict"): READ_ONLY,
    ("POST", "/v1/models/{reference}:explain"): READ_ONLY,
    ("POST", "/v2/models/{name}/infer"): READ_ONLY,
    ("POST", "/v2/models/{name}/versions/{version}/infer"): READ_ONLY,
}
# Refused anonymous requests that are logged per minute; the others are counted.
MAX_REFUSALS_PER_MINUTE: Final = 10
TRIM_EVERY_ENTRIES: Final = 1000
ANONYMOUS_TENANT: Final = "-"  # tenant of entries without a caller


def action_of(scope: MutableMapping[str, Any]) -> str:
    """Return the action name of a request for the log, READ_ONLY if it changes nothing."""
    template = template_of(scope.get("route"))
    return ACTIONS.get((scope["method"], template), f"{scope['method']} {template}")


def template_of(route: Any) -> str:
    """Return the path template of a route without parameter types: /v1/models/{name}."""
    return str(getattr(route, "path_format", "unmatched"))


class Auditor:
    """Writer of audit entries.

    max_entries: older entries beyond this number are deleted. clock: monotonic, in seconds.
    """

    def __init__(
        self, table: AuditTable, max_entries: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._max_entries = max_entries
        self._clock = clock
        self._entry_numbers = itertools.count(1)
        self._window_started_at = clock()
        self._refusals_in_window = 0

    async def record_change(
        self, scope: MutableMapping[str, Any], caller: Caller, status: int, location: str | None
    ) -> None:
        """Log a completed change, or a change refused to an authenticated caller."""
        action = action_of(scope)
        if action == READ_ONLY or not (200 <= status < 300 or status == 403):
            return
        detail = {"status": status, **scope.get("audited", {})}
        name = f"{action}.refused" if status == 403 else action
        await self._write(
            caller.tenant, caller.key_id, name, excerpt(location or scope["path"]), detail
        )

    async def record_refusal(self, scope: MutableMapping[str, Any], reason: str) -> None:
        """Log that an anonymous caller was refused.

        Only `MAX_REFUSALS_PER_MINUTE` are logged per minute; the next entry has the number of the
        others.
        """
        now = self._clock()
        if now - self._window_started_at >= 60.0:
            self._window_started_at, before, self._refusals_in_window = (
                now,
                self._refusals_in_window,
                0,
            )
        else:
            before = 0
        self._refusals_in_window += 1
        if self._refusals_in_window > MAX_REFUSALS_PER_MINUTE:
            return
        client = scope.get("client")
        detail = {"why": reason, "method": scope["method"], "path": excerpt(scope["path"])}
        detail |= (
            {"unwritten": before - MAX_REFUSALS_PER_MINUTE}
            if before > MAX_REFUSALS_PER_MINUTE
            else {}
        )
        await self._write(
            ANONYMOUS_TENANT,
            None,
            "login.refused",
            client[0] if client else ANONYMOUS_TENANT,
            detail,
        )

    async def _write(
        self, tenant: str, key_id: str | None, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        """Write one entry. If that fails, the change stands and the service log has the entry."""
        try:
            await asyncio.to_thread(
                self._table.record, tenant, key_id, action, subject, detail, REQUEST_ID.get()
            )
            if next(self._entry_numbers) % TRIM_EVERY_ENTRIES == 0:
                await asyncio.to_thread(self._table.trim, self._max_entries)
        except XcrayError as error:
            fields = {
                "tenant": tenant,
                "key": key_id,
                "action": action,
                "subject": subject,
                "detail": error.message,
            }
            LOGGER.error("cannot write an audit entry", extra=fields)
