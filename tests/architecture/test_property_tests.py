"""Property tests have the same examples in each process, whatever it ran before."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st


def drawn() -> list[int]:
    """Return the examples of a property of integers."""
    values = list[int]()

    @given(st.integers())
    def note(value: int) -> None:
        values.append(value)

    note()
    return values


def test_examples_do_not_depend_on_imported_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    module = ModuleType("numbers_of_a_user")
    module.__file__ = str(tmp_path / "numbers_of_a_user.py")
    Path(module.__file__).write_text(f"NUMBERS = {[*range(1_000_000, 1_000_500)]}\n")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == before
