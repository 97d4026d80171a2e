"""The figures of docs/operations.md are those of `xcray size` as they come out; what it names exists (`tests/test_printed.py`)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from printed import lines

from xcray.cli.main import main
from xcray.train.sizing import Data, Wishes, size

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
GIB = 1 << 30


def sizes() -> list[list[str]]:
    """The commands of the first block."""
    return [
        shlex.split(re.split(r"\s[#>]", command)[0])[1:] for command in lines(OPERATIONS) if command.startswith("xcray size --")
    ]


def test_sizes_are_told_as_they_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(sizes()) == 3
    for words in sizes():
        assert main(words) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("data", "wishes"),
    [
        (Data(20_000, 20_000, 1000, 1_000_000), Wishes(cluster=False)),
        (Data(100_000, 100_000, 10_000, 8_000_000), Wishes()),
        (Data(500_000, 500_000, 100_000, 40_000_000), Wishes(cores=8)),
        (Data(2_000_000, 1_000_000, 1_000_000, 200_000_000, 5.0), Wishes(cores=16, hours=4.0)),
    ],
)
def test_the_table_of_sizes_is_what_comes_out(data: Data, wishes: Wishes) -> None:
    found = size(data, wishes)
    (row,) = [line for line in OPERATIONS.splitlines() if line.startswith(f"| {data.labels:,} |") and " x " in line]
    for pod in found.pods.values():
        assert f"{pod.memory / GIB:.1f}" in row
    assert f"({found.pods['api'].limit / GIB:.1f})" in row
    home = found.home / GIB
    assert f"| {home:.1f} GiB" in row or f"| {home:.0f} GiB" in row
    told = float(row.split("|")[-2].split("(")[0].strip())
    assert found.core_hours == pytest.approx(told, rel=0.5 if told < 0.01 else 0.2)


def test_prices_are_summed_as_the_formula_says() -> None:
    """The worked example, from the table of sizes."""
    core, gib, month = 0.04, 0.005, 0.10
    ready = {"1,000": (4, 0.7), "10,000": (5, 5.0), "100,000": (5, 7.9), "1,000,000": (5, 35.0)}
    part = OPERATIONS[OPERATIONS.index("## What it costs") :]
    for labels, (cores, memory) in ready.items():
        row = next(line for line in part.splitlines() if line.startswith(f"| {labels} |"))
        assert f"{cores} cores, {memory:g}" in row or f"{cores} cores, {memory:.1f}" in row
        told = [float(number) for number in row.split("|")[-2].split("+")]
        assert told[0] == pytest.approx(730 * (cores * core + memory * gib), abs=1.0)
        if labels == "1,000,000":
            assert told[1] == pytest.approx(30 * (31 / 0.9 * core + 10.9 * 2.2 * gib), rel=0.05)
            assert told[2] == pytest.approx(62 * month, abs=0.5)
