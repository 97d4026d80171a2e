"""Durations as people write them."""

from __future__ import annotations

import pytest

from xcray.errors import InputError
from xcray.system.units import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604800)]
)
def test_durations_are_read_with_their_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "-1h", "9 days", "2w", "nan", "inf", "d", "1e12"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="write it like 90s, 15m, 2h or 7d") as error:
        parse_seconds(text)
    assert error.value.code == "TIME"
