"""Rows C1 to C20 of the bad-input catalogue, and JSON lines: what is refused and with which words, and what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from badinput import json_lines, tables
from badinput.build import refused, understood
from badinput.case import Bad, Good

REFUSED = [("csv", case) for case in tables.BAD] + [("jsonl", case) for case in json_lines.BAD]
READ = [("csv", case) for case in tables.GOOD] + [("jsonl", case) for case in json_lines.GOOD]


@pytest.mark.parametrize(("format", "case"), REFUSED, ids=[f"{format}-{case.id}" for format, case in REFUSED])
def test_refused(format: str, case: Bad, tmp_path: Path) -> None:
    refused(format, case, tmp_path)


@pytest.mark.parametrize(("format", "case"), READ, ids=[f"{format}-{case.id}" for format, case in READ])
def test_read(format: str, case: Good, tmp_path: Path) -> None:
    understood(format, case, tmp_path)
