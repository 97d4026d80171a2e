"""A registry with several versions of one model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.staged_models import staged
from xcray.model.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return three versions of `news`, whose first bias is their number."""
    out = Registry(tmp_path / "registry")
    for number in (1, 2, 3):
        assert out.publish("news", staged(tmp_path / f"staged-{number}", number)) == number
    return out
