"""A short fuzzing run: all targets from a fixed seed, and every input that failed before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.robustness.fuzz.command import NAMES, main
from tests.robustness.fuzz.mutate import Mutator
from tests.robustness.fuzz.shrink import shrunk
from tests.robustness.fuzz.targets import TARGETS, Differs, compared

FOUND = sorted(
    path for path in (Path(__file__).parent / "fuzz" / "found").iterdir() if path.suffix == ".bin"
)


def test_the_command_knows_all_targets() -> None:
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_what_once_failed(path: Path, tmp_path: Path) -> None:
    name = path.stem.rpartition("-")[0]
    assert TARGETS[name].run(path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_some_changes_of_them(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    made = Mutator(7, target.seeds, target.words)
    outcomes = {
        target.run(data, tmp_path) for data in [*target.seeds, *(made() for _ in range(60))]
    }
    assert len(outcomes) > 1


def test_in_a_child_within_limits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = [
        "--engine",
        "random",
        "--executions",
        "300",
        "--target",
        "svmlight",
        "--seed",
        "1",
        "--out",
        str(tmp_path),
    ]
    code = main(asked)
    said = capfd.readouterr().out
    figures = json.loads(said.strip().splitlines()[-1])
    assert (code, figures["crashes"], figures["failures"]) == (0, 0, 0), said
    assert figures["executions"] == 300
    assert figures["targets"][0]["accepted"] > 10


def test_the_same_seed_makes_the_same_inputs() -> None:
    inputs = [
        [made() for _ in range(50)]
        for made in (Mutator(3, [b"1 1:1\n", b"2 2:2\n"], [b"#"]) for _ in range(2))
    ]
    assert inputs[0] == inputs[1]
    assert len(set(inputs[0])) > 25


def test_a_difference_is_seen() -> None:
    with pytest.raises(Differs):
        compared(lambda: [1], lambda: [2], lambda a, b: a == b)


def test_a_failing_input_is_made_small() -> None:
    assert (
        shrunk(
            b"some words " * 40 + b"X" + b"more" * 30 + b"Y",
            lambda data: b"X" in data and b"Y" in data,
        )
        == b"XY"
    )
