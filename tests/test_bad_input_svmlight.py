"""Rows S1 to S47 and X1 to X16 of the bad-input catalogue: what is refused and with which words, and what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from badinput import svmlight, xc
from badinput.build import refused, understood
from badinput.case import Bad, Good

REFUSED = [("svmlight", case) for case in svmlight.BAD] + [("xc", case) for case in xc.BAD]
READ = [("svmlight", case) for case in svmlight.GOOD] + [("xc", case) for case in xc.GOOD]


@pytest.mark.parametrize(("format", "case"), REFUSED, ids=[f"{format}-{case.id}" for format, case in REFUSED])
def test_refused(format: str, case: Bad, tmp_path: Path) -> None:
    refused(format, case, tmp_path)


@pytest.mark.parametrize(("format", "case"), READ, ids=[f"{format}-{case.id}" for format, case in READ])
def test_read(format: str, case: Good, tmp_path: Path) -> None:
    understood(format, case, tmp_path)
