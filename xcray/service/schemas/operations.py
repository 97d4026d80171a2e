"""Health and readiness."""

from __future__ import annotations

from typing import Literal

from xcray.service.schemas.base import View


class Health(View):
    """Alive."""

    status: Literal["ok"]
    version: str | None


class Ready(View):
    """Whether requests are welcome; reason codes when not, and what is missing without which most still works."""

    ready: bool
    reasons: list[str]
    degraded: list[str]
