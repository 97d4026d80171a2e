"""Rows S, X, P and C of the bad-input catalogue: refused files and accepted files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.robustness.badinput.build import refused, understood
from tests.robustness.badinput.case import Bad, Good
from tests.robustness.badinput.families import FAMILIES

REFUSED = [(format, case) for format, family in FAMILIES.items() for case in family.BAD]
READ = [(format, case) for format, family in FAMILIES.items() for case in family.GOOD]


@pytest.mark.parametrize(
    ("format", "case"), REFUSED, ids=[f"{format}-{case.id}" for format, case in REFUSED]
)
def test_refused(format: str, case: Bad, tmp_path: Path) -> None:
    refused(format, case, tmp_path)


@pytest.mark.parametrize(
    ("format", "case"), READ, ids=[f"{format}-{case.id}" for format, case in READ]
)
def test_read(format: str, case: Good, tmp_path: Path) -> None:
    understood(format, case, tmp_path)
