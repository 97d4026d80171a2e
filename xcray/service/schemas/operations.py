"""Health and readiness."""

from __future__ import annotations

from typing import Literal

from xcray.service.schemas.base import View


class Health(View):
    """Liveness."""

    status: Literal["ok"]
    version: str | None
