"""docs/operations.md holds what it says: commands and options that exist, settings that exist, alerts that exist, figures of
`xcray size` as they come out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from xcray.cli.main import app, main
from xcray.service.settings import Settings
from xcray.train.sizing import Data, Wishes, size

ROOT = Path(__file__).parent.parent
PAGES = ["operations.md", "store.md", "security.md", "kubernetes.md", "training.md", "serving.md", "observing.md"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
COMMANDS = typer.main.get_command(app)
GIB = 1 << 30


def quoted(text: str) -> list[str]:
    """The xcray commands of a page: of its indented or fenced blocks, and those in backticks."""
    text = text.replace("\\\n", " ")  # a command goes on on the next line
    blocks = [line.strip() for line in text.splitlines() if line.startswith(("    ", "xcray "))]
    found = [line for line in blocks if line.startswith("xcray ")]
    return [*found, *re.findall(r"`(xcray [^`]+)`", text)]


def faults(command: str) -> list[str]:
    """What of a command line does not exist."""
    line = re.split(r"\s#|\s[|&>;]|&&|…", command)[0].replace("...", "")
    words = shlex.split(line)[1:]
    at: Any = COMMANDS
    while hasattr(at, "commands"):
        names = [word for word in words if not word.startswith("-")]
        if not names:
            return []
        if names[0] not in at.commands:
            return [f"{command}: there is no {names[0]}"]
        at, words = at.commands[names[0]], words[words.index(names[0]) + 1 :]
    known = {option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "-h"}
    given = [word.split("=")[0] for word in words if re.fullmatch(r"--?[a-zA-Z][a-z-]*(=.*)?", word)]
    return [f"{command}: no option {option}" for option in given if option not in known]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_a_page_quotes_exists(page: str) -> None:
    commands = quoted((ROOT / "docs" / page).read_text())
    assert [fault for command in commands for fault in faults(command)] == []
    assert commands or page not in ("operations.md", "store.md", "security.md")


def test_the_check_finds_what_is_wrong() -> None:
    assert faults("xcray store bakcup x")
    assert faults("xcray store backup x --nothing")
    assert faults("xcray nothing")
    assert not faults("xcray store backup /x/y.db --replace   # a word --of --comment")


def test_every_setting_that_is_named_exists() -> None:
    named = {name.removeprefix("XCRAY_").lower() for name in re.findall(r"XCRAY_[A-Z_]+", OPERATIONS)}
    assert named - set(Settings.model_fields) == set()


def test_every_alert_that_is_named_exists() -> None:
    rules = yaml.safe_load((ROOT / "helm" / "xcray" / "monitoring" / "rules.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    named = set(re.findall(r"\b(?:Xcray|Ray)[A-Z][A-Za-z]+\b", OPERATIONS))
    assert named
    assert named - alerts == set()
    assert {f"alerts.md#{alert.lower()}" for alert in alerts} >= set(re.findall(r"alerts\.md#\w+", OPERATIONS))


def sizes() -> list[list[str]]:
    """The commands of the first block."""
    return [
        shlex.split(re.split(r"\s[#>]", command)[0])[1:] for command in quoted(OPERATIONS) if command.startswith("xcray size --")
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
