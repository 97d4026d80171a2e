"""The audit log: every change, who made it and by which request, written before the answer says that it was made.

What a route does is named here by its method and template. One that is named nowhere is written down all the same, under its
method and template, so nothing is forgotten by forgetting this table; a test asks for the name.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from xcray.errors import XcrayError, excerpt
from xcray.jobs.store.job_store import JobStore
from xcray.service.http.auth import Caller
from xcray.service.observability.request_log import LOGGER, REQUEST_ID

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
QUESTION: Final = ""  # changes nothing
_MODEL: Final = "/v1/models/{name}"
_JOB: Final = "/v1/jobs/{job_id}"
_REPOSITORY: Final = "/v2/repository"
ACTIONS: Final[dict[tuple[str, str], str]] = {
    ("POST", "/v1/uploads"): "upload.create",
    ("POST", "/v1/datasets"): "dataset.create",
    ("DELETE", "/v1/datasets/{dataset_id}"): "dataset.delete",
    ("POST", "/v1/jobs"): "job.submit",
    ("POST", "/v1/models/{reference}:batchPredict"): "job.submit",
    ("POST", f"{_JOB}/stop"): "job.stop",
    ("POST", "/v1/jobs:stop"): "job.stop_all",
    ("POST", f"{_JOB}/resume"): "job.resume",
    ("DELETE", _JOB): "job.delete",
    ("DELETE", _MODEL + "/versions/{version}"): "version.delete",
    ("PUT", _MODEL + "/aliases/{alias}"): "alias.set",
    ("DELETE", _MODEL + "/aliases/{alias}"): "alias.delete",
    ("PUT", _MODEL + "/sets/{set}"): "set.put",
    ("DELETE", _MODEL + "/sets/{set}"): "set.delete",
    ("POST", "/v1/models/{reference}:load"): "model.load",
    ("POST", "/v1/models/{reference}:unload"): "model.unload",
    ("POST", "/v1/keys"): "key.create",
    ("DELETE", "/v1/keys/{key_id}"): "key.revoke",
    ("POST", _REPOSITORY + "/models/{name}/load"): "model.load",
    ("POST", _REPOSITORY + "/models/{name}/unload"): "model.unload",
    ("POST", _REPOSITORY + "/index"): QUESTION,
    ("POST", "/v1/models/{reference}:predict"): QUESTION,
    ("POST", "/v1/models/{reference}:explain"): QUESTION,
    ("POST", "/v2/models/{name}/infer"): QUESTION,
    ("POST", "/v2/models/{name}/versions/{version}/infer"): QUESTION,
}
REFUSALS: Final = 10  # of strangers that are written down in a minute; the others are counted
TRIMMED_EVERY: Final = 1000  # entries
NOBODY: Final = "-"  # the tenant of a stranger


def action_of(scope: MutableMapping[str, Any]) -> str:
    """What a request does, as the log names it; QUESTION for what changes nothing."""
    template = template_of(scope.get("route"))
    return ACTIONS.get((scope["method"], template), f"{scope['method']} {template}")


def template_of(route: Any) -> str:
    """The path of a route without the kinds of its parts: /v1/models/{name}."""
    return str(getattr(route, "path_format", "unmatched"))


class Auditor:
    """Writes entries; the oldest of more than `keep` are forgotten. steady: seconds of a clock that never jumps."""

    def __init__(
        self, store: JobStore, keep: int, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._keep = keep
        self._steady = steady
        self._written = itertools.count(1)
        self._window = steady()
        self._refused = 0

    async def changed(
        self, scope: MutableMapping[str, Any], caller: Caller, status: int, location: str | None
    ) -> None:
        """Note that a request was answered: when it was a change and was done, or was refused to a caller who is known."""
        action = action_of(scope)
        if action == QUESTION or not (200 <= status < 300 or status == 403):
            return
        detail = {"status": status, **scope.get("audited", {})}
        name = f"{action}.refused" if status == 403 else action
        await self._write(
            caller.tenant, caller.key_id, name, excerpt(location or scope["path"]), detail
        )

    async def refused(self, scope: MutableMapping[str, Any], why: str) -> None:
        """Note that a stranger was refused; only some of a flood, with how many there were before."""
        now = self._steady()
        if now - self._window >= 60.0:
            self._window, before, self._refused = now, self._refused, 0
        else:
            before = 0
        self._refused += 1
        if self._refused > REFUSALS:
            return
        client = scope.get("client")
        detail = {"why": why, "method": scope["method"], "path": excerpt(scope["path"])}
        detail |= {"unwritten": before - REFUSALS} if before > REFUSALS else {}
        await self._write(NOBODY, None, "login.refused", client[0] if client else NOBODY, detail)

    async def _write(
        self, tenant: str, key_id: str | None, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        """One entry. What was done stays done when it can't be written: then the log of the service has it."""
        try:
            await asyncio.to_thread(
                self._store.record, tenant, key_id, action, subject, detail, REQUEST_ID.get()
            )
            if next(self._written) % TRIMMED_EVERY == 0:
                await asyncio.to_thread(self._store.trim_audit, self._keep)
        except XcrayError as error:
            facts = {
                "tenant": tenant,
                "key": key_id,
                "action": action,
                "subject": subject,
                "detail": error.message,
            }
            LOGGER.error("an audit entry can't be written", extra=facts)
