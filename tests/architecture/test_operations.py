"""The figures of docs/operations.md are those of `xcray plan` as they come out; what it names
exists (`tests/architecture/test_printed.py`).
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.printed import lines
from xcray.cli.main import main
from xcray.training.planning.deployment import size_from_numbers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import sizes  # noqa: E402

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GIB = 1 << 30


def commands() -> list[list[str]]:
    """The commands of the first block that need nothing that is there."""
    found = [
        re.split(r"\s[#>]", line)[0]
        for line in lines(OPERATIONS)
        if line.startswith("xcray plan --")
    ]
    return [shlex.split(line)[1:] for line in found if not {"DIR", "MODEL"} & set(line.split())]


def test_sizes_are_told_as_they_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) == 3
    for words in commands():
        assert main(words) == 0
    capsys.readouterr()


def test_tables_of_sizes_and_prices_are_what_the_formula_says_now() -> None:
    assert sizes.written(OPERATIONS) == OPERATIONS, "run: python docs/sizes.py"
    assert (
        sizes.written(OPERATIONS.replace("| 1,000,000 |", "| 7 |")) == OPERATIONS
    )  # what is wrong is mended
    with pytest.raises(ValueError, match="sizes: prices"):
        sizes.written(OPERATIONS.replace("sizes: prices", "sizes: none"))


def test_prices_are_summed_as_the_formula_says() -> None:
    """The worked example: the last row, by hand."""
    common = sizes.COMMON[-1]
    found = size_from_numbers(common.data, common.wishes)
    (row,) = [line for line in OPERATIONS.splitlines() if line.startswith("| 1,000,000: ")]
    ready, trainings, home = (float(word) for word in row.split("|")[-2].split("+"))
    memory = {name: pod.memory / GIB for name, pod in found.pods.items()}
    cores, held = 2 * 1 + 1 + 2, 2 * memory["api"] + memory["runner"] + memory["head"]
    assert ready == pytest.approx(730 * (cores * 0.04 + held * 0.005), abs=1.0)
    hourly = (
        found.core_hours.value / 0.9 * 0.04
        + memory["worker"] * found.pods["worker"].number * found.hours * 0.005
    )
    assert trainings == pytest.approx(30 * hourly, rel=0.05)
    assert home == pytest.approx(found.home / GIB * 0.10, rel=0.05)
